"""Records: one run, one small JSON, never overwritten."""

from __future__ import annotations

import json
import multiprocessing
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from helpers.run_records import record
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.cli.options import RunOptions
from equipoise.experiments.prior_shift.records import PriorShiftRecord
from equipoise.report.files import read_runs
from equipoise.training import records as records_module
from equipoise.training.detection_records import DetectionRecord
from equipoise.training.records import (
    Imported,
    Record,
    Recorded,
    StoredRecord,
    append_record,
    current_commit,
    import_records,
    read_lines,
    read_records,
)


def test_a_record_survives_json_in_both_forms() -> None:
    assert Record.from_json(record().to_json()) == record()
    assert Record.from_json(record().to_json(indent=1)) == record()
    assert "\n" not in record().to_json()


def test_a_record_lies_where_its_key_says(tmp_path: Path) -> None:
    append_record(tmp_path / "new.jsonl", record())
    assert import_records(tmp_path / "new.jsonl", tmp_path / "results").written == [
        tmp_path / "results/table1/cifar10-lt/100/softmax/0.json"
    ]
    assert read_records(tmp_path / "results") == [record()]
    assert json.loads((tmp_path / "results/table1/cifar10-lt/100/softmax/0.json").read_text())["top1"] == 75.0


def test_importing_again_writes_nothing_and_never_overwrites(tmp_path: Path) -> None:
    append_record(tmp_path / "new.jsonl", record())
    import_records(tmp_path / "new.jsonl", tmp_path)
    again = import_records(tmp_path / "new.jsonl", tmp_path)
    assert again == Imported(written=[], differing=[], known=1, smoke_tests=0, half_written=0)
    for one in (record(seconds=60.0), record(seed=1)):
        append_record(tmp_path / "other.jsonl", one)
    below = tmp_path / "table1/cifar10-lt/100/softmax"
    other = import_records(tmp_path / "other.jsonl", tmp_path)
    assert (other.written, other.differing) == ([below / "1.json"], [below / "0.json"])
    assert read_records(tmp_path) == [record(), record(seed=1)]


def test_smoke_tests_are_never_imported_nor_counted(tmp_path: Path) -> None:
    append_record(tmp_path / "new.jsonl", record(complete=False, iterations=50))
    done = import_records(tmp_path / "new.jsonl", tmp_path)
    assert (done.written, done.smoke_tests) == ([], 1)
    assert Recorded(tmp_path / "new.jsonl", tmp_path, "table1", Record, [Record]).appended() == set()


def test_what_a_killed_process_has_left_of_a_record_is_no_record(tmp_path: Path) -> None:
    append_record(tmp_path / "new.jsonl", record())
    (path,) = import_records(tmp_path / "new.jsonl", tmp_path).written
    path.with_name(".1.4fb0b682.part.json").write_text("{")
    assert read_records(tmp_path) == [record()]
    assert list(read_runs(tmp_path)) == ["softmax"]


def test_a_line_cut_by_a_kill_loses_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "new.jsonl"
    append_record(path, record())
    path.write_bytes(path.read_bytes() + record(seed=1).to_json().encode()[:200])
    assert [one and one.seed for one in read_lines(path, [Record])] == [0, None]
    append_record(path, record(seed=2))
    assert [one and one.seed for one in read_lines(path, [Record])] == [0, None, 2]
    assert import_records(path, tmp_path).half_written == 1


@pytest.mark.parametrize("length", [1, 5, 9, 300])
def test_a_line_may_be_cut_anywhere(length: int, tmp_path: Path) -> None:
    whole = record(recipe={"title": "τ"}).to_json().encode()
    cut = whole[:length] if length < 300 else whole[: whole.index("τ".encode()) + 1]  # within a character
    (tmp_path / "new.jsonl").write_bytes(cut)
    assert list(read_lines(tmp_path / "new.jsonl", [Record])) == [None]


@pytest.mark.parametrize(
    "text",
    ["garbage", "garbage\n", '["table"]x', "\x00", '{"table": "table1", "data\n', '{"table": "table1"]}\n{}\n'],
    ids=["word", "word and newline", "list", "binary", "cut before a newline", "broken in the middle"],
)
def test_what_is_not_the_beginning_of_a_record_does_not_pass_as_half_written(text: str, tmp_path: Path) -> None:
    (tmp_path / "new.jsonl").write_text(text)
    with pytest.raises(ValueError, match=r"new\.jsonl, line 1 is not JSON"):
        list(read_lines(tmp_path / "new.jsonl", [Record]))


def test_records_that_are_not_there_are_named(tmp_path: Path) -> None:
    for path in (tmp_path / "nope.jsonl", tmp_path):
        with pytest.raises(
            FileNotFoundError, match=f"^{re.escape(str(path))} is not a file: expected records, .jsonl$"
        ):
            import_records(path, tmp_path / "results")


