"""The training step of `ResNetCifar` in Triton kernels: the same network and weights, about twice as fast.

At 16 to 128 channels the time of a step goes into convolutions for which general libraries have no good kernels, and
into reading and writing intermediate results. Here a layer, out = relu(BN(conv(x)) [+ shortcut]), is

    forward     y = conv(x), with the sums of y and y² per channel on the way
                out = relu(y · scale + shift [+ shortcut])
    backward    dz = dout where out > 0, with the sums of dz and dz · ŷ per channel on the way     (ŷ = y normalised)
                dw = sum over pixels of x ⊗ dy,  dy = scale · (dz − mean(dz) − ŷ · mean(dz · ŷ))
                dout of the layer below = conv transposed(dy) [+ the shortcut's gradient]

Activations are bf16, [N, H, W, C]; those that are convolved, x and dy, have a border of zeros: [N, H + 2, W + 2, C].
Products are summed in fp32; statistics and parameters are fp32. There are no atomics: sums are taken in a fixed order,
so the same inputs give the same bits, whatever else the GPU does.

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

VERSION = 2  # of the kernels: another one sums or rounds in other places; in the records of runs


@dataclass(frozen=True)
class Tiling:
    """How a kernel's work is divided.

    A group of `pair` adjacent pixels is computed from the columns that it needs, `columns` of them at a time.
    """

    block: int  # groups at a time
    tiles: int  # how many times per program
    warps: int
    stages: int = 1
    pair: int = 1  # or 2
    columns: int = 1  # or 4, with pairs of a convolution also 2
    rows: int = 1  # 3: a convolution keeps all weights, a weight's gradient sums all of them in one program


# By the channels of the result; tuned on an H200 by benchmarks/cifar_kernels.py --tune, those of 128 chosen by the
# registers and the shared memory that they take.
CONVOLUTION = {
    16: Tiling(64, 8, 4, 1, 2, 4, 3),
    32: Tiling(64, 4, 4, 1, 2, 4, 3),
    64: Tiling(128, 1, 4, 1, 1, 1, 1),
    128: Tiling(128, 1, 8, 1, 1, 1, 1),
}
TRANSPOSED = {
    16: Tiling(64, 8, 4, 1, 2, 4, 3),
    32: Tiling(64, 4, 4, 1, 2, 4, 3),
    64: Tiling(128, 1, 8, 1, 1, 1, 1),
    128: Tiling(128, 1, 8, 1, 1, 1, 1),
}
WEIGHT = {
    16: Tiling(128, 16, 4, 3, 2, 4, 3),
    32: Tiling(32, 16, 8, 3, 2, 4, 3),
    64: Tiling(32, 16, 4, 3, 1, 4, 1),
    128: Tiling(64, 16, 8, 3, 1, 1, 1),
}
POINTS = 4096  # values per program of a pointwise kernel
MASKED = 128 * 64  # the same for `masked`, at most


@dataclass(frozen=True)
class Layer:
    """What the backward pass needs from a layer."""

    weight: Tensor  # [O, I, 3, 3], channels_last, of the type of x
    stride: int
    x: Tensor  # with a border
    y: Tensor  # the convolution's result
    out: Tensor  # with a border
    statistics: Tensor  # [4, O]: mean, 1/deviation, scale, shift
    residual: bool  # whether a shortcut was added


# -------------------------------------------------------------------- the kernels as functions of tensors


def convolution(x: Tensor, weight: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    """y [N, H/stride, W/stride, O] of x [N, H + 2, W + 2, I] and weight [O, I, 3, 3]; and partial sums [P, 2, O]."""
    number, height, width, _ = x.shape
    y = x.new_empty(number, (height - 2) // stride, (width - 2) // stride, len(weight))
    return y, _convolve(x, weight, y, stride, _tiling(CONVOLUTION, len(weight)))


def convolution_transposed(
    dy: Tensor, weight: Tensor, stride: int, added: Tensor | None, below: Layer
) -> tuple[Tensor, Tensor]:
    """dz of the layer below, whose output was the convolution's x; and its partial sums [P, 2, I].

    dy has a border; `added` is whatever else contributes to the gradient of that output, and has none.
    """
    dz = torch.empty_like(below.y)
    tiling = _tiling(TRANSPOSED, dz.shape[3])
    return dz, _convolve(dy, weight, dz, stride, tiling, added, below.statistics, below)


def answer(x: Tensor, weight: Tensor, stride: int, bn: nn.BatchNorm2d, out: Tensor, shortcut: Tensor | None) -> Tensor:
    """A whole layer by the running statistics of BN, written into `out`; all have borders, and out's must be 0."""
    _convolve(x, weight, out, stride, _tiling(CONVOLUTION, len(weight)), shortcut, running_statistics(bn))
    return out


