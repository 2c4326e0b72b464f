"""ResNet for 32×32 images: three stages of 16, 32 and 64 channels, parameter-free shortcuts, global average pooling.

`width` multiplies these channels: 2 gives 32, 64 and 128.

ResNet-32 has 5 basic blocks per stage: 31 convolutions, 463,504 parameters before the head. Where a stage halves the
image, the shortcut takes every second pixel and pads the channels with zeros ("option A"). Convolutions start from
Kaiming's normal distribution (fan in); the head is a module of its own with torch's default initialisation.

Reference: He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", 2016, section 4.2.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

FEATURES = 64  # at width 1; in proportion to the width


class BasicBlock(nn.Module):
    """Two 3×3 convolutions with batch normalisation, and the input added before the last ReLU."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.stride = 1 if in_channels == channels else 2
        self.added_channels = channels - in_channels
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride=self.stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        if self.stride == 2:
            half = self.added_channels // 2
            shortcut = functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, half, self.added_channels - half))
        x = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(x)) + shortcut)


class ResNetCifar(nn.Module):
    """A backbone of 6·blocks + 1 convolutions with a head of its own, which gets FEATURES · width features.

    >>> model = ResNetCifar(nn.Linear(FEATURES, 10), blocks=1)
    >>> model(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    >>> ResNetCifar(nn.Linear(2 * FEATURES, 10), blocks=1, width=2).features(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 128])
    """

    def __init__(self, head: nn.Module, blocks: int = 5, width: int = 1) -> None:
        super().__init__()
        if width < 1:
            raise ValueError(f"a network of width {width}: expected a factor of its channels, 1 or more")
        first = 16 * width
        self.conv = nn.Conv2d(3, first, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(first)
        channels = [first] * blocks + [2 * first] * blocks + [FEATURES * width] * blocks
        self.blocks = nn.Sequential(
            *(BasicBlock(before, after) for before, after in zip([first, *channels], channels, strict=False))
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
        self.head = head

    def features(self, images: Tensor) -> Tensor:
        """[N, 3, 32, 32] → [N, 64 · width]."""
        x = functional.relu(self.bn(self.conv(images)))
        return torch.flatten(functional.adaptive_avg_pool2d(self.blocks(x), 1), 1)

    def forward(self, images: Tensor) -> Tensor:
        """[N, 3, 32, 32] → logits [N, K]."""
        return self.head(self.features(images))  # type: ignore[no-any-return]
