"""The kernels of the balanced losses against the losses themselves, by Triton's interpreter, which needs no GPU.

Triton decides when it is imported whether it interprets, so test_loss_kernels.py runs these in a process of their own;
by hand: TRITON_INTERPRET=1 python -m pytest tests/losses/loss_kernels.py
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.losses import kernels

SIZES = [(1, 1), (5, 3), (8, 16), (9, 100), (16, 256), (3, 700)]  # of rows and classes: a tile, parts of one, several
# Of a gradient: logits are ten unit normals' size, so exponents of up to 80 are rounded by 80 * 2**-24 = 5e-6, and that
# is the exponential's relative error; half types round the result once more, to 2**-8 and 2**-11.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 1e-2, torch.float16: 1e-3}

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # NumPy, of inf − inf and log 0


def softmax(logits: Tensor, target: Tensor, shift: Tensor, reduction: str, ignore: int = -100) -> Tensor:
    return eq.balanced_softmax_loss(logits, target, shift, reduction=reduction, ignore_index=ignore)


def sigmoid(logits: Tensor, target: Tensor, shift: Tensor, reduction: str, ignore: int = -100) -> Tensor:
    return eq.balanced_sigmoid_loss(logits, target, shift, reduction=reduction, ignore_index=ignore)


def softmax_kernels(logits: Tensor, target: Tensor, shift: Tensor, reduction: str, ignore: int = -100) -> Tensor:
    return kernels.softmax_loss(logits, target, shift, ignore, reduction)


def sigmoid_kernels(logits: Tensor, target: Tensor, shift: Tensor, reduction: str, ignore: int = -100) -> Tensor:
    return kernels.sigmoid_loss(logits, target, shift, ignore, reduction)


BOTH = [(softmax_kernels, softmax), (sigmoid_kernels, sigmoid)]


def batch(rows: int, classes: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Logits [N, K], class indices [N] of which one row is ignored, and a shift [K]."""
    generator = torch.Generator().manual_seed(rows + classes)
    logits = (10 * torch.randn(rows, classes, generator=generator)).to(dtype)
    target = torch.randint(0, classes, (rows,), generator=generator)
    target[1:2] = -100
    return logits, target, torch.linspace(3, -4, classes)


def loss_and_gradient(loss: Callable[..., Tensor], logits: Tensor, *how: Any) -> tuple[Tensor, Tensor]:
    """The loss and its gradient, which weighs rows differently where there is a loss for each."""
    logits = logits.clone().requires_grad_()
    value = loss(logits, *how)
    value.backward(torch.linspace(0.5, 2, value.numel()).reshape(value.shape).to(value.dtype))
    return value.detach(), logits.grad


def same(ours: Callable[..., Tensor], theirs: Callable[..., Tensor], logits: Tensor, target: Tensor, *how: Any) -> None:
    """The kernels give the loss of the library, which here takes fp64 logits, and the gradient in the logits' dtype."""
    loss, gradient = loss_and_gradient(ours, logits, target, *how)
    expected, slope = loss_and_gradient(theirs, logits.double(), target, *how)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected.float(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient, slope.to(logits.dtype), rtol=TOLERANCE[logits.dtype], atol=1e-6)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("rows", "classes"), SIZES)
def test_softmax_is_the_librarys(rows: int, classes: int, dtype: torch.dtype, reduction: str) -> None:
    logits, target, shift = batch(rows, classes, dtype)
    same(softmax_kernels, softmax, logits, target, shift, reduction)


@pytest.mark.parametrize("reduction", ["mean", "sum", "batchmean"])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("rows", "classes"), SIZES)
def test_sigmoid_is_the_librarys(rows: int, classes: int, dtype: torch.dtype, reduction: str) -> None:
    logits, target, shift = batch(rows, classes, dtype)
    same(sigmoid_kernels, sigmoid, logits, target, shift, reduction)
    same(sigmoid_kernels, sigmoid, logits, torch.rand(rows, classes), shift, reduction)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float64, torch.bfloat16])
