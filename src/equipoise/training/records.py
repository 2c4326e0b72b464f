"""One run = one small JSON; tables are rendered from them, never typed.

    results/table1/<data set>/<imbalance>/<method>/<seed>.json        what the table shows
    results/choices/<data set>/<imbalance>/<method>/<seed>.json       what hyper-parameters were chosen from

Runs append their record to a .jsonl file when they end; `import_records` sorts its records into results/. A record is
never overwritten by a different one, even if several processes append or import at once. Nothing here needs torch.
"""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import types
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, Self, TypeVar, Union, get_args, get_origin, get_type_hints

from equipoise.data.reading import counted
from equipoise.files import written_whole

if TYPE_CHECKING:
    import torch

# Options of recipes that older files lack, and what they were.
EARLIER = {"width": 1, "mix_probability": 1.0, "sam": 0.0}


class StoredRecord:
    """One run as plain data, a frozen dataclass. Every table has its own kind; how they are stored is defined here."""

    PATTERN: ClassVar[str]  # where records are below results/<table>
    WHAT: ClassVar[str] = "a record"
    NESTED: ClassVar[bool] = False  # whether a table may have tables within it, as in table2/resnet50
    table: str
    method: str
    seed: int
    complete: bool

    @property
    def key(self) -> str:
        """The record's path below results/, without its ending."""
        return f"{self.table}/{self.method}/{self.seed}"

    def path_under(self, results: Path) -> Path:
        """The record's path; refused if a part of its key could lead elsewhere."""
        table = self.table.split("/") if self.NESTED else [self.table]
        below = self.key.removeprefix(f"{self.table}/").split("/")
        odd = [part for part in (*table, *below) if not names_a_folder(part)]
        if odd or len(below) != self.PATTERN.count("/") + 1:
            raise ValueError(f"no file can have its key, {self.key!r}: every part must be {NAMES}")
        return results / f"{self.key}.json"

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
        """The record that `to_json` wrote; fields with a default were added later, and older records lack them."""
        content = json.loads(text)
        known = {field.name: field.default is MISSING for field in fields(cls)}  # type: ignore[arg-type]
        keys = set(content) if isinstance(content, dict) else set()
        missing, unknown = {name for name, needed in known.items() if needed} - keys, keys - known.keys()
        if missing or unknown or not isinstance(content, dict):
            raise ValueError(f"not {cls.WHAT}: missing {sorted(missing)}, unknown {sorted(unknown)}")
        return cls(**content)


AnyRecord = TypeVar("AnyRecord", bound=StoredRecord)


def in_percent(share: float | None) -> float | None:
    """A share in percent to four digits, as records have it; None if it is undefined.

    >>> in_percent(0.5), in_percent(float("nan")), in_percent(None)
    (50.0, None, None)
    """
    return None if share is None or math.isnan(share) else round(100 * share, 4)


@dataclass(frozen=True)
class Record(StoredRecord):
    """Everything about one run. `correct`, `total` and `marginal` (p(y)) have one entry per class; `top1` is in
    percent."""

    PATTERN: ClassVar[str] = "*/*/*/*.json"
    NESTED: ClassVar[bool] = True

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
    together: int  # runs that shared the device at the same time
    engine: dict[str, Any]
    commit: str | None
    versions: dict[str, str]
    hardware: dict[str, str]
    backbone_weights: str | None = None  # of the run whose backbone was kept, as `weights` names them there
    teachers: dict[str, str] | None = None  # the runs that taught this one, with their `weights`
    teachers_top1: float | None = None  # of the mean of their probabilities, on the same images
    teachers_divergence: float | None = None  # T² KL of this run from that mean at temperature T, in nats

    def __post_init__(self) -> None:
        check_top1(self)

    @property
    def key(self) -> str:
        return f"{self.table}/{self.data_set}/{self.imbalance}/{self.method}/{self.seed}"


# -------------------------------------------------------------------- files


NAMES = "a name, without slash, backslash or control character"


def names_a_folder(part: str) -> bool:
    """Whether it may be a part of a key.

    >>> [names_a_folder(part) for part in ("cifar10-lt", "tau_0.5", "..", "a/b", "")]
    [True, True, False, False, False]
    """
    return part not in ("", ".", "..") and part.isprintable() and not {"/", "\\"} & set(part)


