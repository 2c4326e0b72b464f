"""The training step of `ResNetCifar` in kernels of its own (Triton): the same network and weights, about twice as fast.

At 16 to 64 channels the time of a step goes into convolutions that general libraries have no good kernels for, and into
reading and writing what lies between. Here a layer, out = relu(BN(conv(x)) [+ shortcut]), is

    forward     y = conv(x), with the sums of y and y² a channel on the way
                out = relu(y · scale + shift [+ shortcut])
    backward    dz = dout where out > 0, with the sums of dz and dz · ŷ a channel        (ŷ = y normalised)
                dy = scale · (dz − mean(dz) − ŷ · mean(dz · ŷ))
                dx = conv transposed(dy) [+ the shortcut's gradient];   dw = sum over pixels of x ⊗ dy

Activations are bf16, [N, H, W, C]; products are added up in fp32, statistics and weights are fp32. No atomics: sums are
taken in a fixed order, so the same inputs give the same bits, whatever else the GPU does.

Forward and backward of a block of the network are one autograd function. Only for training: to predict, call the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor, nn

from equipoise.augment.cifar import MEAN, STD
from equipoise.models import resnet_cifar_kernels as kernels
from equipoise.models.resnet_cifar import BasicBlock, ResNetCifar

# -------------------------------------------------------------------- the kernels as functions of tensors


@dataclass(frozen=True)
class Tiling:
    """How a kernel's work is cut: pixels at a time, times a program does so, warps, loads that run ahead."""

    block: int
    tiles: int
    warps: int
    stages: int = 1


# By the channels of the result; tuned on an H200 by benchmarks/cifar_kernels.py --tune --write.
# fmt: off
CONVOLUTION = {16: Tiling(128, 1, 4), 32: Tiling(128, 1, 4), 64: Tiling(64, 1, 4)}
TRANSPOSED = {16: Tiling(128, 1, 4), 32: Tiling(128, 1, 4), 64: Tiling(64, 1, 4)}
WEIGHT = {16: Tiling(128, 16, 4, 3), 32: Tiling(64, 16, 4, 3), 64: Tiling(64, 8, 8, 3)}
SUMS = {16: Tiling(256, 8, 4), 32: Tiling(128, 8, 4), 64: Tiling(64, 4, 4)}
# fmt: on
POINTS = 4096  # values a program of a pointwise kernel


