"""One file a loss: the formula, a function of tensors, and a thin module that holds the prior."""
