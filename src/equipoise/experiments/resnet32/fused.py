"""The training step of `ResNetCifar` in Triton kernels: the same network and weights, about twice as fast.

At 16 to 128 channels the time of a step goes into convolutions for which general libraries have no good kernels, and
into reading and writing intermediate results. Here a layer, out = relu(BN(conv(x)) [+ shortcut]), is

    forward     y = conv(x), with the sums of y and y² per channel on the way
                out = relu(y · scale + shift [+ shortcut])
    backward    dz = dout where out > 0, with the sums of dz and dz · ŷ per channel on the way     (ŷ = y normalised)
                dy = scale · (dz − mean(dz) − ŷ · mean(dz · ŷ))
                dw = sum over pixels of x ⊗ dy
                dout of the layer below = conv transposed(dy) [+ the shortcut's gradient]

Activations are bf16, [N, H, W, C]; products are summed in fp32, and statistics and weights are fp32. There are no
atomics: sums are taken in a fixed order, so the same inputs give the same bits, whatever else the GPU does.

`fused_features` is for training. `fused_answers` has the same layers with running statistics, for teachers, which are
run on millions of images; to evaluate a model, call the model itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor, nn

from equipoise.experiments.resnet32 import kernels
from equipoise.models.resnet_cifar import BasicBlock, ResNetCifar
from equipoise.training.augmentation.cifar import MEAN, STD


@dataclass(frozen=True)
class Tiling:
    """How a kernel's work is divided: pixels at a time, how many times per program, warps, stages, taps at once."""

    block: int
    tiles: int
    warps: int
    stages: int = 1
    taps: int = 1


# By the channels of the result; tuned on an H200 by benchmarks/cifar_kernels.py --tune, those of 128 chosen by the
# registers and the shared memory that they take.
CONVOLUTION = {
    16: Tiling(256, 4, 4, 1, 1),
    32: Tiling(256, 2, 4, 1, 1),
    64: Tiling(256, 1, 8, 1, 1),
    128: Tiling(128, 1, 8, 1, 1),
}
TRANSPOSED = {
    16: Tiling(256, 4, 4, 1, 1),
    32: Tiling(256, 1, 8, 1, 1),
    64: Tiling(256, 1, 8, 1, 1),
    128: Tiling(128, 1, 8, 1, 1),
}
WEIGHT = {
    16: Tiling(128, 32, 4, 3, 3),
    32: Tiling(64, 16, 4, 3, 3),
    64: Tiling(32, 16, 4, 3, 3),
    128: Tiling(64, 16, 8, 3, 1),
}
POINTS = 4096  # values per program of a pointwise kernel
MASKED = 128 * 64  # the same for `masked`, at most


@dataclass(frozen=True)
class Layer:
    """What the backward pass needs from a layer."""

    weight: Tensor  # [O, I, 3, 3], channels_last
    stride: int
    x: Tensor
    y: Tensor  # the convolution's result
    out: Tensor
    statistics: Tensor  # [4, O]: mean, 1/deviation, scale, shift


# -------------------------------------------------------------------- the kernels as functions of tensors


