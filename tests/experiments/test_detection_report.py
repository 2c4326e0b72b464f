"""The tables of detectors in documents: from records, beside the paper's numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.experiments.documents import mosaic_lt as mosaic_documents
from equipoise.experiments.documents import table2 as table2_documents
from equipoise.experiments.documents import voc2012_lt as documents
from equipoise.experiments.mosaic_lt import published as mosaic_published
from equipoise.experiments.table2 import control, published
from equipoise.experiments.table2.report import calibration_table
from equipoise.experiments.voc2012_lt import published as voc_published
from equipoise.experiments.voc2012_lt import report
from equipoise.training.detection_records import COLUMNS, DetectionRecord
from equipoise.training.records import read_records

ROOT = Path(__file__).resolve().parents[2]
NEW, CUT = "voc2012-lt", "voc2012-lt-cut-nms"
METHODS = {"rfs": "RFS", "crt": "cRT", "eql": "EQL", "balanced_sigmoid": "Balanced Sigmoid"}


def record(method: str, seed: int, average: float, rare: float | None = 5.0, **changes: Any) -> DetectionRecord:
    content: dict[str, Any] = {
        "table": "voc2012-lt", "method": method, "seed": seed, "AP_mask": average, "AP_f": 30.0, "AP_c": 20.0,
        "AP_r": rare, "AP_box": 21.0, "mask": {}, "box": {}, "evaluated_on": "val", "evaluated_images": 1449,
        "iterations": 1347, "complete": True, "recipe": {}, "trained_on": "train_lt.json", "backbone": None,
        "counts": [200, 150, 50, 4], "class_names": [], "loss_curve": [], "weights": "", "seconds": 61.0,
        "images_per_second": 350.0, "evaluation_seconds": 6.0, "engine": {"precision": "bf16"},
        "commit": "0123456789", "versions": {"torch": "2.11.0"}, "hardware": {"device": "some GPU"},
    }  # fmt: skip
    return DetectionRecord(**(content | changes))


def copied(folder: Path) -> Path:
    """The documents that show these tables, and no records."""
    for name in ("results/README.md", "docs/lab-notes.md", "docs/detection.md"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text((ROOT / name).read_text())
    return folder


def write(folder: Path, *records: DetectionRecord) -> None:
    for one in records:
        path = folder / "results" / f"{one.key}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(one.to_json(indent=1))


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result.output


def test_records_are_rendered_into_the_documents_with_mean_deviation_and_n(tmp_path: Path) -> None:
    root = copied(tmp_path)
    write(
        root, record("rfs", 0, 20.0), record("rfs", 1, 22.0), record("balanced_sigmoid", 0, 23.0, rare=None),
        record("rfs_0.1", 0, 18.0, table="choices/voc2012-lt", evaluated_images=602, evaluated_on="held_out"),
    )  # fmt: skip
    said = run("table", "voc2012-lt", "--results", root / "results", "--write")
    assert "21.0 ± 1.4" in said
    assert "paper" not in said.split("best first")[0]  # the paper has no VOC2012-LT: its order alone is compared
    text = (root / "results/README.md").read_text()
    assert "| RFS | 21.0 ± 1.4 | 30.0 ± 0.0 | 20.0 ± 0.0 | 5.0 ± 0.0 | 21.0 ± 0.0 | 2 |" in text
    assert "| Balanced Sigmoid | 23.0 | 30.0 | 20.0 | – | 21.0 | 1 |" in text
    assert (
        "Not run yet: RFS, classifier 10 epochs more, cRT, LWS, EQL, RFS, adjusted afterwards, Seesaw loss, EQL v2, "
        "Federated loss." in text
    )
    assert "2 frequent, 1 common and 1 rare classes" in text
    assert "| some GPU | torch 2.11.0 | bf16 | 0123456 | 3 | 1 | 61 | 350 | 6 |" in text
    notes = (root / "docs/lab-notes.md").read_text()
    assert "| RFS, threshold 0.1 | 18.0 |" in notes
    assert "602 training images" in notes
    assert "tau of `rfs_adjusted`: not run yet." in notes
    assert run("table", "voc2012-lt", "--results", root / "results", "--write").count("rendered") == 2
    assert (root / "results/README.md").read_text() == text  # rendering again changes nothing


def test_the_choice_of_tau_is_shown_with_the_measures_that_see_it(tmp_path: Path) -> None:
    root = copied(tmp_path)
    held_out = {"table": "choices/voc2012-lt", "evaluated_images": 602, "AP_at": {"5": {"AP": 11.0, "AP_r": 3.0}}}
    choices = {"rfs": 12.0, "rfs_adjusted_0.5": 12.5}
    write(root, *(record(name, 0, 17.0, AP_pool=pool, **held_out) for name, pool in choices.items()))
    run("table", "voc2012-lt", "--results", root / "results", "--write")
    notes = (root / "docs/lab-notes.md").read_text()
    (row,) = (
        line for line in notes.splitlines() if line.startswith("| RFS, adjusted afterwards, tau 0.5 | – | 12.5 |")
    )
    assert row.endswith("| 1 |")
    assert "tau of `rfs_adjusted`: not run yet." not in notes


def test_runs_of_before_nms_was_exact_have_a_table_of_their_own(tmp_path: Path) -> None:
    root = copied(tmp_path)
    write(root, record("rfs", 0, 20.0, engine={"nms_unsettled": 700}, recipe={"start": None}))
    (root / "results" / "voc2012-lt").rename(root / "results" / "voc2012-lt-cut-nms")
    said = run("table", "voc2012-lt", "--results", root / "results", "--write")
    assert "VOC2012-LT, NMS of proposals cut off" in " ".join(said.split())
    text = (root / "results/README.md").read_text()
    new, cut = (text[text.index(f"rendered: {name} ") : text.index(f"end: {name} ")] for name in (NEW, CUT))
    assert new.splitlines()[2:-1] == ["Not run yet.", ""]
    assert "NMS of proposals was cut off" in cut
    assert "| RFS | 20.0 |" in cut
    assert "Not run yet" not in cut
    assert "| RFS | 20.0 |" in run("detect", "table", CUT, "--results", root / "results")
    write(root, record("seesaw", 0, 24.0, AP_pool=12.0, AP_at={"5": {"AP": 11.0, "AP_r": 3.0}}))
    said = run("table", "voc2012-lt", "--results", root / "results", "--write")
    assert "AP_r@5" in said
    text = (root / "results/README.md").read_text()
    new, cut_again = (text[text.index(f"rendered: {name} ") : text.index(f"end: {name} ")] for name in (NEW, CUT))
    assert cut_again == cut
    assert "| Seesaw loss | 24.0 |" in new
    assert "| Seesaw loss | – | 12.0 |" in new
    assert "| Seesaw loss | 11.0 | 3.0 | 1 |" in new


def test_the_order_of_methods_is_compared_with_the_papers() -> None:
    ours = {"rfs": 20.0, "crt": 24.0, "eql": 22.0, "balanced_sigmoid": 25.0}
    text = report.orders_compared([record(name, 0, value, rare=value) for name, value in ours.items()], METHODS)
    first = text.splitlines()[0]
    assert first.startswith("- AP_mask, best first: Balanced Sigmoid > cRT > EQL > RFS.")
    order = "The paper's order on LVIS, a different one: Balanced Sigmoid > EQL > cRT > RFS. "
    assert f"{order}Of its 6 pairs, ours agree in 5 and are reversed in 1; in 0" in first
    ours["eql"] = 24.5
    text = report.orders_compared([record(name, 0, value) for name, value in ours.items()], METHODS)
    assert "The paper's order on LVIS, the same one: Balanced Sigmoid > EQL" in text.splitlines()[0]
    assert "Of its 6 pairs, ours agree in 6 and are reversed in 0; in 0" in text.splitlines()[0]
    wide = [record("rfs", seed, 20.0 + seed) for seed in (0, 1)] + [record("crt", seed, 21.0) for seed in (0, 1, 2)]
    assert "Of its 1 pair, ours agree in 0 and are reversed in 0; in 1" in report.orders_compared(wide, METHODS)
    assert report.orders_compared([record("rfs", 0, 20.0)], METHODS) == ""


def test_second_stages_stand_beside_the_control_of_their_seed() -> None:
    def second(method: str, seed: int, average: float, rare: float | None) -> DetectionRecord:
        return record(method, seed, average, rare, recipe={"start": "rfs"})

    runs = [
        record("rfs", 0, 19.0), second("rfs_longer", 0, 20.0, 5.0), second("rfs_longer", 1, 22.0, None),
        second("crt", 0, 20.5, 4.0), second("crt", 1, 22.1, 7.0), second("crt", 2, 99.0, 99.0),  # no control of seed 2
        second("eql", 1, 21.0, None),
    ]  # fmt: skip
    methods = METHODS | {"rfs_longer": "control"}
    beside = control.beside_control(runs, methods)
    assert beside is not None
    rfs, crt, eql = beside.rows
    assert rfs == ["RFS", "−1.00", "+0.00", "+0.00", "+0.00", "+0.00", "1"]  # where seed 0 starts
    assert crt == ["cRT", "+0.30 ± 0.28", "+0.00 ± 0.00", "+0.00 ± 0.00", "−1.00", "+0.00 ± 0.00", "2"]
    assert (*eql[:2], eql[4]) == ("EQL", "−1.00", "–")
    assert control.beside_control([one for one in runs if one.method != "rfs_longer"], methods) is None
    elsewhere = [replace(one, backbone="other.pth") if one.method == "rfs_longer" else one for one in runs]
    assert control.beside_control(elsewhere, methods) is None  # seed 0 of another detector is no control
    assert "| cRT | +0.30 ± 0.28 |" in documents.voc_part(runs, methods)


def masks_record(method: str, seed: int, pool: float, rare: float, **changes: Any) -> DetectionRecord:
    """A record of VOC2012-LT with all measures."""
    measures = {
        "segm": {"calibration_error": {"all": 0.01, "r": 0.001 * (1 + seed)}},
        "bbox": {"calibration_error": {}},
    }
    at = {cap: {"AP": 10.0, "AP_r": rare} for cap in ("300", "5")}
    recipe = {"start": None if method == "rfs" else "rfs"}
    more = {"AP_fixed": 20.0, "AP_pool": pool, "AP_pool_r": rare, "AP_at": at, "recipe": recipe, "measures": measures}
    return record(method, seed, 20.0, **(more | changes))


def test_voc2012_lt_shows_what_sees_a_prior_beside_the_control_of_each_seed(tmp_path: Path) -> None:
    runs = [
        *(masks_record("rfs_longer", seed, 10.0 + seed, 3.0) for seed in (0, 1)),
        *(masks_record("balanced_sigmoid", seed, 12.0 + 2 * seed, 4.5 - seed) for seed in (0, 1)),
        masks_record("rfs_adjusted", 1, 12.5, 5.0, iterations=0, seconds=0.0, images_per_second=0.0),
    ]
    text = documents.voc_part(runs, voc_published.METHODS)
    assert "| difference | AP_mask | AP_f | AP_c | AP_r | AP_box | n |" in text
    assert "| difference | AP_fixed | AP_pool | AP_pool_r | AP@5 | AP_r@20 | AP_r@10 | AP_r@5 | n |" in text
    assert "| Balanced Sigmoid | +0.00 ± 0.00 | +2.50 ± 0.71 | +1.00 ± 0.71 | +0.00 ± 0.00 | – | – | +1.00 ±" in text
    assert "- AP_pool. Above: Balanced Sigmoid; RFS, adjusted afterwards. Below: none. Within: none." in text
    assert "- AP_r@5. Above: RFS, adjusted afterwards. Below: none. Within: Balanced Sigmoid." in text
    for column, found in (("AP_pool", "+2.00 | +3.00"), ("AP_pool_r", "+1.50 | +0.50"), ("AP_r@5", "+1.50 | +0.50")):
        table = text[text.index(f"| {column}, difference | seed 0 | seed 1 |") :].split("\n\n")[0]
        assert f"| Balanced Sigmoid | {found} |" in table
    assert "| Balanced Sigmoid | 1.00 ± 0.00 | – | – | 0.15 ± 0.07 | 2 |" in text  # of masks, in percent
    write(tmp_path, *runs)
    said = run("table", "voc2012-lt", "--results", tmp_path / "results")
    assert "AP_r@5, difference from 'RFS, classifier 10 epochs more' by seed" in " ".join(said.split())
    older = [replace(one, AP_at=None, measures=None) for one in runs]  # records that have only LVIS's numbers
    text = documents.voc_part(older, voc_published.METHODS)
    assert text.count("| difference |") == 1
    assert not any(word in text for word in ("AP_pool", "seed 0", "Within:", "alibration"))


def test_runs_that_train_nothing_have_no_speed() -> None:
    nothing = {"iterations": 0, "seconds": 0.01, "images_per_second": 0.0}
    runs = [record("rfs", 0, 20.0), record("rfs", 1, 20.0, seconds=65.0), record("rfs_adjusted", 0, 20.0, **nothing)]
    said = table2_documents.provenance(runs)
    assert "| 0123456 | 3 | 1 | 61 to 65 | 350 | 6 |" in said
    assert said.endswith("\n\nSeconds per run and img/s are of training; 1 of the runs train nothing.")
    assert "| 0123456 | 1 | 1 | – | – | 6 |" in table2_documents.provenance(runs[2:])
    assert "train nothing" not in table2_documents.provenance(runs[:2])


def test_the_calibration_of_runs_without_it_is_not_shown() -> None:
    assert calibration_table([record("rfs", 0, 20.0)], METHODS) is None
    unmeasured = {"segm": {"calibration_error": None}, "bbox": {"calibration_error": {"all": 0.5}}}
    assert calibration_table([masks_record("rfs", 0, 1.0, 1.0, measures=unmeasured)], METHODS) is None
    of_boxes = calibration_table(
        [record("rfs", 0, 20.0, measures={"bbox": {"calibration_error": {"f": 0.5}}})], METHODS
    )
    assert of_boxes is not None
    assert of_boxes.rows == [["RFS", "–", "50.00", "–", "–", "1"]]


def test_what_is_printed_is_what_is_rendered(tmp_path: Path) -> None:
    root = copied(tmp_path)
    write(root, record("rfs", 0, 20.0))
    (root / "results").rename(root / "records")
    (root / "results").mkdir()
    (root / "results/README.md").write_text((ROOT / "results/README.md").read_text())
    said = run("table", "voc2012-lt", "--results", root / "records", "--write")
    assert "holds none" not in said  # though with one method there is no order
    assert "| RFS | 20.0 |" in (root / "results/README.md").read_text()
    result = CliRunner().invoke(
        app, ["table", "voc2012-lt", "--results", str(tmp_path / "nowhere")], env={"COLUMNS": "300"}
    )
    assert result.exit_code == 2
    assert "does not exist" in result.output


def test_batches_with_undecided_boxes_are_told() -> None:
    def first(seed: int, number: int, start: str | None = None) -> DetectionRecord:
        recipe = {"start": start, "batch_size": 8}
        return record("rfs", seed, 20.0, iterations=200, engine={"nms_unsettled": number}, recipe=recipe)

    said = documents.voc_part([first(0, 50), first(1, 100), first(2, 0, "rfs")], METHODS)
    assert "In 25.0 to 50.0 % of the batches of a first stage, some boxes were then undecided on" in said
    assert "NMS" not in documents.voc_part([first(0, 0), record("rfs", 1, 20.0)], METHODS)


def test_table_2_stands_beside_the_papers_numbers(tmp_path: Path) -> None:
    root = copied(tmp_path)
    write(root, record("eql", 0, 24.04, table="table2/resnet101"))
    said = run("table", "table2", "--results", root / "results", "--write")
    rows = [line.split() for line in said.splitlines()]
    place = rows.index(["EQL", "ours", "24.0", "30.0", "20.0", "5.0", "21.0", "1"])
    assert rows[place + 1] == ["paper", "25.4", "28.8", "25.3", "18.5", "27.3"]  # of the second backbone
    text = (root / "results/README.md").read_text()
    assert "|  | paper | 22.1 | 27.8 | 21.1 | 11.6 | 23.6 |  |" in text
    assert "| EQL | ours | 24.0 |" in text


def boxes_record(method: str, seed: int, pool: float, rare: float | None) -> DetectionRecord:
    at = {"300": {"AP": 15.0, "AP_r": 4.0}, "50": {"AP": 14.0, "AP_r": rare}}
    recipe = {"start": None if method == "rfs" else "rfs"}
    more = {"AP_mask": None, "AP_fixed": 15.5, "AP_pool": pool, "AP_pool_r": 2.0, "AP_at": at, "recipe": recipe}
    return record(method, seed, 0.0, 4.0, table="mosaic-lt", **more)


def test_mosaic_lt_shows_caps_and_the_pool_beside_the_control_of_each_seed(tmp_path: Path) -> None:
    root = copied(tmp_path)
    assert "Not run yet" in mosaic_documents.mosaic_part([])
    write(
        root,
        *(boxes_record("rfs_longer", seed, 10.0 + seed, 3.0) for seed in (0, 1)),
        *(boxes_record("balanced_sigmoid", seed, 12.0 + 2 * seed, 4.5) for seed in (0, 1)),
        boxes_record("rfs_adjusted", 1, 12.5, None),
    )
    said = run("table", "mosaic-lt", "--results", root / "results", "--write")
    assert "AP_r@50" in said
    text = (root / "results/README.md").read_text()
    assert "| Balanced Sigmoid | 15.5 ± 0.0 | 13.0 ± 1.4 | – | – | 2.0 ± 0.0 | 2 |" in text
    assert "| method | AP@300 | AP_r@300 | AP@50 | AP_r@50 | n |" in text
    assert "| Balanced Sigmoid | +2.00 | +3.00 |" in text
    assert "| Balanced Sigmoid | +1.50 | +1.50 |" in text
    assert "| RFS, adjusted afterwards | – | +1.50 |" in text
    assert "Not run yet: RFS, cRT, LWS, EQL" in text
    assert "AP_pool" in run("detect", "table", "mosaic-lt", "--results", root / "results")


def test_no_number_is_cut_off_in_a_narrow_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    write(tmp_path, *(record("rfs", seed, 20.0 + seed) for seed in range(3)))
    for table in ("table2", "voc2012-lt"):
        assert "…" not in CliRunner().invoke(app, ["table", table, "--results", str(tmp_path / "results")]).output


def test_the_papers_numbers_rise_as_its_text_says() -> None:
    for rows, gain in ((published.PAPER["resnet50"], 3.0), (published.PAPER["resnet101"], 3.2)):
        assert rows["balanced_sigmoid"][0] - rows["rfs"][0] == pytest.approx(gain)
        assert all(len(row) == len(COLUMNS) for row in rows.values())


def test_benchmarks_are_shown_as_measured() -> None:
    heads = {
        "gathered, 81 classes": {"ms": 10.0, "MiB": None}, "gathered, 1204 classes": {"ms": 11.0, "MiB": None},
        "gathered, 1204 / 81": {"time": 1.1, "memory": None},
        "torchvision, 81 classes": {"ms": 20.0, "MiB": 10}, "torchvision, 1204 classes": {"ms": 90.0, "MiB": 40},
        "torchvision, 1204 / 81": {"time": 4.5, "memory": 4.0},
    }  # fmt: skip
    evaluation = {
        "images": 4000, "detections": 1200000, "classes": 1203, "ours, CPU s": 1.51, "lvis, CPU s": 151.0,
        "faster": 100.0, "13 numbers equal": True,
    }  # fmt: skip
    text = table2_documents.benchmark_part({"a CPU": {"masks": heads, "evaluation": evaluation}})
    assert "| gathered | 10 | 11 | 1.10 | – |" in text
    assert "| torchvision | 20 | 90 | 4.50 | 4.00 |" in text
    assert "1.5 CPU seconds; the `lvis` package takes 151, 100 times as long, and the 13 numbers are equal." in text
    assert table2_documents.benchmark_part({}) == "Not measured yet."


def test_what_is_more_than_chance_is_told_from_what_is_not() -> None:
    def runs(method: str, values: list[float]) -> list[DetectionRecord]:
        return [boxes_record(method, seed, value, 3.0) for seed, value in enumerate(values)]

    records = [
        *runs("rfs_longer", [10.0, 11.0, 12.0]),
        *runs("balanced_sigmoid", [11.0, 12.1, 13.0]),
        *runs("crt", [9.0, 10.1, 11.0]),
        *runs("lws", [10.5, 10.5, 12.1]),
    ]
    methods = mosaic_published.METHODS
    lines = control.what_is_chance(records, methods, ("AP_box", "AP_pool")).splitlines()
    assert "- AP_pool. Above: Balanced Sigmoid. Below: cRT. Within: LWS." in lines
    assert "- AP_box. Above: none. Below: none. Within: cRT; LWS; Balanced Sigmoid." in lines
    assert len(lines) == 2 + 2
    assert control.what_is_chance(runs("crt", [1.0, 2.0]), methods, ("AP_pool",)) == ""
    assert control.what_is_chance(records, methods, ()) == ""


def test_chance_alone_goes_beyond_two_errors_of_three_seeds_as_often_as_the_documents_say() -> None:
    """Student's t with two degrees of freedom exceeds 2 with a chance of 1 − 2/√6 = 18.4 %."""
    drawn = np.random.default_rng(0).standard_normal((8000, 3)).tolist()
    beyond = [control.beyond_errors(three) for three in drawn]
    expected, error = 1 - 2 / 6**0.5, (0.184 * 0.816 / 8000) ** 0.5
    assert np.mean(np.abs(beyond)) == pytest.approx(expected, abs=4 * error)
    assert np.mean(beyond) == pytest.approx(0, abs=4 * (expected / 8000) ** 0.5)