def locked(file: IO[Any], *, wait: bool = True) -> bool:
    """Lock `file` for this process until it closes it or ends; returns whether it got the lock (a dead process holds
    none)."""
    try:
        import fcntl
    except ImportError:  # Windows: one process at a time
        return True
    with suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def append_record(path: Path, record: StoredRecord) -> None:
    """Add a line to a .jsonl file; it is on disk when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+b") as file:
        locked(file)
        file.seek(0, os.SEEK_END)
        if file.tell() > 0:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # a process was killed while writing: its half line must not swallow this one
                file.write(b"\n")
        file.write(record.to_json().encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_lines(path: Path, kinds: Sequence[type[AnyRecord]]) -> Iterator[AnyRecord | None]:
    """A record per line, None for one that is half-written; blank lines are skipped."""
    if path.is_dir() or not path.exists():  # a pipe is neither
        raise FileNotFoundError(f"{path} is not a file: expected records, .jsonl")
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield _of_line(line.decode("utf-8-sig" if number == 1 else "utf-8"), kinds)
        except (json.JSONDecodeError, UnicodeDecodeError):
            if not _is_cut(line, lines[number:]):
                shown = line[:60].decode(errors="replace")
                raise ValueError(f"{path}, line {number} is not JSON: {shown!r}") from None
            yield None
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None


def _is_cut(line: bytes, rest: list[bytes]) -> bool:
    """Whether a line is a cut-off record: without a newline, or ended by `append_record` before it added another."""
    start = b'{"table"'
    begins = line.startswith(start) or start.startswith(line)
    return begins and (not rest or (any(more.strip() for more in rest) and not line.endswith(b"}")))


def _of_line(line: str, kinds: Sequence[type[AnyRecord]]) -> AnyRecord:
    """The record in a line, checked: its values have the right types, and its key is a path below a folder."""
    content = json.loads(line)
    keys = set(content) if isinstance(content, dict) else set()
    kind = min(kinds, key=lambda kind: len(keys ^ {field.name for field in fields(kind)}))  # type: ignore[arg-type]
    try:
        record = kind.from_json(line)
    except TypeError:  # raised where values are computed with
        record = None
    hints = get_type_hints(kind)
    wrong = [name for name in content if not _fits(content[name], hints[name])]
    if wrong or record is None:
        raise ValueError(f"not {kind.WHAT}: " + ", ".join(f"{name} is {content[name]!r}"[:60] for name in wrong))
    record.path_under(Path())
    return record


def check_top1(record: Any) -> None:
    """Refuse a record whose accuracy is not that of its counts."""
    share = 100 * sum(record.correct) / max(sum(record.total), 1)
    if not abs(share - record.top1) <= 0.005:  # not for NaN either
        raise ValueError(f"{record.key}: top1 is {record.top1}, but correct/total gives {share:.2f}")


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value from JSON has the type that a record's field declares."""
    origin, of = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(_fits(value, one) for one in of)
    if origin in (list, dict):
        items = value.values() if isinstance(value, dict) else value
        return isinstance(value, origin) and all(_fits(item, of[-1]) for item in items)
    if hint in (int, float):
        return isinstance(value, (int, hint)) and not isinstance(value, bool)
    return isinstance(value, hint)


def read_records(
    results: Path,
    table: str = "table1",
    kind: type[AnyRecord] = Record,  # type: ignore[assignment]
    *,
    named: str | None = None,
) -> list[AnyRecord]:
    """Every committed record of a table, in the order of their paths. `named` is the table that the records themselves
    name, if they were moved out of its folder."""
    records = []
    for path in sorted((results / table).glob(kind.PATTERN)):
        if path.name.startswith("."):  # what a process that was killed has left of a file
            continue
        record = _of_file(path, kind)
        if path != results / table / f"{record.key.removeprefix(f'{named or table}/')}.json":
            raise ValueError(f"{path} holds the record of {record.key}: move it to its place")
        records.append(record)
    return records


def _of_file(path: Path, kind: type[AnyRecord]) -> AnyRecord:
    try:
        return kind.from_json(path.read_text(encoding="utf-8"))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


