"""Times of the fused ResNet-32 kernels beside cuDNN's, a layer at a time; and the best way to cut each one's work.

    python benchmarks/cifar_kernels.py                 µs at batch 512 with the committed tilings, beside cuDNN
    python benchmarks/cifar_kernels.py --tune          tries others, a minute, and writes the best into
                                                       src/equipoise/experiments/resnet32/fused.py
    python benchmarks/cifar_kernels.py --width 2       the same at 32, 64 and 128 channels, and whether a network of
                                                       them trains as torch's does; with --tune, tunes 128 alone
    python benchmarks/cifar_kernels.py --out r.json    writes what it measured

The transposed convolution adds, masks and sums for the layer below on the way, and the weight's gradient goes through
the normalisation first; cuDNN's only convolve.

Needs a GPU. Medians over CUDA graphs of many calls, on more data than the cache holds, as when several runs share it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import statistics
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import cifar_throughput as throughput
import torch
from torch.nn import functional

from equipoise.experiments.resnet32 import fused
from equipoise.experiments.resnet32.fused import Tiling

SIDES = {16: 32, 32: 16, 64: 8}  # the image's side where a layer of width 1 has so many channels
PARTS = 5  # processes that compile a kernel's variants
TABLES = {"convolution": fused.CONVOLUTION, "transposed": fused.TRANSPOSED, "weight": fused.WEIGHT}
SETS = 32  # of tensors that calls take in turn: at 64 channels one is 4 MB, and an H200's cache holds 50
ONE, PAIRS = (1, 1, 1), (2, 4, 3)  # pixels of a group, columns at once, rows kept or summed: see fused.Tiling
CONVOLUTIONS = {
    16: [Tiling(256, 4, 4, 1, *ONE)]
    + [Tiling(b, t, w, 1, *PAIRS) for b, w in ((32, 2), (64, 2), (64, 4), (128, 4), (128, 8)) for t in (4, 8)],
    32: [Tiling(b, t, w, 1, *ONE) for b, w, t in ((128, 4, 1), (128, 4, 2), (256, 8, 2))]
    + [Tiling(b, t, w, 1, *PAIRS) for b, w in ((64, 4), (128, 8)) for t in (2, 4)]
    + [Tiling(b, t, w, 1, 2, c) for b, w in ((64, 4), (128, 8)) for t in (1, 2) for c in (2, 4)],
    64: [Tiling(b, 1, w, 1, *ONE) for b, w in ((64, 2), (64, 4), (128, 4), (128, 8), (256, 8))]
    + [Tiling(64, 1, w, 1, 2) for w in (4, 8)],
}
STAGES = (1, 2, 3)
CANDIDATES = {
    "convolution": CONVOLUTIONS,
    "transposed": CONVOLUTIONS,
    "weight": {
        16: [Tiling(b, t, 4, s, *PAIRS) for b in (64, 128) for t in (16, 32) for s in STAGES]
        + [Tiling(64, 32, 4, 3, 1, 4, 3)],
        32: [Tiling(64, t, 4, s, 1, 4, 3) for t in (8, 16) for s in (2, 3)]
        + [Tiling(64, t, 4, s, 2, 4) for t in (8, 16) for s in STAGES]
        + [Tiling(32, t, 8, s, *PAIRS) for t in (16, 32) for s in STAGES],
        64: [Tiling(32, t, 4, s, 1, 4) for t in (8, 16, 32) for s in STAGES]
        + [Tiling(32, t, 8, s, 2, 4) for t in (8, 16) for s in STAGES]
        + [Tiling(64, t, w, s, 1, c) for w, c in ((8, 4), (4, 1)) for t in (8, 16) for s in (2, 3)],
    },
}
WIDE_CONVOLUTIONS = [Tiling(b, t, w) for b, t, w in itertools.product((64, 128, 256), (1, 2), (4, 8)) if b <= 32 * w]
WIDE = {
    "convolution": WIDE_CONVOLUTIONS,
    "transposed": WIDE_CONVOLUTIONS,
    "weight": [Tiling(*t) for t in itertools.product((32, 64, 128), (8, 16, 32), (4, 8), (3,))],
}


def sides(width: int) -> dict[int, int]:
    return {channels * width: side for channels, side in SIDES.items()}


def tuned(width: int) -> list[int]:
    """The channels whose tilings are looked for: what width 1 has stays as it is, and with it the bits of results."""
    return list(SIDES) if width == 1 else [channels for channels in sides(width) if channels not in SIDES]


def candidates(kernel: str, channels: int) -> list[Tiling]:
    return WIDE[kernel] if channels > 64 else CANDIDATES[kernel][channels]


def work(kernel: str, channels: int, side: int, batch: int = 512) -> Callable[[], Any]:
    """Calls of one kernel of a layer of so many channels."""

    def call(number: int) -> Callable[[], Any]:
        def random(side: int) -> torch.Tensor:
            return torch.randn(batch, side, side, channels, device="cuda").bfloat16()

        x, out, y, dz = random(side + 2), random(side + 2), random(side), random(side)
        weight = torch.randn(channels, channels, 3, 3, device="cuda").bfloat16().to(memory_format=torch.channels_last)
        layer = fused.Layer(weight, 1, x, y, out, torch.ones(4, channels, device="cuda"), residual=True)
        partial = torch.ones(8, 2, channels, device="cuda")
        below = (dz, layer) if number % 2 else (None, replace(layer, residual=False))  # a block has one of each
        return {
            "convolution": lambda: fused.convolution(x, weight, 1),
            "transposed": lambda: fused.convolution_transposed(x, weight, 1, *below),
            "weight": lambda: fused.weight_gradient(dz, partial, layer, out),
        }[kernel]

    return in_turn(call)


def by_cudnn(kernel: str, channels: int, side: int, batch: int = 512) -> Callable[[], Any]:
    """The same by torch, in bf16 and channels_last."""

    def call(number: int) -> Callable[[], Any]:
        def random(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, device="cuda").bfloat16().to(memory_format=torch.channels_last)

        x, y = (random(batch, channels, side, side) for _ in range(2))
        weight = random(channels, channels, 3, 3)

        def gradient(mask: list[bool]) -> Any:
            return torch.ops.aten.convolution_backward(
                y, x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [*mask, False]
            )

        return {
            "convolution": lambda: functional.conv2d(x, weight, padding=1),
            "transposed": lambda: gradient([True, False]),
            "weight": lambda: gradient([False, True]),
        }[kernel]

    return in_turn(call)


def in_turn(call: Callable[[int], Callable[[], Any]]) -> Callable[[], Any]:
    """Calls on one set of tensors after the other."""
    calls = itertools.cycle([call(number) for number in range(SETS)])
    return lambda: next(calls)()


def microseconds(call: Callable[[], Any], calls: int = 2 * SETS, repeats: int = 7) -> float:
    """The median time of a call, many of them in a CUDA graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(SETS):
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


