"""Two processes and a gloo group train the detector that one process does."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from helpers.coco_files import SIDE, write_lvis
from helpers.processes import in_two_processes

from equipoise.data.coco import CocoImages
from equipoise.models.mask_rcnn import balanced_sigmoid, equalized_v2_sigmoid, federated_sigmoid
from equipoise.training.detection import DetectionRecipe, DetectionTraining, train
from equipoise.training.resident import Resident

pytestmark = [
    pytest.mark.filterwarnings("ignore:1 of 4 classes have no item"),
    pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN"),  # torch's, where oneDNN is switched off
]
CPU = torch.device("cpu")
FIRST = DetectionRecipe(
    backbone="resnet18", epochs=0.5, batch_size=2, lr=0.005, warmup=0, min_sizes=(SIDE,), max_size=SIDE
)
FILES = replace(FIRST, min_sizes=(SIDE, SIDE + 32), max_size=2 * SIDE)
SECOND = replace(FIRST, start="rfs", epochs=0.5, classification=balanced_sigmoid)
SEEN = replace(SECOND, classification=equalized_v2_sigmoid)
DRAWN = replace(SECOND, classification=federated_sigmoid, options={"classes": 3})
RUNS = {"files": FILES, "resident": FIRST, "frozen": SECOND, "eql v2": SEEN, "federated": DRAWN}


def trained(folder: Path, alone: dict[str, Any] | None = None) -> dict[str, Any]:
    """The state after each of two iterations from files at two sizes, from resident images, and of second stages.

    Where the states of `alone` are given, every iteration starts from the one before it there, so that nothing but the
    iteration itself can differ. Without oneDNN, whose kernels round a batch of 2 otherwise than two of 1: an activation
    that rounds to either side of 0 changes a gradient by more than any rounding.
    """
    data = CocoImages(folder / "annotations.json", folder)
    resident = Resident(data, CPU, shorter=SIDE, longer=SIDE)
    found: dict[str, Any] = {}
    start = None
    for name, recipe in RUNS.items():
        images = None if recipe is FILES else resident
        run = DetectionTraining(recipe, data, 0, CPU, resident=images, start=start if recipe.start else None)
        run.model.rpn._pre_nms_top_n["training"] = 100
        run.model.rpn._post_nms_top_n["training"] = 40
        run.model.roi_heads.fg_bg_sampler.batch_size_per_image = 16
        with torch.backends.mkldnn.flags(enabled=False):
            if recipe.start:
                run.freeze()
            states: list[dict[str, Any]] = []
            while not run.done:
                if alone is not None and states:
                    run.load_state_dict(deepcopy(alone[name][len(states) - 1]))
                train(run, over=lambda: True)  # one iteration
                states.append(deepcopy(run.state_dict()))
        found[name] = states
        start = (alone or found)[name][-1]["model"]
    return found


def one_of_two(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    torch.save(trained(Path(folder), torch.load(f"{folder}/alone.pt")), f"{folder}/{rank}.pt")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("gloo")
    write_lvis(folder)
    torch.save(trained(folder), folder / "alone.pt")
    in_two_processes(one_of_two, str(folder))
    return [torch.load(folder / f"{name}.pt") for name in ("alone", 0, 1)]


@pytest.mark.parametrize(("name", "recipe"), RUNS.items())
def test_two_processes_train_what_one_does(results: list[dict[str, Any]], name: str, recipe: DetectionRecipe) -> None:
    # The same numbers are added in another order. Of n summands each order makes about sqrt(n) roundings of eps / 2;
    # the longest sum is that of the box head's first layer, n = 256 * 7 * 7 = 12544: 112 eps between two orders, once
    # on the way to the loss and once on the way back. Sums that cancel are judged by the largest entry of their tensor.
    # The loss is a mean over 32 boxes, and so are its roundings: 112 / sqrt(32) = 20 eps.
    eps = torch.finfo(torch.float32).eps
    for alone, first, second in zip(*(result[name] for result in results), strict=True):
        assert first["losses"] == pytest.approx(alone["losses"], rel=20 * eps)
        assert second["losses"] == first["losses"]
        largest = 0.0
        for key, state in alone["optimizer"]["state"].items():
            value = state["momentum_buffer"]  # the gradients so far
            other = first["optimizer"]["state"][key]["momentum_buffer"]
            largest = max(largest, float(value.abs().max()))
            torch.testing.assert_close(other, value, rtol=0, atol=224 * eps * float(value.abs().max()))
        step = recipe.lr * 224 * eps * largest
        for key, value in alone["model"].items():  # and the new weights are rounded once each
            torch.testing.assert_close(
                first["model"][key], value, rtol=eps, atol=step, msg=lambda m, key=key: f"{key}: {m}"
            )
            assert torch.equal(first["model"][key], second["model"][key]), key
    assert [len(result[name]) for result in results] == [2, 2, 2]


def test_a_batch_that_cannot_be_shared_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = CocoImages(write_lvis(tmp_path), tmp_path)
    monkeypatch.setattr("equipoise.training.detection.world", lambda: (3, 0))
    with pytest.raises(ValueError, match="batch of 2 images cannot be split among 3 processes"):
        DetectionTraining(FIRST, data, 0, CPU)


def test_torchrun_runs_a_table_and_records_it_once(tmp_path: Path) -> None:
    pytest.importorskip("hotcoco")
    for name, images in (("train.json", 4), ("val.json", 2)):
        write_lvis(tmp_path, images, name=name)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable, "-m", "equipoise", "run", "voc2012-lt", "--train", "train.json", "--val", "val.json",
        "--images", ".", "--only", "rfs", "--seeds", "0", "--iterations", "1", "--device", "cpu", "--budget", "1000",
    ]  # fmt: skip
    quick = tmp_path / "sitecustomize.py"
    quick.write_text(
        "import equipoise.experiments.voc2012_lt.recipe as v, equipoise.training.detection as d\n"
        "from dataclasses import replace\nfrom helpers.small_detectors import small_detector\n"
        "d.detector = small_detector\n"
        "small = dict(backbone='resnet18', batch_size=2, min_sizes=(64,), max_size=64)\n"
        "v.METHODS = tuple(replace(m, recipe=replace(m.recipe, **small)) for m in v.METHODS)\n"
    )
    paths = os.pathsep.join([str(tmp_path), *(path for path in sys.path if path)])
    shared = os.environ | {
        "PYTHONPATH": paths, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    running = [
        subprocess.Popen(
            command, cwd=tmp_path, env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for rank in range(2)
    ]  # fmt: skip
    said = [process.communicate(timeout=600)[0] for process in running]  # against waiting forever, no more
    assert [process.returncode for process in running] == [0, 0], said
    assert "1 run recorded" in said[0]
    assert "runs" not in said[1]
    (line,) = (tmp_path / "records.jsonl").read_text().splitlines()
    assert json.loads(line)["engine"]["processes"] == 2
