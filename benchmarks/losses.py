"""What balance costs: forward and backward of balanced losses beside plain ones, time and peak memory from one run.

    python benchmarks/losses.py               CPU: eager; CUDA: compiled against compiled
    python benchmarks/losses.py --quick       small sizes, seconds
    python benchmarks/losses.py --only 4096x1203 --only fold   the rows whose names hold one of these
    python benchmarks/losses.py --tuned       the compiler tries tile sizes for both of a pair before it is timed
    python benchmarks/losses.py --out r.json  every time and ratio, with the machine and the versions
    python benchmarks/losses.py --table r.json  the ratios that such a file holds, as a table in Markdown

Three ways to a balanced loss, each beside its plain twin:

    loss    on logits: BalancedSoftmaxLoss and nn.CrossEntropyLoss, BalancedSigmoidLoss and nn.BCEWithLogitsLoss
    fold    a linear head with the prior folded into its bias, and the same head plain, both with F.cross_entropy
    linear  a head with a million classes whose logits never exist as a whole, and the plain head with all its logits

The two of a pair are timed in turns, A B A B ..., and each ratio is the median over the turns: what disturbs the
machine disturbs both. On a GPU each pair is timed twice: as called from Python, where small sizes measure the calling,
and as CUDA graphs, which is what the GPU does.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler, which measures memory on a CPU, is talkative
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import equipoise as eq
from equipoise.losses.linear_cross_entropy import HAS_KERNEL, BalancedLinearCrossEntropyLoss
from equipoise.models.balanced_head import fold_prior

Result = dict[str, Any]

TUNED = {"coordinate_descent_tuning": True, "max_autotune_pointwise": True}  # options of torch.compile

SIZES = [(512, 100), (4096, 1203), (4096, 8142)]
QUICK_SIZES = [(512, 100), (256, 1203)]


def long_tail_prior(num_classes: int) -> eq.Prior:
    """Counts from 1000 down to 1, the shape of the sets that people call long-tailed."""
    return eq.Prior.from_counts(np.maximum(1000 ** (1 - np.linspace(0, 1, num_classes)), 1).astype(np.int64))


@dataclass
class Step:
    """Forward and backward: the loss, then the gradients of `leaves` into fresh memory."""

    loss: Callable[[], Tensor]
    leaves: list[Tensor]

    def __call__(self) -> None:
        self.clear()
        self.loss().backward()

    def clear(self) -> None:
        for leaf in self.leaves:
            leaf.grad = None


# -------------------------------------------------------------------- measuring


def seconds(step: Callable[[], None], repeats: int, device: torch.device) -> float:
    """Seconds a step takes, `repeats` in a row; on a GPU by its own clock."""
    if device.type != "cuda":
        start = time.perf_counter()
        for _ in range(repeats):
            step()
        return (time.perf_counter() - start) / repeats
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    first.record()
    for _ in range(repeats):
        step()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / 1e3 / repeats


def peak_bytes(step: Step, device: torch.device) -> int:
    """The most memory that the step holds beyond what was there before."""
    step()
    step.clear()  # or the gradients of the last step would count as memory that was there before
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as measured:
        step()
    held = most = 0
    for event in sorted(measured.profiler.kineto_results.events(), key=lambda e: e.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


def in_graph(step: Step) -> Callable[[], None]:
    """The step as a CUDA graph: what the GPU does, without what Python takes to ask for it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def in_turns(plain: Callable[[], None], balanced: Callable[[], None], device: torch.device, budget: float) -> Result:
    """Both steps in turns for about `budget` seconds: medians, and the median of the ratios."""
    once = max(seconds(plain, 3, device), 1e-7)
    repeats = max(1, min(2000, int(budget / (30 * once))))
    turns = max(3, min(15, int(budget / (2 * repeats * once))))
    times = [(seconds(plain, repeats, device), seconds(balanced, repeats, device)) for _ in range(turns)]
    return {
        "plain_s": statistics.median(t for t, _ in times),
        "balanced_s": statistics.median(t for _, t in times),
        "time_ratio": statistics.median(b / a for a, b in times),
        "repeats": repeats,
        "times_s": times,
    }


