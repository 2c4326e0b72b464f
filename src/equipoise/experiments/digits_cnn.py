"""A small convolutional network for 8 × 8 images: 28,000 parameters, milliseconds a step on a CPU."""

from __future__ import annotations

from torch import nn


def digits_cnn(num_classes: int = 10) -> nn.Sequential:
    """Images [N, 1, 8, 8] to logits [N, num_classes].

    >>> digits_cnn()(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """
    return nn.Sequential(
        *_block(1, 32),
        *_block(32, 32),
        nn.MaxPool2d(2),
        *_block(32, 64),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, num_classes),
    )


def _block(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
