"""Training loops: plain functions that can be read from top to bottom."""
