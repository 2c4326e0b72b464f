"""Judge predictions: pure functions, tensors or arrays in, plain data out."""
