"""The queue with classifiers on a CPU: groups, backbones, budgets, checkpoints. For all kinds: test_queue.py."""

from __future__ import annotations

import json
import re
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.cifar_files import write_cifar10
from torch import Tensor, nn

from equipoise.data.longtail import long_tailed_counts
from equipoise.losses.balanced_sigmoid import BalancedSigmoidLoss
from equipoise.losses.balanced_softmax import BalancedSoftmaxLoss
from equipoise.losses.ldam import LDAMLoss
from equipoise.models.resnet_cifar import ResNetCifar
from equipoise.prior import Prior
from equipoise.training.classification import Training, features
from equipoise.training.classification_runs import Classification, Kernels, Store, probabilities
from equipoise.training.kinds import Settings
from equipoise.training.progress import Status, Timing
from equipoise.training.queue import run_cells
from equipoise.training.recipe import Cell, Recipe
from equipoise.training.records import Record
from equipoise.training.sets import CHUNK

CPU = torch.device("cpu")
TINY = Recipe(blocks=1, batch_size=4, iterations=2 * CHUNK + 3, warmup=5)


def second_stage(**change: object) -> Recipe:
    return replace(TINY, backbone="softmax", **change)  # type: ignore[arg-type]


RECIPES = {
    "softmax": TINY,
    "balanced_softmax": replace(TINY, loss=BalancedSoftmaxLoss, options={"tau": 1.0}),
    "crt": second_stage(sampler="class_balanced", iterations=3, warmup=0),
    "softmax_adjusted": second_stage(head="kept", iterations=0, adjusted=True),
    "diverges": replace(TINY, lr=1e30, first_lr=1e30),
    "second_of_diverges": replace(TINY, backbone="diverges"),
}


@pytest.fixture
def queue(tmp_path: Path) -> Callable[..., tuple[list[Cell], list[Record], list[str]]]:
    write_cifar10(tmp_path / "data")

    def run(*methods: str, **options: object) -> tuple[list[Cell], list[Record], list[str]]:
        said: list[str] = []
        records: list[Record] = []
        write = options.pop("write", records.append)
        recorded = options.pop("recorded", tuple)
        kernels = Kernels(deterministic=options.pop("deterministic", True))  # type: ignore[arg-type]
        settings = Settings(CPU, tmp_path / "checkpoints", tmp_path / "claims", **({"log": said.append} | options))  # type: ignore[arg-type]
        store = Store(tmp_path / "data", CPU)
        kind = Classification(
            "table1", lambda c: RECIPES[c.method], store, settings, kernels=kernels, backbones={"softmax", "diverges"}
        )
        cells = [Cell("cifar10-lt", 20, method, 0) for method in methods]
        with pytest.warns(UserWarning, match="MD5"):
            done = run_cells(cells, kind, settings, write=write, recorded=recorded)  # type: ignore[arg-type]
        return done, records, said

    return run


def test_a_record_holds_what_was_trained_and_how_it_did(queue: Callable[..., tuple]) -> None:
    _, (record,), _ = queue("softmax", commit="abc")
    assert record.counts == [20, 14, 10, 7, 5, 3, 2, 1, 1, 1]
    assert (record.total, record.iterations, record.complete, record.commit) == ([4] * 10, TINY.iterations, True, "abc")
    assert record.top1 == pytest.approx(100 * sum(record.correct) / 40)
    assert sum(record.marginal) == pytest.approx(1, abs=1e-4)
    assert record.recipe["loss"] == "CrossEntropyLoss"
    assert len(record.loss_curve) == TINY.iterations
    assert Record.from_json(record.to_json()) == record


def test_a_backbone_is_trained_first_and_recorded_only_if_it_was_asked_for(queue: Callable[..., tuple]) -> None:
    done, records, _ = queue("crt", "softmax_adjusted", together=2)
    assert {cell.method for cell in done} == {record.method for record in records} == {"crt", "softmax_adjusted"}
    _, again, said = queue("crt")  # from the weights on disk
    assert not any("softmax/0" in line for line in said)
    assert again[0].weights == next(record.weights for record in records if record.method == "crt")


