"""Samplers and counting against their alternatives, in one run on one core.

    python benchmarks/samplers.py                     2^24 items, LVIS-sized repeat factors, 100 M labels in Parquet
    python benchmarks/samplers.py --quick             the same in seconds
    python benchmarks/samplers.py --billion           also 10^9 memory-mapped labels (2 GB on disk, 4 GB of memory)

Times are CPU seconds of this process, so that other jobs on the machine disturb them little.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from torch.utils.data import WeightedRandomSampler

from equipoise.samplers.class_balanced import ClassBalancedSampler
from equipoise.samplers.repeat_factor import RepeatFactorSampler

Results = dict[str, Any]


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def long_tail(num_items: int, num_classes: int, imbalance: float = 100) -> np.ndarray:
    """Labels whose class sizes fall geometrically, in random order."""
    weights = imbalance ** -np.linspace(0, 1, num_classes)
    return np.random.default_rng(0).choice(num_classes, num_items, p=weights / weights.sum()).astype(np.int16)


def epoch_of(sampler: Iterable[int]) -> float:
    """The better of two epochs, taken index after index and kept nowhere, as a DataLoader does."""
    return min(timed(lambda: deque(sampler, maxlen=0))[0] for _ in range(2))


def against_weighted_random_sampler(num_items: int, num_classes: int) -> Results:
    """An epoch of class-balanced indices: ours, and torch's WeightedRandomSampler with weights 1 / n_c."""
    labels = long_tail(num_items, num_classes)
    build, sampler = timed(lambda: ClassBalancedSampler(labels))
    ours, square_root = epoch_of(sampler), epoch_of(ClassBalancedSampler(labels, strength=0.5))
    drawn = np.bincount(labels[list(sampler)], minlength=num_classes)
    weights = torch.from_numpy(1 / np.bincount(labels))[torch.from_numpy(labels).long()]
    theirs = epoch_of(WeightedRandomSampler(weights, num_items))
    print(f"class-balanced epoch of {num_items:,} items, {num_classes} classes")
    print(
        f"  equipoise              {ours:8.2f} s  (draws per class {drawn.min()}-{drawn.max()}; built in {build:.2f} s)"
    )
    print(f"  WeightedRandomSampler  {theirs:8.2f} s")
    print(f"  ratio                  {theirs / ours:8.1f} x faster; {theirs / (ours + build):.1f} x with building")
    print(f"  square-root strength   {square_root:8.2f} s")
    return {
        "items": num_items,
        "classes": num_classes,
        "build_s": build,
        "epoch_s": ours,
        "square_root_epoch_s": square_root,
        "weighted_random_sampler_s": theirs,
        "times_faster": theirs / ours,
        "times_faster_with_build": theirs / (ours + build),
    }


def beyond_the_limit(num_items: int) -> Results:
    """2^24 + 1 items, where torch.multinomial stops."""
    labels = np.zeros(num_items, np.int16)
    labels[-3:] = 1
    try:
        next(iter(WeightedRandomSampler(torch.ones(num_items), 1)))
        theirs = "works"
    except RuntimeError as error:
        theirs = str(error).splitlines()[0]
    seconds, first = timed(lambda: next(iter(ClassBalancedSampler(labels))))
    print(f"{num_items:,} items: equipoise works (first index {first} after {seconds:.2f} s); torch: {theirs}")
    return {"items": num_items, "first_index_s": seconds, "torch": theirs}


def billion(num_items: int, num_classes: int) -> Results:
    """Labels in a memory map larger than we want to hold: build, draw, and say how much memory it took."""
    with tempfile.TemporaryDirectory() as folder:
        labels = np.memmap(Path(folder) / "labels.int16", np.int16, "w+", shape=(num_items,))
        step = 1 << 24
        for start in range(0, num_items, step):
            labels[start : start + step] = long_tail(min(step, num_items - start), num_classes)
        labels.flush()
        tracemalloc.start()  # NumPy reports to it; pages of the memory map are the system's, and do not count
        build, sampler = timed(lambda: ClassBalancedSampler(labels))
        peak = tracemalloc.get_traced_memory()[1] / 1e6
        tracemalloc.stop()
        iterator = iter(sampler)
        drawn, indices = timed(lambda: [next(iterator) for _ in range(10_000_000 if num_items > 1e8 else 100_000)])
        counts = np.bincount(labels[indices], minlength=num_classes)
        state = sampler.state_dict()
        sampler.load_state_dict(state)
        resume, _ = timed(lambda: next(iter(sampler)))
    each = drawn / len(indices) * 1e9
    index_mb = num_items * 4 / 1e6
    print(f"{num_items:,} memory-mapped labels, {num_classes} classes")
    print(f"  built in {build:.1f} s, then {each:.0f} ns a draw; resuming takes {resume * 1e3:.1f} ms")
    print(f"  peak memory while building {peak:,.0f} MB, of which the index array that stays is {index_mb:,.0f} MB")
    print(f"  draws per class {counts.min()}-{counts.max()}")
    return {
        "items": num_items,
        "build_s": build,
        "ns_a_draw": each,
        "resume_s": resume,
        "peak_mb": peak,
        "index_mb": index_mb,
    }


