"""ResNet-32 with kernels of our own: the fast path of the CIFAR tables."""
