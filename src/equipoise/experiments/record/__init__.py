"""One ResNet-32 on CIFAR-LT, distilled from six, beside the best published results."""
