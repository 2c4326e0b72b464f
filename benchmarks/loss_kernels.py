"""Would kernels of our own make the balanced losses cheaper than what torch.compile makes of them? On a GPU.

    python benchmarks/loss_kernels.py               plain compiled, balanced compiled, these kernels
    python benchmarks/loss_kernels.py --tiles       these kernels alone, for several sizes of a tile
    python benchmarks/loss_kernels.py --out r.json  writes what it measured
    TRITON_INTERPRET=1 python benchmarks/loss_kernels.py --check     are they right? Anywhere, in seconds

The compiler gives each row a program, which reads the row and the shift: one more read for every element. A program
here takes several rows, a tile of columns at a time, so that it reads the shift once for all of them:

    softmax    lse = log Σ_j exp(z_j + s_j) tile by tile, each lane with a maximum and a sum of its own
    sigmoid    Σ_j softplus(z_j + s_j) − y_j (z_j + s_j)
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))
import losses as benchmark

import equipoise as eq

TILES = (
    *((4, 256, 4), (8, 128, 4), (8, 256, 4), (4, 512, 4), (8, 256, 8), (2, 1024, 4), (4, 1024, 8), (16, 128, 4)),
    *((1, 2048, 4), (1, 2048, 8), (2, 2048, 8), (4, 2048, 16), (1, 512, 4), (1, 1024, 4)),
)
tile = (8, 256, 4)  # rows, columns and warps of a program
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


# -------------------------------------------------------------------- kernels


@triton.jit
def softmax_forward(
    logits, shift, target, loss, lse, number, K: tl.constexpr, IGNORE: tl.constexpr, R: tl.constexpr, C: tl.constexpr
):
    """loss [N] = lse − (z + s)[target], 0 where the target is IGNORE; and lse [N]."""
    row = tl.program_id(0) * R + tl.arange(0, R)
    there = row < number
    if K <= C:  # a whole row at once: one exponential an element
        column = tl.arange(0, C)
        inside = there[:, None] & (column < K)[None, :]
        z = tl.load(logits + row[:, None] * K + column[None, :], mask=inside, other=float("-inf")).to(tl.float32)
        z += tl.load(shift + column, mask=column < K, other=0.0)[None, :]
        safe = tl.where(there, tl.max(z, 1), 0.0)
        value = safe + tl.log(tl.sum(tl.exp(z - safe[:, None]), 1))
    else:
        most = tl.full((R, C), float("-inf"), tl.float32)
        total = tl.zeros((R, C), tl.float32)
        for first in range(0, K, C):
            column = first + tl.arange(0, C)
            inside = there[:, None] & (column < K)[None, :]
            z = tl.load(logits + row[:, None] * K + column[None, :], mask=inside, other=float("-inf")).to(tl.float32)
            z += tl.load(shift + column, mask=column < K, other=0.0)[None, :]
            larger = tl.maximum(most, z)
            safe = tl.where(larger == float("-inf"), 0.0, larger)
            total = total * tl.exp(most - safe) + tl.exp(z - safe)
            most = larger
        safe = tl.where(there, tl.max(most, 1), 0.0)
        value = safe + tl.log(tl.sum(total * tl.exp(most - safe[:, None]), 1))
    right = tl.load(target + row, mask=there, other=IGNORE)
    counts = there & (right != IGNORE)
    chosen = tl.load(logits + row * K + right, mask=counts, other=0.0).to(tl.float32)
    chosen += tl.load(shift + right, mask=counts, other=0.0)
    tl.store(loss + row, tl.where(counts, value - chosen, 0.0), mask=there)
    tl.store(lse + row, value, mask=there)


@triton.jit
def softmax_backward(
    logits,
    shift,
    target,
    lse,
    slope,
    gradient,
    number,
    K: tl.constexpr,
    IGNORE: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    """gradient [N, K] = slope · (softmax(z + s) − one-hot)."""
    row = tl.program_id(0) * R + tl.arange(0, R)
    there = row < number
    right = tl.load(target + row, mask=there, other=IGNORE)
    scale = tl.load(slope + row, mask=there & (right != IGNORE), other=0.0)[:, None]
    value = tl.load(lse + row, mask=there, other=0.0)[:, None]
    for first in range(0, K, C):
        column = first + tl.arange(0, C)
        inside = there[:, None] & (column < K)[None, :]
        place = row[:, None] * K + column[None, :]
        z = tl.load(logits + place, mask=inside, other=0.0).to(tl.float32)
        z += tl.load(shift + column, mask=column < K, other=0.0)[None, :]
        result = scale * (tl.exp(z - value) - tl.where(column[None, :] == right[:, None], 1.0, 0.0))
        tl.store(gradient + place, result.to(gradient.dtype.element_ty), mask=inside)


@triton.jit
def sigmoid_forward(logits, shift, target, loss, number, K: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    """loss [N]: the sum over classes of the binary cross-entropy of z + s."""
    row = tl.program_id(0) * R + tl.arange(0, R)
    there = row < number
    total = tl.zeros((R, C), tl.float32)
    for first in range(0, K, C):
        column = first + tl.arange(0, C)
        inside = there[:, None] & (column < K)[None, :]
        place = row[:, None] * K + column[None, :]
        z = tl.load(logits + place, mask=inside, other=0.0).to(tl.float32)
        z += tl.load(shift + column, mask=column < K, other=0.0)[None, :]
        y = tl.load(target + place, mask=inside, other=0.0).to(tl.float32)
        each = tl.maximum(z, 0.0) - z * y + tl.log(1.0 + tl.exp(-tl.abs(z)))
        total += tl.where(inside, each, 0.0)
    tl.store(loss + row, tl.sum(total, 1), mask=there)


@triton.jit
def sigmoid_backward(logits, shift, target, slope, gradient, number, K: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    """gradient [N, K] = slope · (σ(z + s) − y)."""
    row = tl.program_id(0) * R + tl.arange(0, R)
    there = row < number
    scale = tl.load(slope + row, mask=there, other=0.0)[:, None]
    for first in range(0, K, C):
        column = first + tl.arange(0, C)
        inside = there[:, None] & (column < K)[None, :]
        place = row[:, None] * K + column[None, :]
        z = tl.load(logits + place, mask=inside, other=0.0).to(tl.float32)
        z += tl.load(shift + column, mask=column < K, other=0.0)[None, :]
        y = tl.load(target + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(gradient + place, (scale * (1 / (1 + tl.exp(-z)) - y)).to(gradient.dtype.element_ty), mask=inside)


# -------------------------------------------------------------------- operations of torch


def launch(kernel: Any, *tensors: Tensor, logits: Tensor, **constants: int) -> None:
    number, classes = logits.shape
    rows, columns, warps = tile
    sizes = {"K": classes, "R": rows, "C": columns} | constants
    kernel[(triton.cdiv(number, rows),)](*tensors, number, **sizes, num_warps=warps)


def operation(function: Callable[..., Any], shapes: Callable[..., Any]) -> Any:
    """An operation that a compiler calls as it is; `shapes` makes what it returns, without the numbers."""
    made = torch.library.custom_op(f"equipoise_benchmark::{function.__name__}", function, mutates_args=())
    made.register_fake(shapes)
    return made


def softmax_rows(logits: Tensor, shift: Tensor, target: Tensor, ignore: int) -> tuple[Tensor, Tensor]:
    loss, lse = two_rows(logits, shift, target, ignore)
    launch(softmax_forward, logits, shift, target, loss, lse, logits=logits, IGNORE=ignore)
    return loss, lse


def softmax_slope(logits: Tensor, shift: Tensor, target: Tensor, lse: Tensor, slope: Tensor, ignore: int) -> Tensor:
    gradient = torch.empty_like(logits)
    launch(softmax_backward, logits, shift, target, lse, slope, gradient, logits=logits, IGNORE=ignore)
    return gradient


def sigmoid_rows(logits: Tensor, shift: Tensor, target: Tensor) -> Tensor:
    loss = one_row(logits, shift, target)
    launch(sigmoid_forward, logits, shift, target, loss, logits=logits)
    return loss


def sigmoid_slope(logits: Tensor, shift: Tensor, target: Tensor, slope: Tensor) -> Tensor:
    gradient = torch.empty_like(logits)
    launch(sigmoid_backward, logits, shift, target, slope, gradient, logits=logits)
    return gradient


def one_row(logits: Tensor, *_: Any) -> Tensor:
    return logits.new_empty(len(logits), dtype=torch.float32)


def two_rows(logits: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return one_row(logits), one_row(logits)


softmax_rows, softmax_slope = (
    operation(softmax_rows, two_rows),
    operation(softmax_slope, lambda z, *_: z.new_empty(z.shape)),
)
sigmoid_rows, sigmoid_slope = (
    operation(sigmoid_rows, one_row),
    operation(sigmoid_slope, lambda z, *_: z.new_empty(z.shape)),
)


def keep_softmax(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.ignore = inputs
    ctx.save_for_backward(*tensors, output[1])


def softmax_gradient(ctx: Any, slope: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return softmax_slope(*ctx.saved_tensors, slope.contiguous(), ctx.ignore), None, None, None


def keep_sigmoid(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def sigmoid_gradient(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
    return sigmoid_slope(*ctx.saved_tensors, slope.contiguous()), None, None


softmax_rows.register_autograd(softmax_gradient, setup_context=keep_softmax)
sigmoid_rows.register_autograd(sigmoid_gradient, setup_context=keep_sigmoid)


class SoftmaxLoss(nn.Module):
    """`BalancedSoftmaxLoss` of class indices by these kernels."""

    shift: Tensor

    def __init__(self, prior: eq.Prior) -> None:
        super().__init__()
        self.register_buffer("shift", eq.softmax_shift(prior))

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        rows, _ = softmax_rows(logits, self.shift, target, -100)
        return rows.sum() / (target != -100).sum().clamp(min=1)


class SigmoidLoss(nn.Module):
    """`BalancedSigmoidLoss` of targets [N, K] by these kernels."""

    shift: Tensor

    def __init__(self, prior: eq.Prior) -> None:
        super().__init__()
        self.register_buffer("shift", eq.sigmoid_shift(prior))

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return sigmoid_rows(logits, self.shift, target).sum() / logits.numel()


# -------------------------------------------------------------------- right?


def check(device: torch.device) -> None:
    """Values and gradients beside those of the library, in float64 there."""
    torch.manual_seed(0)
    for rows, classes in ((5, 3), (9, 100), (17, 1203)):
        prior = benchmark.long_tail_prior(classes)
        logits = 10 * torch.randn(rows, classes, device=device)
        target = torch.randint(0, classes, (rows,), device=device)
        target[1] = -100
        answers = torch.rand(rows, classes, device=device).round()
        slope = torch.rand(rows, device=device)
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            z = logits.to(dtype)
            exact = z.double().requires_grad_()
            softmax, sigmoid = eq.softmax_shift(prior).to(device), eq.sigmoid_shift(prior).to(device)
            wanted = eq.balanced_softmax_loss(exact, target, softmax.double(), reduction="none")
            loss, lse = softmax_rows(z, softmax, target, -100)
            compare(loss, wanted, softmax_slope(z, softmax, target, lse, slope, -100), exact, slope)
            wanted = eq.balanced_sigmoid_loss(exact, answers, sigmoid.double(), reduction="none").sum(1)
            loss = sigmoid_rows(z, sigmoid, answers)
            compare(loss, wanted, sigmoid_slope(z, sigmoid, answers, slope), exact, slope)
    check_compiled(device)
    print("values and gradients are those of the library")


def check_compiled(device: torch.device) -> None:
    """The modules as they are timed: compiled, a mean over rows."""
    prior = benchmark.long_tail_prior(37)
    target = torch.randint(0, 37, (11,), device=device)
    answers = F.one_hot(target, 37).float()
    for make, ours, wanted in (
        (SoftmaxLoss, eq.BalancedSoftmaxLoss(prior), target),
        (SigmoidLoss, eq.BalancedSigmoidLoss(prior), answers),
    ):
        logits = [torch.randn(11, 37, generator=torch.Generator().manual_seed(0)).to(device) for _ in range(2)]
        for z, loss in zip(logits, (torch.compile(make(prior).to(device)), ours.to(device)), strict=True):
            loss(z.requires_grad_(), wanted).backward()
        torch.testing.assert_close(logits[0].grad, logits[1].grad, rtol=1e-4, atol=1e-6)


def compare(loss: Tensor, wanted: Tensor, gradient: Tensor, logits: Tensor, slope: Tensor) -> None:
    torch.testing.assert_close(loss, wanted.float(), rtol=1e-5, atol=1e-4)
    (true,) = torch.autograd.grad(wanted, logits, slope.double())
    tolerance = 1e-2 if gradient.itemsize == 2 else 1e-4
    torch.testing.assert_close(gradient, true.to(gradient.dtype), rtol=tolerance, atol=1e-5)


# -------------------------------------------------------------------- fast?


def measure(device: torch.device, budget: float, tuned: bool, only: list[str] | None) -> list[dict[str, Any]]:
    """Each loss three ways, compiled: the library's and these kernels beside the plain one."""
    results = []
    for kind, plain, losses in (
        ("softmax", nn.CrossEntropyLoss(), (eq.BalancedSoftmaxLoss, SoftmaxLoss)),
        ("sigmoid", nn.BCEWithLogitsLoss(), (eq.BalancedSigmoidLoss, SigmoidLoss)),
    ):
        for rows, classes in benchmark.SIZES:
            if not benchmark.wanted(f"{kind} {rows}x{classes}", only):
                continue
            torch.manual_seed(0)
            logits = torch.randn(rows, classes, device=device, requires_grad=True)
            target = torch.randint(0, classes, (rows,), device=device)
            target = F.one_hot(target, classes).float() if kind == "sigmoid" else target
            for make in losses:
                torch.compiler.reset()
                balanced = make(benchmark.long_tail_prior(classes)).to(device)
                pair = [benchmark.compile_(function, tuned) for function in (plain, balanced)]
                steps = [benchmark.Step(partial(function, logits, target), [logits]) for function in pair]
                name = f"{kind} {rows}x{classes} {'own kernels' if make in (SoftmaxLoss, SigmoidLoss) else 'compiled'}"
                work = partial(benchmark.compare, name, *steps, device, budget, rows=rows, classes=classes, kind=kind)
                results.append(benchmark.guarded(name, work))
    return results