def convolution(x: Tensor, weight: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    """y [N, H/stride, W/stride, O] of x [N, H, W, I] and weight [O, I, 3, 3]; and partial sums [programs, 2, O]."""
    number, height, width, _ = x.shape
    y = x.new_empty(number, height // stride, width // stride, len(weight))
    return y, _convolve(x, weight, y, stride, _tiling(CONVOLUTION, len(weight)))


def convolution_transposed(
    dy: Tensor, weight: Tensor, stride: int, added: Tensor | None, below: Layer
) -> tuple[Tensor, Tensor]:
    """dz of the layer below, whose output was the convolution's x; and its partial sums [programs, 2, I].

    `added` is whatever else contributes to the gradient of that output.
    """
    dz = torch.empty_like(below.out)
    return dz, _convolve(dy, weight, dz, stride, _tiling(TRANSPOSED, dz.shape[3]), added, below)


def _convolve(
    x: Tensor,
    weight: Tensor,
    y: Tensor,
    stride: int,
    tiling: Tiling,
    added: Tensor | None = None,
    below: Layer | None = None,
) -> Tensor:
    if not weight.is_contiguous(memory_format=torch.channels_last):
        raise ValueError(f"a weight {tuple(weight.shape)} is not channels_last: model.to(memory_format=...) first")
    channels, to = x.shape[3], y.shape[3]
    taps = 1 if below and stride > 1 else tiling.taps
    block = tiling.block // 2 if channels > max(to, 64) else tiling.block  # a whole one would need too many registers
    pixels = y.numel() // to
    programs = triton.cdiv(pixels, block * tiling.tiles)
    partial = torch.empty(programs, 2, to, device=x.device)
    kernels.convolve[(programs,)](
        *(x, weight, y),
        y if added is None else added,
        *((y, y, partial) if below is None else (below.out, below.y, below.statistics)),
        partial,
        pixels,
        *(y.shape[1], y.shape[2], x.shape[1], x.shape[2], channels, to),
        TAPS=taps,
        PACKED=_packed(taps * channels),
        STRIDE=stride,
        TRANSPOSED=below is not None,
        ADD=added is not None,
        BLOCK=block,
        TILES=tiling.tiles,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    return partial


def weight_gradient(x: Tensor, dy: Tensor, stride: int) -> Tensor:
    """The gradient of `convolution`'s weight, [O, I, 3, 3] fp32 in the layout of a channels_last weight."""
    _, height, width, channels = x.shape
    to = dy.shape[3]
    pixels = dy.numel() // to
    tiling = _tiling(WEIGHT, to)
    programs = triton.cdiv(pixels, tiling.block * tiling.tiles)
    partial = torch.empty(programs, to, 3, 3, channels, device=x.device)
    kernels.weight_gradient[(programs, 9 // tiling.taps)](
        *(x, dy, partial, pixels),
        *(dy.shape[1], dy.shape[2], height, width, channels, to),
        TAPS=tiling.taps,
        PACKED=_packed(tiling.taps * channels),
        STRIDE=stride,
        BLOCK=tiling.block,
        TILES=tiling.tiles,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    return partial.sum(0).permute(0, 3, 1, 2)


def fits(width: int) -> bool:
    """Whether there are kernels for networks of this width.

    >>> [width for width in range(1, 9) if fits(width)]
    [1, 2]
    """
    return all(channels * width in table for channels in (16, 32, 64) for table in (CONVOLUTION, TRANSPOSED, WEIGHT))


def _tiling(table: dict[int, Tiling], channels: int) -> Tiling:
    if channels not in table:
        known = ", ".join(map(str, table))
        raise ValueError(f"there are no fused kernels for {channels} channels, only for {known}: use torch's")
    return table[channels]


def _packed(channels: int) -> int:
    return max(int(triton.next_power_of_2(channels)), 16)


def normalisation(y: Tensor, partial: Tensor, bn: nn.BatchNorm2d, shortcut: Tensor | None) -> tuple[Tensor, Tensor]:
    """relu(BN(y) [+ shortcut]) and the statistics [4, C], from the partial sums; updates BN's running statistics."""
    channels = y.shape[3]
    pixels = y.numel() // channels
    statistics = torch.empty(4, channels, device=y.device)
    kernels.finish_statistics[(channels // 16,)](
        *(partial, bn.weight, bn.bias, bn.running_mean, bn.running_var, statistics),
        *(len(partial), pixels, bn.momentum, bn.eps),
        CHANNELS=channels,
        BLOCK=512,
        num_warps=8,
    )
    return _scaled(y, statistics, shortcut), statistics


def _scaled(y: Tensor, statistics: Tensor, shortcut: Tensor | None) -> Tensor:
    """relu(y · scale + shift [+ shortcut]), with the scale and shift from statistics [4, C]."""
    channels = y.shape[3]
    pixels = y.numel() // channels
    out = torch.empty_like(y)
    block = POINTS // channels
    kernels.scale_shift_relu[(triton.cdiv(pixels, block),)](
        *(y, statistics, y if shortcut is None else shortcut, out, pixels),
        CHANNELS=channels,
        ADD=shortcut is not None,
        BLOCK=block,
    )
    return out


def running_statistics(bn: nn.BatchNorm2d) -> Tensor:
    """The running statistics [4, C] of BN: mean, 1/deviation, scale, shift."""
    assert bn.running_mean is not None
    assert bn.running_var is not None
    inverse = torch.rsqrt(bn.running_var + bn.eps)
    scale = bn.weight * inverse
    return torch.stack([bn.running_mean, inverse, scale, bn.bias - bn.running_mean * scale])


def masked(dout: Tensor, layer: Layer) -> tuple[Tensor, Tensor]:
    """dz = dout where the layer's output is positive, and its partial sums [programs, 2, C]."""
    channels = dout.shape[3]
    pixels = dout.numel() // channels
    block = min(128, MASKED // channels)
    programs = triton.cdiv(pixels, 2 * block)
    partial = torch.empty(programs, 2, channels, device=dout.device)
    dz = torch.empty_like(dout)
    kernels.mask_and_sum[(programs,)](
        *(dout, layer.out, layer.y, layer.statistics, dz, partial, pixels), CHANNELS=channels, BLOCK=block, TILES=2
    )
    return dz, partial


def normalisation_gradient(dz: Tensor, partial: Tensor, layer: Layer) -> tuple[Tensor, Tensor]:
    """dy, and the gradients of BN's bias and weight as [2, C]."""
    channels = dz.shape[3]
    pixels = dz.numel() // channels
    sums = partial.sum(0)
    dy = torch.empty_like(dz)
    block = POINTS // channels
    kernels.normalisation_gradient[(triton.cdiv(pixels, block),)](
        *(dz, layer.y, layer.statistics, sums, dy, pixels), CHANNELS=channels, BLOCK=block
    )
    return dy, sums


# -------------------------------------------------------------------- the network


class _Features(torch.autograd.Function):
    """From images [N, H, W, 3] to features [N, F] fp32; gradients of the parameters only."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, model: ResNetCifar, *parameters: Tensor) -> Tensor:
        def layer(
            x: Tensor, conv: nn.Conv2d, bn: nn.BatchNorm2d, stride: int = 1, shortcut: Tensor | None = None
        ) -> Layer:
            y, partial = convolution(x, conv.weight, stride)
            out, statistics = normalisation(y, partial, bn, shortcut)
            return Layer(conv.weight, stride, x, y, out, statistics)

        ctx.blocks = [block for block in model.blocks if isinstance(block, BasicBlock)]
        ctx.layers = [layer(images, model.conv, model.bn)]
        for block in ctx.blocks:
            x = ctx.layers[-1].out
            ctx.layers.append(layer(x, block.conv1, block.bn1, block.stride))
            ctx.layers.append(layer(ctx.layers[-1].out, block.conv2, block.bn2, 1, _shortcut(x, block)))
        last: Tensor = ctx.layers[-1].out
        return last.mean((1, 2), dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, dfeatures: Tensor) -> tuple[Tensor | None, ...]:
        layers: list[Layer] = ctx.layers
        gradients: list[Tensor] = []  # from the last layer to the first: bias, gain, weight

        def below(dz: Tensor, partial: Tensor, number: int, added: Tensor | None = None) -> tuple[Tensor, Tensor]:
            """Backward through layer `number`, to the dz and the partial sums of the one below."""
            layer = layers[number]
            dy, sums = normalisation_gradient(dz, partial, layer)
            gradients.extend([sums[0], sums[1], weight_gradient(layer.x, dy, layer.stride)])
            if number == 0:
                return dz, partial
            return convolution_transposed(dy, layer.weight, layer.stride, added, layers[number - 1])

        last = layers[-1].out
        spread = dfeatures / (last.shape[1] * last.shape[2])
        dout = spread.to(last.dtype)[:, None, None].expand_as(last).contiguous()
        dz, partial = masked(dout, layers[-1])
        for number, block in reversed(list(enumerate(ctx.blocks))):
            middle, middle_partial = below(dz, partial, 2 * number + 2)
            shortcut = _shortcut_gradient(dz, layers[2 * number + 1].x, block)
            dz, partial = below(middle, middle_partial, 2 * number + 1, shortcut)
        below(dz, partial, 0)
        return None, None, *reversed(gradients)


def _shortcut(x: Tensor, block: BasicBlock) -> Tensor:
    """The input or, if the block halves the image, every second pixel, with channels of zeros on both sides."""
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
    """Features [N, F] fp32 of uint8 images [N, 3, H, W], for training: batch statistics, gradients of all weights.

    The same as `model.features(normalise(images))` in training mode and bf16 autocast, up to rounding. The model's
    weights must be channels_last.
    """
    x = _normalised(images)
    pairs = [(model.conv, model.bn)]
    for block in model.blocks:
        assert isinstance(block, BasicBlock)
        pairs += [(block.conv1, block.bn1), (block.conv2, block.bn2)]
    parameters = [parameter for conv, bn in pairs for parameter in (conv.weight, bn.weight, bn.bias)]
    features: Tensor = _Features.apply(x, model, *parameters)
    torch._foreach_add_([bn.num_batches_tracked for _, bn in pairs if bn.num_batches_tracked is not None], 1)
    return features


@torch.no_grad()
def fused_answers(model: ResNetCifar, images: Tensor) -> Tensor:
    """Features [N, F] fp32 of uint8 images [N, 3, H, W] by the running statistics of a trained model.

    The same as `model.features(normalise(images))` in evaluation mode and bf16 autocast, up to rounding. The model's
    weights must be channels_last.
    """

    def layer(
        x: Tensor, conv: nn.Conv2d, bn: nn.BatchNorm2d, stride: int = 1, shortcut: Tensor | None = None
    ) -> Tensor:
        y, _ = convolution(x, conv.weight, stride)
        return _scaled(y, running_statistics(bn), shortcut)

    x = layer(_normalised(images), model.conv, model.bn)
    for block in model.blocks:
        assert isinstance(block, BasicBlock)
        middle = layer(x, block.conv1, block.bn1, block.stride)
        x = layer(middle, block.conv2, block.bn2, 1, _shortcut(x, block))
    return x.mean((1, 2), dtype=torch.float32)


def _normalised(images: Tensor) -> Tensor:
    """uint8 [N, 3, H, W] as the first layer takes it: [N, H, W, 3]."""
    number, _, height, width = images.shape
    dtype = torch.bfloat16 if images.is_cuda else torch.float32  # Triton's interpreter has no products in bf16
    x = torch.empty(number, height, width, 3, dtype=dtype, device=images.device)
    pixels = number * height * width
    kernels.normalise[(triton.cdiv(pixels, 1024),)](
        *(images.contiguous(), x, pixels), IMAGE=height * width, MEANS=MEAN, STDS=STD, BLOCK=1024
    )
    return x