def _convolve(
    x: Tensor,
    weight: Tensor,
    y: Tensor,
    stride: int,
    tiling: Tiling,
    added: Tensor | None = None,
    statistics: Tensor | None = None,
    below: Layer | None = None,
) -> Tensor:
    if not weight.is_contiguous(memory_format=torch.channels_last):
        raise ValueError(f"a weight {tuple(weight.shape)} is not channels_last: model.to(memory_format=...) first")
    number, height, width, to = y.shape
    channels, answered = x.shape[3], statistics is not None and below is None
    if answered:
        height, width = height - 2, width - 2
    pair, columns = tiling.pair, tiling.columns
    if stride > 1:  # two pixels of the transpose come from two columns, and one of the convolution from three
        pair, columns = (2, min(columns, 2)) if below else (1, columns)
    elif channels < 16:
        pair, columns = 2, 4
    span = 2 if below and stride > 1 else pair + 2
    if stride == 1 and (pair, columns) not in ((1, 1), (2, 1), (2, 2), (2, 4)):
        raise ValueError(f"{columns} columns at a time for groups of {pair}: expected 1, or for pairs 2 or 4")
    _check_sides(height, width, pair)
    block = tiling.block // 2 if channels > max(to, 64) else tiling.block  # a whole one would need too many registers
    groups = number * height * width // pair
    programs = triton.cdiv(groups, block * tiling.tiles)
    partial = torch.empty(0 if answered else programs * pair, 2, to, device=x.device)
    kernels.convolve[(programs,)](
        *(x, weight, y),
        y if added is None else added,
        *((y, y) if below is None else (below.out, below.y)),
        partial if statistics is None else statistics,
        partial,
        groups,
        *(height, width, channels, channels if below else weight.shape[1], to),
        PAIR=pair,
        COLUMNS=columns,
        SPAN=span,
        PACKED=_packed(columns * channels),
        KEPT=tiling.rows > 1 and columns >= span,
        STRIDE=stride,
        TRANSPOSED=below is not None,
        RESIDUAL=below is not None and below.residual,
        ANSWER=answered,
        ADD=added is not None,
        EVEN=groups % (block * tiling.tiles) == 0,
        BLOCK=block,
        TILES=tiling.tiles,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    return partial


def weight_gradient(dz: Tensor, partial: Tensor, layer: Layer, dy: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of the layer's weight, [O, I, 3, 3] fp32 in the layout of a channels_last weight, and those of BN's
    bias and gain as [2, O]; from dz and its partial sums. Writes dy, which has a border that must be 0 already."""
    number, height, width, to = dz.shape
    channels, given = layer.x.shape[3], layer.weight.shape[1]
    tiling = _tiling(WEIGHT, to)
    if (tiling.pair, tiling.columns, tiling.rows) not in ((1, 1, 1), (1, 4, 1), (1, 4, 3), (2, 4, 1), (2, 4, 3)):
        raise ValueError(f"{tiling}: expected 4 columns at a time, or single pixels, columns and rows")
    pair = tiling.pair if layer.stride == 1 else 1
    _check_sides(height, width, pair)
    groups = number * height * width // pair
    sums = partial.sum(0)
    programs = triton.cdiv(groups, tiling.block * tiling.tiles)
    gradients = torch.empty(programs * pair, to, 3, 3, given, device=dz.device)
    kernels.weight_gradient[(programs, triton.cdiv(3, tiling.columns) * 3 // tiling.rows)](
        *(layer.x, dz, layer.y, layer.statistics, sums, dy, gradients, groups),
        *(height, width, channels, given, to),
        PAIR=pair,
        COLUMNS=tiling.columns,
        SPAN=pair + 2 if layer.stride == 1 else 4,
        PACKED=_packed(tiling.columns * channels),
        ROWS=tiling.rows,
        STRIDE=layer.stride,
        EVEN=groups % (tiling.block * tiling.tiles) == 0,
        BLOCK=tiling.block,
        TILES=tiling.tiles,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    return gradients.sum(0).permute(0, 3, 1, 2), sums


def _check_sides(height: int, width: int, pair: int) -> None:
    if height < 1 or width < 1 or width % pair:
        raise ValueError(f"{height} × {width} pixels cannot be divided into groups of {pair}")


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
    """relu(y · scale + shift [+ shortcut]) with a border, with the scale and shift from statistics [4, C]."""
    number, height, width, channels = y.shape
    places = number * (height + 2) * (width + 2)
    out = y.new_empty(number, height + 2, width + 2, channels)
    block = POINTS // channels
    kernels.scale_shift_relu[(triton.cdiv(places, block),)](
        *(y, statistics, out if shortcut is None else shortcut, out, places),
        *(height, width, channels),
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
    number, height, width, channels = dout.shape
    pixels = number * height * width
    block = min(128, MASKED // channels)
    programs = triton.cdiv(pixels, 2 * block)
    partial = torch.empty(programs, 2, channels, device=dout.device)
    dz = torch.empty_like(dout)
    kernels.mask_and_sum[(programs,)](
        *(dout, layer.out, layer.y, layer.statistics, dz, partial, pixels),
        *(height, width, channels),
        BLOCK=block,
        TILES=2,
    )
    return dz, partial


def inner(x: Tensor) -> Tensor:
    """x [N, H + 2, W + 2, C] without its border."""
    return x[:, 1:-1, 1:-1]


# -------------------------------------------------------------------- the network


class _Features(torch.autograd.Function):
    """From images [N, H + 2, W + 2, 4] to features [N, F] fp32; gradients of the parameters only."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, model: ResNetCifar, *parameters: Tensor) -> Tensor:
        weights = iter(_cast([parameter for parameter in parameters if parameter.ndim == 4], images.dtype))

        def layer(x: Tensor, bn: nn.BatchNorm2d, stride: int = 1, shortcut: Tensor | None = None) -> Layer:
            weight = next(weights)
            y, partial = convolution(x, weight, stride)
            out, statistics = normalisation(y, partial, bn, shortcut)
            return Layer(weight, stride, x, y, out, statistics, residual=shortcut is not None)

        ctx.blocks = [block for block in model.blocks if isinstance(block, BasicBlock)]
        ctx.layers = [layer(images, model.bn)]
        for block in ctx.blocks:
            x = ctx.layers[-1].out
            ctx.layers.append(layer(x, block.bn1, block.stride))
            ctx.layers.append(layer(ctx.layers[-1].out, block.bn2, 1, _shortcut(x, block)))
        last: Tensor = ctx.layers[-1].out
        return inner(last).mean((1, 2), dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, dfeatures: Tensor) -> tuple[Tensor | None, ...]:
        layers: list[Layer] = ctx.layers
        gradients: list[Tensor] = []  # from the last layer to the first: bias, gain, weight
        bordered: dict[torch.Size, Tensor] = {}  # a dy per shape: each is used before the next is made

        def below(dz: Tensor, partial: Tensor, number: int, added: Tensor | None = None) -> tuple[Tensor, Tensor]:
            """Backward through layer `number`, to the dz and the partial sums of the one below."""
            layer = layers[number]
            if layer.out.shape not in bordered:
                bordered[layer.out.shape] = torch.zeros_like(layer.out)
            dy = bordered[layer.out.shape]
            weight, sums = weight_gradient(dz, partial, layer, dy)
            gradients.extend([sums[0], sums[1], weight])
            if number == 0:
                return dz, partial
            return convolution_transposed(dy, layer.weight, layer.stride, added, layers[number - 1])

        last = layers[-1].y
        spread = dfeatures / (last.shape[1] * last.shape[2])
        dout = spread.to(last.dtype)[:, None, None].expand_as(last).contiguous()
        dz, partial = masked(dout, layers[-1])
        for number, block in reversed(list(enumerate(ctx.blocks))):
            middle, middle_partial = below(dz, partial, 2 * number + 2)
            shortcut = _shortcut_gradient(dz, layers[2 * number + 1].x, block)
            dz, partial = below(middle, middle_partial, 2 * number + 1, shortcut)
        below(dz, partial, 0)
        return None, None, *reversed(gradients)


def _cast(weights: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Copies of another type, in the same layout: one kernel for all."""
    copies = [torch.empty_like(weight, dtype=dtype) for weight in weights]
    torch._foreach_copy_(copies, weights)
    return copies


def _shortcut(x: Tensor, block: BasicBlock) -> Tensor:
    """The input or, if the block halves the image, every second pixel, with channels of zeros on both sides."""
    if block.stride == 1:
        return x
    number, height, width, channels = inner(x).shape
    half = block.added_channels // 2
    shortcut = x.new_zeros(number, height // 2 + 2, width // 2 + 2, channels + block.added_channels)
    inner(shortcut)[..., half : half + channels] = inner(x)[:, ::2, ::2]
    return shortcut


def _shortcut_gradient(dz: Tensor, x: Tensor, block: BasicBlock) -> Tensor:
    """The gradient of the input without its border."""
    if block.stride == 1:
        return dz
    half = block.added_channels // 2
    gradient = x.new_zeros(inner(x).shape)
    gradient[:, ::2, ::2] = dz[..., half : half + x.shape[3]]
    return gradient


def fused_features(model: ResNetCifar, images: Tensor) -> Tensor:
    """Features [N, F] fp32 of uint8 images [N, 3, H, W], for training: batch statistics, gradients of all weights.

    The same as `model.features(normalise(images))` in training mode and bf16 autocast, up to rounding. The model's
    weights must be channels_last.
    """
    x, layers = _normalised(images), _layers(model)
    parameters = [parameter for conv, bn in layers for parameter in (conv.weight, bn.weight, bn.bias)]
    features: Tensor = _Features.apply(x, model, *parameters)
    torch._foreach_add_([bn.num_batches_tracked for _, bn in layers if bn.num_batches_tracked is not None], 1)
    return features


def _layers(model: ResNetCifar) -> list[tuple[nn.Conv2d, nn.BatchNorm2d]]:
    """The convolutions, each with its normalisation, from the first to the last."""
    layers = [(model.conv, model.bn)]
    for block in model.blocks:
        assert isinstance(block, BasicBlock)
        layers += [(block.conv1, block.bn1), (block.conv2, block.bn2)]
    return layers


@torch.no_grad()
def fused_answers(model: ResNetCifar, images: Tensor) -> Tensor:
    """Features [N, F] fp32 of uint8 images [N, 3, H, W] by the running statistics of a trained model.

    The same as `model.features(normalise(images))` in evaluation mode and bf16 autocast, up to rounding. The model's
    weights must be channels_last.
    """
    x = _normalised(images)
    weights = iter(_cast([conv.weight for conv, _ in _layers(model)], x.dtype))
    spare: list[Tensor] = []  # tensors of the present shape, borders 0, that hold nothing that is still needed

    def layer(x: Tensor, bn: nn.BatchNorm2d, stride: int = 1, shortcut: Tensor | None = None) -> Tensor:
        weight = next(weights)
        number, height, width, _ = inner(x).shape
        shape = (number, height // stride + 2, width // stride + 2, len(weight))
        out = spare.pop() if spare and spare[-1].shape == shape else x.new_zeros(shape)
        return answer(x, weight, stride, bn, out, shortcut)

    x = layer(x, model.bn)
    for block in model.blocks:
        assert isinstance(block, BasicBlock)
        middle = layer(x, block.bn1, block.stride)
        out = layer(middle, block.bn2, 1, _shortcut(x, block))
        spare = [middle, x] if block.stride == 1 else [middle]
        x = out
    return inner(x).mean((1, 2), dtype=torch.float32)


def _normalised(images: Tensor) -> Tensor:
    """uint8 [N, 3, H, W] as the first layer takes it: [N, H + 2, W + 2, 4], the border and the last channel 0."""
    number, _, height, width = images.shape
    if height % 4 or width % 4 or number * height * width < 32:
        raise ValueError(
            f"{number} images of {height} × {width} pixels: the fused kernels need sides that can be halved twice, and "
            "two pixels or more in the last layers"
        )
    dtype = torch.bfloat16 if images.is_cuda else torch.float32  # Triton's interpreter has no products in bf16
    x = torch.empty(number, height + 2, width + 2, 4, dtype=dtype, device=images.device)
    places = number * (height + 2) * (width + 2)
    kernels.normalise[(triton.cdiv(places, 1024),)](
        *(images.contiguous(), x, places), *(height, width), MEANS=MEAN, STDS=STD, BLOCK=1024
    )
    return x
