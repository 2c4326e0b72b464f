"""`equipoise run FILE.py` and `equipoise table FILE.py`: tables of the user's own, on images and COCO files."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from helpers.coco_files import SIDE, write_lvis
from helpers.image_folders import NETWORK, write_splits
from helpers.run_records import read_jsonl
from helpers.small_detectors import use_small_detectors
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.training.detection_records import DetectionRecord
from equipoise.training.image_records import ImageRecord

DOCUMENT = Path(__file__).parents[2] / "docs" / "own-tables.md"
IMAGES, DETECTORS = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)[:2]


def equipoise(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "300"})
    assert result.exit_code == code, result.output + repr(result.exception)
    return result.output


def changed(code: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        assert old in code
        code = code.replace(old, new)
    return code


@pytest.fixture
def losses(tmp_path: Path) -> Path:
    """The file of the document, small enough for a CPU."""
    path = tmp_path / "losses.py"
    tiny = (
        ("resnet18", NETWORK),
        ("batch_size=64", "batch_size=8"),
        ("iterations=3000", "iterations=4"),
        ("warmup=300", "warmup=1"),
        (" size=64", " size=32"),
    )
    path.write_text(changed(IMAGES, *tiny, ("iterations=600", "iterations=2"), ("(0, 1, 2)", "(0, 1)")))
    return path


def test_recipes_of_images_are_trained_resumed_and_shown(losses: Path, tmp_path: Path) -> None:
    photos, out, results = write_splits(tmp_path / "photos"), tmp_path / "records.jsonl", tmp_path / "results"
    words = ("run", losses, "--data", photos, "--out", out, "--results", results, "--device", "cpu")
    equipoise(*words, "--seeds", "0")
    assert "5 runs recorded" in equipoise(*words)  # the other seed
    records = list(read_jsonl(out, kind=ImageRecord))
    order = ["softmax", "focal", "balanced_softmax", "adjusted", "crt"]
    assert [(run.method, run.seed) for run in records] == [(name, seed) for seed in (0, 1) for name in order]
    by = {(run.method, run.seed): run for run in records}
    assert by["adjusted", 0].backbone_weights == by["crt", 0].backbone_weights == by["softmax", 0].weights
    assert by["focal", 1].recipe["options"] == {"gamma": 2.0}
    assert by["softmax", 0].evaluated_on == "val"
    assert "holds no record of losses: sort them in" in equipoise("table", losses, "--results", results, code=2)
    equipoise("records", "import", out, "--results", results)
    said = equipoise("table", losses, "--results", results)
    assert [line.split()[0] for line in said.splitlines() if line.strip() and line.split()[0] in order] == [
        *order,
        *order[1:],
    ]
    focal = by["focal", 0]  # after a few steps all may be right equally often
    shown = {**json.loads(focal.to_json()), "correct": focal.total, "top1": 100.0}
    (results / "losses" / "focal" / "0.json").write_text(json.dumps(shown))
    said = equipoise("table", losses, "--results", results)
    gained = (100.0 - by["softmax", 0].top1 + by["focal", 1].top1 - by["softmax", 1].top1) / 2
    beside = next(line for line in said.splitlines()[::-1] if line.split()[:1] == ["focal"])
    assert beside.split()[1] == f"{gained:+.2f}".replace("-", "−")
    assert "--write renders" in equipoise("table", losses, "--results", results, "--write", code=2)


def test_a_method_that_balances_twice_is_warned_of(losses: Path, tmp_path: Path) -> None:
    twice = "METHODS['twice'] = replace(METHODS['balanced_softmax'], sampler='class_balanced')\n"
    losses.write_text(f"{losses.read_text()}\n{twice}")
    words = ("--data", tmp_path, "--out", tmp_path / "records.jsonl", "--results", tmp_path / "results")
    said = equipoise("run", losses, *words, "--device", "cpu", code=2)  # there are no images
    assert said.count("WARNING: twice samples the classes equally often") == said.count("WARNING") == 1
    cifar = tmp_path / "cifar.py"
    cell = "Cell('cifar10-lt', 100, 'twice', 0)"
    cifar.write_text(
        "from equipoise.losses.balanced_softmax import BalancedSoftmaxLoss\n"
        "from equipoise.training.recipe import Cell, Recipe\n"
        f"NAME = 'cifar'\nplan = lambda: [{cell}]\n"
        "recipe_of = lambda cell: Recipe(loss=BalancedSoftmaxLoss, sampler='class_balanced')\n"
    )
    (tmp_path / "cifar-10-batches-py").mkdir()
    assert "WARNING: twice samples" in equipoise("run", cifar, *words, "--device", "cpu", code=2)


def test_records_of_other_images_are_not_added_to(losses: Path, tmp_path: Path) -> None:
    photos, out, results = write_splits(tmp_path / "photos"), tmp_path / "records.jsonl", tmp_path / "results"
    (photos / "train" / "class0" / "0.jpg").write_bytes(b"")  # skipped, so that the records are of 44 images
    words = ("run", losses, "--out", out, "--results", results, "--device", "cpu", "--only", "softmax", "--data")
    equipoise(*words, photos, "--seeds", "0")
    before = out.read_text()
    moved = photos.rename(tmp_path / "moved")
    assert "nothing left to train" in equipoise(*words, moved, "--seeds", "0")
    for seed in ("0", "1"):
        gone = equipoise(*words, photos, "--seeds", seed, code=2)
        assert f"{photos} does not exist" in " ".join(gone.replace("│", " ").split())
    shutil.copy(moved / "train" / "class1" / "0.jpg", moved / "train" / "class1" / "new.jpg")
    for seed in ("0", "1"):
        other = equipoise(*words, moved, "--seeds", seed, code=2)
        assert "there are records of losses on other images" in " ".join(other.replace("│", " ").split())
    assert out.read_text() == before
    assert "1 run recorded" in equipoise(*words, moved, "--seeds", "0", "--iterations", "1")  # a smoke test is apart


@pytest.mark.filterwarnings("ignore:1 of 4 classes have no item")
def test_recipes_of_detectors_are_trained_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("hotcoco")
    use_small_detectors(monkeypatch)
    for name, images, seed in (("train.json", 8, 0), ("val.json", 3, 1)):
        write_lvis(tmp_path / "data", images, seed=seed, name=name)
    size = f'min_sizes=({SIDE},), max_size={SIDE}, epochs=0.25, backbone="resnet18", batch_size=1, warmup=0'
    kept = 'METHODS = {row.name: row.recipe for row in ROWS if row.name in ("rfs", "rfs_adjusted")}\nSEEDS = (3,)'
    code = changed(DETECTORS, ("min_sizes=(480,), max_size=800, epochs=12, warmup=500", size))
    path, out, results = tmp_path / "detectors.py", tmp_path / "records.jsonl", tmp_path / "results"
    path.write_text(re.sub(r"^METHODS.*$", kept, code, flags=re.MULTILINE))
    equipoise("run", path, "--data", tmp_path / "data", "--out", out, "--device", "cpu")
    records = list(read_jsonl(out, kind=DetectionRecord))
    assert [run.key for run in records] == ["our_detectors/rfs/3", "our_detectors/rfs_adjusted/3"]
    assert records[0].weights != records[1].weights  # the shift is in the bias
    equipoise("records", "import", out, "--results", results)
    said = equipoise("table", path, "--results", results)
    assert "AP_pool" in said
    assert "Difference from rfs with the same seed" in said


Change = tuple[str, str]
BAD: dict[str, tuple[Change, str]] = {
    "another kind": (("METHODS = {", "METHODS = {'x': 1} or {"), "must hold only Recipes, or only DetectionRecipes"),
    "nothing": (("METHODS = {", "METHODS = {} and {"), "a dict of recipes by name"),
    "an unknown backbone": (
        ('backbone="softmax", head', 'backbone="soft", head'),
        "builds on 'soft', which is not a method",
    ),
    "a circle": (
        ('"softmax": BASE', '"softmax": replace(BASE, backbone="crt")'),
        "softmax builds on crt builds on softmax: a method cannot build on itself",
    ),
    "a seed twice": (("(0, 1)", "(0, 0)"), "expected different numbers from 0"),
    "a name with a slash": (('"focal":', '"focal/2":'), "plans a method 'focal/2'"),
    "no name": (("NAME =", "TITLE ="), "does not define NAME: see docs/own-tables.md"),
    "a teacher": (('"focal": replace(BASE,', '"focal": replace(BASE, teacher="softmax",'), "only tables of CIFAR-LT"),
    "no recipe": (
        ("METHODS = {", "Recipe(mix_probability=2)\nMETHODS = {"),
        "mix_probability is 2: expected",
    ),
    "two sizes": (('"focal": replace(BASE,', '"focal": replace(BASE, size=64,'), "images of [32, 64] px"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_will_not_do_is_refused(name: str, losses: Path, tmp_path: Path) -> None:
    change, words = BAD[name]
    losses.write_text(changed(losses.read_text(), change))
    assert words in equipoise("run", losses, "--data", tmp_path, code=2)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ("[]", "plan() must return the cells to train, a list that is not empty"),
        ("None", "plan() must return the cells to train"),
        ("['a']", "plans 'a': expected a Cell"),
        ("[Cell('cifar10-lt', 10, 'a', -1)]", "seed=-1): expected a Cell"),
        ("[Cell('cifar10-lt', '10', 'a', 0)]", "imbalance='10'"),
        ("[Cell('cifar10-lt', 10, 'a/b', 0)]", "plans a method 'a/b'"),
    ],
)
def test_a_plan_that_will_not_do_is_refused(plan: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    code = "from equipoise.training.recipe import Cell, Recipe\nNAME = 'mine'\ndef recipe_of(cell): return Recipe()\n"
    file.write_text(f"{code}def plan(): return {plan}\n")
    assert words in equipoise("run", file, "--data", tmp_path, code=2)


def test_options_for_images_are_refused_for_a_table_of_cifar(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    code = "from equipoise.training.recipe import Cell, Recipe\nNAME = 'mine'\ndef recipe_of(cell): return Recipe()\n"
    file.write_text(f"{code}def plan(): return [Cell('cifar10-lt', 10, 'a', 0)]\n")
    for words in (("--weights", "none"), ("--workers", "2"), ("--resident",)):
        said = equipoise("run", file, "--data", tmp_path, *words, code=2)
        assert f"{words[0]} has no meaning for a table of CIFAR-LT" in said


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--fused",), "--fused has no meaning for a table of images"),
        (("--validate",), "--validate trains the choices of table1"),
        ((), "which images? Give --data FOLDER, or --train and --val"),
        (("--data", "nowhere"), "nowhere does not exist"),
        (("--data", ".", "--images", "nowhere"), "nowhere does not exist"),
        (("--data", ".", "--weights", "nowhere.pth"), "nowhere.pth"),
    ],
)
def test_options_that_will_not_do_are_refused(words: tuple[str, ...], expected: str, losses: Path) -> None:
    assert expected in equipoise("run", losses, *words, "--out", losses.parent / "r.jsonl", code=2)
    assert not (losses.parent / "r.jsonl").exists()