def test_a_run_that_runs_out_of_time_is_saved_and_taken_up(queue: Callable[..., tuple]) -> None:
    _, (whole,), _ = queue("balanced_softmax")
    _, nothing, said = queue("balanced_softmax", budget=0)
    assert nothing == []
    assert any("out of time at iteration 20 of 43; saved, and resumed next time" in line for line in said)
    _, (resumed,), said = queue("balanced_softmax")
    assert any("resumed at iteration 20 of 43" in line for line in said)
    assert resumed.weights == whole.weights


def test_only_the_first_run_is_begun_where_the_time_is_too_short(queue: Callable[..., tuple]) -> None:
    done, _, said = queue("softmax", "balanced_softmax", budget=1.0)  # the setup alone is thought to take longer
    assert [cell.method for cell in done] in ([], ["softmax"])
    assert any("training: cifar10-lt/20/softmax/0" in line for line in said)
    assert not any("training: cifar10-lt/20/balanced_softmax/0" in line for line in said)


def test_a_run_that_diverges_leaves_no_record_and_does_not_stop_the_others(queue: Callable[..., tuple]) -> None:
    done, records, said = queue("diverges", "softmax", together=2)
    assert [record.method for record in records] == ["softmax"]
    assert [cell.method for cell in done] == ["softmax"]
    assert any("infinite or NaN" in line for line in said)


def test_what_needs_a_backbone_that_diverges_is_given_up(queue: Callable[..., tuple]) -> None:
    done, records, said = queue("second_of_diverges", "softmax")
    assert [record.method for record in records] == ["softmax"] == [cell.method for cell in done]
    assert sum("infinite or NaN" in line for line in said) == 1
    assert any("second_of_diverges/0: skipped, as it starts from" in line for line in said)


def test_smoke_tests_and_choices_say_what_they_are(queue: Callable[..., tuple]) -> None:
    _, (record,), _ = queue("softmax", iterations=2, validate=True)
    assert (record.complete, record.iterations, record.evaluated_on) == (False, 2, "held_out")
    assert sum(record.total) == sum(long_tailed_counts(20, 10, 10)) - sum(long_tailed_counts(20, 10, 20))


def test_smaller_groups_are_tried_when_a_whole_one_does_not_fit() -> None:
    timing = Timing(0.006, {False: (4, 0.016)}, setup=10.0)
    whole = timing.estimate(4, 13_000, False)
    assert whole == pytest.approx(10 + 13_000 * 0.016 * 1.05)
    assert timing.largest(4, 13_000, False, whole) == 4
    assert timing.largest(4, 13_000, False, whole - 1) == 3
    assert timing.largest(4, 13_000, False, 20) == 0
    assert Timing(0.006).largest(4, 13_000, False, 540) == 4


