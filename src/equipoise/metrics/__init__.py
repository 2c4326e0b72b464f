"""Evaluate predictions: pure functions that take tensors or arrays and return plain data."""
