"""`evaluate_multilabel`, chunk after chunk, beside torchmetrics: time and peak memory, in one run.

    python benchmarks/multilabel.py                      kept and binned, beside torchmetrics
    python benchmarks/multilabel.py --million            1,000,000 items × 1,000 classes instead, ours alone: their
                                                         logits and labels are 12 GB
    python benchmarks/multilabel.py --out FILE.json      write the measurements
    python benchmarks/multilabel.py --table FILE.json    print the table of such a file

Both compute macro and micro average precision, macro and micro F1, ranking loss, coverage error and label ranking
average precision of the same logits and labels, in chunks of 5,000 items. "kept" is exact: ours up to 2^25 pairs,
torchmetrics with `thresholds=None`. "binned" are 4,096 bins of ours, and 200 thresholds of torchmetrics. "streamed" is
what a user gets: kept at first, binned beyond 2^25 pairs. Every
measurement is a process of its own with one thread, in turns. The table shows the least CPU time of the runs, without
imports and the making of chunks, and how far the peak memory rose above that of imports and one chunk.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

CHUNK = 5_000
REPEATS = 3
SIZES = [(50_000, 80, "kept"), (10_000, 1_000, "kept"), (5_000, 80, "binned")]
MILLION = [(1_000_000, 1_000, "streamed")]


def rates(classes: int) -> np.ndarray[Any, Any]:
    return 0.3 * 300.0 ** (-np.arange(classes) / (classes - 1))


def chunks(rows: int, classes: int) -> Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Logits, fp32, and labels, from frequent to rare; the same for both libraries."""
    random = np.random.default_rng(0)
    shift = np.log(rates(classes) / (1 - rates(classes))).astype(np.float32)
    for first in range(0, rows, CHUNK):
        size = min(CHUNK, rows - first)
        target = random.random((size, classes), dtype=np.float32) < rates(classes).astype(np.float32)
        yield random.standard_normal((size, classes), dtype=np.float32) + 3 * target + shift, target.astype(np.int64)


class Ours:
    """Evaluations of chunks, added up."""

    def __init__(self, classes: int, kind: str) -> None:
        import equipoise as eq
        from equipoise.metrics import multilabel

        if kind == "binned":
            multilabel.EXACT_PAIRS = 0
        self._evaluate, self._sum = eq.evaluate_multilabel, 0
        self._prior = eq.Prior.from_counts((1e4 * rates(classes)).astype(np.int64) + 1, 10_000)

    def update(self, logits: Any, target: Any) -> None:
        self._sum = self._sum + self._evaluate(logits, target, self._prior)  # type: ignore[assignment]

    def compute(self) -> dict[str, float]:
        found: dict[str, float] = self._sum.scores()  # type: ignore[attr-defined]
        return found


class TorchMetrics:
    """The same scores as a collection of torchmetrics."""

    def __init__(self, classes: int, kind: str) -> None:
        import torch
        import torchmetrics.classification as tm
        from torchmetrics import MetricCollection

        thresholds = 200 if kind == "binned" else None
        options: Any = {"num_labels": classes, "validate_args": False}
        self._tensor = torch.from_numpy
        self._metrics = MetricCollection(
            {
                "map": tm.MultilabelAveragePrecision(average="macro", thresholds=thresholds, **options),
                "micro_ap": tm.MultilabelAveragePrecision(average="micro", thresholds=thresholds, **options),
                "f1_macro": tm.MultilabelF1Score(average="macro", **options),
                "f1_micro": tm.MultilabelF1Score(average="micro", **options),
                "ranking_loss": tm.MultilabelRankingLoss(**options),
                "lrap": tm.MultilabelRankingAveragePrecision(**options),
                "coverage": tm.MultilabelCoverageError(**options),
            }
        )

    def update(self, logits: Any, target: Any) -> None:
        self._metrics.update(self._tensor(logits), self._tensor(target))

    def compute(self) -> dict[str, float]:
        return {name: float(value) for name, value in self._metrics.compute().items()}


