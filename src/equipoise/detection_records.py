"""Records of detectors: a run is a line of a .jsonl file, then one small JSON, results/<table>/<method>/<seed>.json."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import mean, stdev
from typing import Any

COLUMNS = ("AP_mask", "AP_f", "AP_c", "AP_r", "AP_box")


@dataclass(frozen=True)
class DetectionRecord:
    """Everything about one run. Average precisions are LVIS's, in percent; AP_f, AP_c and AP_r are of masks (of boxes
    where there are no masks), None where no class is in the group. `mask` and `box` hold all 13 numbers."""

    table: str
    method: str
    seed: int
    AP_mask: float | None
    AP_f: float | None
    AP_c: float | None
    AP_r: float | None
    AP_box: float | None
    mask: dict[str, float | None] | None
    box: dict[str, float | None]
    evaluated_on: str
    evaluated_images: int
    iterations: int
    complete: bool  # trained as long as the recipe says; smoke tests are not
    recipe: dict[str, Any]
    trained_on: str
    backbone: str | None
    counts: list[int]  # training images that hold each class
    class_names: list[str]
    loss_curve: list[float]
    weights: str
    seconds: float
    images_per_second: float
    evaluation_seconds: float
    engine: dict[str, Any]
    commit: str | None
    versions: dict[str, str]
    hardware: dict[str, str]

    @property
    def key(self) -> str:
        return f"{self.table}/{self.method}/{self.seed}"

    def to_json(self, indent: int | None = None) -> str:
        """One line, or one line a field."""
        content = asdict(self)
        if indent is None:
            return json.dumps(content, ensure_ascii=False)
        lines = [f"{' ' * indent}{json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in content.items()]
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @classmethod
    def from_json(cls, text: str) -> DetectionRecord:
        """The record that `to_json` wrote."""
        content = json.loads(text)
        wanted = {field.name for field in fields(cls)}
        if not isinstance(content, dict) or content.keys() != wanted:
            keys = set(content) if isinstance(content, dict) else set()
            raise ValueError(
                f"not the record of a detector: missing {sorted(wanted - keys)}, unknown {sorted(keys - wanted)}"
            )
        return cls(**content)


def append_record(path: Path, record: DetectionRecord) -> None:
    """Add a line to a .jsonl file, so that it is on the disk when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as file:
        file.write(record.to_json().encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_jsonl(path: Path) -> Iterator[DetectionRecord]:
    """The records of a .jsonl file; a half-written last line is left out."""
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            yield DetectionRecord.from_json(line)
        except json.JSONDecodeError:
            if number < len(lines):
                raise ValueError(f"{path}, line {number} is not JSON: {line[:60]!r}") from None
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None


def read_records(results: Path, table: str) -> list[DetectionRecord]:
    """Every committed record of a table, in the order of their paths."""
    records = []
    for path in sorted((results / table).glob("*/*.json")):
        record = DetectionRecord.from_json(path.read_text())
        if path != results / f"{record.key}.json":
            raise ValueError(f"{path} holds the record of {record.key}: move it to its place")
        records.append(record)
    return records


def import_records(source: Path, results: Path) -> list[Path]:
    """Lay the records of a .jsonl file out under `results`; returns the files written.

    Smoke tests are left out, the same record again is nothing new, and a different one for the same run is an error.
    """
    written = []
    for record in read_jsonl(source):
        path = results / f"{record.key}.json"
        if not record.complete or (path.exists() and path.read_text() == record.to_json(indent=1)):
            continue
        if path.exists():
            raise FileExistsError(f"{path} exists and differs: results are append-only; compare the two by hand")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(record.to_json(indent=1))
        written.append(path)
    return written


def summary(records: Sequence[DetectionRecord], methods: Sequence[tuple[str, str]]) -> list[tuple[str, ...]]:
    """A row a method (name, title) that has records: title, mean ± standard deviation of each column, n."""
    rows = []
    for name, title in methods:
        runs = [record for record in records if record.method == name]
        if runs:
            rows.append((title, *(_cell([getattr(run, column) for run in runs]) for column in COLUMNS), str(len(runs))))
    return rows


def _cell(values: Sequence[float | None]) -> str:
    """
    >>> _cell([20.0, 22.0]), _cell([20.0]), _cell([None])
    ('21.0 ± 1.4', '20.0', '–')
    """
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    return f"{mean(known):.1f}" + (f" ± {stdev(known):.1f}" if len(known) > 1 else "")