def test_before_long_runs_a_cpu_is_timed_and_the_time_said(
    queue: Callable[..., tuple], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, (plain,), said = queue("balanced_softmax")
    assert not any("On this CPU" in line for line in said)
    monkeypatch.setattr("equipoise.training.classification_runs.LONG", TINY.iterations)
    _, (timed,), said = queue("balanced_softmax")
    assert timed.weights == plain.weights
    assert re.match(r"On this CPU an iteration takes \S+ s: .* for a run of 43, about .* for all", said[0])


def test_the_time_of_all_runs_takes_batches_and_passes_into_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    whole = Recipe(iterations=100)
    recipes = {
        "whole": whole,
        "half": replace(whole, batch_size=whole.batch_size // 2),
        "twice": replace(whole, sam=0.1),
    }
    write_cifar10(tmp_path / "data")
    settings = Settings(CPU, tmp_path / "checkpoints", tmp_path / "claims", log=said.append)
    kind = Classification("table1", lambda c: recipes[c.method], Store(tmp_path / "data", CPU), settings)
    monkeypatch.setattr("equipoise.training.classification_runs.timed", lambda recipe, data: 6.0)
    cells = [Cell("cifar10-lt", 20, method, 0) for method in ("half", "whole", "twice")]
    with pytest.warns(UserWarning, match="MD5"):
        assert kind.seconds_an_iteration(cells) == 12.0  # half a batch was timed
    assert "10 min for a run of 100, about 70 min for all runs" in said[0]


def test_a_group_reports_how_far_it_is_after_every_chunk(queue: Callable[..., tuple]) -> None:
    found: list[Status] = []
    queue("softmax", "balanced_softmax", together=2, report=found.append)
    assert [(status.done, status.iterations) for status in found] == [(20, 43), (40, 43), (43, 43)]
    assert found[-1].seconds_to_go == 0
    assert all(status.images_a_second > 0 for status in found)


def test_a_checkpoint_is_kept_until_the_record_is_written(queue: Callable[..., tuple], tmp_path: Path) -> None:
    queue("balanced_softmax", budget=0)
    saved = tmp_path / "checkpoints" / "cifar10-lt-20-balanced_softmax-0.checkpoint.pt"
    seen: list[bool] = []
    queue("balanced_softmax", write=lambda record: seen.append(saved.is_file()))
    assert seen == [True]
    assert not saved.exists()


def interrupted_queue(queue: Callable[..., tuple], *methods: str, **options: object) -> list[str]:
    """Out of time after the first chunk: everything is saved."""
    options = {"together": len(methods)} | options
    with pytest.MonkeyPatch.context() as context:
        context.setattr(Timing, "estimate", lambda *_: -1e9)
        _, nothing, said = queue(*methods, budget=0, **options)
    assert nothing == []
    return said


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"options": {"tau": 0.5}}, "options {'tau': 1.0}, now {'tau': 0.5}"),
        ({"weight_decay": 0.1}, "weight_decay 0.0005, now 0.1"),
    ],
    ids=["options", "weight decay"],
)
def test_a_checkpoint_of_another_recipe_is_not_taken_up(
    change: dict, words: str, queue: Callable[..., tuple], monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted_queue(queue, "balanced_softmax")
    monkeypatch.setitem(RECIPES, "balanced_softmax", replace(RECIPES["balanced_softmax"], **change))
    _, (resumed,), said = queue("balanced_softmax")
    assert any(words in line and "starting from the beginning" in line for line in said)
    assert not any("resumed at" in line for line in said)
    _, (whole,), _ = queue("balanced_softmax")
    assert resumed.weights == whole.weights


def test_a_checkpoint_of_another_engine_or_of_old_is_not_taken_up(
    queue: Callable[..., tuple], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted_queue(queue, "balanced_softmax")
    _, _, said = queue("balanced_softmax", deterministic=False)
    assert any("deterministic True, now False" in line for line in said)
    torch.save({"iteration": 20}, tmp_path / "checkpoints" / "cifar10-lt-20-softmax-0.checkpoint.pt")
    _, (record,), said = queue("softmax")
    assert record.iterations == TINY.iterations
    assert any("starting from the beginning" in line for line in said)


def test_files_from_before_a_network_had_a_width_are_those_of_width_1(
    queue: Callable[..., tuple], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, (whole,), _ = queue("balanced_softmax")
    interrupted_queue(queue, "balanced_softmax")
    path = tmp_path / "checkpoints" / "cifar10-lt-20-balanced_softmax-0.checkpoint.pt"
    content = torch.load(path, weights_only=True)
    assert content["made_from"].pop("width") == 1
    torch.save(content, path)
    _, (resumed,), said = queue("balanced_softmax")
    assert any("resumed at iteration" in line for line in said)
    assert resumed.weights == whole.weights
    torch.save(content, path)
    monkeypatch.setitem(RECIPES, "balanced_softmax", replace(RECIPES["balanced_softmax"], width=2))
    _, (wide,), said = queue("balanced_softmax")
    assert any("(width 1, now 2)" in line for line in said)
    assert wide.recipe["width"] == 2


def test_large_networks_and_small_batches_are_groups_of_their_own(
    queue: Callable[..., tuple], monkeypatch: pytest.MonkeyPatch
) -> None:
    short = replace(TINY, iterations=1, warmup=0)
    for name, change in {
        "narrow": {},
        "wide": {"width": 2},
        "few": {"batch_size": 2},
        "other": {"weight_decay": 0.0},
    }.items():
        monkeypatch.setitem(RECIPES, name, replace(short, **change))  # type: ignore[arg-type]
    _, _, said = queue("narrow", "wide", "few", "other", together=4)
    assert "training 2 together: cifar10-lt/20/narrow/0, cifar10-lt/20/other/0" in said
    assert {"training: cifar10-lt/20/wide/0", "training: cifar10-lt/20/few/0"} <= set(said)
    timing = Timing(0.003, {(False, 1.0): (6, 0.015)}, setup=0.0)
    assert timing.estimate(3, 1000, (False, 4.0), 4.0) == pytest.approx(3 * 1000 * 0.003 * 4)
    assert timing.estimate(6, 1000, (False, 1.0), 1.0) == pytest.approx(1000 * 0.015 * 1.05)
    assert timing.largest(3, 1000, (False, 4.0), 25, 4.0) == 2


def test_a_backbone_of_another_recipe_is_trained_again(
    queue: Callable[..., tuple], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, (first,), _ = queue("crt")
    monkeypatch.setitem(RECIPES, "softmax", replace(TINY, weight_decay=0.1))
    _, (second,), said = queue("crt")
    assert sum("starting from the beginning" in line for line in said) == 1
    assert "training: cifar10-lt/20/softmax/0" in said
    assert first.backbone_weights != second.backbone_weights


def test_a_second_stage_names_the_weights_that_it_started_from(queue: Callable[..., tuple]) -> None:
    _, records, _ = queue("softmax", "crt", "softmax_adjusted")
    softmax, *second = sorted(records, key=lambda record: record.method != "softmax")
    assert softmax.backbone_weights is None
    assert [record.backbone_weights for record in second] == [softmax.weights] * 2


def test_the_seconds_of_a_run_are_those_of_all_its_parts(
    queue: Callable[..., tuple], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = time.monotonic()
    interrupted_queue(queue, "softmax")
    saved = tmp_path / "checkpoints" / "cifar10-lt-20-softmax-0.checkpoint.pt"
    content = torch.load(saved, weights_only=True)
    assert content["seconds"] > 0
    torch.save(content | {"seconds": 1000.0}, saved)
    interrupted_queue(queue, "softmax")
    assert torch.load(saved, weights_only=True)["seconds"] > 1000
    _, (record,), _ = queue("softmax")
    assert 1000 < record.seconds < 1000 + (time.monotonic() - began)


def test_each_record_is_written_before_the_next_run_is_judged(
    queue: Callable[..., tuple], monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []

    predict = Training.predict

    def judge(run: Training, images: torch.Tensor) -> torch.Tensor:
        if written:
            raise RuntimeError("out of memory")
        return predict(run, images)

    monkeypatch.setattr(Training, "predict", judge)
    with pytest.raises(RuntimeError, match="out of memory"):
        queue("softmax", "balanced_softmax", together=2, write=lambda record: written.append(record.method))
    assert written == ["softmax"]


def test_a_second_stage_is_not_taken_up_on_another_backbone(
    queue: Callable[..., tuple], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RECIPES, "crt", replace(RECIPES["crt"], iterations=43))
    queue("softmax")
    interrupted_queue(queue, "crt")
    monkeypatch.setitem(RECIPES, "softmax", replace(TINY, weight_decay=0.1))
    _, (resumed,), said = queue("crt")
    assert any("started_from" in line and "from the beginning" in line for line in said)
    _, (whole,), _ = queue("crt")
    assert (resumed.weights, resumed.backbone_weights) == (whole.weights, whole.backbone_weights)


def test_weights_of_another_seed_are_not_a_backbone(queue: Callable[..., tuple], tmp_path: Path) -> None:
    _, (first,), _ = queue("crt")
    path = tmp_path / "checkpoints" / "cifar10-lt-20-softmax-0.weights.pt"
    note = path.with_name("cifar10-lt-20-softmax-0.finished.json")
    content = json.loads(note.read_text())
    content["made_from"]["seed"] = 1
    note.write_text(json.dumps(content))
    weights = torch.load(path, weights_only=True)
    torch.save({name: value + 1 for name, value in weights.items()}, path)
    _, (second,), said = queue("crt")
    assert any("seed 1, now 0" in line for line in said)
    assert second.backbone_weights == first.backbone_weights


def test_a_run_is_recorded_before_its_result_is_said(queue: Callable[..., tuple]) -> None:
    written: list[Record] = []

    def say(line: str) -> None:
        if "top-1" in line:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        queue("softmax", log=say, write=written.append)
    assert [record.method for record in written] == ["softmax"]


def test_runs_that_cannot_be_recorded_are_saved(queue: Callable[..., tuple]) -> None:
    def full(record: Record) -> None:
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space left"):
        queue("softmax", "balanced_softmax", together=2, write=full)
    _, records, said = queue("softmax", "balanced_softmax", together=2)
    assert sum(f"resumed at iteration {TINY.iterations}" in line for line in said) == 2
    assert len(records) == 2


def test_a_checkpoint_that_cannot_be_written_is_said_and_the_others_are_tried(
    queue: Callable[..., tuple], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = torch.save

    def full(content: object, path: Path) -> None:
        save(content, path)
        if "balanced" in path.name:
            raise RuntimeError("no space left on device")

    monkeypatch.setattr(torch, "save", full)
    said = interrupted_queue(queue, "balanced_softmax", "softmax", together=2)
    assert any("could not be written (no space left on device)" in line for line in said)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["cifar10-lt-20-softmax-0.checkpoint.pt"]


# -------------------------------------------------------------------- what a loss declares


class Scaled(nn.Module):
    """A user's softmax loss, whose `scale` and whose name have nothing to do with what its logits mean."""

    def __init__(self, prior: Prior) -> None:
        super().__init__()
        self.scale = 1000.0

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits, target)


class NotReallySigmoid(Scaled):
    pass


@pytest.mark.parametrize("loss", [Scaled, NotReallySigmoid])
def test_the_scores_of_a_users_loss_are_read_as_a_softmax(
    loss: type[nn.Module], queue: Callable[..., tuple], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, (plain,), _ = queue("softmax")
    monkeypatch.setitem(RECIPES, "own", replace(TINY, loss=loss))
    _, (own,), _ = queue("own")
    assert own.weights == plain.weights
    assert own.marginal == plain.marginal


def test_a_loss_declares_what_its_logits_mean() -> None:
    prior, logits = Prior.from_counts([90, 9, 1]), torch.randn(5, 3, dtype=torch.double)
    softmax, sigmoid, ldam = nn.CrossEntropyLoss(), BalancedSigmoidLoss(prior), LDAMLoss(prior, scale=30.0)
    assert torch.equal(probabilities(softmax, logits), logits.softmax(1))
    assert torch.equal(probabilities(sigmoid, logits), logits.sigmoid())
    assert torch.equal(probabilities(ldam, logits), (30.0 * logits).softmax(1))


def test_progress_goes_on_when_one_of_several_runs_diverges(
    queue: Callable[..., tuple], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equipoise.training.classification.LOOK_EVERY", 1)
    monkeypatch.setattr("equipoise.training.queue.Pace.since", lambda pace, done, now: (float(done), 0))
    reported: list[Status] = []
    _, records, _ = queue("diverges", "balanced_softmax", together=2, report=reported.append)
    assert [record.method for record in records] == ["balanced_softmax"]
    assert [status.done for status in reported] == [20, 40, 43]
    assert [round(status.images_a_second / TINY.batch_size) for status in reported] == [2, 1, 1]


def test_the_kernels_that_are_given_compute_the_features_of_trained_backbones_only(tmp_path: Path) -> None:
    used: list[str] = []

    def counting(model: ResNetCifar, images: Tensor) -> Tensor:
        used.append("trained")
        return features(model, images)

    write_cifar10(tmp_path / "data")
    settings = Settings(CPU, tmp_path / "checkpoints", tmp_path / "claims", log=lambda line: None)
    store = Store(tmp_path / "data", CPU)
    written: list[Record] = []
    for kernels in (Kernels(), Kernels(trained=counting, fused=True)):
        kind = Classification("table1", lambda c: RECIPES[c.method], store, settings, kernels=kernels)
        with warnings.catch_warnings(action="ignore"):
            run_cells([Cell("cifar10-lt", 20, "balanced_softmax", 0)], kind, settings, write=written.append)  # type: ignore[arg-type]
    plain, injected = written
    assert len(used) == TINY.iterations
    assert (injected.weights, injected.engine["fused"], plain.engine["fused"]) == (plain.weights, True, False)
    backbone = Training(TINY, store.get("cifar10-lt", 20)[1], 0).model.state_dict()
    run = kind.prepare(Cell("cifar10-lt", 20, "crt", 0), backbone)
    run.advance()
    assert len(used) == TINY.iterations
