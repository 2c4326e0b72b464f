"""One run = one small JSON; tables are rendered from them, never typed.

    results/table1/<data set>/<imbalance>/<method>/<seed>.json        what the table shows
    results/choices/<data set>/<imbalance>/<method>/<seed>.json       what hyper-parameters were chosen from

Runs append their record to a .jsonl file as they end; `import_records` lays such a file out under results/. A record is
never overwritten by a different one.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import torch


class StoredRecord(ABC):
    """Abstract: one run as plain data, a frozen dataclass. Every table has its kind; how they are stored is here."""

    PATTERN: ClassVar[str]  # where records lie below results/<table>
    WHAT: ClassVar[str] = "a record"
    complete: bool

    @property
    @abstractmethod
    def key(self) -> str:
        """The record's path below results/, without its ending."""

    def to_json(self, indent: int | None = None) -> str:
        """One line, or indented at the top level with every list on one line."""
        content = asdict(self)  # type: ignore[call-overload]  # every kind is a dataclass
        if indent is None:
            return json.dumps(content, ensure_ascii=False)
        lines = [
            f"{' ' * indent}{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"
            for key, value in content.items()
        ]
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The record that `to_json` wrote; what has a default came later, and older records do not hold it."""
        content = json.loads(text)
        known = {field.name: field.default is MISSING for field in fields(cls)}  # type: ignore[arg-type]
        keys = set(content) if isinstance(content, dict) else set()
        missing, unknown = {name for name, needed in known.items() if needed} - keys, keys - known.keys()
        if missing or unknown or not isinstance(content, dict):
            raise ValueError(f"not {cls.WHAT}: missing {sorted(missing)}, unknown {sorted(unknown)}")
        return cls(**content)


Kind = TypeVar("Kind", bound=StoredRecord)


@dataclass(frozen=True)
class Record(StoredRecord):
    """Everything about one run. `correct`, `total` and `marginal` (p(y)) are one a class; `top1` is in percent."""

    PATTERN: ClassVar[str] = "*/*/*/*.json"

    table: str
    data_set: str
    imbalance: int
    method: str
    seed: int
    top1: float
    balanced_accuracy: float
    evaluated_on: str  # "test", or "held_out" training images for a choice
    iterations: int
    complete: bool  # trained as long as the recipe says; smoke tests are not
    recipe: dict[str, Any]
    draw: str
    pixels: str
    counts: list[int]
    correct: list[int]
    total: list[int]
    marginal: list[float]
    loss_curve: list[float]
    weights: str
    seconds: float
    together: int  # runs that shared the device meanwhile
    engine: dict[str, Any]
    commit: str | None
    versions: dict[str, str]
    hardware: dict[str, str]
    backbone_weights: str | None = None  # of the run whose backbone was kept, as `weights` names them there

    def __post_init__(self) -> None:
        share = 100 * sum(self.correct) / max(sum(self.total), 1)
        if abs(share - self.top1) > 0.005:
            raise ValueError(f"{self.key}: top1 is {self.top1}, but correct/total gives {share:.2f}")

    @property
    def key(self) -> str:
        return f"{self.table}/{self.data_set}/{self.imbalance}/{self.method}/{self.seed}"


# -------------------------------------------------------------------- files


def append_record(path: Path, record: StoredRecord) -> None:
    """Add a line to a .jsonl file, so that it is on the disk when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+b") as file:
        if file.tell() > 0:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # a process was killed while it wrote: its half line must not swallow this one
                file.write(b"\n")
        file.write(record.to_json().encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_jsonl(path: Path, kind: type[Kind] = Record) -> Iterator[Kind]:  # type: ignore[assignment]
    """The records of a .jsonl file; a half-written last line (a process killed while writing) is left out."""
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield kind.from_json(line)
        except json.JSONDecodeError:
            if number < len(lines) and not _is_cut(line):
                raise ValueError(f"{path}, line {number} is not JSON: {line[:60]!r}") from None
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None


def _is_cut(line: str) -> bool:
    return line.startswith('{"table"') and not line.endswith("}")


def read_records(results: Path, table: str = "table1", kind: type[Kind] = Record) -> list[Kind]:  # type: ignore[assignment]
    """Every committed record of a table, in the order of their paths."""
    records = []
    for path in sorted((results / table).glob(kind.PATTERN)):
        record = kind.from_json(path.read_text())
        if path != results / f"{record.key}.json":
            raise ValueError(f"{path} holds the record of {record.key}: move it to its place")
        records.append(record)
    return records


def import_records(source: Path, results: Path, kind: type[StoredRecord] = Record) -> list[Path]:
    """Lay the records of a .jsonl file out under `results`; returns the files written.

    Smoke tests are left out, the same record again is nothing new, and a different one for the same run is an error.
    """
    written = []
    for record in read_jsonl(source, kind):
        if not record.complete:
            continue
        path = results / f"{record.key}.json"
        text = record.to_json(indent=1)
        if path.exists():
            if path.read_text() != text:
                raise FileExistsError(f"{path} exists and differs: results are append-only; compare the two by hand")
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        written.append(path)
    return written


# -------------------------------------------------------------------- where a run happened


def versions() -> dict[str, str]:
    """What the numbers may depend on."""
    import numpy

    from equipoise import __version__

    found = {"equipoise": __version__, "python": platform.python_version(), "torch": str(torch.__version__)}
    found["numpy"] = numpy.__version__
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
        found["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
    return found


def hardware(device: torch.device) -> dict[str, str]:
    """The device in words."""
    if device.type == "cuda":
        return {"device": torch.cuda.get_device_name(device)}
    return {"device": "cpu", "machine": platform.machine(), "threads": str(torch.get_num_threads())}


def current_commit() -> str | None:
    """The commit of this library's working tree, with a "+" where tracked files were changed; None if it has none.

    Where the library is installed rather than cloned, a repository around it, or the one worked in, is not its own.
    """

    def git(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        here = Path(__file__).parent
        return subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=check)

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)
        head = git("rev-parse", "HEAD").stdout.strip()
        changed = git("diff", "--quiet", "HEAD", check=False).returncode
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("+" if changed else "")


def keys(records: Iterable[Record]) -> set[str]:
    """Which runs are there, smoke tests not counted."""
    return {record.key for record in records if record.complete}
