"""The tables of detectors, rendered from their records: Table 2 of the paper, VOC2012-LT, and what was chosen."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from equipoise.metrics.detection import MOST
from equipoise.report import markdown
from equipoise.training.detection_records import COLUMNS, DetectionRecord, cell, summary
from equipoise.training.records import read_records

# Table 2 of the paper (LVIS v1 val), in the order of COLUMNS.
PUBLISHED = {
    "resnet50": {
        "rfs": (22.1, 27.8, 21.1, 11.6, 23.6),
        "crt": (23.2, 27.8, 22.5, 14.7, 24.8),
        "lws": (23.3, 27.8, 22.5, 14.9, 24.8),
        "eql": (24.2, 27.5, 24.2, 16.5, 25.8),
        "balanced_sigmoid": (25.1, 29.3, 24.0, 18.3, 26.7),
    },
    "resnet101": {
        "rfs": (23.2, 28.8, 22.0, 13.5, 24.7),
        "crt": (23.9, 28.7, 22.7, 15.8, 25.6),
        "lws": (24.2, 28.8, 23.1, 16.5, 24.7),
        "eql": (25.4, 28.8, 25.3, 18.5, 27.3),
        "balanced_sigmoid": (26.4, 30.2, 25.4, 20.1, 28.4),
    },
}
LEVELS = 5  # of the feature pyramid
CONTROL = "rfs_longer"  # a second stage that changes nothing but the length
TITLES = {"resnet50": "ResNet-50", "resnet101": "ResNet-101"}
BENCHMARK = "results/benchmarks/detection-{}.json"
Methods = Sequence[tuple[str, str]]


def method_rows(records: Sequence[DetectionRecord], methods: Methods, backbone: str) -> list[tuple[str, ...]]:
    """Ours and the paper's of each method: title, source, the columns, n."""
    rows = []
    for name, title in methods:
        runs = [record for record in records if record.method == name]
        ours = [cell([getattr(run, column) for run in runs]) for column in COLUMNS]
        rows.append((title, "ours", *ours, str(len(runs))))
        if name in PUBLISHED[backbone]:
            rows.append(("", "paper", *(f"{value:.1f}" for value in PUBLISHED[backbone][name]), ""))
    return rows


def order(values: dict[str, float]) -> list[str]:
    """Names, best first.

    >>> order({"a": 1.0, "b": 2.0})
    ['b', 'a']
    """
    return sorted(values, key=lambda name: -values[name])


def orders_compared(records: Sequence[DetectionRecord], methods: Methods) -> str:
    """Which order of the methods came out, and how far it is the paper's (LVIS, ResNet-50)."""
    titles, lines = dict(methods), []
    for column in ("AP_mask", "AP_r"):
        ours: dict[str, float] = {}
        for name, _ in methods:
            values = [getattr(record, column) for record in records if record.method == name]
            if values and None not in values:
                ours[name] = mean(values)
        both = {name: row[COLUMNS.index(column)] for name, row in PUBLISHED["resnet50"].items() if name in ours}
        pairs = list(combinations(both, 2))
        if not pairs:
            continue
        signs = [_clearer(records, column, a, b) * (1 if both[a] > both[b] else -1) for a, b in pairs]
        said = " > ".join(titles[name] for name in order(ours))
        paper = " > ".join(titles[name] for name in order(both))
        agrees = "the same" if order({name: ours[name] for name in both}) == order(both) else "another order"
        lines.append(
            f"- {column}, best first: {said}. The paper's on LVIS: {paper}; {agrees}. Of {len(pairs)} pairs "
            f"{signs.count(1)} are as there, {signs.count(-1)} the other way round, and {signs.count(0)} within two "
            "standard errors of the difference over seeds."
        )
    return "\n".join(lines)


def _clearer(records: Sequence[DetectionRecord], column: str, a: str, b: str) -> int:
    """1 where method `a` is above `b` by more than two standard errors of the difference over seeds, -1 where it is
    below, else 0; of a single seed the sign of the difference."""
    of_a, of_b = ({r.seed: getattr(r, column) for r in records if r.method == name} for name in (a, b))
    differences = [of_a[seed] - of_b[seed] for seed in of_a.keys() & of_b.keys()]
    if not differences:
        return 0
    error = stdev(differences) / len(differences) ** 0.5 if len(differences) > 1 else 0.0
    middle = mean(differences)
    return 0 if abs(middle) <= 2 * error else (1 if middle > 0 else -1)