@dataclass(frozen=True)
class Imported:
    """What became of the lines of a .jsonl file; for `differing` ones there is already a file with other content."""

    written: list[Path]
    differing: list[Path]
    known: int
    smoke_tests: int
    half_written: int

    def __str__(self) -> str:
        """What happened to the records that were not written.

        >>> str(Imported([], [], known=1, smoke_tests=2, half_written=1))
        '1 was already there, 2 smoke tests and 1 half-written line left out'
        """
        differing = len(self.differing)
        known = f"{self.known} {'was' if self.known == 1 else 'were'} already there" if self.known else ""
        differs = f"{differing} {'differs' if differing == 1 else 'differ'} from what is there" if differing else ""
        left = ((self.smoke_tests, "smoke test"), (self.half_written, "half-written line"))
        left_out = " and ".join(counted(number, what) for number, what in left if number)
        return ", ".join(filter(None, (known, differs, left_out and f"{left_out} left out")))


def import_records(source: Path, results: Path, kinds: Sequence[type[StoredRecord]] = (Record,)) -> Imported:
    """Sort the records of a .jsonl file into `results`; if any line is not a record, nothing is written.

    Smoke tests are skipped, repeated records are ignored, and one that differs from the existing record of the same run
    is never written: results are append-only.
    """
    lines = list(read_lines(source, kinds))
    records = [record for record in lines if record is not None]
    written: list[Path] = []
    differing: list[Path] = []
    known = 0
    for record in records:
        if not record.complete:
            continue
        path = record.path_under(results)
        try:
            with written_whole(path, new=True) as scratch:
                scratch.write_text(record.to_json(indent=1), encoding="utf-8")
            written.append(path)
        except FileExistsError:  # perhaps one that another process has just written
            if _of_file(path, type(record)) == record:
                known += 1
            else:
                differing.append(path)
    smoke_tests = sum(not record.complete for record in records)
    return Imported(written, differing, known, smoke_tests, half_written=lines.count(None))


@dataclass(frozen=True)
class Recorded:
    """Which runs of a table have a record: under `results`, and in `out`, where new ones are appended."""

    out: Path
    results: Path
    table: str
    kind: type[StoredRecord]
    kinds: Sequence[type[StoredRecord]]  # kinds that `out` may hold
    smoke_test: int | None = None  # iterations: if set, only smoke tests of this length count

    def committed(self) -> set[str]:
        """The runs that have a record under `results`, as their paths below the table."""
        if self.smoke_test is not None:
            return set()
        return self._runs(read_records(self.results, self.table, self.kind))

    def appended(self) -> set[str]:
        """The runs that have a record in `out`, now."""
        return self._runs(self.read())

    def read(self) -> list[StoredRecord]:
        """The records in `out`, of any table."""
        try:
            lines = list(read_lines(self.out, self.kinds)) if self.out.is_file() else []
        except (OSError, ValueError) as error:
            what = str(error).partition(": missing")[0]
            raise ValueError(f"--out {self.out} cannot be added to ({what}): name another file") from None
        return [record for record in lines if record is not None]

    def records(self) -> list[Any]:
        """The records in `out` of this table's runs: of whole ones or, for a smoke test, of others of its length."""
        return self._of_this_length(self.read())

    def _runs(self, records: Iterable[Any]) -> set[str]:
        return {record.key.removeprefix(f"{self.table}/") for record in self._of_this_length(records)}

    def _of_this_length(self, records: Iterable[Any]) -> list[Any]:
        return [
            record
            for record in records
            if record.table == self.table
            and record.complete == (self.smoke_test is None)
            and (record.complete or record.iterations in (0, self.smoke_test))  # 0: a method that is not trained
        ]


# -------------------------------------------------------------------- where a run happened


def versions() -> dict[str, str]:
    """What the numbers may depend on."""
    import numpy
    import torch

    from equipoise import __version__

    found = {"equipoise": __version__, "python": platform.python_version(), "torch": str(torch.__version__)}
    found["numpy"] = numpy.__version__
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
        found["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
    return found


def hardware(device: torch.device) -> dict[str, str]:
    """The device in words."""
    import torch

    if device.type == "cuda":
        return {"device": torch.cuda.get_device_name(device)}
    return {"device": "cpu", "machine": platform.machine(), "threads": str(torch.get_num_threads())}


def current_commit() -> str | None:
    """The commit of this library's working tree, with a "+" if tracked files were changed; None if it has none.

    If the library is installed rather than cloned, a repository around it, or the current one, is not its own.
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