# -------------------------------------------------------------------- what is committed


def test_the_committed_documents_are_what_the_committed_records_give() -> None:
    shown = [each.documents(ROOT, ROOT / "results") for each in (table2_documents, documents, mosaic_documents)]
    assert [sorted(path.relative_to(ROOT).as_posix() for path in found) for found in shown] == [
        ["docs/detection.md", "results/README.md"],
        ["docs/lab-notes.md", "results/README.md"],
        ["docs/detection.md", "docs/lab-notes.md", "results/README.md"],
    ]
    stale = [path.name for found in shown for path, text in found.items() if path.read_text() != text]
    assert stale == [], "run: equipoise table NAME --write, for table2, voc2012-lt and mosaic-lt"


def test_every_method_has_a_title_and_every_title_a_method() -> None:
    pytest.importorskip("torchvision")
    from equipoise.experiments.mosaic_lt import recipe as mosaic_lt
    from equipoise.experiments.table2 import recipe
    from equipoise.experiments.voc2012_lt import recipe as voc2012_lt
    from equipoise.metrics.detection import MOST

    assert [method.name for method in recipe.METHODS] == list(published.METHODS)
    assert [method.name for method in voc2012_lt.METHODS] == list(voc_published.METHODS)
    assert [method.name for method in voc2012_lt.BASE_CHOICES] == list(voc_published.CHOICES)
    assert [method.name for method in voc2012_lt.CHOICES] == [*voc_published.CHOICES, *voc_published.TAU_CHOICES]
    assert [method.name for method in mosaic_lt.METHODS] == list(mosaic_published.METHODS)
    assert [method.name for method in mosaic_lt.CHOICES] == list(mosaic_published.CHOICES)
    assert (recipe.NAME, voc2012_lt.NAME) == (published.NAME, voc_published.NAME)
    assert mosaic_lt.NAME == mosaic_published.NAME
    assert tuple(published.BACKBONES) == recipe.BACKBONES
    assert published.MOST == MOST