def beside_control(records: Sequence[DetectionRecord], methods: Methods) -> list[tuple[str, ...]]:
    """What the detector that second stages start from, and each of these, have more than the control of the same seed:
    mean ± standard deviation of the differences, with the number of seeds. No rows where there is no control."""
    control = {_beginning(record): record for record in records if record.method == CONTROL}
    rows = []
    for name, title in methods:
        runs = [record for record in records if record.method == name and _beginning(record) in control]
        if not runs or name == CONTROL:
            continue
        differences = []
        for column in COLUMNS:
            pairs = [(getattr(run, column), getattr(control[_beginning(run)], column)) for run in runs]
            known = [ours - theirs for ours, theirs in pairs if ours is not None and theirs is not None]
            spread = f" ± {stdev(known):.2f}" if len(known) > 1 else ""
            differences.append(f"{mean(known):+.2f}{spread}".replace("-", "−") if known else "–")
        rows.append((title, *differences, str(len(runs))))
    return rows


def _beginning(record: DetectionRecord) -> tuple[Any, ...]:
    """What second stages that start from the same detector have in common, with it and with each other."""
    return record.seed, record.recipe.get("start") or record.method, record.backbone


def unsettled_part(records: Sequence[DetectionRecord]) -> str:
    """In how many batches of the first stages NMS was cut off before the last box was decided."""
    # records of before the number of rounds stood in them are of 16
    first = [run for run in records if run.recipe.get("start") is None and run.engine.get("nms_unsettled") is not None]
    unsettled = [run.engine["nms_unsettled"] for run in first]
    if not any(unsettled):
        return ""
    shares = [100 * number / max(run.iterations, 1) for number, run in zip(unsettled, first, strict=True)]
    return (
        f"In training, NMS of proposals stops after {first[0].engine.get('nms_rounds', 16)} rounds. In "
        f"{_spread(shares, 1)} % of the batches of a first stage, at least one of the {LEVELS} levels of one of the "
        "images was then not decided to the last box."
    )


def provenance(records: Sequence[DetectionRecord]) -> str:
    """Where the numbers come from: a row a device, versions and commit."""
    groups: dict[tuple[str, ...], list[DetectionRecord]] = {}
    for record in records:
        shown = ", ".join(
            f"{name} {record.versions[name]}" for name in ("torch", "torchvision", "hotcoco") if name in record.versions
        )
        key = (
            record.hardware.get("device", "–"),
            shown,
            str(record.engine.get("precision", "–")),
            (record.commit or "–")[:7],
        )
        groups.setdefault(key, []).append(record)
    rows = [
        (
            *key[:3],
            key[3],
            str(len(runs)),
            _spread([run.engine.get("together", 1) for run in runs]),
            _spread([run.seconds for run in runs]),
            _spread([run.images_per_second for run in runs]),
            f"{median(run.evaluation_seconds for run in runs):.0f}",
        )
        for key, runs in groups.items()
    ]
    named = ("device", "versions", "precision", "commit")
    header = (*named, "runs", "together", "seconds a run", "img/s", "seconds to evaluate")
    return markdown.table(header, rows, left=4)


def _spread(values: Sequence[float], digits: int = 0) -> str:
    """
    >>> _spread([3.2, 60.4]), _spread([5.0]), _spread([0.04, 75], 1)
    ('3 to 60', '5', '0.0 to 75.0')
    """
    low, high = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return low if low == high else f"{low} to {high}"


def voc_part(records: Sequence[DetectionRecord], methods: Methods) -> str:
    """VOC2012-LT under its own name."""
    if not records:
        return "Not run yet."
    missing = [title for name, title in methods if not any(record.method == name for record in records)]
    counts = records[0].counts
    parts = [
        f"{sum(count > 100 for count in counts)} frequent, {sum(10 < count <= 100 for count in counts)} common and "
        f"{sum(count <= 10 for count in counts)} rare classes; trained on {records[0].trained_on}, tested on "
        f"{records[0].evaluated_images:,} images. Mean ± standard deviation over n seeds, the last iterate; "
        "AP_f, AP_c and AP_r are of masks."
        + _detections_said(records)
        + (f" Not run yet: {', '.join(missing)}." if missing else ""),
        markdown.table(("method", *COLUMNS, "n"), summary(records, methods)),
        orders_compared(records, methods),
        _control_table(records, methods),
        provenance(records),
        unsettled_part(records),
    ]
    return "\n\n".join(part for part in parts if part)


