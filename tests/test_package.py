"""The package as a user meets it: names, weight, command line."""

from __future__ import annotations

import ast
import inspect
import os
import pickle
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

import equipoise as eq
from equipoise.cli import app

PUBLIC = [
    "Prior",
    "BalancedSoftmaxLoss",
    "BalancedSigmoidLoss",
    "FocalLoss",
    "SigmoidFocalLoss",
    "ClassBalancedLoss",
    "LDAMLoss",
    "EqualizationLoss",
    "SigmoidEqualizationLoss",
    "inverse_frequency_weights",
    "balanced_softmax",
    "balanced_sigmoid",
    "log_balanced_softmax",
    "log_balanced_sigmoid",
    "long_tailed_indices",
    "adjust_logits",
    "adjust_sigmoid_logits",
    "estimate_prior",
    "PriorEstimate",
    "fit_temperature",
    "fit_sigmoid_temperature",
    "rate_thresholds",
    "Calibration",
    "CalibrationScores",
    "calibration_scores",
    "sigmoid_calibration_scores",
    "Rebalanced",
    "RebalancedSigmoid",
    "fold_correction",
    "export_program",
    "export_onnx",
    "evaluate",
    "Evaluation",
    "judge",
    "Judged",
    "Report",
    "balanced_softmax_loss",
    "balanced_sigmoid_loss",
    "focal_loss",
    "sigmoid_focal_loss",
    "class_balanced_loss",
    "ldam_loss",
    "equalization_loss",
    "sigmoid_equalization_loss",
]


def python(code: str) -> str:
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_the_public_names_are_there() -> None:
    assert [name for name in PUBLIC if not hasattr(eq, name)] == []
    assert sorted(eq.__all__) == eq.__all__
    assert set(PUBLIC) <= set(eq.__all__)
    assert (Path(eq.__file__).parent / "py.typed").exists()


def test_importing_imports_nothing_but_the_standard_library() -> None:
    code = """
import sys
before = set(sys.modules)
import equipoise
print(sorted({name.partition('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names))
print([name for name in sys.modules if name.startswith('equipoise')])"""
    assert python(code) == "['equipoise']\n['equipoise']"


def test_without_torch_there_is_a_prior_and_every_name_is_listed() -> None:
    code = """
import sys
sys.modules['torch'] = sys.modules['torchvision'] = None
import equipoise
from equipoise.prior import Prior
print(Prior.from_counts([3, 1]).groups(), Prior.from_json('{"counts": [3, 1]}').imbalance, equipoise.Prior is Prior)
print(set(equipoise.__all__) < set(dir(equipoise)), 'sklearn' in dir(equipoise))"""
    assert python(code) == "{'few': [0, 1]} 3.0 True\nTrue True"


def test_a_name_is_loaded_when_it_is_first_used() -> None:
    code = """
import sys
import equipoise as eq
print([name for name in eq.__all__ if name in vars(eq)], 'torch' in sys.modules)
loss = eq.LDAMLoss
print(loss is vars(eq)['LDAMLoss'], 'equipoise.serving.rebalanced' in sys.modules)"""
    assert python(code) == "[] False\nTrue False"


def test_every_public_name_is_typed_once_and_is_what_its_module_defines() -> None:
    stub = ast.parse((Path(eq.__file__).with_suffix(".pyi")).read_text())
    lines = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    names = [alias.name for line in lines for alias in line.names]
    assert [alias.asname for line in lines for alias in line.names] == names  # "X as X" is how a stub exports
    assert sorted(names) == sorted({*eq.__all__, "sklearn"})
    for line in lines:
        for alias in line.names:
            assert getattr(eq, alias.name) is getattr(import_module(str(line.module)), alias.name)


def test_public_objects_survive_inspection_and_pickle() -> None:
    found: dict[str, object] = {}
    exec("from equipoise import *", found)
    assert set(eq.__all__) <= set(found)
    members = dict(inspect.getmembers(eq))
    for name in eq.__all__:
        assert members[name] is found[name]
        assert pickle.loads(pickle.dumps(found[name])) is found[name]
    with pytest.raises(AttributeError, match="module 'equipoise' has no attribute 'Priors'"):
        eq.Priors  # type: ignore[attr-defined]  # noqa: B018


