"""What the kernels of the balanced losses gain beside what torch.compile makes of the same losses. On a GPU.

    python benchmarks/loss_kernels.py               plain compiled, balanced compiled without and with the kernels
    python benchmarks/loss_kernels.py --tiles       the kernels alone, for several sizes of a tile
    python benchmarks/loss_kernels.py --check       only whether the compiled losses are right, which comes first anyway
    python benchmarks/loss_kernels.py --out r.json  writes what it measured

The kernels are those of equipoise.losses.kernels. EQUIPOISE_KERNELS=0 switches them off for any program, and for
benchmarks/losses.py as well.
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

import losses as benchmark
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import equipoise as eq
from equipoise.losses import kernels

TILES = (
    *((4, 256, 4), (8, 128, 4), (8, 256, 4), (4, 512, 4), (8, 256, 8), (2, 1024, 4), (4, 1024, 8), (16, 128, 4)),
    *((1, 2048, 4), (1, 2048, 8), (2, 2048, 8), (4, 2048, 16), (1, 512, 4), (1, 1024, 4)),
)


def use_tile(rows: int, columns: int, warps: int) -> None:
    """Programs of so many rows, columns and warps from now on, in what is compiled from now on."""
    kernels.ROWS, kernels.COLUMNS, kernels.SOFTMAX_WARPS, kernels.SIGMOID_WARPS = rows, columns, warps, warps


def with_kernels(use: bool) -> None:
    """What the losses that are compiled from now on do."""
    os.environ["EQUIPOISE_KERNELS"] = str(int(use))
    torch.compiler.reset()


# -------------------------------------------------------------------- right?


def check(device: torch.device) -> None:
    """Values and gradients of the kernels, and of compiled losses, beside those of the library, of fp64 logits here."""
    with_kernels(True)
    torch.manual_seed(0)
    for classes in (3, 100, 1203):
        prior = benchmark.long_tail_prior(classes)
        softmax, sigmoid = eq.BalancedSoftmaxLoss(prior).to(device), eq.BalancedSigmoidLoss(prior).to(device)
        for rows in (0, 1, 17, 64):
            indices = torch.randint(0, classes, (rows,), device=device)
            indices[1:2] = -100
            answers = torch.rand(rows, classes, device=device)
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                logits = (10 * torch.randn(rows, classes, device=device)).to(dtype)
                for loss, target, ours in (
                    (softmax, indices, lambda z, y, s=softmax.log_prior: kernels.softmax_loss(z, y, s, -100, "mean")),
                    (sigmoid, indices, lambda z, y, s=sigmoid.shift: kernels.sigmoid_loss(z, y, s, -100, "mean")),
                    (sigmoid, answers, lambda z, y, s=sigmoid.shift: kernels.sigmoid_loss(z, y, s, -100, "mean")),
                ):
                    compare(ours, loss, logits, target)
                    if (classes, dtype) == (1203, torch.float32):
                        compare(torch.compile(loss, fullgraph=True), loss, logits, target)
    print("values and gradients are those of the library")


def compare(kernel: Callable[..., Tensor], loss: nn.Module, logits: Tensor, target: Tensor) -> None:
    ours, theirs = logits.clone().requires_grad_(), logits.double().requires_grad_()
    found, expected = kernel(ours, target), loss(theirs, target)
    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-4)
    slope = torch.rand_like(found)
    found.backward(slope)
    expected.backward(slope.double())
    tolerance = 1e-2 if logits.itemsize == 2 else 1e-4
    torch.testing.assert_close(ours.grad, theirs.grad.to(logits.dtype), rtol=tolerance, atol=1e-5)


# -------------------------------------------------------------------- fast?


def measure(device: torch.device, budget: float, tuned: bool, only: list[str] | None) -> list[dict[str, Any]]:
    """Each loss compiled without and with the kernels, beside the plain one."""
    results = []
    for kind in ("softmax", "sigmoid"):
        for rows, classes in benchmark.SIZES:
            for use in (False, True):
                if not benchmark.wanted(f"{kind} {rows}x{classes}", only):
                    continue
                with_kernels(use)
                print("with the kernels:" if use else "without the kernels:")
                name = f"{kind} {rows}x{classes} {'by kernels' if use else 'without them'}"
                work = partial(benchmark.on_logits, kind, rows, classes, device, budget, True, tuned)
                results.append(benchmark.guarded(name, work) | {"kernels": use})
    return results


def measure_tiles(device: torch.device, budget: float, only: list[str] | None) -> list[dict[str, Any]]:
    """Forward and backward kernels without a compiler around them, as CUDA graphs, for each tile."""
    results = []
    for rows, classes in benchmark.SIZES:
        torch.manual_seed(0)
        logits, target = torch.randn(rows, classes, device=device), torch.randint(0, classes, (rows,), device=device)
        shift = eq.softmax_shift(benchmark.long_tail_prior(classes)).to(device)
        answers, slope = F.one_hot(target, classes).float(), torch.full((rows,), 1 / rows, device=device)

        def softmax(z: Tensor = logits, s: Tensor = shift, y: Tensor = target, g: Tensor = slope) -> None:
            _, most, total = kernels.softmax_rows(z, s, y, -100)
            kernels.softmax_slope(z, s, y, most, total, g, -100)

        def sigmoid(z: Tensor = logits, s: Tensor = shift, y: Tensor = answers, g: Tensor = slope) -> None:
            kernels.sigmoid_rows(z, s, y, -100)
            kernels.sigmoid_slope(z, s, y, g, -100)

        for kind, step in (("softmax", softmax), ("sigmoid", sigmoid)):
            if not benchmark.wanted(f"{kind} {rows}x{classes}", only):
                continue
            for tile in TILES:
                use_tile(*tile)
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
        "--tile", type=int, nargs=3, metavar=("ROWS", "COLUMNS", "WARPS"), help="measure with this tile"
    )
    parser.add_argument("--budget", type=float, default=0.5, help="seconds for each comparison")
    parser.add_argument("--tuned", action="store_true", help="let the compiler try tile sizes of its own kernels")
    parser.add_argument("--only", action="append", help="rows whose names hold this text; repeatable")
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit(
            "no GPU: what the kernels compute is tested anywhere, by python -m pytest tests/losses/test_loss_kernels.py"
        )
    if options.tile:
        use_tile(*options.tile)
    device = torch.device("cuda")
    check(device)
    if options.check:
        return
    print(f"{'forward and backward':40} {'plain':>14} {'balanced':>14}")
    if options.tiles:
        results = measure_tiles(device, options.budget / 10, options.only)
    else:
        results = measure(device, options.budget, options.tuned, options.only)
    if options.out:
        content = {"machine": benchmark.machine(device), "tuned": options.tuned, "results": results}
        options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