def convolution(x: Tensor, weight: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    """y [N, H/stride, W/stride, O] of x [N, H, W, I] and weight [O, I, 3, 3]; and partial sums [programs, 2, O]."""
    number, height, width, channels = x.shape
    to = weight.shape[0]
    y = x.new_empty(number, height // stride, width // stride, to)
    tiling = CONVOLUTION[to]
    programs = triton.cdiv(y.numel() // to, tiling.block * tiling.tiles)
    partial = torch.empty(programs, 2, to, device=x.device)
    kernels.convolve[(programs,)](
        x,
        _channels_last(weight),
        y,
        y,
        partial,
        y.numel() // to,
        *(y.shape[1], y.shape[2], height, width, channels, to, max(channels, 16)),
        STRIDE=stride,
        TRANSPOSED=False,
        ADD=False,
        SUMS=True,
        BLOCK=tiling.block,
        TILES=tiling.tiles,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    return y, partial


def convolution_transposed(dy: Tensor, weight: Tensor, shape: torch.Size, stride: int, added: Tensor | None) -> Tensor:
    """The gradient of `convolution`'s x, of this shape; plus `added`, of the same shape."""
    number, height, width, channels = shape
    dx = dy.new_empty(shape)
    tiling = TRANSPOSED[channels]
    pixels = number * height * width
    kernels.convolve[(triton.cdiv(pixels, tiling.block * tiling.tiles),)](
        dy,
        _channels_last(weight),
        dx,
        dx if added is None else added,
        dx,
        pixels,
        *(height, width, dy.shape[1], dy.shape[2], dy.shape[3], channels, dy.shape[3]),
        STRIDE=stride,
        TRANSPOSED=True,
        ADD=added is not None,
        SUMS=False,
        BLOCK=tiling.block,
        TILES=tiling.tiles,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    return dx


def weight_gradient(x: Tensor, dy: Tensor, stride: int) -> Tensor:
    """The gradient of `convolution`'s weight, [O, I, 3, 3] fp32 in the layout of a channels_last weight."""
    _, height, width, channels = x.shape
    to = dy.shape[3]
    pixels = dy.numel() // to
    tiling = WEIGHT[to]
    programs = triton.cdiv(pixels, tiling.block * tiling.tiles)
    partial = torch.empty(programs, to, 3, 3, channels, device=x.device)
    kernels.weight_gradient[(programs, 3)](
        x,
        dy,
        partial,
        pixels,
        *(dy.shape[1], dy.shape[2], height, width, channels, to, max(triton.next_power_of_2(3 * channels), 16)),
        STRIDE=stride,
        BLOCK=tiling.block,
        TILES=tiling.tiles,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    return partial.sum(0).permute(0, 3, 1, 2)


def normalisation(y: Tensor, partial: Tensor, bn: nn.BatchNorm2d, shortcut: Tensor | None) -> tuple[Tensor, Tensor]:
    """relu(BN(y) [+ shortcut]) and the statistics [4, C], from the partial sums; BN's running statistics move on."""
    channels = y.shape[3]
    pixels = y.numel() // channels
    statistics = torch.empty(4, channels, device=y.device)
    kernels.finish_statistics[(channels // 16,)](
        partial,
        bn.weight,
        bn.bias,
        bn.running_mean,
        bn.running_var,
        statistics,
        len(partial),
        pixels,
        bn.momentum,
        bn.eps,
        CHANNELS=channels,
        BLOCK=128,
        num_warps=4,
    )
    out = torch.empty_like(y)
    block = POINTS // channels
    kernels.scale_shift_relu[(triton.cdiv(pixels, block),)](
        *(y, statistics, y if shortcut is None else shortcut, out, pixels),
        CHANNELS=channels,
        ADD=shortcut is not None,
        BLOCK=block,
    )
    return out, statistics


def normalisation_gradient(
    dout: Tensor, out: Tensor, y: Tensor, statistics: Tensor, *, added: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """(dy, the gradients of BN's bias and weight as [2, C], dz): of `normalisation`; dz only with a shortcut added."""
    channels = y.shape[3]
    pixels = y.numel() // channels
    tiling = SUMS[channels]
    programs = triton.cdiv(pixels, tiling.block * tiling.tiles)
    partial = torch.empty(programs, 2, channels, device=y.device)
    dz = torch.empty_like(y) if added else dout
    kernels.sum_gradients[(programs,)](
        *(dout, out, y, statistics, dz, partial, pixels),
        CHANNELS=channels,
        ADDED=added,
        BLOCK=tiling.block,
        TILES=tiling.tiles,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    sums = partial.sum(0)
    dy = torch.empty_like(y)
    block = POINTS // channels
    kernels.normalisation_gradient[(triton.cdiv(pixels, block),)](
        *(dz, out, y, statistics, sums, dy, pixels), CHANNELS=channels, MASKED=not added, BLOCK=block
    )
    return dy, sums, dz


def _channels_last(weight: Tensor) -> Tensor:
    if not weight.is_contiguous(memory_format=torch.channels_last):
        raise ValueError(f"a weight {tuple(weight.shape)} is not channels_last: model.to(memory_format=...) first")
    return weight


# -------------------------------------------------------------------- the network


class _Stem(torch.autograd.Function):
    """relu(BN(conv(images))); images need no gradient."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, gain: Tensor, bias: Tensor, bn: nn.BatchNorm2d) -> Tensor:
        y, partial = convolution(images, weight, 1)
        out, statistics = normalisation(y, partial, bn, None)
        ctx.save_for_backward(images, y, out, statistics)
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        images, y, out, statistics = ctx.saved_tensors
        dy, sums, _ = normalisation_gradient(dout, out, y, statistics, added=False)
        return None, weight_gradient(images, dy, 1), sums[1], sums[0], None


class _Block(torch.autograd.Function):
    """A BasicBlock: both of its layers, so that the two gradients of its input are added where one is made."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight1: Tensor,
        gain1: Tensor,
        bias1: Tensor,
        weight2: Tensor,
        gain2: Tensor,
        bias2: Tensor,
        block: BasicBlock,
    ) -> Tensor:
        y1, partial = convolution(x, weight1, block.stride)
        middle, statistics1 = normalisation(y1, partial, block.bn1, None)
        y2, partial = convolution(middle, weight2, 1)
        out, statistics2 = normalisation(y2, partial, block.bn2, _shortcut(x, block))
        ctx.save_for_backward(x, weight1, y1, middle, statistics1, weight2, y2, out, statistics2)
        ctx.block = block
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        x, weight1, y1, middle, statistics1, weight2, y2, out, statistics2 = ctx.saved_tensors
        block: BasicBlock = ctx.block
        dy2, sums2, dz = normalisation_gradient(dout, out, y2, statistics2, added=True)
        dweight2 = weight_gradient(middle, dy2, 1)
        dmiddle = convolution_transposed(dy2, weight2, middle.shape, 1, None)
        dy1, sums1, _ = normalisation_gradient(dmiddle, middle, y1, statistics1, added=False)
        dweight1 = weight_gradient(x, dy1, block.stride)
        added = _shortcut_gradient(dz, x, block)
        dx = convolution_transposed(dy1, weight1, x.shape, block.stride, added)
        return dx, dweight1, sums1[1], sums1[0], dweight2, sums2[1], sums2[0], None


def _shortcut(x: Tensor, block: BasicBlock) -> Tensor:
    """The input; where the block halves the image, every second pixel, with channels of zeros on both sides."""
    if block.stride == 1:
        return x
    number, height, width, channels = x.shape
    half = block.added_channels // 2
    shortcut = x.new_zeros(number, height // 2, width // 2, channels + block.added_channels)
    shortcut[..., half : half + channels] = x[:, ::2, ::2]
    return shortcut


def _shortcut_gradient(dz: Tensor, x: Tensor, block: BasicBlock) -> Tensor:
    if block.stride == 1:
        return dz
    half = block.added_channels // 2
    gradient = torch.zeros_like(x)
    gradient[:, ::2, ::2] = dz[..., half : half + x.shape[3]]
    return gradient


def fused_features(model: ResNetCifar, images: Tensor) -> Tensor:
    """Features [N, 64] fp32 of uint8 images [N, 3, 32, 32], for training: batch statistics, gradients of all weights.

    The same as `model.features(normalise(images))` in training mode and bf16 autocast, up to rounding. The model's
    weights must be channels_last.
    """
    number, _, height, width = images.shape
    dtype = torch.bfloat16 if images.is_cuda else torch.float32  # Triton's interpreter has no products in bf16
    x: Tensor = torch.empty(number, height, width, 3, dtype=dtype, device=images.device)
    pixels = number * height * width
    kernels.normalise[(triton.cdiv(pixels, 1024),)](
        *(images.contiguous(), x, pixels), IMAGE=height * width, MEANS=MEAN, STDS=STD, BLOCK=1024
    )
    x = _Stem.apply(x, model.conv.weight, model.bn.weight, model.bn.bias, model.bn)
    counters = [model.bn.num_batches_tracked]
    for block in model.blocks:
        assert isinstance(block, BasicBlock)
        first, second = block.bn1, block.bn2
        x = _Block.apply(
            x,
            *(block.conv1.weight, first.weight, first.bias),
            *(block.conv2.weight, second.weight, second.bias),
            block,
        )
        counters += [first.num_batches_tracked, second.num_batches_tracked]
    torch._foreach_add_([counter for counter in counters if counter is not None], 1)
    return x.mean((1, 2), dtype=torch.float32)
