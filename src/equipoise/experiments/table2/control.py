"""Detectors beside the control of the same seed, the second stage that only trains longer: how far each method is from
it, and whether seeds differ by as much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from equipoise.experiments.table2.published import CONTROL
from equipoise.experiments.table2.report import runs_of
from equipoise.report.tables import UNKNOWN, Table, mean_std, plus_minus
from equipoise.training.detection_records import COLUMNS, DetectionRecord

Methods = Mapping[str, str]  # title by name


def control_pairs(records: Sequence[DetectionRecord], method: str) -> list[tuple[DetectionRecord, DetectionRecord]]:
    """Each run of a method with the control that has its seed, its backbone and the same first stage."""
    control = {_beginning(record): record for record in runs_of(records, CONTROL)}
    return [(run, control[_beginning(run)]) for run in runs_of(records, method) if _beginning(run) in control]


def difference(run: DetectionRecord, control: DetectionRecord, column: str) -> float | None:
    """`run` minus `control`; None if one of them lacks the number."""
    ours, theirs = run.number(column), control.number(column)
    return None if ours is None or theirs is None else ours - theirs


def _beginning(record: DetectionRecord) -> tuple[Any, ...]:
    """What a detector and the second stages that start from it have in common."""
    return record.seed, record.recipe.get("start") or record.method, record.backbone


# -------------------------------------------------------------------- chance


def beyond_errors(differences: Sequence[float]) -> int:
    """1 if the mean is above 0 by more than two standard errors, -1 if it is below, else 0; the sign if there is one
    difference. If there are three, chance alone gives 1 or -1 in 18 % of cases (Student's t).

    >>> beyond_errors([0.4, 0.5, 0.4]), beyond_errors([0.4, -0.3, 0.1]), beyond_errors([-0.2]), beyond_errors([])
    (1, 0, -1, 0)
    """
    if not differences:
        return 0
    error = stdev(differences) / len(differences) ** 0.5 if len(differences) > 1 else 0.0
    middle = mean(differences)
    return 0 if abs(middle) <= 2 * error else (1 if middle > 0 else -1)


def clearer(records: Sequence[DetectionRecord], column: str, a: str, b: str) -> int:
    """1 if method `a` is above `b` by more than two standard errors of the difference over seeds, -1 if it is below,
    else 0."""
    of_a, of_b = ({run.seed: run.number(column) for run in runs_of(records, name)} for name in (a, b))
    pairs = [(of_a[seed], of_b[seed]) for seed in sorted(of_a.keys() & of_b.keys())]
    return beyond_errors([ours - theirs for ours, theirs in pairs if ours is not None and theirs is not None])


def what_is_chance(records: Sequence[DetectionRecord], methods: Methods, columns: Sequence[str]) -> str:
    """Which methods differ from the control by more than seeds do: a line per column. Empty if there is none, or no
    control."""
    others, lines = [name for name in methods if name != CONTROL and control_pairs(records, name)], []
    for column in columns:
        signs = {name: clearer(records, column, name, CONTROL) for name in others}
        said = [
            f"{word} {'; '.join(methods[name] for name in others if signs[name] == sign) or 'none'}"
            for sign, word in ((1, "Above:"), (-1, "Below:"), (0, "Within:"))
        ]
        lines.append(f"- {column}. {'. '.join(said)}.")
    control = methods.get(CONTROL, CONTROL)
    lines.insert(
        0,
        f"Compared with {control!r} with the same seed; *within* means that the mean difference is at most two "
        "standard errors over seeds:\n",
    )
    return "\n".join(lines) if others and columns else ""


# -------------------------------------------------------------------- tables


def beside_control(
    records: Sequence[DetectionRecord], methods: Methods, columns: Sequence[str] = COLUMNS
) -> Table | None:
    """The differences of the first stage, and of each second stage, from the control of the same seed: mean ± standard
    deviation, with the number of seeds. None if there is no control."""
    rows = []
    for name, title in methods.items():
        pairs = control_pairs(records, name)
        if not pairs or name == CONTROL:
            continue
        found = [[difference(*pair, column) for pair in pairs] for column in columns]
        rows.append([title, *(mean_std(values, digits=2, sign=True) for values in found), str(len(pairs))])
    title = f"Difference from {methods.get(CONTROL, CONTROL)!r} with the same seed"
    return Table(["difference", *columns, "n"], rows, title=title) if rows else None


def differences_by_seed(records: Sequence[DetectionRecord], methods: Methods, column: str) -> Table | None:
    """Each run's difference from the control of its seed, one column per seed. None if there is no control."""
    seeds = sorted({record.seed for record in records})
    rows = []
    for name, title in methods.items():
        found = {run.seed: difference(run, control, column) for run, control in control_pairs(records, name)}
        if found and name != CONTROL:
            values = [found.get(seed) for seed in seeds]
            rows.append([title, *(_signed(value) for value in values)])
    title = f"{column}, difference from {methods.get(CONTROL, CONTROL)!r} by seed"
    return Table([f"{column}, difference", *(f"seed {seed}" for seed in seeds)], rows, title=title) if rows else None


def _signed(value: float | None) -> str:
    return UNKNOWN if value is None else plus_minus(value, digits=2, sign=True)