def test_what_is_not_a_record_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "new.jsonl"
    append_record(path, record())
    path.write_text(path.read_text() + '{"top1": 99}\n')
    with pytest.raises(ValueError, match=r"new\.jsonl, line 2: not a record: missing"):
        list(read_lines(path, [Record]))
    path.write_text("nonsense\n" + record().to_json() + "\n")
    with pytest.raises(ValueError, match=r"line 1 is not JSON"):
        list(read_lines(path, [Record]))


@pytest.mark.parametrize(
    "change",
    [
        {"correct": None},
        {"correct": [2, None]},
        {"seed": True},
        {"seconds": "5"},
        {"recipe": []},
        {"hardware": {"a": 1}},
    ],
    ids=lambda change: str(*change),
)
def test_a_value_of_another_type_is_named_with_its_line(change: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "new.jsonl"
    append_record(path, record())
    path.write_text(path.read_text() + json.dumps(json.loads(record().to_json()) | change) + "\n")
    ((name, value),) = change.items()
    with pytest.raises(ValueError, match=re.escape(f"new.jsonl, line 2: not a record: {name} is {value!r}")):
        import_records(path, tmp_path / "results")
    assert not (tmp_path / "results").exists()  # a file is laid out as a whole or not at all


@pytest.mark.parametrize(
    ("name", "part"),
    [
        (name, part)
        for name in ("table", "data_set", "method")
        for part in ("", ".", "..", "../../escape", "/tmp/escape", "a/b", "a\\b", "a\nb", "a\x00b")
        if (name, part) != ("table", "a/b")  # a table may lie within another
    ],
)
def test_a_key_that_leads_elsewhere_is_refused(name: str, part: str, tmp_path: Path) -> None:
    path = tmp_path / "new.jsonl"
    append_record(path, record(**{name: part}))
    with pytest.raises(ValueError, match=r"new\.jsonl, line 1: no file can have its key"):
        import_records(path, tmp_path / "below" / "results")
    assert list(tmp_path.iterdir()) == [path]


def test_the_tries_of_a_table_lie_in_a_folder_of_their_own_among_the_choices(tmp_path: Path) -> None:
    path = tmp_path / "new.jsonl"
    append_record(path, record(table="choices/record"))
    (written,) = import_records(path, tmp_path / "results").written
    assert written.relative_to(tmp_path).as_posix().startswith("results/choices/record/cifar")
    assert read_records(tmp_path / "results", "choices") == []
    assert [one.table for one in read_records(tmp_path / "results", "choices/record")] == ["choices/record"]


@pytest.mark.parametrize("table", ["table2/../../escape", "table2/", "/table2", "own//table2", "own/a\\b"])
def test_tables_of_detectors_may_lie_in_one_another_but_not_lead_elsewhere(table: str, tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Nested(StoredRecord):
        PATTERN = "*.json"
        NESTED = True
        table: str
        complete: bool = True

        @property
        def key(self) -> str:
            return f"{self.table}/0"

    assert Nested("own/lvis/table2").path_under(tmp_path) == tmp_path / "own/lvis/table2/0.json"
    with pytest.raises(ValueError, match="no file can have its key"):
        Nested(table).path_under(tmp_path)


def test_top1_must_agree_with_the_counts_a_class() -> None:
    with pytest.raises(ValueError, match=r"top1 is 80\.0, but correct/total gives 75\.00"):
        record(top1=80.0)


def test_a_record_in_the_wrong_place_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "table1/cifar10-lt/100/eql/0.json"
    path.parent.mkdir(parents=True)
    path.write_text(record().to_json(indent=1))
    with pytest.raises(ValueError, match=r"holds the record of table1/cifar10-lt/100/softmax/0"):
        read_records(tmp_path)


def test_the_commit_is_that_of_the_library_wherever_one_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = current_commit()
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "another repository"], check=True)
    monkeypatch.chdir(tmp_path)
    assert current_commit() == here
    monkeypatch.setattr(
        "equipoise.training.records.__file__", str(tmp_path / "records.py")
    )  # installed, not tracked, inside it
    (tmp_path / "records.py").touch()
    assert current_commit() is None


@pytest.mark.parametrize(
    ("table", "place"),
    [
        ("table1", "table1/cifar10-lt/100/softmax/0.json"),
        ("table2", "table2/resnet50/rfs/0.json"),
        ("voc2012-lt", "voc2012-lt/rfs/0.json"),
        ("prior-shift", "prior-shift/softmax/0.json"),
    ],
)
def test_a_damaged_record_is_named_and_no_traceback(table: str, place: str, tmp_path: Path) -> None:
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    path.write_text('{"table": "cut o')
    result = CliRunner().invoke(app, ["table", table, "--results", str(tmp_path)], env={"COLUMNS": "400"})
    assert result.exit_code == 2, result.output
    assert place in result.output


def test_an_accuracy_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="top1 is nan"):
        record(top1=float("nan"))


