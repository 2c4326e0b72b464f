"""The balanced losses as Triton kernels: a compiled loss on a GPU runs these instead of the compiler's own.

    softmax    loss_n = log Σ_j exp(z_nj + s_j) − (z + s)_ny              gradient: softmax(z_n + s)_j − [j = y]
    sigmoid    loss_n = Σ_j softplus(z_nj + s_j) − y_nj (z_nj + s_j)      gradient: σ(z_nj + s_j) − y_nj

The compiler gives each row a program, which reads the row and the shift: one more read for every element. A program
here handles several rows, a tile of columns at a time, so that it reads the shift once for all of them. The softmax
keeps a maximum and a sum in each lane of the tile and combines them at the end of the row; the sigmoid keeps only its
inputs for the backward pass. Arithmetic is fp32, and gradients have the dtype of the logits.

`kernels_apply` in shared.py decides when a loss runs these kernels; only then is this file imported, which needs
triton. EQUIPOISE_KERNELS=0 in the environment, set before a loss is compiled, switches them off.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from equipoise.losses.shared import not_ignored, reduce_rows

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # wrap_triton takes compiled functions only
ROWS, COLUMNS = 8, 256  # of a tile
SOFTMAX_WARPS, SIGMOID_WARPS = 4, 8


# -------------------------------------------------------------------- kernels


@triton.jit
def softmax_forward(
    logits,
    shift,
    target,
    loss,
    most,
    total,
    number,
    ignore,
    K: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    """loss [N], 0 where the target is `ignore`; most [N] = max_j (z + s)_j; total [N] = Σ_j exp(z + s − most)_j."""
    start = tl.program_id(0).to(tl.int64) * R  # row offsets are int64: there may be more than 2³¹ logits
    logits += start * K
    row = tl.arange(0, R)
    there = row < number - start
    if K <= C:  # a whole row at once: one exponential per element
        column = tl.arange(0, C)
        inside = there[:, None] & (column < K)[None, :]
        z = tl.load(logits + row[:, None] * K + column[None, :], mask=inside, other=float("-inf")).to(tl.float32)
        z += tl.load(shift + column, mask=column < K, other=0.0)[None, :]
        largest = tl.where(there, tl.max(z, 1), 0.0)
        whole = tl.sum(tl.exp(z - largest[:, None]), 1)
    else:
        high = tl.full((R, C), float("-inf"), tl.float32)
        sums = tl.zeros((R, C), tl.float32)
        for first in range(0, K, C):
            column = first + tl.arange(0, C)
            inside = there[:, None] & (column < K)[None, :]
            z = tl.load(logits + row[:, None] * K + column[None, :], mask=inside, other=float("-inf")).to(tl.float32)
            z += tl.load(shift + column, mask=column < K, other=0.0)[None, :]
            higher = tl.maximum(high, z)
            safe = tl.where(higher == float("-inf"), 0.0, higher)
            sums = sums * tl.exp(high - safe) + tl.exp(z - safe)
            high = higher
        largest = tl.where(there, tl.max(high, 1), 0.0)
        whole = tl.sum(sums * tl.exp(high - largest[:, None]), 1)
    right = tl.load(target + start + row, mask=there, other=0).to(tl.int64)
    known = there & (right >= 0) & (right < K)  # an index that is not a class gives NaN, and reads no foreign memory
    chosen = tl.load(logits + row * K + right, mask=known, other=float("nan")).to(tl.float32)
    chosen += tl.load(shift + right, mask=known, other=0.0)
    each = tl.log(whole) + (largest - chosen)  # subtract large logits first, before the logarithm is lost in rounding
    tl.store(loss + start + row, tl.where(right == ignore, 0.0, each), mask=there)
    tl.store(most + start + row, largest, mask=there)
    tl.store(total + start + row, whole, mask=there)


@triton.jit
def softmax_backward(
    logits,
    shift,
    target,
    most,
    total,
    slope,
    gradient,
    number,
    ignore,
    K: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    """gradient [N, K] = slope · (softmax(z + s) − one-hot), 0 where the target is `ignore`."""
    start = tl.program_id(0).to(tl.int64) * R
    logits += start * K
    gradient += start * K
    row = tl.arange(0, R)
    there = row < number - start
    right = tl.load(target + start + row, mask=there, other=0).to(tl.int64)
    known = there & (right >= 0) & (right < K)
    scale = tl.load(slope + start + row, mask=known, other=float("nan"))
    scale = tl.where(right == ignore, 0.0, scale)[:, None]
    largest = tl.load(most + start + row, mask=there, other=0.0)[:, None]
    inverse = 1 / tl.load(total + start + row, mask=there, other=1.0)[:, None]
    for first in range(0, K, C):
        column = first + tl.arange(0, C)
        inside = there[:, None] & (column < K)[None, :]
        place = row[:, None] * K + column[None, :]
        z = tl.load(logits + place, mask=inside, other=0.0).to(tl.float32)
        z += tl.load(shift + column, mask=column < K, other=0.0)[None, :]
        result = scale * (tl.exp(z - largest) * inverse - tl.where(column[None, :] == right[:, None], 1.0, 0.0))
        tl.store(gradient + place, result.to(gradient.dtype.element_ty), mask=inside)


@triton.jit
def sigmoid_forward(
    logits,
    shift,
    target,
    loss,
    counted,
    number,
    ignore,
    INDICES: tl.constexpr,
    K: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    """loss [N]: the sum over classes of the binary cross-entropy of z + s; `target` is [N, K], or [N] if INDICES.

    counted [N]: how many classes are in the sum: those whose answer is neither NaN nor `ignore`.
    """
    start = tl.program_id(0).to(tl.int64) * R
    logits += start * K
    row = tl.arange(0, R)
    there = row < number - start
    if INDICES:
        right = tl.load(target + start + row, mask=there, other=0).to(tl.int64)
    else:
        target += start * K
    total = tl.zeros((R, C), tl.float32)
    known = tl.zeros((R, C), tl.int32)
    for first in range(0, K, C):
        column = first + tl.arange(0, C)
        inside = there[:, None] & (column < K)[None, :]
        place = row[:, None] * K + column[None, :]
        z = tl.load(logits + place, mask=inside, other=0.0).to(tl.float32)
        z += tl.load(shift + column, mask=column < K, other=0.0)[None, :]
        if INDICES:
            y = tl.where(column[None, :] == right[:, None], 1.0, 0.0)
        else:
            y = tl.load(target + place, mask=inside, other=0).to(tl.float32)
            inside = inside & (y == y) & (y != ignore)
        small = tl.exp(-tl.abs(z))
        whole = 1.0 + small  # log1p(small) is log(whole) plus what rounding lost from whole
        each = (1.0 - y) * z + tl.maximum(-z, 0.0) + (tl.log(whole) + (small - (whole - 1.0)))
        total += tl.where(inside, each, 0.0)
        known += inside.to(tl.int32)
    result = tl.sum(total, 1)
    classes = tl.sum(known, 1)
    if INDICES:
        result = tl.where((right >= 0) & (right < K), result, float("nan"))
        result = tl.where(right == ignore, 0.0, result)
        classes = tl.where(right == ignore, 0, classes)
    tl.store(counted + start + row, classes, mask=there)
    tl.store(loss + start + row, result, mask=there)


@triton.jit
def sigmoid_backward(
    logits,
    shift,
    target,
    slope,
    gradient,
    number,
    ignore,
    INDICES: tl.constexpr,
    K: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    """gradient [N, K] = slope · (σ(z + s) − y), 0 where y is ignored."""
    start = tl.program_id(0).to(tl.int64) * R
    logits += start * K
    gradient += start * K
    row = tl.arange(0, R)
    there = row < number - start
    scale = tl.load(slope + start + row, mask=there, other=0.0)
    if INDICES:
        right = tl.load(target + start + row, mask=there, other=0).to(tl.int64)
        scale = tl.where((right >= 0) & (right < K), scale, float("nan"))
        scale = tl.where(right == ignore, 0.0, scale)
    else:
        target += start * K
    for first in range(0, K, C):
        column = first + tl.arange(0, C)
        inside = there[:, None] & (column < K)[None, :]
        place = row[:, None] * K + column[None, :]
        z = tl.load(logits + place, mask=inside, other=0.0).to(tl.float32)
        z += tl.load(shift + column, mask=column < K, other=0.0)[None, :]
        if INDICES:
            y = tl.where(column[None, :] == right[:, None], 1.0, 0.0)
        else:
            y = tl.load(target + place, mask=inside, other=0).to(tl.float32)
        result = scale[:, None] * (1 / (1 + tl.exp(-z)) - y)
        if not INDICES:
            result = tl.where((y == y) & (y != ignore), result, 0.0)
        tl.store(gradient + place, result.to(gradient.dtype.element_ty), mask=inside)


# -------------------------------------------------------------------- operations of torch


def operation(function: Callable[..., Any]) -> Any:
    """An operation that the compiler traces into, and whose kernels it launches itself."""
    make = torch.library.custom_op if INTERPRETED else torch.library.triton_op
    return make(f"equipoise::{function.__name__}", function, mutates_args=())


def wrap_triton(kernel: Any) -> Any:
    return kernel if INTERPRETED else torch.library.wrap_triton(kernel)


def launch(kernel: Any, logits: Tensor, shift: Tensor, *tensors: Tensor, ignore: int, **options: Any) -> None:
    """Run a wrapped kernel over all rows. The number of classes comes from the shift, so that a compiler does not take
    it for dynamic. If the rows fill whole tiles there is one program more than needed, so that an empty batch has
    one."""
    classes = int(shift.shape[0])
    columns = min(COLUMNS, max(16, 1 << (classes - 1).bit_length()))
    programs = (logits.shape[0] // ROWS + 1,)
    kernel[programs](logits, shift, *tensors, logits.shape[0], ignore, K=classes, R=ROWS, C=columns, **options)


@operation
def softmax_rows(logits: Tensor, shift: Tensor, target: Tensor, ignore: int) -> tuple[Tensor, Tensor, Tensor]:
    loss, most, total = outputs = tuple(logits.new_empty(logits.shape[0], dtype=torch.float32) for _ in range(3))
    launch(wrap_triton(softmax_forward), logits, shift, target, *outputs, ignore=ignore, num_warps=SOFTMAX_WARPS)
    return loss, most, total


@operation
def softmax_slope(
    logits: Tensor, shift: Tensor, target: Tensor, most: Tensor, total: Tensor, slope: Tensor, ignore: int
) -> Tensor:
    gradient = torch.empty_like(logits)
    tensors = target, most, total, slope, gradient
    launch(wrap_triton(softmax_backward), logits, shift, *tensors, ignore=ignore, num_warps=SOFTMAX_WARPS)
    return gradient


@operation
def sigmoid_rows(logits: Tensor, shift: Tensor, target: Tensor, ignore: int) -> tuple[Tensor, Tensor]:
    loss, counted = (logits.new_empty(logits.shape[0], dtype=dtype) for dtype in (torch.float32, torch.int32))
    options = {"ignore": ignore, "INDICES": target.ndim == 1, "num_warps": SIGMOID_WARPS}
    launch(wrap_triton(sigmoid_forward), logits, shift, target, loss, counted, **options)
    return loss, counted


@operation
def sigmoid_slope(logits: Tensor, shift: Tensor, target: Tensor, slope: Tensor, ignore: int) -> Tensor:
    gradient = torch.empty_like(logits)
    options = {"ignore": ignore, "INDICES": target.ndim == 1, "num_warps": SIGMOID_WARPS}
    launch(wrap_triton(sigmoid_backward), logits, shift, target, slope, gradient, **options)
    return gradient


def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.ignore = inputs
    ctx.save_for_backward(*tensors, *(output[1:] if len(output) > 2 else ()))  # no backward pass needs `counted`


def softmax_gradient(ctx: Any, slope: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    return softmax_slope(*ctx.saved_tensors, slope.contiguous(), ctx.ignore), None, None, None


def sigmoid_gradient(ctx: Any, slope: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    return sigmoid_slope(*ctx.saved_tensors, slope.contiguous(), ctx.ignore), None, None, None


softmax_rows.register_autograd(softmax_gradient, setup_context=keep)
sigmoid_rows.register_autograd(sigmoid_gradient, setup_context=keep)


# -------------------------------------------------------------------- losses


def softmax_loss(logits: Tensor, target: Tensor, shift: Tensor, ignore_index: int, reduction: str) -> Tensor:
    """`balanced_softmax_loss` of logits [N, K] and class indices [N]."""
    rows, *_ = softmax_rows(logits.contiguous(), shift.contiguous(), target.contiguous(), ignore_index)
    return reduce_rows(rows, not_ignored(target, ignore_index).sum(), reduction)


def sigmoid_loss(logits: Tensor, target: Tensor, shift: Tensor, ignore_index: int, reduction: str) -> Tensor:
    """`balanced_sigmoid_loss` of logits [N, K] and one value per class [N, K] or class indices [N]; not of "none"."""
    rows, classes = sigmoid_rows(logits.contiguous(), shift.contiguous(), target.contiguous(), ignore_index)
    counted = (classes > 0).sum() if reduction == "batchmean" else classes.sum()
    return reduce_rows(rows, counted, "sum" if reduction == "sum" else "mean")