def repeat_factors(num_images: int, num_classes: int, annotations: int) -> Results:
    """An LVIS-sized set: factors and an epoch's list, against the loops that detection frameworks run."""
    random = np.random.default_rng(0)
    classes = (num_classes * random.power(0.35, annotations)).astype(np.int64)
    offsets = np.concatenate([[0], np.sort(random.integers(0, annotations, num_images - 1)), [annotations]])
    threshold = 0.001
    build, sampler = timed(lambda: RepeatFactorSampler((offsets, classes), threshold=threshold))
    epoch, indices = timed(lambda: list(sampler))
    lists = [classes[a:b].tolist() for a, b in pairwise(offsets)]
    build_loop, factors = timed(lambda: loop_factors(lists, threshold))
    epoch_loop, loop_indices = timed(lambda: loop_epoch(factors))
    assert factors == sampler.repeat_factors.tolist()
    assert loop_indices == indices
    print(f"repeat factors of {num_images:,} images, {num_classes} classes, {annotations:,} annotations")
    for what, ours, loop in (("factors", build, build_loop), ("an epoch", epoch, epoch_loop)):
        print(f"  {what:9} {ours:7.3f} s   plain loop {loop:7.3f} s   {loop / ours:6.1f} x faster, the same values")
    return {
        "images": num_images,
        "annotations": annotations,
        "factors_s": build,
        "epoch_s": epoch,
        "factors_loop_s": build_loop,
        "epoch_loop_s": epoch_loop,
        "epoch_length": len(indices),
    }


def loop_factors(images: list[list[int]], threshold: float) -> list[float]:
    holding: dict[int, int] = {}
    for classes in images:
        for c in set(classes):
            holding[c] = holding.get(c, 0) + 1
    of_class = {c: max(1.0, (threshold * len(images) / count) ** 0.5) for c, count in holding.items()}
    return [max((of_class[c] for c in set(classes)), default=1.0) for classes in images]


def loop_epoch(factors: list[float]) -> list[int]:
    random = np.random.default_rng([0, 0])
    rounding = torch.from_numpy(random.random(len(factors)))
    indices: list[int] = []
    for item, factor in enumerate(factors):
        indices.extend([item] * (int(factor) + (1 if rounding[item].item() < factor - int(factor) else 0)))
    shuffled = np.array(indices)
    random.shuffle(shuffled)
    return shuffled.tolist()


def count_parquet_labels(num_labels: int, num_classes: int) -> Results | None:
    """Labels of a large label space in one Parquet file, against Arrow's own value_counts."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError:
        print("counting Parquet: skipped, pyarrow is not installed")
        return None
    from equipoise.data.parquet import count_parquet

    pyarrow.set_cpu_count(1)
    pyarrow.set_io_thread_count(1)
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "labels.parquet"
        schema = pyarrow.schema([("label", pyarrow.int32())])
        with pyarrow.parquet.ParquetWriter(path, schema) as writer:
            left = num_labels
            while left:
                size = min(left, 10_000_000)
                labels = (num_classes * random.power(0.3, size)).astype(np.int32)
                writer.write_table(pyarrow.table({"label": labels}, schema))
                left -= size
        megabytes = path.stat().st_size / 1e6
        count_parquet(path)  # once to have the file in memory for both
        ours, counts = timed(lambda: count_parquet(path))
        theirs, _ = timed(lambda: pyarrow.parquet.read_table(path, use_threads=False).column(0).value_counts())
    assert counts.sum() == num_labels
    print(f"counting {num_labels:,} labels of {num_classes:,} classes in Parquet ({megabytes:.0f} MB)")
    print(f"  equipoise             {ours:6.2f} CPU-s  {num_labels / ours / 1e6:6.1f} M labels/s/core")
    print(f"  Arrow's value_counts  {theirs:6.2f} CPU-s  {theirs / ours:6.1f} x slower")
    return {
        "labels": num_labels,
        "classes": num_classes,
        "cpu_s": ours,
        "million_labels_a_second_a_core": num_labels / ours / 1e6,
        "arrow_value_counts_cpu_s": theirs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, seconds")
    parser.add_argument("--items", type=int, default=1 << 24, help="items of the class-balanced epoch")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--labels", type=int, default=100_000_000, help="labels to count from Parquet")
    parser.add_argument("--billion", action="store_true", help="also 10^9 memory-mapped labels")
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    quick = options.quick
    results: Results = {
        "machine": {"cpu": platform.processor() or platform.machine(), "python": platform.python_version()},
        "torch": torch.__version__,
        "numpy": np.__version__,
        "class_balanced": against_weighted_random_sampler(1 << 19 if quick else options.items, options.classes),
        "beyond_2_24": beyond_the_limit((1 << 24) + 1),
        "memory_mapped": billion(1_000_000 if quick else 10**9, 1000) if quick or options.billion else None,
        "repeat_factor": repeat_factors(*((5_000, 1203, 60_000) if quick else (100_000, 1203, 1_270_000))),
        "parquet": count_parquet_labels(2_000_000 if quick else options.labels, 10_000 if quick else 1_000_000),
    }
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