def test_answers_of_any_dtype_are_read(dtype: torch.dtype) -> None:
    logits, _, shift = batch(5, 3)
    same(sigmoid_kernels, sigmoid, logits, (torch.rand(5, 3) < 0.5).to(dtype), shift, "mean")


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
@pytest.mark.parametrize(("ours", "theirs"), BOTH)
def test_indices_of_any_dtype_are_read(ours: Any, theirs: Any, dtype: torch.dtype) -> None:
    logits, target, shift = batch(9, 100)
    same(ours, theirs, logits, target.clamp(min=0).to(dtype), shift, "mean", 7)


@pytest.mark.parametrize(("ours", "theirs"), BOTH)
def test_tensors_of_any_layout_are_read(ours: Any, theirs: Any) -> None:
    logits, target, shift = batch(9, 100)
    apart = torch.stack([target, target], 1)[:, 0]
    same(ours, theirs, logits.t().contiguous().t(), apart, torch.stack([shift, shift], 1)[:, 0], "mean")


@pytest.mark.parametrize(("ours", "theirs"), BOTH)
@pytest.mark.parametrize("rows", [0, 9])
def test_where_nothing_counts_loss_and_gradient_are_0(ours: Any, theirs: Any, rows: int) -> None:
    logits, target, shift = batch(rows, 100)
    loss, gradient = loss_and_gradient(ours, logits, torch.full_like(target, -100), shift, "mean")
    assert loss == 0
    assert torch.equal(gradient, torch.zeros(rows, 100))


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 3e38, -3e38])
@pytest.mark.parametrize("classes", [3, 700])
@pytest.mark.parametrize(("ours", "theirs"), BOTH)
def test_extreme_logits_give_what_they_give_in_the_library(ours: Any, theirs: Any, classes: int, value: float) -> None:
    logits, target, shift = batch(9, classes)
    target[:3] = torch.tensor([0, 1, 1])
    logits[:2, 0] = value
    logits[3] = value
    for n in range(4):  # row by row, or the NaN of one hides the others
        loss, gradient = loss_and_gradient(ours, logits[n : n + 1], target[n : n + 1], shift, "sum")
        expected, slope = loss_and_gradient(theirs, logits[n : n + 1], target[n : n + 1], shift, "sum")
        torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-4, equal_nan=True)
        torch.testing.assert_close(gradient, slope, rtol=1e-4, atol=1e-6, equal_nan=True)


def test_a_small_sigmoid_loss_keeps_its_digits() -> None:
    same(sigmoid_kernels, sigmoid, torch.full((8, 256), -9.0), torch.zeros(8, 256), torch.zeros(256), "sum")
    logits = torch.linspace(-15, -5, 256).repeat(8, 1)
    loss = sigmoid_kernels(logits, torch.zeros(8, 256), torch.zeros(256), "mean")
    expected = sigmoid(logits.double(), torch.zeros(8, 256), torch.zeros(256), "mean")
    assert float(loss) == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize("index", [-1, 3, 10**9])
@pytest.mark.parametrize(("ours", "theirs"), BOTH)
def test_an_index_that_is_no_class_gives_nan_in_its_row_alone(ours: Any, theirs: Any, index: int) -> None:
    logits, target, shift = batch(9, 3)
    target[4] = index
    loss, gradient = loss_and_gradient(ours, logits, target, shift, "sum")
    assert loss.isnan()
    assert gradient.isnan().any(1).nonzero().tolist() == [[4]]


@pytest.mark.parametrize(("ours", "theirs"), BOTH)
def test_an_index_that_is_ignored_may_be_a_class(ours: Any, theirs: Any) -> None:
    logits, target, shift = batch(9, 3)
    same(ours, theirs, logits, target.clamp(min=0), shift, "mean", 1)


@pytest.mark.parametrize("reduction", ["mean", "sum", "batchmean"])
@pytest.mark.parametrize(("dtype", "missing"), [(torch.float32, math.nan), (torch.bfloat16, -100), (torch.int8, -100)])
@pytest.mark.parametrize(("rows", "classes"), SIZES)
def test_missing_labels_of_any_dtype_do_not_count(
    rows: int, classes: int, dtype: torch.dtype, missing: float, reduction: str
) -> None:
    logits, _, shift = batch(rows, classes)
    target = (torch.rand(rows, classes, generator=torch.Generator().manual_seed(0)) < 0.5).to(dtype)
    target[:, ::2] = missing
    target[2:3] = missing  # a whole row
    same(sigmoid_kernels, sigmoid, logits, target, shift, reduction)