def test_a_byte_order_mark_before_the_first_record_is_read_over(tmp_path: Path) -> None:
    path = tmp_path / "new.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + record().to_json().encode() + b"\n")
    assert list(read_lines(path, [Record])) == [record()]


def test_a_record_is_laid_out_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append_record(tmp_path / "new.jsonl", record())
    write = Path.write_text

    def full(path: Path, text: str, **_: str) -> int:
        write(path, text[:10])
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="no space left"):
        import_records(tmp_path / "new.jsonl", tmp_path / "results")
    assert [path for path in (tmp_path / "results").rglob("*") if path.is_file()] == []


def test_a_damaged_choice_is_named_when_documents_are_rendered(tmp_path: Path) -> None:
    good = record()
    good.path_under(tmp_path).parent.mkdir(parents=True)
    good.path_under(tmp_path).write_text(good.to_json(indent=1))
    path = tmp_path / "choices/cifar10-lt/100/softmax/0.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    result = CliRunner().invoke(app, ["table", "table1", "--results", str(tmp_path), "--write"], env={"COLUMNS": "400"})
    assert result.exit_code == 2, result.output
    assert str(path) in result.output


# -------------------------------------------------------------------- several kinds, several processes


def detection_record(**change: object) -> DetectionRecord:
    usual: dict[str, object] = {
        "table": "voc2012-lt", "method": "rfs", "seed": 0, "AP_mask": 20.0, "AP_f": 1.0, "AP_c": 2.0, "AP_r": None,
        "AP_box": 4.0, "mask": {}, "box": {}, "evaluated_on": "val", "evaluated_images": 1, "iterations": 1,
        "complete": True, "recipe": {}, "trained_on": "", "backbone": None, "counts": [], "class_names": [],
        "loss_curve": [], "weights": "", "seconds": 1.0, "images_per_second": 1.0, "evaluation_seconds": 1.0,
        "engine": {}, "commit": None, "versions": {}, "hardware": {},
    }  # fmt: skip
    return DetectionRecord(**(usual | change))  # type: ignore[arg-type]


def test_one_import_takes_records_of_every_kind(tmp_path: Path) -> None:
    shift = next((Path(__file__).parents[2] / "results" / "prior-shift").rglob("*.json"))
    lines = [record().to_json(), json.dumps(json.loads(shift.read_text())), detection_record().to_json()]
    (tmp_path / "new.jsonl").write_text("\n".join(lines) + "\n")
    arguments = ["records", "import", str(tmp_path / "new.jsonl"), "--results", str(tmp_path / "results")]
    result = CliRunner().invoke(app, arguments)
    assert result.output == f"3 new records under {tmp_path / 'results'}\n"
    assert read_records(tmp_path / "results", "voc2012-lt", DetectionRecord) == [detection_record()]
    assert [type(one) for one in RunOptions(out=tmp_path / "new.jsonl").recorded("table1", Record).read()] == [
        Record,
        PriorShiftRecord,
        DetectionRecord,
    ]


def test_a_record_that_another_import_writes_at_the_same_time_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_record(tmp_path / "new.jsonl", record())
    path, theirs = record().path_under(tmp_path), record(seconds=60.0).to_json(indent=1)
    write = Path.write_text

    def beside_another(scratch: Path, text: str, **_: str) -> int:
        write(path, theirs)  # the other process was as far, and is a moment faster
        return write(scratch, text)

    monkeypatch.setattr(Path, "write_text", beside_another)
    done = import_records(tmp_path / "new.jsonl", tmp_path)
    assert (done.written, done.differing) == ([], [path])
    assert path.read_text() == theirs
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def append_many(path: str, seed: int) -> None:
    for _ in range(20):
        append_record(Path(path), record(seed=seed, loss_curve=[1.0] * 5000))


def test_processes_that_append_at_once_write_whole_lines(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    path = tmp_path / "new.jsonl"
    processes = [context.Process(target=append_many, args=(str(path), seed)) for seed in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=120)
    assert sorted(one.seed for one in read_lines(path, [Record]) if one) == [0] * 20 + [1] * 20 + [2] * 20


@pytest.mark.parametrize("module", ["training.records", "cli.options", "cli.shared", "cli.records", "cli.run"])
def test_records_are_read_and_commands_declared_without_torch(module: str) -> None:
    """The package itself is left out of it: what these modules import must not need torch."""
    code = (
        "import sys, types\n"
        "package = types.ModuleType('equipoise'); package.__path__ = [sys.argv[1]]; package.__version__ = '0'\n"
        "sys.modules['equipoise'] = package\n"
        "cli = types.ModuleType('equipoise.cli'); cli.__path__ = [sys.argv[1] + '/cli']\n"
        "sys.modules['equipoise.cli'] = cli\n"
        "sys.modules['torch'] = sys.modules['torchvision'] = None\n"
        f"import equipoise.{module}\n"
    )
    folder = Path(records_module.__file__).parents[1]
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True)
