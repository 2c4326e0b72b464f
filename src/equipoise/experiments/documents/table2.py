"""Table 2 and the benchmarks of detectors, as the documents show them, and what all tables of detectors share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from equipoise.experiments.documents.marks import filled
from equipoise.experiments.table2.control import Methods, beside_control, differences_by_seed, what_is_chance
from equipoise.experiments.table2.published import BACKBONES, NAME
from equipoise.experiments.table2.report import CALIBRATION, Records, backbone_table, calibration_table, read
from equipoise.report.tables import UNKNOWN, Table, grouped, low_to_high, versions_in_words
from equipoise.training.detection_records import DetectionRecord

BENCHMARK = "results/benchmarks/detection-{}.json"


def provenance(records: Sequence[DetectionRecord]) -> str:
    """Where the numbers come from: one row per device, versions and commit. Runs that train nothing have no speed."""

    def made(record: DetectionRecord) -> tuple[str, ...]:
        versions = versions_in_words(record.versions, torch="torch", torchvision="torchvision", hotcoco="hotcoco")
        device, precision = record.hardware.get("device", UNKNOWN), str(record.engine.get("precision", UNKNOWN))
        return device, versions, precision, (record.commit or UNKNOWN)[:7]

    rows = [
        (
            *alike,
            str(len(runs)),
            low_to_high([run.engine.get("together", 1) for run in runs]),
            _range([run.seconds for run in runs if run.iterations]),
            _range([run.images_per_second for run in runs if run.iterations]),
            f"{median(run.evaluation_seconds for run in runs):.0f}",
        )
        for alike, runs in grouped(records, made).items()
    ]
    named = ("device", "versions", "precision", "commit")
    header = (*named, "runs", "together", "seconds per run", "img/s", "seconds to evaluate")
    untrained = sum(not record.iterations for record in records)
    note = f"\n\nSeconds per run and img/s are of training; {untrained} of the runs train nothing." if untrained else ""
    return str(Table(header, rows, left=4)) + note


def _range(values: Sequence[float]) -> str:
    return low_to_high(values) if values else UNKNOWN


def groups_said(counts: Sequence[int]) -> str:
    """How many classes are frequent, common and rare by LVIS's rule, from their training images.

    >>> groups_said([101, 100, 11, 10])
    '1 frequent, 2 common and 1 rare classes'
    """
    frequent, rare = sum(count > 100 for count in counts), sum(count <= 10 for count in counts)
    return f"{frequent} frequent, {len(counts) - frequent - rare} common and {rare} rare classes"


def beside_part(
    records: Sequence[DetectionRecord],
    methods: Methods,
    tables: Sequence[Sequence[str]],
    chance: Sequence[str] = (),
    by_seed: Sequence[str] = (),
) -> list[str]:
    """The methods beside the control: a table for each of the lists of columns `tables`, what is within `chance`, and a
    table `by_seed` for each column; then the calibration, where it was measured."""
    means = [table for columns in tables if (table := beside_control(records, methods, columns))]
    seeds = [table for column in by_seed if (table := differences_by_seed(records, methods, column))]
    calibration = calibration_table(records, methods)
    return [
        f"{means[0].title}, mean ± standard deviation over seeds:" if means else "",
        *map(str, means),
        what_is_chance(records, methods, chance),
        *map(str, seeds),
        f"{CALIBRATION}\n\n{calibration}" if calibration else "",
    ]


def table2_part(records: Records) -> str:
    """Ours beside the paper's, a table per backbone."""
    parts = []
    for backbone, title in BACKBONES.items():
        run = "" if records[backbone] else "Not run yet.\n\n"
        parts.append(f"### {title}\n\n{run}{backbone_table(records[backbone], backbone)}")
        if records[backbone]:
            parts.append(provenance(records[backbone]))
    return "\n\n".join(parts)


def benchmark_part(found: dict[str, Any]) -> str:
    """What benchmarks/detection.py measured, `found` a device's JSON."""
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
                f"{measured['batched']['images/s']:,.0f} img/s; torchvision's losses, which run image by image, reach "
                f"{measured['image by image, no optimizer']['images/s']:,.0f} img/s without the optimizer's step."
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
    return filled(root, parts)
