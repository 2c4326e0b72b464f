"""Table 2 from its records, beside the paper's numbers, and what all tables of detectors share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from equipoise.experiments.table2.published import BACKBONES, METHODS, NAME, PAPER
from equipoise.report import tables
from equipoise.report.tables import UNKNOWN, Table, grouped, low_to_high, mean_std, plus_minus, versions_in_words
from equipoise.training.detection_records import COLUMNS, DetectionRecord
from equipoise.training.records import read_records

BENCHMARK = "results/benchmarks/detection-{}.json"
NOTE = "ours: mean ± standard deviation of n runs"
Records = Mapping[str, Sequence[DetectionRecord]]  # by backbone


def backbone_table(records: Sequence[DetectionRecord], backbone: str) -> Table:
    """Our numbers and the paper's for each method."""
    rows = []
    for name, title in METHODS.items():
        rows.append([title, "ours", *numbers(runs_of(records, name))])
        if name in PAPER[backbone]:
            rows.append(["", "paper", *map(plus_minus, PAPER[backbone][name]), ""])
    title = f"LVIS v1, {BACKBONES[backbone]}: average precision, %"
    return Table(["method", "", *COLUMNS, "n"], rows, left=2, title=title)


def methods_table(
    records: Sequence[DetectionRecord],
    methods: Mapping[str, str],
    what: str = "method",
    columns: Sequence[str] = COLUMNS,
) -> Table:
    """One row for every method (name, title) that has runs."""
    rows = [[title, *numbers(runs, columns)] for name, title in methods.items() if (runs := runs_of(records, name))]
    return Table([what, *columns, "n"], rows)


def runs_of(records: Sequence[DetectionRecord], method: str) -> list[DetectionRecord]:
    return [record for record in records if record.method == method]


def numbers(runs: Sequence[DetectionRecord], columns: Sequence[str] = COLUMNS) -> list[str]:
    """Mean ± standard deviation of each column, and n."""
    return [*(mean_std(run.number(column) for run in runs) for column in columns), str(len(runs))]


def provenance(records: Sequence[DetectionRecord]) -> str:
    """Where the numbers come from: one row per device, versions and commit."""

    def made(record: DetectionRecord) -> tuple[str, ...]:
        versions = versions_in_words(record.versions, torch="torch", torchvision="torchvision", hotcoco="hotcoco")
        device, precision = record.hardware.get("device", UNKNOWN), str(record.engine.get("precision", UNKNOWN))
        return device, versions, precision, (record.commit or UNKNOWN)[:7]

    rows = [
        (
            *alike,
            str(len(runs)),
            low_to_high([run.engine.get("together", 1) for run in runs]),
            low_to_high([run.seconds for run in runs]),
            low_to_high([run.images_per_second for run in runs]),
            f"{median(run.evaluation_seconds for run in runs):.0f}",
        )
        for alike, runs in grouped(records, made).items()
    ]
    named = ("device", "versions", "precision", "commit")
    header = (*named, "runs", "together", "seconds per run", "img/s", "seconds to evaluate")
    return str(Table(header, rows, left=4))


def table2_part(records: Records) -> str:
    """Our numbers beside the paper's, one table per backbone."""
    parts = []
    for backbone, title in BACKBONES.items():
        run = "" if records[backbone] else "Not run yet.\n\n"
        parts.append(f"### {title}\n\n{run}{backbone_table(records[backbone], backbone)}")
        if records[backbone]:
            parts.append(provenance(records[backbone]))
    return "\n\n".join(parts)


def benchmark_part(found: dict[str, Any]) -> str:
    """What benchmarks/detection.py measured; `found` is a device's JSON."""
    lines = []
    for device, content in found.items():
        lines.append(f"On {device}:")
        for name, title in (("masks", "the mask predictor, forward and backward"), ("step", "a whole training step")):
            if name in content:
                lines.append(_classes_table(content[name], title))
        if measured := content.get("evaluation"):
            line = (
                f"- Evaluation of boxes, {measured['images']:,} images with {measured['detections']:,} detections of "
                f"{measured['classes']:,} classes: {measured['ours, CPU s']:.1f} CPU seconds"
            )
            if "lvis, CPU s" in measured:
                equal = "equal" if measured["13 numbers equal"] else "not equal"
                line += (
                    f"; the `lvis` package takes {measured['lvis, CPU s']:.0f}, "
                    f"{measured['faster']:.0f} times as long, and the 13 numbers are {equal}"
                )
            if "all measures, CPU s" in measured:
                ratio = measured["all measures, times the 13 numbers"]
                line += (
                    ". AP at five caps, AP-fixed, AP-pool and its calibration, all by group, take "
                    f"{measured['all measures, CPU s']:.1f} CPU seconds, {ratio} times those of the 13 numbers, and "
                    f"{measured['all measures, MiB']:,} MiB of memory"
                )
            lines.append(line + ".")
        if measured := content.get("profile"):
            lines.append(
                f"- A step of {measured['images']} images of {measured['size'][0]} × {measured['size'][1]}: "
                f"{measured['batched']['images/s']:,.0f} img/s; torchvision's losses, which go image by image, "
                f"{measured['image by image, no optimizer']['images/s']:,.0f} img/s without a step of the optimizer."
            )
    return "\n\n".join(lines) if lines else "Not measured yet."


def _classes_table(measured: dict[str, Any], title: str) -> str:
    rows = []
    for head in ("gathered", "torchvision"):
        small, large, ratio = (measured[f"{head}, {what}"] for what in ("81 classes", "1204 classes", "1204 / 81"))
        memory = UNKNOWN if ratio["memory"] is None else f"{ratio['memory']:.2f}"
        rows.append((head, f"{small['ms']:,.0f}", f"{large['ms']:,.0f}", f"{ratio['time']:.2f}", memory))
    header = (f"{title}, ms", "81 classes", "1,204 classes", "time, ratio", "memory, ratio")
    return str(Table(header, rows))


# -------------------------------------------------------------------- what `equipoise table` shows and writes


def read(results: Path) -> Records:
    """The runs of each backbone; there may be none yet."""
    there(results)
    return {name: read_records(results, f"{NAME}/{name}", DetectionRecord) for name in BACKBONES}


def there(results: Path) -> None:
    if not results.is_dir():
        raise FileNotFoundError(f"{results} does not exist: pass the folder of the records as --results")


def shown_tables(records: Records) -> list[Table]:
    return [backbone_table(runs, backbone) for backbone, runs in records.items()]


def notes(records: Records) -> list[str]:
    return [NOTE]


def documents(root: Path, results: Path) -> dict[Path, str]:
    """Every document under `root` that shows part of the table, as it should read."""
    benchmarks = {
        title: json.loads((root / BENCHMARK.format(name)).read_text())
        for name, title in (("cpu", "a CPU"), ("h200", "an NVIDIA H200"))
        if (root / BENCHMARK.format(name)).is_file()
    }
    parts = {
        "results/README.md": {NAME: table2_part(read(results))},
        "docs/detection.md": {"detection-benchmarks": benchmark_part(benchmarks)},
    }
    return tables.filled(root, parts)
