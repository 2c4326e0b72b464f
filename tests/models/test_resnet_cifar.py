"""The network of the paper's CIFAR experiments."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from equipoise.models.heads import ScaledHead
from equipoise.models.resnet_cifar import FEATURES, BasicBlock, ResNetCifar


def test_resnet_32_has_31_convolutions_and_463504_parameters_before_its_head() -> None:
    model = ResNetCifar(nn.Linear(FEATURES, 100))
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    head = sum(parameter.numel() for parameter in model.head.parameters())
    assert len(convolutions) == 31
    assert sum(parameter.numel() for parameter in model.parameters()) - head == 463_504


def test_stages_are_16_32_and_64_wide_at_32_16_and_8_pixels() -> None:
    model = ResNetCifar(nn.Linear(FEATURES, 10)).eval()
    shapes = []
    for block in model.blocks:
        block.register_forward_hook(lambda module, inputs, output: shapes.append(tuple(output.shape[1:])))
    with torch.no_grad():
        assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert shapes == [(16, 32, 32)] * 5 + [(32, 16, 16)] * 5 + [(64, 8, 8)] * 5


def test_a_width_of_2_doubles_the_channels_of_every_stage() -> None:
    model = ResNetCifar(nn.Linear(2 * FEATURES, 10), blocks=2, width=2).eval()
    assert [block.conv2.weight.shape[0] for block in model.blocks] == [32, 32, 64, 64, 128, 128]  # type: ignore[union-attr]
    assert model.conv.weight.shape == (32, 3, 3, 3)
    with torch.no_grad():
        assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    with pytest.raises(ValueError, match="a network of width 0"):
        ResNetCifar(nn.Linear(FEATURES, 10), width=0)


def test_width_1_starts_from_the_numbers_that_its_layers_draw_one_after_the_other() -> None:
    torch.manual_seed(0)
    model = ResNetCifar(nn.Linear(FEATURES, 10), blocks=2)
    torch.manual_seed(0)
    head, channels = nn.Linear(FEATURES, 10), [3] + [16] * 5 + [32] * 4 + [64] * 4
    layers = [nn.Conv2d(a, b, 3, bias=False) for a, b in pairwise(channels)]
    for layer in layers:
        nn.init.kaiming_normal_(layer.weight)
    found = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    assert all(torch.equal(one.weight, other.weight) for one, other in zip(found, layers, strict=True))
    assert torch.equal(model.head.weight, head.weight)  # type: ignore[arg-type]


def test_the_shortcut_takes_every_second_pixel_and_pads_channels_with_zeros_on_both_sides() -> None:
    block = BasicBlock(16, 32).eval()
    nn.init.zeros_(block.conv2.weight)  # nothing but the shortcut is left: BN of zeros is zero
    x = torch.rand(1, 16, 32, 32)
    with torch.no_grad():
        out = block(x)
    torch.testing.assert_close(out[:, 8:24], x[:, :, ::2, ::2])
    assert not out[:, :8].any()
    assert not out[:, 24:].any()


def test_convolutions_start_from_kaimings_normal_distribution() -> None:
    torch.manual_seed(0)
    model = ResNetCifar(nn.Linear(FEATURES, 10))
    weight = model.blocks[-1].conv2.weight  # type: ignore[union-attr]
    deviation = (2 / (64 * 9)) ** 0.5
    error = deviation / (2 * weight.numel()) ** 0.5  # type: ignore[operator, union-attr]
    assert abs(weight.std().item() - deviation) < 5 * error  # type: ignore[operator, union-attr]


def test_a_scaled_head_starts_as_the_head_it_scales_and_learns_one_number_a_class() -> None:
    head = nn.Linear(FEATURES, 10)
    x = torch.randn(4, FEATURES)
    scaled = ScaledHead(head)
    torch.testing.assert_close(scaled(x), head(x))
    scaled(x).sum().backward()
    assert [parameter.shape for parameter in scaled.parameters() if parameter.grad is not None] == [(10,)]