def compare(
    name: str, plain: Step, balanced: Step, device: torch.device, budget: float, *, graphs: bool = True, **about: Any
) -> Result:
    """Time and memory of both, printed and returned."""
    for step in (plain, balanced):
        for _ in range(3):
            step()
    memory = [peak_bytes(step, device) for step in (plain, balanced)]
    result = {"name": name, **about, **in_turns(plain, balanced, device, budget)}
    result |= {"plain_peak_bytes": memory[0], "balanced_peak_bytes": memory[1]}
    result["memory_ratio"] = memory[1] / memory[0] if memory[0] else None
    line(name, result, memory)
    if device.type == "cuda" and graphs:
        try:
            result["graph"] = in_turns(in_graph(plain), in_graph(balanced), device, budget)
            line("  as CUDA graphs", result["graph"])
        except RuntimeError as error:
            result["graph"] = {"error": str(error).splitlines()[0][:200]}
            print(f"  as CUDA graphs: did not run: {result['graph']['error']}", flush=True)
    return result


def line(name: str, result: Result, memory: list[int] | None = None) -> None:
    text = f"{name:40} {result['plain_s'] * 1e6:11.1f} us {result['balanced_s'] * 1e6:11.1f} us"
    text += f"   time x{result['time_ratio']:5.3f}"
    if memory is not None and memory[0]:
        mebibytes = " and ".join(f"{size / 2**20:,.1f}" for size in memory)
        text += f"   memory x{memory[1] / memory[0]:5.3f} ({mebibytes} MiB)"
    print(text, flush=True)


def guarded(name: str, work: Callable[[], Result]) -> Result:
    """A part that cannot run on this machine says why, and does not take the others with it."""
    try:
        return work()
    except (RuntimeError, torch.OutOfMemoryError) as error:
        reason = str(error).splitlines()[0][:200]
        print(f"{name:40} did not run: {reason}", flush=True)
        return {"name": name, "error": reason}
    finally:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def wanted(name: str, only: list[str] | None) -> bool:
    """Whether the row is one that was asked for: all are, if none was named."""
    return not only or any(text in name for text in only)


# -------------------------------------------------------------------- the three ways


def compile_(function: Callable[..., Tensor], tuned: bool) -> Callable[..., Tensor]:
    return torch.compile(function, dynamic=False, options=TUNED if tuned else None)


def on_logits(
    kind: str, rows: int, classes: int, device: torch.device, budget: float, compiled: bool, tuned: bool
) -> Result:
    """The losses on logits, as a user calls them."""
    torch.manual_seed(0)
    prior = long_tail_prior(classes)
    logits = torch.randn(rows, classes, device=device, requires_grad=True)
    target = torch.randint(0, classes, (rows,), device=device)
    plain: Callable[..., Tensor]
    balanced: Callable[..., Tensor]
    if kind == "softmax":
        plain, balanced = nn.CrossEntropyLoss(), eq.BalancedSoftmaxLoss(prior).to(device)
    else:
        plain, balanced = nn.BCEWithLogitsLoss(), eq.BalancedSigmoidLoss(prior).to(device)
        target = F.one_hot(target, classes).float()
    if compiled:
        torch.compiler.reset()
        plain, balanced = compile_(plain, tuned), compile_(balanced, tuned)
    name = f"{kind} {rows}x{classes} {'compiled' if compiled else 'eager'}"
    steps = [Step(partial(function, logits, target), [logits]) for function in (plain, balanced)]
    return compare(name, *steps, device, budget, rows=rows, classes=classes, way="loss", compiled=compiled)


def folded(
    rows: int, classes: int, features: int, device: torch.device, budget: float, compiled: bool, tuned: bool
) -> Result:
    """A head with the prior folded in, beside the same head plain; both with F.cross_entropy."""
    torch.manual_seed(0)
    x = torch.randn(rows, features, device=device, requires_grad=True)
    target = torch.randint(0, classes, (rows,), device=device)
    heads = [nn.Linear(features, classes, device=device) for _ in range(2)]
    fold_prior(heads[1], long_tail_prior(classes))
    if compiled:
        torch.compiler.reset()

    def loss(head: nn.Linear) -> Tensor:
        return F.cross_entropy(head(x), target)

    steps = []
    for head in heads:
        # A compiled function each, so that one head does not pay for guards that tell it from the other.
        function = compile_(partial(loss, head), tuned) if compiled else partial(loss, head)
        steps.append(Step(function, [x, head.weight, head.bias]))
    name = f"fold {rows}x{features}x{classes} {'compiled' if compiled else 'eager'}"
    return compare(
        name, *steps, device, budget, rows=rows, classes=classes, features=features, way="fold", compiled=compiled
    )


