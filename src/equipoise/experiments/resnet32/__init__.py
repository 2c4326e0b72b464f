"""ResNet-32 in kernels of our own: the fast path of the CIFAR tables."""