def test_committed_runs_were_trained_with_the_recipe_that_stands_in_the_file() -> None:
    pytest.importorskip("torchvision")
    from equipoise.experiments.voc2012_lt import recipe as voc2012_lt

    results = ROOT / "results"
    for table, methods, named in (
        (NEW, voc2012_lt.METHODS, NEW), (CUT, voc2012_lt.METHODS, NEW),
        (f"choices/{NEW}", voc2012_lt.CHOICES, f"choices/{NEW}"),
    ):  # fmt: skip
        recipes = {method.name: method.recipe for method in methods}
        for one in read_records(results, table, DetectionRecord, named=named):
            assert one.recipe == json.loads(json.dumps(recipes[one.method].as_dict())), one.key
            assert one.complete


def test_no_new_run_rests_on_a_cut_off_nms_and_the_old_ones_are_as_they_were_recorded() -> None:
    records = report.read(ROOT / "results")
    assert {one.engine.get("nms") for one in records[NEW]} <= {"exact"}
    assert sorted(one.key for one in records[CUT]) == sorted(
        f"{NEW}/{method}/{seed}" for method in list(voc_published.METHODS)[:6] for seed in range(3)
    )
    assert all("nms" not in one.engine and one.commit for one in records[CUT])
    with pytest.raises(ValueError, match="holds the record of voc2012-lt/balanced_sigmoid/0: move it to its place"):
        read_records(ROOT / "results", CUT, DetectionRecord)