def linear(rows: int, features: int, classes: int, device: torch.device, dtype: torch.dtype, budget: float) -> Result:
    """The loss of a head without its logits, beside plain cross-entropy of all of them."""
    torch.manual_seed(0)
    kernel = "F.linear_cross_entropy" if HAS_KERNEL else "fallback in parts: this torch has no F.linear_cross_entropy"
    x = torch.randn(rows, features, device=device, dtype=dtype, requires_grad=True)
    weight = (torch.randn(classes, features, device=device, dtype=dtype) * 0.05).requires_grad_()
    bias = torch.zeros(classes, device=device, requires_grad=True)
    target = torch.randint(0, classes, (rows,), device=device)
    balanced = BalancedLinearCrossEntropyLoss(long_tail_prior(classes)).to(device)

    def plain(x: Tensor, weight: Tensor, bias: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(x, weight, bias.to(weight.dtype)).float(), target)

    name = f"linear {rows}x{features}x{classes} {str(dtype).removeprefix('torch.')}"
    print(f"{name}: by {kernel}", flush=True)
    steps = [Step(partial(function, x, weight, bias, target), [x, weight, bias]) for function in (plain, balanced)]
    return compare(
        name,
        *steps,
        device,
        budget,
        rows=rows,
        classes=classes,
        features=features,
        way="linear",
        by=kernel,
        graphs=False,
        logits_bytes=rows * classes * dtype.itemsize,
    )


# -------------------------------------------------------------------- the run


def machine(device: torch.device) -> dict[str, str | int]:
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        cpu = names[0] if names else cpu
    gpu = torch.cuda.get_device_name() if device.type == "cuda" else "none"
    return {
        "cpu": cpu,
        "gpu": gpu,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "equipoise": eq.__version__,
    }


def table(path: Path) -> str:
    """The ratios of a file that --out wrote, as a Markdown table."""
    content = json.loads(path.read_text())
    about = content["machine"]
    on_gpu = about["gpu"] != "none"
    times = "time, called from Python | time, as CUDA graphs" if on_gpu else "time"
    lines = [
        f"{about['gpu'] if on_gpu else about['cpu']}, torch {about['torch']}; balanced over plain:",
        "",
        f"| forward and backward | {times} | peak memory |",
        "|---|---|---|---|" if on_gpu else "|---|---|---|",
    ]
    for result in content["results"]:
        graph = [result.get("graph", {}).get("time_ratio")] if on_gpu else []
        ratios = (result["time_ratio"], *graph, result["memory_ratio"])
        lines.append(f"| {result['name']} | {' | '.join('–' if r is None else f'{r:.2f}×' for r in ratios)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, seconds")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--budget", type=float, default=1.0, help="seconds for each comparison")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, help="default: on a GPU only")
    parser.add_argument("--tuned", action="store_true", help="let the compiler try tile sizes, for both of a pair")
    parser.add_argument("--linear", type=int, nargs=3, metavar=("N", "D", "K"), help="size of the head without logits")
    parser.add_argument("--only", action="append", help="rows whose names hold this text; repeatable")
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    parser.add_argument(
        "--table", type=Path, metavar="FILE", help="print the table of a file that --out wrote, and stop"
    )
    options = parser.parse_args()
    if options.table:
        print(table(options.table))
        return
    device = torch.device(options.device)
    compiled = device.type == "cuda" if options.compile is None else options.compile
    tuned = options.tuned
    budget = 0.3 if options.quick else options.budget
    sizes = QUICK_SIZES if options.quick else SIZES
    about = machine(device)
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    print(f"{'forward and backward':40} {'plain':>14} {'balanced':>14}")
    rows_to_do: list[tuple[str, Callable[[], Result]]] = []
    for kind in ("softmax", "sigmoid"):
        for rows, classes in sizes:
            work = partial(on_logits, kind, rows, classes, device, budget, compiled, tuned)
            rows_to_do.append((f"{kind} {rows}x{classes}", work))
    for rows, classes in sizes:
        features = 64 if classes <= 100 else 512
        work = partial(folded, rows, classes, features, device, budget, compiled, tuned)
        rows_to_do.append((f"fold {rows}x{features}x{classes}", work))
    large = options.linear or ([256, 64, 20_000] if options.quick else [1024, 512, 10**6])
    if device.type == "cpu" and not options.linear and not options.quick:
        large = [1024, 512, 50_000]  # a million take minutes on a CPU: --linear 1024 512 1000000
    for dtype in (torch.float32, torch.bfloat16) if device.type == "cuda" else (torch.float32,):
        rows_to_do.append(("linear " + "x".join(map(str, large)), partial(linear, *large, device, dtype, budget)))
    results = [guarded(name, work) for name, work in rows_to_do if wanted(name, options.only)]
    if options.out:
        kernels = os.environ.get("EQUIPOISE_KERNELS") != "0"  # of the compiled losses on a GPU
        content = {"machine": about, "tuned": tuned, "kernels": kernels, "results": results}
        options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
