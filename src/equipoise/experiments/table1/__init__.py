"""Table 1 of the paper: long-tailed CIFAR."""