WAYS: dict[str, Any] = {"equipoise": Ours, "torchmetrics": TorchMetrics}
SCORES = ("map", "micro_ap", "f1_macro", "f1_micro")


def measure(way: str, rows: int, classes: int, kind: str) -> dict[str, Any]:
    """One process."""
    command = [sys.executable, str(Path(__file__).resolve()), "--one", way, str(rows), str(classes), kind]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def one(way: str, rows: int, classes: int, kind: str) -> dict[str, Any]:
    """CPU seconds of updates and of the final scores, and how far the peak of resident memory rose."""
    metric, seconds = WAYS[way](classes, kind), 0.0
    warm = WAYS[way](2, "kept")
    warm.update(np.float32([[1, -1], [-1, 1], [2, 1]]), np.array([[1, 0], [0, 1], [0, 1]]))
    warm.compute()
    for _ in chunks(CHUNK, classes):  # the memory that a chunk takes is nobody's
        pass
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for logits, target in chunks(rows, classes):
        start = time.process_time()
        metric.update(logits, target)
        seconds += time.process_time() - start
    start = time.process_time()
    scores = metric.compute()
    seconds += time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "cpu_seconds": seconds,
        "memory_mb": (peak - before) * 1024 / 1e6,
        "scores": {name: scores[name] for name in SCORES},
        "errors": {name: value for name, value in scores.items() if name.endswith("_error")},
    }


def compare(sizes: list[tuple[int, int, str]], ways: list[str], repeats: int) -> list[dict[str, Any]]:
    found = []
    for rows, classes, kind in sizes:
        runs: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
        for _ in range(repeats):
            for way in ways:
                runs[way].append(measure(way, rows, classes, kind))
        row: dict[str, Any] = {"rows": rows, "classes": classes, "kind": kind}
        for way in ways:
            least = {key: min(run[key] for run in runs[way]) for key in ("cpu_seconds", "memory_mb")}
            row[way] = least | {key: runs[way][0][key] for key in ("scores", "errors")}
        print(json.dumps(row))
        found.append(row)
    return found


def table(path: Path) -> str:
    """The measurements as Markdown."""
    found = json.loads(path.read_text())
    machine = found["machine"]
    lines = [
        f"torchmetrics {machine['torchmetrics']}, torch {machine['torch']}, NumPy {machine['numpy']}; one thread:",
        "",
        "| items × classes | average precision | | CPU time | memory |",
        "|:---|:---|:---|---:|---:|",
    ]
    for row in found["runs"]:
        size = f"{row['rows']:,} × {row['classes']:,}"
        for way in ("equipoise", "torchmetrics"):
            if way in row:
                cells = f"{row[way]['cpu_seconds']:.1f} s | {row[way]['memory_mb']:,.0f} MB"
                lines.append(f"| {size} | {row['kind']} | {way} | {cells} |")
        if row["kind"] == "streamed":
            bound = max(row["equipoise"]["errors"].values())
            lines += ["", f"Average precision is off by at most {bound:.5f}."]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--million", action="store_true", help="a million items × 1,000 classes instead, ours only")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--out", type=Path, help="write the measurements as JSON")
    parser.add_argument("--table", type=Path, help="print the table of such a file")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.table:
        print(table(options.table))
        return
    if options.one:
        way, rows, classes, kind = options.one
        print(json.dumps(one(way, int(rows), int(classes), kind)))
        return
    runs = compare(MILLION, ["equipoise"], 1) if options.million else compare(SIZES, list(WAYS), options.repeats)
    if options.out:
        import torch
        import torchmetrics as tm

        machine = {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count(), "threads": 1}
        versions = {"python": platform.python_version(), "numpy": np.__version__}
        versions |= {"torch": torch.__version__, "torchmetrics": tm.__version__}
        options.out.write_text(json.dumps({"machine": machine | versions, "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
