"""Times of the fused ResNet-32 kernels beside cuDNN's, a layer at a time; and the best way to cut each one's work.

    python benchmarks/cifar_kernels.py                 µs at batch 512 with the committed tilings, beside cuDNN
    python benchmarks/cifar_kernels.py --tune          tries others, a minute, and writes the best into
                                                       src/equipoise/experiments/resnet32/fused.py
    python benchmarks/cifar_kernels.py --out r.json    writes what it measured

The transposed convolution adds, masks and sums for the layer below on the way; cuDNN's only convolves.

Needs a GPU. Medians over CUDA graphs of many calls, with buffers that lie in memory as in training.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import statistics
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import cifar_throughput as throughput
import torch
from torch.nn import functional

from equipoise.experiments.resnet32 import fused
from equipoise.experiments.resnet32.fused import Tiling

SIZE = {16: 32, 32: 16, 64: 8}  # the image's side where a layer has so many channels
TABLES = {"convolution": fused.CONVOLUTION, "transposed": fused.TRANSPOSED, "weight": fused.WEIGHT}
CONVOLUTIONS = [Tiling(*t) for t in itertools.product((128, 256), (1, 2, 4), (4, 8), (1,), (1, 3))]
CANDIDATES = {
    "convolution": CONVOLUTIONS,
    "transposed": CONVOLUTIONS,
    "weight": [Tiling(*t) for t in itertools.product((32, 64, 128), (16, 32), (4,), (3,), (3,))],
}


def candidates(kernel: str, channels: int) -> list[Tiling]:
    return [tiling for tiling in CANDIDATES[kernel] if kernel == "weight" or tiling.taps == 1 or channels < 64]


def work(kernel: str, channels: int, batch: int = 512) -> Callable[[], Any]:
    """A call of one kernel of a layer of so many channels."""
    side = SIZE[channels]
    x, y = (torch.randn(batch, side, side, channels, device="cuda").bfloat16() for _ in range(2))
    weight = torch.randn(channels, channels, 3, 3, device="cuda").to(memory_format=torch.channels_last)
    below = fused.Layer(weight, 1, x, y, y, torch.ones(4, channels, device="cuda"))
    return {
        "convolution": lambda: fused.convolution(x, weight, 1),
        "transposed": lambda: fused.convolution_transposed(x, weight, 1, y, below),
        "weight": lambda: fused.weight_gradient(x, y, 1),
    }[kernel]


def by_cudnn(kernel: str, channels: int, batch: int = 512) -> Callable[[], Any] | None:
    """The same by torch, in bf16 and channels_last."""
    side = SIZE[channels]
    x, y = (
        torch.randn(batch, channels, side, side, device="cuda").bfloat16().to(memory_format=torch.channels_last)
        for _ in range(2)
    )
    weight = torch.randn(channels, channels, 3, 3, device="cuda").bfloat16().to(memory_format=torch.channels_last)

    def gradient(mask: list[bool]) -> Any:
        return torch.ops.aten.convolution_backward(
            y, x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [*mask, False]
        )

    calls = {
        "convolution": lambda: functional.conv2d(x, weight, padding=1),
        "transposed": lambda: gradient([True, False]),
        "weight": lambda: gradient([False, True]),
    }
    return calls.get(kernel)


def microseconds(call: Callable[[], Any], calls: int = 20, repeats: int = 7) -> float:
    """The median time of a call, many of them in a CUDA graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(calls):
            call()
    times = []
    for _ in range(repeats):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        graph.replay()
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last) * 1e3 / calls)
    return statistics.median(times)


def build(task: tuple[str, int, list[Tiling]]) -> None:
    """Compile a kernel's variants into Triton's cache: done by several processes at once."""
    kernel, channels, tilings = task
    call = work(kernel, channels, batch=4)
    for tiling in tilings:
        TABLES[kernel][channels] = tiling
        try:
            call()
        except Exception as error:
            print(kernel, channels, tiling, str(error).splitlines()[0][:80])


def tune() -> dict[str, dict[int, list[tuple[float, Tiling]]]]:
    """For each kernel and number of channels, the time of every tiling that runs, best first."""
    tasks = [(k, c, part) for k in TABLES for c in SIZE for part in (candidates(k, c)[::2], candidates(k, c)[1::2])]
    with ProcessPoolExecutor(min(len(tasks), os.cpu_count() or 1), multiprocessing.get_context("spawn")) as pool:
        list(pool.map(build, tasks))
    found: dict[str, dict[int, list[tuple[float, Tiling]]]] = {}
    for kernel, channels in itertools.product(TABLES, SIZE):
        call, timed = work(kernel, channels), []
        for tiling in candidates(kernel, channels):
            TABLES[kernel][channels] = tiling
            try:
                timed.append((microseconds(call), tiling))
            except Exception as error:
                print(kernel, channels, tiling, str(error).splitlines()[0][:80])
        timed.sort(key=lambda pair: pair[0])
        found.setdefault(kernel, {})[channels] = timed
        TABLES[kernel][channels] = timed[0][1]
        print(kernel, channels, *(f"{time:.1f} µs {tiling}" for time, tiling in timed[:3]), sep="\n   ", flush=True)
    return found


def write(source: Path) -> None:
    """Put the tables as they are now into the source file."""
    lines = source.read_text().splitlines(keepends=True)
    for kernel, table in TABLES.items():
        line = ", ".join(
            f"{channels}: Tiling({t.block}, {t.tiles}, {t.warps}, {t.stages}, {t.taps})"
            for channels, t in table.items()
        )
        at = next(i for i, text in enumerate(lines) if text.startswith(f"{kernel.upper()} = "))
        lines[at] = f"{kernel.upper()} = {{{line}}}\n"
        print(lines[at], end="")
    source.write_text("".join(lines))


def engine_speed(runs: int) -> float:
    return throughput.engine_speed(
        throughput.random_set(torch.device("cuda")), runs, seconds=3, features=fused.fused_features
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tune", action="store_true", help="try other tilings, and write the best down")
    parser.add_argument("--out", type=Path, help="write the times as JSON")
    arguments = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    tried = tune() if arguments.tune else {}
    layers = []
    for channels, kernel in itertools.product(SIZE, TABLES):
        ours = microseconds(work(kernel, channels))
        theirs = by_cudnn(kernel, channels)
        other = None if theirs is None else microseconds(theirs)
        tiling = vars(TABLES[kernel][channels])
        layers.append({"kernel": kernel, "channels": channels, "tiling": tiling, "fused_us": ours, "cudnn_us": other})
        print(f"{kernel:12} {channels:3} channels  {ours:7.1f} µs   cuDNN {other or float('nan'):7.1f} µs   {tiling}")
    if tried:
        write(Path(fused.__file__))
        print("images per second of the engine with these:", {runs: round(engine_speed(runs)) for runs in (1, 4)})
    if arguments.out:
        about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "batch": 512}
        arguments.out.write_text(json.dumps({"machine": about, "layers": layers}, indent=1) + "\n")


if __name__ == "__main__":
    main()
