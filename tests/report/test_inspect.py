"""`equipoise inspect`: every kind of training set is counted, shown and explained, and what is wrong is named."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from helpers.cifar_files import write_cifar10
from typer.testing import CliRunner

import equipoise as eq
from equipoise.cli import app
from equipoise.data.images import read_images
from equipoise.data.prediction_priors import training_prior
from equipoise.data.predictions import open_predictions
from equipoise.data.sources import Source, read_prior, read_source
from equipoise.report.inspection import chart, look, scale

COUNTS = {"cat": 900, "dog": 60, "owl": 40}


def inspect(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["inspect", *arguments], env={"COLUMNS": "400"})
    assert result.exit_code == code, result.output
    return result.output


def as_json(path: Path, *arguments: str) -> dict[str, Any]:
    found = json.loads(inspect(str(path), "--json", *arguments))
    assert isinstance(found, dict)
    return found


def seen(counts: Any, **options: Any) -> Any:
    return look(Source(Path("labels.npy"), eq.Prior.from_counts(counts), **options))


# -------------------------------------------------------------------- sources


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("ending", ["npy", "txt", "csv", "tsv", "parquet"])
def test_a_labels_file_of_any_kind_gives_the_same_counts(tmp_path: Path, ending: str, named: bool) -> None:
    labels = np.repeat(["cat", "dog", "owl"] if named else np.array([0, 1, 2]), [3, 1, 2])
    path = tmp_path / f"labels.{ending}"
    if ending == "npy":
        np.save(path, labels)
    elif ending == "txt":
        path.write_text("\n".join(map(str, labels)) + "\n\n")
    elif ending == "parquet":
        pyarrow.parquet.write_table(pyarrow.table({"id": range(6), "species": labels.tolist()}), path, row_group_size=2)
    else:
        separator = "," if ending == "csv" else "\t"
        path.write_text("\n".join(["id,species".replace(",", separator), *(f"7{separator}{name}" for name in labels)]))
    prior = read_source(path, column="species" if ending in ("csv", "tsv", "parquet") else None).prior
    assert prior.counts.tolist() == [3, 1, 2]
    assert prior.class_names == (("cat", "dog", "owl") if named else None)


def test_a_list_of_paths_with_labels_is_read_by_its_last_column(tmp_path: Path) -> None:
    path = tmp_path / "ImageNet_LT_train.txt"
    path.write_text("train/n01440764/a b.jpg 0\ntrain/n01443537/c.jpg 2\n")
    assert eq.Prior.from_file(path).counts.tolist() == [1, 0, 1]
    path.write_text("photos/a b.jpg cat\nphotos/c.JPG owl\nphotos/d.png cat\n")
    assert eq.Prior.from_file(path) == eq.Prior.from_counts({"cat": 2, "owl": 1})
    path.write_text("barn owl\nsnowy owl\nbarn owl\n")
    assert eq.Prior.from_file(path) == eq.Prior.from_counts({"barn owl": 2, "snowy owl": 1})


def test_an_image_folder_is_counted_by_its_files_and_a_folder_without_an_image_is_no_class(tmp_path: Path) -> None:
    """As in training: both leave it out and say so in the same words."""
    for name, number in {"b": 2, "a": 3, "c": 0}.items():
        (tmp_path / name / "deeper").mkdir(parents=True)
        for i in range(number):
            (tmp_path / name / "deeper" / f"{i}.JPG").touch()
        (tmp_path / name / "notes.md").touch()
    source = read_source(tmp_path)
    assert source.prior == eq.Prior.from_counts({"a": 3, "b": 2})
    assert source.unit == "images"
    trained = read_images(tmp_path)
    assert source.notes == trained.notes == ("left out 1 folder without an image: c",)
    assert source.prior == trained.prior
    said = CliRunner().invoke(app, ["inspect", str(tmp_path)])
    assert said.exit_code == 0
    assert "left out 1 folder without an image: c" in said.stderr
    assert "5 images, 2 classes" in said.stdout
    assert said.stdout.splitlines()[-1] == f"Next: equipoise train {tmp_path}"


def test_the_next_step_names_the_folder_with_both_parts_and_only_for_folders(tmp_path: Path) -> None:
    for part in ("train", "val"):
        for name in ("a", "b"):
            (tmp_path / "my photos" / part / name).mkdir(parents=True)
            (tmp_path / "my photos" / part / name / "1.jpg").touch()
    last = inspect(str(tmp_path / "my photos" / "train")).splitlines()[-1]
    assert last == f"Next: equipoise train '{tmp_path / 'my photos'}'"
    (tmp_path / "labels.txt").write_text("cat\ncat\nowl\n")
    assert "Next:" not in inspect(str(tmp_path / "labels.txt"))


def test_a_class_that_predictions_have_and_a_folder_lacks_counts_as_none(tmp_path: Path) -> None:
    """So that a model with more classes can be judged by the folder it was trained on."""
    for name in ("a", "b", "c"):
        (tmp_path / "train" / name).mkdir(parents=True)
        if name != "c":
            (tmp_path / "train" / name / "0.jpg").touch()
    logits = np.random.default_rng(0).normal(size=(6, 3))
    np.savez(tmp_path / "test.npz", logits=logits, labels=[0, 1, 2] * 2, class_names=["a", "b", "c"])
    prior, _ = training_prior(tmp_path / "train", [open_predictions(tmp_path / "test.npz")])
    assert prior == eq.Prior.from_counts({"a": 1, "b": 1, "c": 0})


def test_cifars_folder_and_the_folder_above_it_are_the_same(tmp_path: Path) -> None:
    folder = write_cifar10(tmp_path)
    assert read_source(folder).prior == read_source(tmp_path).prior
    assert read_source(folder).prior.counts.tolist() == [20] * 10
    assert read_source(folder).prior.name(3) == "class 3"
    (tmp_path / "cifar-100-python").mkdir()
    with pytest.raises(ValueError, match=r"two data sets: pass .*cifar-10-batches-py or .*cifar-100-python"):
        read_source(tmp_path)
    assert read_source(folder).prior.total == 200


def test_annotations_count_images_and_say_that_an_item_may_have_several_classes(tmp_path: Path) -> None:
    path = tmp_path / "lvis.json"
    categories = [{"id": 3, "name": "owl"}, {"id": 1, "name": "cat"}]
    annotations = [{"image_id": image, "category_id": category} for image, category in [(1, 1), (1, 1), (1, 3), (2, 1)]]
    path.write_text(json.dumps({"images": [], "categories": categories, "annotations": annotations}))
    source = read_source(path)
    assert (source.prior.class_names, source.prior.counts.tolist(), source.prior.total) == (("cat", "owl"), [2, 1], 2)
    assert "eq.BalancedSigmoidLoss(prior)" in inspect(str(path))


@pytest.mark.parametrize(
    "content",
    [[900, 60, 40], {"cat": 900, "dog": 60, "owl": 40}, {"2": 40, "0": 900, "1": 60}, {"counts": [900, 60, 40]}],
)
def test_counts_in_json_are_counts(tmp_path: Path, content: Any) -> None:
    (tmp_path / "counts.json").write_text(json.dumps(content))
    assert read_source(tmp_path / "counts.json").prior.counts.tolist() == [900, 60, 40]


def test_an_array_is_labels_unless_it_has_a_number_for_each_class(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([2, 1, 1]))
    assert read_source(tmp_path / "a.npy").prior.counts.tolist() == [0, 2, 1]
    assert read_source(tmp_path / "a.npy", counts_of=3).prior.counts.tolist() == [2, 1, 1]
    np.save(tmp_path / "b.npy", np.array([[1, 1], [1, 0], [0, 0]]))
    assert read_source(tmp_path / "b.npy").multilabel


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", 'label\ncat\n\n""\n', r"a.csv, line 4, column 'label' is empty"),
        ("a.csv", "label\ncat\n\n,\n", r"a.csv, line 4 has 2 cells, the header 1"),
        ("a.csv", "id,label\n1,cat\n2,owl,yak\n", r"a.csv, line 3 has 3 cells, the header 2"),
        ("a.csv", "id,label,note\n1,cat,x\n\n2,owl\n", r"a.csv, line 4 has 2 cells, the header 3"),
        ("a.csv", "tags,id\ncat;owl,1\ncat\n", r"a.csv, line 3 has 1 cells, the header 2"),
        ("a.csv", "cat,owl,yak\n1,0,0\n1,0\n", r"a.csv, line 3 has 2 cells, the header 3"),
        ("a.csv", "id,name\n1,cat\n", r"columns id, name: name the one with the labels, e.g. --column name"),
        ("a.csv", "id;name\n1;cat\n", r"has the one column 'id;name': separate columns with ',', not ';'"),
        ("a.csv", 'label\n"cat' + "\ncat" * 40000, r"a.csv cannot be read as a table: field larger"),
        ("a.parquet", "no table" * 9, "a.parquet is not a Parquet file, or is damaged"),
        ("a.csv", "", "is empty"),
        ("a.csv", "label\n", "has no labels"),
        ("a.txt", "cat\n\nowl\n", "a.txt, line 2 is empty"),
        ("a.txt", "1\n-1\n", "label -1: classes are numbered from 0"),
        ("a.txt", "1\n99999999999\n", "would make 100000000000 classes"),
        ("a.json", "[1, 2.5]", r"a.json: the count of class 1 is 2.5"),
        ("a.json", "{", "is not JSON"),
        ("a.json", "3", "it holds 3"),
        ("a.npy", "no array", "is not a NumPy array"),
        ("a.docx", "", "ends in '.docx'"),
    ],
)
def test_what_cannot_be_counted_is_named(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        read_source(tmp_path / name)


@pytest.mark.parametrize("name", ["a.csv", "a.txt"])
def test_text_that_is_not_utf8_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes("label\ncafé\n".encode("latin-1"))
    with pytest.raises(ValueError, match=f"{name} is not UTF-8 text"):
        read_source(tmp_path / name)


@pytest.mark.parametrize(("first", "counts"), [("cat", [2, 1]), ("species", [1, 1]), ("label", [1, 1])])
def test_a_first_line_that_occurs_again_is_a_label(tmp_path: Path, first: str, counts: list[int]) -> None:
    (tmp_path / "a.csv").write_text(f"{first}\nowl\ncat\n")
    assert read_source(tmp_path / "a.csv").prior.counts.tolist() == counts


def test_folders_that_are_no_training_set_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist"):
        read_source(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="has no folders"):
        read_source(tmp_path)
    (tmp_path / "train").mkdir()
    with pytest.raises(ValueError, match="pass the one you train on"):
        read_source(tmp_path)
    (tmp_path / "test").mkdir()
    (tmp_path / "val").mkdir()
    with pytest.raises(ValueError, match=rf"splits test, train, val: pass the one you train on, {tmp_path / 'train'}$"):
        read_source(tmp_path)
    (tmp_path / "train").rmdir()
    with pytest.raises(ValueError, match=r"splits test, val: pass the one you train on$"):
        read_source(tmp_path)
    for part, file in (("training", "cat/1.jpg"), ("testing", "cat/2.jpg"), ("annotations", "boxes.json")):
        (tmp_path / "photos" / part / file).parent.mkdir(parents=True)
        (tmp_path / "photos" / part / file).write_bytes(b"")
    with pytest.raises(ValueError, match=r"splits testing, training: pass the one you train on, .*photos/training$"):
        read_source(tmp_path / "photos")
    shutil.rmtree(tmp_path / "photos")
    (tmp_path / "test").rmdir()
    (tmp_path / "cat").mkdir()
    with pytest.raises(ValueError, match="2 folders and no image"):
        read_source(tmp_path)


@pytest.mark.parametrize("labels", [["a", "b", None], [0, 1, None]])
def test_an_empty_label_in_parquet_is_named(tmp_path: Path, labels: list[Any]) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"label": labels}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="row 2, column 'label' is empty"):
        read_source(tmp_path / "a.parquet")


# -------------------------------------------------------------------- what is said


def test_half_of_the_data_is_in_so_many_of_the_largest_classes() -> None:
    assert seen([10, 60, 30]).half == 1
    assert seen([50, 50]).half == 1
    assert seen([40, 30, 30]).half == 2
    assert seen([1, 1, 1, 1]).half == 2


def test_groups_hold_their_share_and_absent_classes_are_named() -> None:
    found = seen({"cat": 900, "dog": 60, "owl": 40, "yak": 0})
    assert [(group.classes, group.items, round(group.share, 2)) for group in found.groups.values()] == [
        (1, 900, 0.9),
        (2, 100, 0.1),
        (1, 0, 0.0),
    ]
    assert found.absent == ["yak"]
    assert "1 class never occurs" in found.advice[-1].words


def test_the_advice_follows_the_data_and_its_code_runs(tmp_path: Path) -> None:
    path = tmp_path / "labels.npy"
    np.save(path, np.repeat([0, 1, 2], [900, 60, 5]))
    found = look(read_source(path))
    code = {advice.title: advice.code for advice in found.advice}
    assert code["Loss"] == "loss = eq.BalancedSoftmaxLoss(prior)"
    dataset = torch.utils.data.TensorDataset(torch.zeros(4, 1))
    target = torch.tensor([0, 1, 2, 2])
    names: dict[str, Any] = {
        "eq": eq,
        "torch": torch,
        "dataset": dataset,
        "logits": torch.zeros(4, 3),
        "target": target,
    }
    for advice in found.advice:  # from top to bottom
        exec(advice.code, names)
    assert names["prior"] == found.prior
    assert seen([100, 90]).advice[1].code == "loss = torch.nn.CrossEntropyLoss()"
    assert seen([100, 90, 0]).advice[1].code == "loss = eq.BalancedSoftmaxLoss(prior)"


@pytest.mark.parametrize("counts", [[5000, 300, 40, 3], [100, 50, 30, 5]])
def test_items_of_several_classes_get_a_sampler_that_repeats_and_a_loss_that_knows(counts: list[int]) -> None:
    total = 4 * counts[0]
    classes_per_item = [[j for j in range(4) if i < counts[j]] for i in range(total)]
    prior = eq.Prior.from_counts(counts, total)
    code = {advice.title: advice.code for advice in look(Source(Path("a"), prior, multilabel=True)).advice}
    names: dict[str, Any] = {"eq": eq, "prior": prior, "classes_per_item": classes_per_item}
    exec(code["Sampler"], names)
    assert names["sampler"].prior.imbalance < prior.imbalance
    assert torch.equal(names["loss"].shift, eq.BalancedSigmoidLoss(names["sampler"].prior).shift)
    exec(code["Loss"], names)
    names["logits"] = torch.full((1, 4), prior.probabilities.mean()).logit()  # a model that knows nothing
    exec(code["Expect"], names)
    torch.testing.assert_close(names["logits"].sigmoid()[0], torch.tensor(prior.probabilities, dtype=torch.float32))


def test_small_classes_of_equal_size_are_not_blamed_on_the_loss() -> None:
    titles = {advice.title: advice for advice in seen([10, 10, 10]).advice}
    assert titles["Expect"].words.startswith("3 classes have fewer than 20 items. No loss makes up for so few")
    assert not titles["Expect"].code
    assert "Expect" not in {advice.title for advice in seen([100, 90]).advice}


def test_the_advice_for_several_labels_repeats_rare_classes_and_knows_sigmoids() -> None:
    prior = eq.Prior.from_counts([242, 4, 862], total=862)
    found = {advice.title: advice for advice in look(Source(Path("train.json"), prior, multilabel=True)).advice}
    assert found["Loss"].code == "loss = eq.BalancedSigmoidLoss(prior)"
    assert "1 class is below" in found["Sampler"].words
    names: dict[str, Any] = {"eq": eq, "prior": prior, "logits": torch.zeros(2, 3)}
    exec(found["Sampler"].code, names | {"classes_per_item": [[0, 2]] * 242 + [[1, 2]] * 4 + [[2]] * 616})
    exec(found["Expect"].code, names)
    assert (names["logits"][0] == eq.sigmoid_shift(prior)).all()  # what BalancedSigmoidLoss adds in training
    assert "top-1" not in found["Expect"].words

    lvis = eq.Prior.from_counts([50_000, 3], total=100_000)
    (sampler,) = (a for a in look(Source(Path("lvis.json"), lvis, multilabel=True)).advice if a.title == "Sampler")
    assert "threshold=0.001," in sampler.code
    frequent = eq.Prior.from_counts([800, 300], total=1000)
    (sampler,) = (a for a in look(Source(Path("train.json"), frequent, multilabel=True)).advice if a.title == "Sampler")
    assert not sampler.code


def test_bars_are_logarithmic_and_many_classes_share_rows() -> None:
    bars = chart(eq.Prior.from_counts([9, 999, 0]), width=30)
    assert [bar.label for bar in bars] == ["1", "0", "2"]
    assert [len(bar.text) for bar in bars] == [30, 10, 0]
    assert [bar.group for bar in bars] == ["many", "few", "few"]
    rows = chart(eq.Prior.from_counts(range(1, 1001)), width=30, rows=10)
    assert [bar.label for bar in rows if not bar.label.endswith(" classes")] == ["999", "0"]
    assert len(rows) == 11  # every group has a row at least
    assert scale(eq.Prior.from_counts([999]), 30).split() == ["1", "10", "100"]


def test_a_row_with_a_name_shows_that_classs_count_and_a_shared_row_bears_no_name(tmp_path: Path) -> None:
    counts = {"Soybean": 634, **{f"weed {i}": 600 - i for i in range(598)}, "Rye": 1}
    (tmp_path / "counts.json").write_text(json.dumps(counts))
    lines = [line.split("█")[0].split("▏")[0].strip() for line in inspect(str(tmp_path / "counts.json")).splitlines()]
    assert re.sub(" +", " ", lines[4]) == "Soybean 634"
    shared = [found for line in lines if (found := re.match(r"(\d+) classes +(\d+) to (\d+)$", line))]
    assert len(shared) == 28
    assert sum(int(row[1]) for row in shared) == 598
    assert [int(row[3]) - int(row[2]) + 1 for row in shared] == [int(row[1]) for row in shared]  # all differ
    assert re.sub(" +", " ", lines[4 + 29]).startswith("Rye 1")
    assert not [line for line in lines if "weed" in line]


@pytest.mark.parametrize("classes", [30, 31, 45, 1203])
def test_every_class_is_in_one_row_of_the_chart_and_no_row_has_two_groups(classes: int) -> None:
    prior = eq.Prior.from_counts((2000.0 ** (1 - np.arange(classes) / (classes - 1))).astype(int))
    bars = chart(prior, width=30)
    assert 29 <= len(bars) <= 31
    shared = [bar for bar in bars if bar.label.endswith(" classes")]
    assert sum(int(bar.label.split()[0]) for bar in shared) + len(bars) - len(shared) == classes
    assert {bar.label for bar in bars} & {prior.name(0), prior.name(classes - 1)} == {"0", str(classes - 1)}
    ends = [list(map(int, re.findall(r"\d+", bar.count.replace(",", "")))) for bar in bars]
    assert all(max(group) > 100 for group, bar in zip(ends, bars, strict=True) if bar.group == "many")
    assert all(min(group) < 20 for group, bar in zip(ends, bars, strict=True) if bar.group == "few")
    assert all(19 < min(g) <= max(g) < 101 for g, bar in zip(ends, bars, strict=True) if bar.group == "medium")
    assert [max(group) for group in ends] == sorted((max(group) for group in ends), reverse=True)


def test_classes_of_one_size_in_a_shared_row_have_that_count_each() -> None:
    assert {bar.count for bar in chart(eq.Prior.from_counts([7] * 90), width=9)} == {"7", "7 each"}


def test_the_terminal_shows_names_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "counts.json"
    path.write_text(json.dumps({"[red]cat[/red]": 900, "猫 🦉\nnew line": 60, "x" * 300: 5}))
    text = inspect(str(path))
    assert "[red]cat[/red]" in text
    assert "猫 🦉 new line" in text
    for words in ("965 items, 3 classes", "180 times the smallest", "1 of 3 classes holds half", "few (< 20)"):
        assert words in text


def test_groups_of_items_with_several_labels_count_labels(tmp_path: Path) -> None:
    path = tmp_path / "tags.csv"
    path.write_text("tags\n" + "cat;owl\n" * 30 + "cat\n" * 90)
    text = inspect(str(path), "--html", str(tmp_path / "tail.html"))
    assert "120 items, 2 classes" in text
    assert re.search(r"group +classes +labels +share\s+many \(> 100\) +1 +120 ", text)
    assert "30 labels, 20.0 % of the data" in (tmp_path / "tail.html").read_text()
    path.write_text("label\n" + "cat\n" * 90 + "owl\n" * 30)
    assert re.search(r"group +classes +items +share", inspect(str(path)))


def test_the_terminal_names_classes_that_never_occur(tmp_path: Path) -> None:
    path = tmp_path / "counts.json"
    path.write_text(json.dumps(COUNTS | {"yak": 0}))
    assert "1 class never occurs: yak" in inspect(str(path))
    path.write_text(json.dumps(COUNTS | {f"yak {i}": 0 for i in range(1200)}))
    assert "1,200 classes never occur: yak 0, yak 1, yak 2, yak 3, yak 4, yak 5, …" in inspect(str(path))


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
def test_a_narrow_terminal_still_shows_the_counts(tmp_path: Path, columns: int) -> None:
    (tmp_path / "counts.json").write_text(json.dumps({"x" * 300: 123456, "cat": 7}))
    result = CliRunner().invoke(app, ["inspect", str(tmp_path / "counts.json")], env={"COLUMNS": str(columns)})
    first, second = (line for line in result.output.splitlines() if "█" in line or "▏" in line)
    assert "… 123,456 █" in first
    assert second.split()[:2] == ["cat", "7"]
    assert max(map(len, (first, second))) <= columns


def test_one_of_something_is_said_in_the_singular(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([0]))
    said = inspect(str(tmp_path / "a.npy"), "--html", str(tmp_path / "a.html"))
    assert "1 item, 1 class; only one occurs" in said
    assert "1 of 1 class holds half of the data" in said
    page = (tmp_path / "a.html").read_text()
    assert "1 item, 1 class; only one occurs. 1 of 1 class holds half of the data." in page
    assert "1<small> class</small>" in page


def test_json_is_for_machines(tmp_path: Path) -> None:
    path = tmp_path / "counts.json"
    path.write_text(json.dumps(COUNTS | {"yak": 0}))
    found = as_json(path)
    assert found["counts"] == [900, 60, 40, 0]
    assert found["imbalance"] == 22.5
    assert found["absent"] == ["yak"]
    assert found["classes_with_half_of_the_data"] == 1
    assert found["groups"]["medium"] == {"classes": 2, "items": 100, "share": 0.1}
    assert found["tail"] == {"class": "owl", "count": 40}


def test_the_command_names_what_is_wrong(tmp_path: Path) -> None:
    assert "does not exist" in inspect(str(tmp_path / "none.npy"), code=2)
    (tmp_path / "a.csv").write_text("label\ncat\n")
    assert "no column 'species'" in inspect(str(tmp_path / "a.csv"), "--column", "species", code=2)


ESCAPES = "owl\x1b[2J\x1b]0;owned\x07\x9b31m\u202e"  # clears the screen, names the window, colours, turns text around


def test_names_cannot_write_to_the_terminal_but_by_visible_escapes(tmp_path: Path) -> None:
    path = tmp_path / f"{ESCAPES}.json"
    path.write_text(json.dumps({ESCAPES: 900, "yak\x1b[1m": 0}))
    for arguments in ([], ["--html", str(tmp_path / "\x1bpage.html")]):
        text = inspect(str(path), *arguments)
        assert not set(text) & set("\x1b\x07\x9b\u202e")
        assert r"owl\x1b[2J\x1b]0;owned\x07\x9b31m\u202e.json" in text
        assert r"1 class never occurs: yak\x1b[1m" in text
    text = inspect(str(path), "--json")
    assert text.strip().isascii()
    assert json.loads(text)["class_names"][0] == ESCAPES


def test_errors_cannot_write_to_the_terminal_but_by_visible_escapes(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"id,{ESCAPES}\n1,2\n")
    path = tmp_path / f"{ESCAPES}.npy"
    path.write_text("no array")
    for arguments in ([str(tmp_path / "a.csv")], [str(tmp_path / "a.csv"), "--column", ESCAPES + "x"], [str(path)]):
        text = inspect(*arguments, code=2)
        assert not set(text) & set("\x1b\x07\x9b\u202e")
        assert r"owl\x1b[2J" in text


@pytest.mark.parametrize(
    ("link", "to"),
    [
        ("cat/deeper/back", "data/cat"),
        ("cat/up", "data"),
        ("owl/other", "data/cat"),
        ("owl/deeper/self", "data/owl/deeper"),
    ],
)
def test_a_link_back_does_not_count_an_image_again(tmp_path: Path, link: str, to: str) -> None:
    for name in ("cat", "owl"):
        (tmp_path / "data" / name / "deeper").mkdir(parents=True)
        (tmp_path / "data" / name / "deeper" / "1.png").touch()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "2.png").touch()
    (tmp_path / "data" / "owl" / "away").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data" / "owl" / "away again").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data" / link).symlink_to(tmp_path / to)
    assert read_source(tmp_path / "data").prior == eq.Prior.from_counts({"cat": 1, "owl": 2})


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", '{"cat": 5, "owl": 1, "cat": 7}', "a.json is not JSON: the key 'cat' occurs twice"),
        ("a.json", '{"7": 5, "07": 1}', "a.json: it has class 7 twice"),
        ("a.json", '{"0": 5, "20000000": 3}', "a.json: it has class 20000000, which would make 20000001 classes"),
        ("a.json", '{"0": 5, "999999999": 3}', "a.json: it has class 999999999, which would make 1000000000 classes"),
        ("a.json", '{"0": 0.5, "2": 0.5}', "a.json: it has 2 numbers for the classes 0 to 2"),
        ("a.json", "[0.5, 0.5]", "a.json holds probabilities, not counts"),
        ("a.csv", 'label\ncat\n"owl\ncat\n', "a.csv cannot be read as a table: .* open at line 3"),
        ("a.csv", 'label\n"cat"s\n', "a.csv cannot be read as a table"),
        ("a.csv", "label\n1\n\n0.5\n", "a.csv, line 4 has the label 0.5: classes are numbered from 0, in whole"),
        ("a.txt", "1\nnan\n", "a.txt, line 2 has the label nan"),
        ("a.txt", "1\n20000000\n", "a.txt, line 2: label 20000000 would make 20000001 classes"),
    ],
)
def test_what_was_taken_silently_is_named_with_its_place(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        read_source(tmp_path / name)


def test_whole_numbers_that_pandas_wrote_with_a_point_are_classes(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("label\n0.0\n2.0\n2.0\n")
    assert read_source(tmp_path / "a.csv").prior == eq.Prior.from_counts([1, 0, 2])


@pytest.mark.parametrize(
    ("text", "prior"),
    [
        ("[3.0, 1.0]", eq.Prior.from_counts([3, 1])),
        ("[1, 0]", eq.Prior.from_counts([1, 0])),
        ("[1.0, 0.0]", eq.Prior.from_probabilities([1, 0])),
        ('{"0": 5, "2": 3}', eq.Prior.from_counts([5, 0, 3])),
        ('{"1": 0.25, "0": 0.75}', eq.Prior.from_probabilities([0.75, 0.25])),
        ('{"annotations": 5, "cat": 3}', eq.Prior.from_counts({"annotations": 5, "cat": 3})),
        ('{"probabilities": [0.5, 0.5], "class_names": ["a", "b"]}', eq.Prior.uniform(2, class_names=["a", "b"])),
        ('\ufeff{"counts": [2, 1], "total": 9}', eq.Prior.from_counts([2, 1], 9)),
    ],
)
def test_a_prior_in_json_means_one_thing(tmp_path: Path, text: str, prior: eq.Prior) -> None:
    (tmp_path / "prior.json").write_text(text)
    assert read_prior(tmp_path / "prior.json").prior == prior
