"""How often 95 % intervals of means over classes, and of their changes, hold the truth, and how wide they are.

    python benchmarks/intervals.py                       20,000 test sets per row and kind: fifteen minutes
    python benchmarks/intervals.py --draws 200           the same in seconds
    python benchmarks/intervals.py --out FILE.json       write the measurements
    python benchmarks/intervals.py --table FILE.json     print the table of such a file

Each test set has its own classes. Their accuracies are drawn from Beta(2, 2) or Beta(5, 1); they have equally many
items, or from 2 to 100 (1 to 50) in equal ratios, in random order. In a change, the second model is better by 5 ± 5
points per class; its answers are those of independent models ("apart"), nearly the same as the first's ("alike"), or
apart in the half of the classes with the fewest items and alike in the others ("tail apart"). Widths are divided by
that of ± 1.96 true standard deviations. Square-and-add applies to the classes' own Wilson intervals.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.metrics.intervals import Z, change_interval, mean_interval, wilson_intervals

Array = np.ndarray[Any, Any]
RATES = {"Beta(2, 2)": (2, 2), "Beta(5, 1)": (5, 1)}
ITEMS = {
    "1": (1, 1),
    "3": (3, 3),
    "5": (5, 5),
    "10": (10, 10),
    "50": (50, 50),
    "2 to 100": (2, 100),
    "1 to 50": (1, 50),
}
ALIKE = {"apart": (0.0, 0.0), "alike": (0.9, 0.9), "tail apart": (0.0, 0.9)}  # of the classes with few, and many items
METHODS = ("square-and-add", "mean", *ALIKE)


def square_and_add(correct: Array, items: Array) -> tuple[float, float]:
    """Newcombe, 1998; Zou, Huang and Zhang, 2009."""
    p, (low, high) = correct / items, wilson_intervals(correct, items)
    below, above = (float(np.sqrt((part**2).sum())) / len(p) for part in (p - low, high - p))
    return float(p.mean()) - below, float(p.mean()) + above


def sizes(kind: str, classes: int) -> Array:
    return np.geomspace(*ITEMS[kind], classes).round().astype(np.int64)


def of_means(rates: Array, items: Array, random: np.random.Generator) -> dict[str, tuple[float, float, float]]:
    """The truth is the mean of `rates`: how far below and above it each interval begins and ends, and the width that
    it should have."""
    correct = random.binomial(items, rates)
    ideal = 2 * Z * float(np.sqrt((rates * (1 - rates) / items).sum())) / len(items)
    methods: dict[str, Callable[..., Any]] = {"square-and-add": square_and_add, "mean": mean_interval}
    ends = {name: np.array(method(correct, items)) - rates.mean() for name, method in methods.items()}
    return {name: (float(low), float(high), ideal) for name, (low, high) in ends.items()}


def of_changes(rates: Array, items: Array, random: np.random.Generator) -> dict[str, tuple[float, float, float]]:
    """The same of the change to a second model."""
    after = np.clip(rates + random.normal(0.05, 0.05, len(rates)), 0.01, 0.99)
    change, few, found = (after - rates).mean(), np.argsort(np.argsort(items)) < len(items) / 2, {}
    for name, (tail, head) in ALIKE.items():
        alike = np.where(few, tail, head)
        both = alike * np.minimum(rates, after) + (1 - alike) * rates * after
        cells = np.stack([both, rates - both, after - both, 1 - rates - after + both], -1).clip(0)
        drawn = random.multinomial(items, cells / cells.sum(-1, keepdims=True))
        ends = change_interval(drawn[:, 0] + drawn[:, 1], drawn[:, 0] + drawn[:, 2], items, drawn[:, 0])
        variance = ((rates + after - 2 * both - (after - rates) ** 2) / items).sum()
        found[name] = (ends[0] - change, ends[1] - change, 2 * Z * float(np.sqrt(variance)) / len(items))
    return found


def measure(rates: str, classes: int, items: str, draws: int) -> dict[str, Any]:
    """Coverage and width of every method."""
    random = np.random.default_rng([classes, len(rates), *map(ord, rates + items)])
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in METHODS}
    for _ in range(draws):
        true = random.beta(*RATES[rates], classes)
        number = random.permutation(sizes(items, classes))
        for name, ends in (of_means(true, number, random) | of_changes(true, number, random)).items():
            found[name].append(ends)
    row: dict[str, Any] = {"rates": rates, "classes": classes, "items": items}
    for name, ends in found.items():
        low, high, ideal = np.array(ends).T
        row[name] = {
            "held": float(((low <= 0) & (high >= 0)).mean()),
            "width": float((high - low).mean() / ideal.mean()),
        }
    return row


def table(path: Path) -> str:
    """The table of a file of measurements, in Markdown: of both kinds of accuracies the lower coverage and the larger
    width."""
    rows = json.loads(path.read_text())["rows"]
    lines = [
        "| classes | items per class | square-and-add | mean | change: apart | alike | tail apart |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for classes, items in dict.fromkeys((row["classes"], row["items"]) for row in rows):
        same = [row for row in rows if (row["classes"], row["items"]) == (classes, items)]
        held = {name: 100 * min(row[name]["held"] for row in same) for name in METHODS}
        width = {name: max(row[name]["width"] for row in same) for name in METHODS}
        cells = " | ".join(f"{held[name]:.1f} % (× {width[name]:.2f})" for name in METHODS)
        lines.append(f"| {classes} | {items} | {cells} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=20_000, help="test sets per row")
    parser.add_argument("--out", type=Path, help="write the measurements as JSON")
    parser.add_argument("--table", type=Path, help="print the table of such a file, and stop")
    options = parser.parse_args()
    if options.table:
        print(table(options.table))
        return
    rows = []
    for rates in RATES:
        for classes in (3, 10, 100):
            for items in ITEMS:
                rows.append(measure(rates, classes, items, options.draws))
                print(json.dumps(rows[-1]), flush=True)
    if options.out:
        options.out.write_text(json.dumps({"draws": options.draws, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
