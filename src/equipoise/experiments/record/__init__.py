"""The best single ResNet-32 on CIFAR-LT that this engine trains, beside the best that were published."""
