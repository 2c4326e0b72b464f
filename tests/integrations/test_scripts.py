"""The scripts of docs/integrations.md run, and its table of what works where names tests that exist.

python tests/integrations/test_scripts.py        write the table into the document
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "integrations.md"
MARKER = re.compile(
    r"(<!-- works where: python tests/integrations/test_scripts\.py -->\n)(.*?)(<!-- end -->)", re.DOTALL
)
NEEDS = {  # what a section's script imports
    "torchmetrics": ["torchmetrics"],
    "Hugging Face": ["transformers", "accelerate", "datasets"],
    "Lightning": ["lightning.pytorch"],
    "timm": ["timm"],
    "Segmentation": ["segmentation_models_pytorch"],
    "scikit-learn": ["sklearn"],
    "Ultralytics": ["ultralytics"],
}
COLUMNS = ["prior counted", "loss", "soft or several labels", "scores", "sampler", "several processes"]
HF, LIGHTNING, TIMM = (f"integrations/test_{name}.py::test_" for name in ("huggingface", "lightning", "timm"))
METRICS, DENSE, SETS = (
    "integrations/test_torchmetrics.py::test_",
    "metrics/test_dense.py::test_",
    "data/test_annotations.py::test_",
)
SHOWN: dict[str, dict[str, str]] = {  # the test that shows it
    "torchmetrics": {
        "scores": METRICS + "batches_add_up_to_the_whole_and_reset_forgets",
        "several processes": LIGHTNING + "two_processes_log_the_scores_of_all_items",
    },
    "Hugging Face": {
        "prior counted": SETS + "lists_of_classes_are_counted_with_their_names",
        "loss": HF + "accumulated_batches_give_the_loss_and_the_weights_of_one_batch",
        "soft or several labels": HF + "the_number_of_items_is_that_of_rows_or_of_elements",
        "scores": HF + "the_trainer_logs_the_scores_of_labels_that_count",
        "sampler": HF + "the_mixin_draws_classes_equally_often_and_anew_each_epoch",
        "several processes": HF + "two_processes_give_the_weights_of_one",
    },
    "Lightning": {
        "prior counted": LIGHTNING + "the_module_is_trained_with_the_balanced_loss_and_gets_its_own_back",
        "loss": LIGHTNING + "the_module_is_trained_with_the_balanced_loss_and_gets_its_own_back",
        "soft or several labels": LIGHTNING + "the_module_is_trained_with_the_balanced_loss_and_gets_its_own_back",
        "scores": LIGHTNING + "the_scores_of_the_validation_set_are_logged_and_reported",
        "sampler": LIGHTNING + "under_a_sampler_the_loss_has_the_prior_of_what_is_drawn",
        "several processes": LIGHTNING + "two_processes_log_the_scores_of_all_items",
    },
    "timm": {
        "prior counted": TIMM + "image_folders_are_counted_without_opening_an_image",
        "loss": TIMM + "the_training_task_learns_with_it",
        "soft or several labels": TIMM + "the_criterion_takes_hard_and_mixed_targets",
        "sampler": TIMM + "the_loader_draws_balanced_and_keeps_the_rest",
        "several processes": "samplers/test_samplers_frameworks.py::test_the_draws_of_a_timm_loader_are_shared_once",
    },
    "MONAI, smp": {
        "prior counted": SETS + "a_folder_of_label_maps_is_counted",
        "loss": "integrations/test_scripts.py::test_the_script_of_a_section_runs",
        "scores": DENSE + "monai_and_smp_give_the_same_numbers",
    },
    "Ultralytics": {
        "prior counted": "data/test_yolo.py::test_images_or_objects_are_counted_with_the_names",
        "loss": "integrations/test_ultralytics.py::test_a_detector_is_trained_with_balanced_sigmoid",
    },
    "scikit-learn": {
        "prior counted": "integrations/test_sklearn.py::test_tau_takes_out_as_much_of_the_source_as_in_the_regression",
        "loss": "integrations/test_sklearn.py::test_it_is_the_minimum_of_the_balanced_softmax_loss",
    },
}


def sections() -> dict[str, str]:
    """The script of each section that has one."""
    parts = re.split(r"^## (.+)\n", DOCUMENT.read_text(), flags=re.MULTILINE)
    scripts = {
        title: re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        for title, text in zip(parts[1::2], parts[2::2], strict=True)
    }
    return {title: found[0] for title, found in scripts.items() if found}


def table() -> str:
    """A row per stack, a tick where a test shows it."""
    rows = ["| | " + " | ".join(COLUMNS) + " |", "|:---" + "|:---:" * len(COLUMNS) + "|"]
    for stack, shown in SHOWN.items():
        rows.append(f"| {stack} | " + " | ".join("✓" if column in shown else "–" for column in COLUMNS) + " |")
    return "\n".join(rows) + "\n"


def written() -> str:
    return MARKER.sub(lambda found: found[1] + table() + found[3], DOCUMENT.read_text())


@pytest.mark.filterwarnings("ignore")  # of the other libraries: their deprecations are not ours
@pytest.mark.parametrize("title", sections())
def test_the_script_of_a_section_runs(title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YOLO_CONFIG_DIR", str(tmp_path / "settings"))  # else Ultralytics writes into the home folder
    for name in NEEDS[title]:
        pytest.importorskip(name)
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "script"}
    exec(compile(sections()[title], f"integrations.md, {title}", "exec"), namespace)
    assert namespace["eq"].__name__ == "equipoise"
    if "scores" in namespace:  # what the comment beside it promises
        promised = re.search(r"^scores = .*?#([^:\n]*)", sections()[title], re.MULTILINE)
        assert promised is not None
        names = [name for name in re.findall(r"\w+", promised[1]) if name not in ("without", "the", "background")]
        assert len(names) >= 4
        assert [name for name in names if name not in namespace["scores"]] == []


def test_the_table_of_what_works_where_is_that_of_the_tests() -> None:
    assert len(MARKER.findall(DOCUMENT.read_text())) == 1
    assert written() == DOCUMENT.read_text()
    for shown in SHOWN.values():
        assert set(shown) <= set(COLUMNS)
        for place in shown.values():
            path, _, name = place.partition("::")
            tree = ast.parse((ROOT / "tests" / path).read_text())
            assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, place


if __name__ == "__main__":
    DOCUMENT.write_text(written())
    sys.exit()