def test_type_checkers_see_the_public_names(tmp_path: Path) -> None:
    script = tmp_path / "user.py"
    script.write_text(
        "import equipoise as eq\n"
        "from equipoise import *\n"
        "loss: eq.BalancedSoftmaxLoss = eq.BalancedSoftmaxLoss(Prior.from_counts([3, 1]), tau=1.0)\n"
        "reveal_type(eq.estimate_prior)\n"
        "reveal_type(eq.sklearn.PriorShiftClassifier)\n"
        "eq.BalancedSoftmaxLos\n"
        "LDAMLoss(1)\n"
    )
    root = Path(__file__).parents[1]  # with the options and the cache of what `make test` has checked just before
    environment = os.environ | {"MYPYPATH": os.path.relpath(Path(eq.__file__).parents[1], root)}
    command = [sys.executable, "-m", "mypy", str(script)]
    output = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root, env=environment).stdout
    assert "-> equipoise.serving.estimate.PriorEstimate" in output, output
    assert "equipoise.integrations.sklearn.PriorShiftClassifier" in output
    assert 'Module has no attribute "BalancedSoftmaxLos"' in output
    assert 'incompatible type "int"; expected "Prior"' in output
    assert output.count(": error:") == 2, output


def test_the_command_line_needs_no_torchvision() -> None:
    """`make demo` installs the extras [cli] and [report] only."""
    without = "".join(f"sys.modules['{name}'] = None; " for name in ("torchvision", "hotcoco", "safetensors", "orjson"))
    assert python(f"import sys; {without}import equipoise.cli; print('fine')") == "fine"


@pytest.mark.parametrize(
    ("without", "arguments", "extra"),
    [
        ("typer", ["--help"], "cli"),
        ("torchvision", ["run", "voc2012-lt", "--data", "."], "detection"),
        ("hotcoco", ["detect", "eval", "results.json", "--annotations", "val.json"], "detection"),
    ],
)
def test_the_command_says_in_a_line_which_extra_it_needs(
    without: str, arguments: list[str], extra: str, tmp_path: Path
) -> None:
    (tmp_path / "results.json").write_text("[]")
    (tmp_path / "val.json").write_text(
        '{"images": [{"id": 1, "height": 8, "width": 8}], "categories": [{"id": 1, "name": "cat"}], "annotations": '
        '[{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 1, 4, 4], "area": 16, "iscrowd": 0}]}'
    )
    code = (
        f"import sys; sys.modules[{without!r}] = None; sys.argv[1:] = {arguments!r}; "
        "from equipoise.__main__ import main; main()"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert result.returncode == 1
    assert f"pip install 'equipoise[{extra}]'" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_file_that_a_detector_command_cannot_use_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("[]")
    (tmp_path / "val.json").write_text("{}")
    arguments = ["detect", "eval", str(tmp_path / "results.json"), "--annotations", str(tmp_path / "val.json")]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "400"})
    assert result.exit_code == 2
    assert "expected a COCO or LVIS file" in result.output


def test_the_demo_prints_a_table_and_writes_the_report(tmp_path: Path) -> None:
    arguments = ["demo", "--out", str(tmp_path / "new" / "folder"), "--iterations", "2", "--seeds", "2"]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "140"})
    assert result.exit_code == 0, result.output
    for word in ("Softmax", "Class weights 1/n", "Balanced Softmax", "top-1", "many", "medium", "few", "±"):
        assert word in result.output
    page = (tmp_path / "new" / "folder" / "report.html").read_text()
    assert "Softmax, 2 runs (± " in page
    assert "If class frequencies change" in page


def test_the_demo_refuses_a_file_before_it_trains(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "taken")], env={"COLUMNS": "400"})
    assert result.exit_code == 2
    assert "is a file" in result.output


def test_the_options_of_the_demo_are_these() -> None:
    from typer.main import get_command

    demo = get_command(app).commands["demo"]  # type: ignore[attr-defined]
    assert [option for p in demo.params for option in p.opts] == ["--out", "--seeds", "--imbalance", "--iterations"]


@pytest.mark.parametrize("arguments", [["--help"], ["demo", "--help"], ["--version"]])
def test_help_helps(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0
    assert result.output.strip()


def test_the_module_runs() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "equipoise", "--version"], capture_output=True, text=True, check=False
    )
    assert result.stdout.strip() == f"equipoise {eq.__version__}"