def measure_tiles(device: torch.device, budget: float, only: list[str] | None) -> list[dict[str, Any]]:
    """Forward and backward kernels without a compiler around them, as CUDA graphs, for each tile."""
    global tile
    results = []
    for rows, classes in benchmark.SIZES:
        torch.manual_seed(0)
        logits, target = torch.randn(rows, classes, device=device), torch.randint(0, classes, (rows,), device=device)
        shift = eq.softmax_shift(benchmark.long_tail_prior(classes)).to(device)
        answers, slope = F.one_hot(target, classes).float(), torch.full((rows,), 1 / rows, device=device)
        steps = {
            "softmax": lambda z=logits, s=shift, y=target, g=slope: softmax_slope(
                z, s, y, softmax_rows(z, s, y, -100)[1], g, -100
            ),
            "sigmoid": lambda z=logits, s=shift, y=answers, g=slope: (
                sigmoid_rows(z, s, y),
                sigmoid_slope(z, s, y, g),
            ),
        }
        for kind, step in steps.items():
            if not benchmark.wanted(f"{kind} {rows}x{classes}", only):
                continue
            for tile in TILES:
                replay = benchmark.in_graph(step)
                once = max(benchmark.seconds(replay, 20, device), 1e-7)
                took = benchmark.seconds(replay, max(20, int(budget / once)), device)
                print(f"{kind} {rows}x{classes}, tile {tile}: {took * 1e6:.1f} us", flush=True)
                results.append({"kind": kind, "rows": rows, "classes": classes, "tile": tile, "seconds": took})
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only whether they are right")
    parser.add_argument("--tiles", action="store_true", help="try sizes of a tile instead")
    parser.add_argument(
        "--tile", type=int, nargs=3, metavar=("ROWS", "COLUMNS", "WARPS"), help="the tile to measure with"
    )
    parser.add_argument("--budget", type=float, default=0.5, help="seconds for each comparison")
    parser.add_argument("--tuned", action="store_true", help="let the compiler try tile sizes")
    parser.add_argument("--only", action="append", help="rows whose names hold this text; repeatable")
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    options = parser.parse_args()
    global tile
    tile = tuple(options.tile) if options.tile else tile
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not (INTERPRETED and options.check):
        sys.exit("no GPU: only TRITON_INTERPRET=1 with --check works here")
    check(device)
    if options.check:
        return
    print(f"{'forward and backward':40} {'plain':>14} {'balanced':>14}")
    if options.tiles:
        results = measure_tiles(device, options.budget / 10, options.only)
    else:
        results = measure(device, options.budget, options.tuned, options.only)
    if options.out:
        content = {"machine": benchmark.machine(device), "tuned": options.tuned, "tile": tile, "results": results}
        options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