def build(task: tuple[str, int, int, list[Tiling]]) -> None:
    """Compile a kernel's variants into Triton's cache: done by several processes at once."""
    kernel, channels, side, tilings = task
    call = work(kernel, channels, side, batch=64)  # whole tiles, as a whole batch has
    for tiling in tilings:
        TABLES[kernel][channels] = tiling
        try:
            for _ in range(2):
                call()
        except Exception as error:
            print(kernel, channels, tiling, str(error).splitlines()[0][:80])


def tune(width: int) -> dict[str, dict[int, list[tuple[float, Tiling]]]]:
    """For each kernel and number of channels, the time of every tiling that runs, best first."""
    size, channels_of = sides(width), tuned(width)
    tasks = [(k, c, size[c], candidates(k, c)[i::PARTS]) for k in TABLES for c in channels_of for i in range(PARTS)]
    with ProcessPoolExecutor(min(len(tasks), os.cpu_count() or 1), multiprocessing.get_context("spawn")) as pool:
        list(pool.map(build, tasks))
    found: dict[str, dict[int, list[tuple[float, Tiling]]]] = {}
    for kernel, channels in itertools.product(TABLES, channels_of):
        call, timed = work(kernel, channels, size[channels]), []
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
    text = source.read_text()
    for kernel, table in TABLES.items():
        rows = [f"    {channels}: Tiling({', '.join(map(str, vars(t).values()))}),\n" for channels, t in table.items()]
        start = text.index(f"\n{kernel.upper()} = {{\n") + 1
        end = text.index("}\n", start) + 2
        content = f"{kernel.upper()} = {{\n{''.join(rows)}}}\n"
        text = text[:start] + content + text[end:]
        print(content, end="")
    source.write_text(text)


def engine_speed(runs: int, width: int) -> float:
    data, recipe = throughput.random_set(torch.device("cuda")), replace(throughput.SOFTMAX, width=width)
    return throughput.engine_speed(data, runs, seconds=3, recipe=recipe, features=fused.fused_features)


def trains_as_torch(width: int) -> dict[str, Any]:
    """Steps of the fused network beside eager ones in bf16 and in fp32."""
    data, recipe = throughput.random_set(torch.device("cuda")), replace(throughput.SOFTMAX, width=width)
    return throughput.against_eager(data, recipe, features=fused.fused_features)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tune", action="store_true", help="try other tilings, and write the best down")
    parser.add_argument("--width", type=int, default=1, choices=(1, 2), help="of the network, a factor of its channels")
    parser.add_argument("--out", type=Path, help="write the times as JSON")
    arguments = parser.parse_args()
    width = arguments.width
    torch.backends.cudnn.benchmark = True
    tried = tune(width) if arguments.tune else {}
    if tried:
        write(Path(fused.__file__))
    layers = []
    for (channels, side), kernel in itertools.product(sides(width).items(), TABLES):
        ours = microseconds(work(kernel, channels, side))
        other = microseconds(by_cudnn(kernel, channels, side))
        tiling = vars(TABLES[kernel][channels])
        layers.append({"kernel": kernel, "channels": channels, "tiling": tiling, "fused_us": ours, "cudnn_us": other})
        print(f"{kernel:12} {channels:3} channels  {ours:7.1f} µs   cuDNN {other:7.1f} µs   {tiling}")
    checked = trains_as_torch(width) if tried or width > 1 else {}
    if checked:
        print("20 steps beside eager ones:", checked, flush=True)
    if tried or width > 1:
        speeds = {runs: round(engine_speed(runs, width)) for runs in (1, 6 if width == 1 else 3)}
        print("images per second of the engine with these:", speeds)
    if arguments.out:
        about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "batch": 512}
        arguments.out.write_text(json.dumps({"machine": about, "layers": layers}, indent=1) + "\n")
    if checked.get("good") is False:
        sys.exit(1)


if __name__ == "__main__":
    main()
