"""One ResNet-32 on CIFAR-LT, distilled from an ensemble, beside the best published results."""
