"""Training loops: plain functions that a stranger can read from top to bottom."""
