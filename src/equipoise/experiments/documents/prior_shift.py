"""The prior-shift experiment, as the documents show it: tables and a figure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from equipoise.experiments.documents.marks import filled
from equipoise.experiments.prior_shift.published import SHIFTS, TITLES
from equipoise.experiments.prior_shift.records import PriorShiftRecord
from equipoise.experiments.prior_shift.report import COLUMNS, read, values
from equipoise.report import figures
from equipoise.report.figures import finished, heading, save
from equipoise.report.specs import COLOURS, DASHES, SHAPES, Spec, by, layer, number
from equipoise.report.tables import UNKNOWN, Table, mean_std

FIGURE = "docs/images/prior-shift.png"
NAMES = {  # of what the figure shows: where the target prior comes from
    "as trained": "that of the logits (as trained)",
    "EM": "estimated",
    "calibrated, EM": "estimated after calibration",
    "known": "known",
}
PLACES = [*range(len(SHIFTS) - 1), len(SHIFTS) - 0.6]  # the Dirichlet draws stand apart: they are not on the way
LABELS = {"accuracy": "accuracy on the test set, %", "log_loss": "log-loss on the test set"}


def shift_table(records: Sequence[PriorShiftRecord]) -> Table:
    """Accuracy ± standard deviation over seeds / log-loss, a row for every loss and shift."""
    found = []
    for method, title in TITLES.items():
        n = sum(record.method == method for record in records)
        for shift, name in SHIFTS.items() if n else ():
            cells = []
            for column in COLUMNS:
                accuracy, loss = (values(records, method, shift, column, what) for what in ("accuracy", "log_loss"))
                cells.append(f"{mean_std(accuracy)} / {mean(loss):.2f}")
            found.append([title, name, *cells, str(n)])
    return Table(["loss", "test set", *COLUMNS, "n"], found, left=2)


def estimate_table(records: Sequence[PriorShiftRecord]) -> Table:
    """How far the estimated priors are from the true ones, and whether they know it."""
    header = ["loss", "estimate", "total variation from the truth", "as trained", "interval coverage", "trusted", "n"]
    found = []
    for method, title in TITLES.items():
        runs = [record for record in records if record.method == method]
        for label in ("EM", "BBSE", "calibrated, EM") if runs else ():
            kind, name = COLUMNS[label]
            sets: list[dict[str, Any]] = [one["results"][kind] for run in runs for one in run.test_sets]
            away, trained = (mean(one[which]["total_variation"] for one in sets) for which in (name, "as trained"))
            covered = f"{100 * mean(one[name]['covered'] for one in sets):.0f} %"
            trusted = f"{sum(one[name]['trusted'] for one in sets)} of {len(sets)}"
            found.append([title, label, f"{away:.2f}", f"{trained:.2f}", covered, trusted, str(len(runs))])
    return Table(header, found, left=2)


def calibration_table(records: Sequence[PriorShiftRecord]) -> Table:
    """Scores of the balanced test pool before and after calibration."""
    found = []
    for method, title in TITLES.items():
        runs = [record.calibration for record in records if record.method == method]
        for name in ("before", "temperature", "bias-corrected") if runs else ():
            numbers = [f"{mean(run[name][what] for run in runs):.3f}" for what in ("log_loss", "brier", "ece")]
            temperature = UNKNOWN if name == "before" else f"{mean(run[name]['temperature'] for run in runs):.2f}"
            found.append([title, name, *numbers, temperature, str(len(runs))])
    return Table(["loss", "", "log-loss", "Brier", "ECE", "temperature", "n"], found, left=2)


def origin(records: Sequence[PriorShiftRecord]) -> str:
    """What was trained, where and for how long."""
    first = records[0]
    where = sorted({f"torch {r.versions['torch']}, {r.hardware['machine']} CPU" for r in records})
    commits = sorted({(r.commit or UNKNOWN)[:7] for r in records})
    return (
        f"{len(records)} runs of {first.iterations} steps on {sum(first.counts)} digits ({first.counts[0]} zeros, "
        f"{first.counts[-1]} nines), {mean(r.seconds for r in records):.0f} s each; {'; '.join(where)}; commit "
        f"{', '.join(commits)}."
    )


def drawn(records: Sequence[PriorShiftRecord]) -> dict[str, Any]:
    """Everything the figure shows: by quantity, loss, column and shift, one number per seed."""
    return {
        what: {
            method: {column: [values(records, method, shift, column, what) for shift in SHIFTS] for column in NAMES}
            for method in TITLES
        }
        for what in ("accuracy", "log_loss")
    }


def digest(records: Sequence[PriorShiftRecord]) -> str:
    """A name of what the figure shows."""
    return f"prior-shift {figures.digest(json.dumps(drawn(records), sort_keys=True))}"


def figure(records: Sequence[PriorShiftRecord]) -> Spec:
    """Accuracy above log-loss, a column per loss; test sets from like training to its reverse, then Dirichlet draws."""
    rows: list[Spec] = []
    for what, by_method in drawn(records).items():
        single = [value for by in by_method.values() for each in by.values() for seeds in each for value in seeds]
        domain = [min(single) - 1, 100] if what == "accuracy" else [0, 1.04 * max(single)]
        panels = []
        for method, by_column in by_method.items():
            title = {"title": heading(f"trained with {TITLES[method]}")} if what == "accuracy" else {}
            panels.append(_panel(by_column, LABELS[what], domain) | title)
        rows.append({"hconcat": panels})
    return finished({"vconcat": rows})


def _panel(by_column: dict[str, list[list[float]]], label: str, domain: list[float]) -> Spec:
    """Means joined by lines, single seeds faint behind them, columns beside one another."""
    rows = [
        {"target": NAMES[column], "line": f"{NAMES[column]} line", "place": place, "x": x + 0.07 * (beside - 1.5)}
        | {"value": mean(seeds), "seeds": seeds}
        for beside, (column, each) in enumerate(by_column.items())
        for place, (x, seeds) in enumerate(zip(PLACES, each, strict=True))
    ]
    words = [f"datum.value == {x} ? {name.split(', ')}" for x, name in zip(PLACES, SHIFTS.values(), strict=True)]
    axis = {"values": PLACES, "labelExpr": " : ".join([*words, "''"]), "grid": True}
    span = {"domain": [-0.35, len(SHIFTS) - 0.25], "nice": False}
    x = number("x", "class frequencies of the test set, relative to training", scale=span, axis=axis)
    y = number("value", label, scale={"domain": domain, "nice": False, "zero": False})
    legend = {"title": "target prior:", "titleOrient": "left", "columns": 4, "labelLimit": 0, "symbolOpacity": 1}
    names = [NAMES[column] for column in by_column]
    looks = {"x": x, "color": by("target", names, COLOURS[: len(names)], legend)}
    shape = {"shape": by("target", names, SHAPES[: len(names)], legend)}
    # a second name of the target for the dash: legends of one field would merge
    dash = {"strokeDash": by("line", [f"{name} line" for name in names], DASHES[: len(names)])}
    on_the_way, seeds = [{"filter": f"datum.place < {len(SHIFTS) - 1}"}], [{"flatten": ["seeds"]}]
    single = {"filled": True, "size": 18, "opacity": 0.4}
    layers = [
        layer("point", single, looks | shape | {"y": number("seeds")}, transform=seeds),
        layer("line", {"strokeWidth": 2}, looks | dash | {"y": y}, transform=on_the_way),
        layer("point", {"filled": True, "size": 110, "opacity": 1}, looks | shape | {"y": y}),
    ]
    return {"width": 480, "height": 300, "data": {"values": rows}, "layer": layers}


def documents(root: Path, results: Path) -> dict[Path, str]:
    """Every document under `root` that shows part of the experiment, as it should read."""
    records = read(results)
    parts = {
        "docs/estimation.md": {
            "prior-shift": str(shift_table(records)),
            "prior-shift-estimates": str(estimate_table(records)),
            "prior-shift-calibration": str(calibration_table(records)),
        },
        "results/README.md": {"prior-shift": f"{shift_table(records)}\n\n{origin(records)}"},
    }
    return filled(root, parts)


def draw(root: Path, results: Path) -> list[Path]:
    """Draw the figure and write it where the documents show it; it carries the name of what it shows."""
    records = read(results)
    return [save(figure(records), root / FIGURE, note=digest(records))]
