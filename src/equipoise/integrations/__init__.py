"""Adapters for other libraries, imported on demand."""