def _detections_said(records: Sequence[DetectionRecord]) -> str:
    found = [run.engine["detections"] / run.evaluated_images for run in records if run.engine.get("detections")]
    return f" A run found {_spread(found)} things an image; at most {MOST} count." if found else ""


def _control_table(records: Sequence[DetectionRecord], methods: Methods) -> str:
    rows = beside_control(records, methods)
    if not rows:
        return ""
    control = dict(methods).get(CONTROL, CONTROL)
    said = f"Beside {control!r} of the same seed, mean ± standard deviation over seeds:"
    return said + "\n\n" + markdown.table(("difference", *COLUMNS, "n"), rows)


def table2_part(records: dict[str, Sequence[DetectionRecord]], methods: Methods) -> str:
    """Ours beside the paper's, a table a backbone."""
    parts = []
    for backbone, title in TITLES.items():
        rows = method_rows(records[backbone], methods, backbone)
        run = "" if records[backbone] else "Not run yet.\n\n"
        parts.append(f"### {title}\n\n{run}" + markdown.table(("method", "", *COLUMNS, "n"), rows, left=2))
        if records[backbone]:
            parts.append(provenance(records[backbone]))
    return "\n\n".join(parts)


def choices_part(records: Sequence[DetectionRecord], methods: Methods) -> str:
    """What was compared on the held-out training images."""
    if not records:
        return "Not run yet."
    images = records[0].evaluated_images
    return "\n\n".join(
        [
            f"On the {images:,} training images that the long-tailed draw leaves out; no test image was looked at.",
            markdown.table(("choice", *COLUMNS, "n"), summary(records, methods)),
            provenance(records),
        ]
    )


def benchmark_part(found: dict[str, Any]) -> str:
    """What benchmarks/detection.py measured, `found` a device's JSON."""
    lines = []
    for device, content in found.items():
        lines.append(f"On {device}:")
        for name, title in (("masks", "the mask predictor, forward and backward"), ("step", "a whole training step")):
            if name in content:
                lines.append(_classes_table(content[name], title))
        if "evaluation" in content:
            measured = content["evaluation"]
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
            lines.append(line + ".")
        if "profile" in content:
            measured = content["profile"]
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
        memory = "–" if ratio["memory"] is None else f"{ratio['memory']:.2f}"
        rows.append((head, f"{small['ms']:,.0f}", f"{large['ms']:,.0f}", f"{ratio['time']:.2f}", memory))
    header = (f"{title}, ms", "81 classes", "1,204 classes", "time, ratio", "memory, ratio")
    return markdown.table(header, rows)


def documents(root: Path, results: Path | None = None) -> dict[Path, str]:
    """Every document under `root` that shows part of these tables, as it should read from the records in `results`."""
    from equipoise.experiments.table2 import recipe as table2
    from equipoise.experiments.voc2012_lt import recipe as voc2012_lt

    results = root / "results" if results is None else results
    rows = [(method.name, method.title) for method in voc2012_lt.METHODS]
    lvis = {name: read_records(results, f"table2/{name}", DetectionRecord) for name in TITLES}
    choices = read_records(results, "choices/voc2012-lt", DetectionRecord)
    benchmarks = {
        title: json.loads((root / BENCHMARK.format(name)).read_text())
        for name, title in (("cpu", "a CPU"), ("h200", "an NVIDIA H200"))
        if (root / BENCHMARK.format(name)).is_file()
    }
    parts = {
        "results/README.md": {
            "voc2012-lt": voc_part(read_records(results, voc2012_lt.NAME, DetectionRecord), rows),
            "table2": table2_part(lvis, [(method.name, method.title) for method in table2.METHODS]),  # type: ignore[arg-type]
        },
        "docs/lab-notes.md": {
            "voc2012-lt-choices": choices_part(choices, [(m.name, m.title) for m in voc2012_lt.CHOICES])
        },
        "docs/detection.md": {"detection-benchmarks": benchmark_part(benchmarks)},
    }
    return markdown.filled(root, parts)
