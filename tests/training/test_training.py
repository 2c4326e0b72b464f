"""The training loop on a CPU: schedule, sampling, SGD, determinism, resuming, frozen backbones, the queue."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.cifar_files import write_cifar10
from torch import nn

from equipoise.data.longtail import long_tailed_counts
from equipoise.experiments.table1.recipe import Cell
from equipoise.losses import BalancedSigmoidLoss, BalancedSoftmaxLoss, EqualizationLoss, LDAMLoss
from equipoise.models.heads import NormalizedLinear
from equipoise.prior import Prior
from equipoise.training import classification
from equipoise.training.classification import (
    CHUNK,
    Training,
    TrainingSet,
    build_model,
    sample_order,
    sgd_,
    stream_of,
    train,
    weights_digest,
)
from equipoise.training.queue import Settings, Status, Store, Timing, run_cells
from equipoise.training.recipe import Recipe
from equipoise.training.records import Record

CPU = torch.device("cpu")
TINY = Recipe(blocks=1, batch_size=4, iterations=2 * CHUNK + 3, warmup=5)


@pytest.fixture(scope="module")
def data() -> TrainingSet:
    labels = np.repeat(np.arange(3), [20, 8, 3])
    images = np.random.default_rng(0).integers(0, 256, (len(labels), 3, 32, 32)).astype(np.uint8)
    return TrainingSet.of(images, labels, Prior.from_labels(labels), CPU)


def finished(recipe: Recipe, data: TrainingSet, seed: int = 0) -> Training:
    run = Training(recipe, data, seed)
    assert train([run])
    return run


# -------------------------------------------------------------------- schedule, order, SGD


def test_the_rate_warms_up_from_005_to_01_and_ends_at_0() -> None:
    recipe = Recipe()
    rates = [recipe.learning_rate(i) for i in range(recipe.iterations)]
    assert rates[0] == 0.05
    assert rates[1] - rates[0] == pytest.approx(0.05 / 800)
    assert rates[800] == max(rates) == 0.1
    assert rates[(800 + 13_000) // 2] == pytest.approx(0.05)
    assert 0 < rates[-1] < 1e-8
    assert recipe.learning_rate(13_000) == 0
    without_warmup = replace(recipe, warmup=0, iterations=2_000)
    assert without_warmup.learning_rate(0) == 0.1


def test_every_image_comes_once_an_epoch_and_none_is_left_out() -> None:
    labels = np.zeros(10, np.int64)
    order = sample_order(replace(TINY, iterations=10, batch_size=3), labels, seed=0)
    assert len(order) == 30
    assert all(sorted(order[start : start + 10]) == list(range(10)) for start in (0, 10, 20))
    assert order[:10].tolist() != order[10:20].tolist()
    assert sample_order(replace(TINY, iterations=4, batch_size=3), labels, seed=0).tolist() == order[:12].tolist()


def test_class_balanced_order_gives_every_class_its_turn_and_every_item_of_a_class_its_own() -> None:
    labels = np.repeat(np.arange(3), [6, 3, 1])
    order = sample_order(replace(TINY, sampler="class_balanced", iterations=4, batch_size=9), labels, seed=0)
    turns = labels[order].reshape(12, 3)
    assert all(sorted(turn) == [0, 1, 2] for turn in turns.tolist())
    assert len({tuple(turn) for turn in turns.tolist()}) > 1
    assert np.bincount(order, minlength=10).tolist() == [2] * 6 + [4] * 3 + [12]


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_equals_torchs(nesterov: bool) -> None:
    torch.manual_seed(0)
    recipe = replace(TINY, nesterov=nesterov)
    ours, theirs = nn.Linear(5, 3), nn.Linear(5, 3)
    theirs.load_state_dict(ours.state_dict())
    optimizer = torch.optim.SGD(theirs.parameters(), lr=1.0, momentum=0.9, weight_decay=5e-4, nesterov=nesterov)
    parameters = list(ours.parameters())
    velocity = [torch.zeros_like(parameter) for parameter in parameters]
    for rate in (0.1, 0.05, 0.2, 0.0):
        x = torch.randn(4, 5)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        theirs(x).pow(2).sum().backward()
        optimizer.step()
        gradients = torch.autograd.grad(ours(x).pow(2).sum(), parameters)
        sgd_(list(parameters), gradients, velocity, torch.tensor([rate]), recipe)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


# -------------------------------------------------------------------- a run


def test_a_run_equals_a_plain_loop_over_the_same_batches(data: TrainingSet) -> None:
    recipe = replace(TINY, iterations=6, loss=BalancedSoftmaxLoss, options={"tau": 1.0})
    run = Training(recipe, data, seed=3)
    model, loss_function = build_model(recipe, 3, seed=3), recipe.make_loss(data.prior)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9, weight_decay=5e-4)
    run.advance()
    losses = []
    for i in range(6):
        optimizer.param_groups[0]["lr"] = recipe.learning_rate(i)
        loss = loss_function(model(classification.normalise(run._images[i])), run._labels[i])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    torch.testing.assert_close(run.losses, torch.tensor(losses), rtol=1e-4, atol=1e-5)
    for (name, mine), other in zip(run.model.state_dict().items(), model.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("chunk", [0, 1])
def test_batches_hold_the_labels_of_their_images_and_every_chunk_is_drawn_anew(chunk: int, data: TrainingSet) -> None:
    run = Training(TINY, data, seed=0)
    run.iteration = chunk * CHUNK
    run._fill()
    drawn = classification.draw(CHUNK * 4, stream_of(0, classification.AUGMENTATION, chunk))
    index = run.order[chunk * CHUNK * 4 : (chunk + 1) * CHUNK * 4].astype(np.int64)
    assert torch.equal(run._images.flatten(0, 1), data.augmentation(index, drawn))
    assert run._labels.flatten().tolist() == data.labels[index].tolist()


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"loss": EqualizationLoss, "options": {"gamma": 0.5, "threshold": 0.3}},
        {"loss": LDAMLoss, "head": "normalized", "sampler": "class_balanced"},
        {"loss": BalancedSigmoidLoss, "rare_bias": True, "nesterov": True},
    ],
    ids=["softmax", "eql", "ldam", "sigmoid"],
)
def test_a_seed_gives_the_same_weights_to_the_bit_alone_and_beside_others(change: dict, data: TrainingSet) -> None:
    recipe = replace(TINY, **change)
    alone = weights_digest(finished(recipe, data).model)
    torch.manual_seed(99)  # the global generator must not matter
    beside = [Training(recipe, data, 0), Training(replace(TINY, loss=nn.CrossEntropyLoss), data, 1)]
    assert train(beside)
    assert weights_digest(beside[0].model) == alone
    assert weights_digest(finished(recipe, data, seed=1).model) != alone


def test_a_run_taken_up_again_ends_with_the_same_weights(data: TrainingSet, tmp_path: Path) -> None:
    recipe = replace(TINY, loss=EqualizationLoss, options={"gamma": 0.5, "threshold": 0.3})
    whole = finished(recipe, data)
    half = Training(recipe, data, 0)
    half.advance()
    torch.save(half.state_dict(), tmp_path / "half.pt")
    rest = Training(recipe, data, 0)
    rest.load_state_dict(torch.load(tmp_path / "half.pt", weights_only=True))
    assert rest.iteration == CHUNK
    assert train([rest])
    assert weights_digest(rest.model) == weights_digest(whole.model)
    assert torch.equal(rest.losses, whole.losses)


def test_a_checkpoint_of_another_run_is_refused(data: TrainingSet) -> None:
    with pytest.raises(ValueError, match=r"of seed 0 .* this run of seed 1"):
        Training(TINY, data, 1).load_state_dict(Training(TINY, data, 0).state_dict())


def test_the_equalization_loss_drops_rare_classes_as_often_as_gamma_says(data: TrainingSet) -> None:
    recipe = replace(TINY, batch_size=64, loss=EqualizationLoss, options={"gamma": 0.3, "threshold": 0.3})
    run = Training(recipe, data, 0)
    run._fill()
    share = run._dropped.float().mean((0, 1)).tolist()  # of 31 images the classes have 65, 26 and 10 %
    assert share[0] == 0
    assert share[1:] == [pytest.approx(0.3, abs=0.06)] * 2


def test_the_last_iterate_is_judged_with_running_statistics(data: TrainingSet) -> None:
    run = finished(TINY, data)
    images = torch.randint(0, 256, (1003, 3, 32, 32), dtype=torch.uint8)
    logits = run.predict(images)
    assert logits.shape == (1003, 3)
    torch.testing.assert_close(run.predict(images[:1]), logits[:1], rtol=1e-4, atol=1e-4)


# -------------------------------------------------------------------- frozen backbones


def second_stage(**change: object) -> Recipe:
    return replace(TINY, backbone="softmax", **change)  # type: ignore[arg-type]


@pytest.mark.parametrize("head", ["linear", "scaled"])
def test_a_frozen_backbone_does_not_move_not_even_its_statistics(head: str, data: TrainingSet) -> None:
    backbone = finished(TINY, data).model.state_dict()
    run = Training(second_stage(head=head), data, 0, backbone=backbone)
    first = {name: value.clone() for name, value in run.model.state_dict().items()}
    assert train([run])
    after = run.model.state_dict()
    moved = {name for name in after if not torch.equal(after[name], first[name])}
    assert moved == ({"head.scales"} if head == "scaled" else {"head.weight", "head.bias"})
    assert all(torch.equal(after[name], backbone[name]) for name in after if not name.startswith("head."))


def test_a_retrained_head_starts_anew_and_a_scaled_one_from_the_trained(data: TrainingSet) -> None:
    backbone = finished(TINY, data).model.state_dict()
    anew = build_model(second_stage(), 3, 0, backbone).state_dict()
    scaled = build_model(second_stage(head="scaled"), 3, 0, backbone).state_dict()
    assert not torch.equal(anew["head.weight"], backbone["head.weight"])
    assert torch.equal(scaled["head.head.weight"], backbone["head.weight"])


def test_adjusting_afterwards_takes_the_log_prior_off_the_trained_logits(data: TrainingSet) -> None:
    trained = finished(TINY, data)
    adjusted = Training(
        second_stage(head="kept", iterations=0, adjusted=True), data, 0, backbone=trained.model.state_dict()
    )
    assert adjusted.done
    images = torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8)
    difference = trained.predict(images) - adjusted.predict(images)
    expected = data.prior.log() - np.log(1 / 3)
    torch.testing.assert_close(difference, expected.float().expand(5, 3), rtol=1e-4, atol=1e-4)


def test_heads_start_as_their_recipe_says() -> None:
    normalized = build_model(replace(TINY, head="normalized"), 100, 0)
    assert isinstance(normalized.head, NormalizedLinear)
    rare = build_model(replace(TINY, rare_bias=True), 100, 0).head.bias
    torch.testing.assert_close(rare, torch.full((100,), -float(np.log(99))))


def test_a_backbone_that_is_needed_must_be_given(data: TrainingSet) -> None:
    with pytest.raises(ValueError, match="keeps the backbone of 'softmax': pass its weights"):
        Training(second_stage(), data, 0)


# -------------------------------------------------------------------- the queue

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
        budget = options.pop("budget", float("inf"))
        write = options.pop("write", records.append)
        settings = Settings(CPU, say=said.append, checkpoints=tmp_path / "checkpoints", **options)  # type: ignore[arg-type]
        with pytest.warns(UserWarning, match="MD5"):
            done = run_cells(
                [Cell("cifar10-lt", 20, method, 0) for method in methods],
                lambda cell: RECIPES[cell.method],
                Store(tmp_path / "data", CPU),
                settings,
                table="table1",
                write=write,  # type: ignore[arg-type]
                budget=budget,  # type: ignore[arg-type]
                backbones={"softmax"},
            )
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


def test_a_run_that_runs_out_of_time_is_saved_and_taken_up(
    queue: Callable[..., tuple], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, (whole,), _ = queue("balanced_softmax")
    with monkeypatch.context() as context:
        context.setattr(Timing, "estimate", lambda *_: 0.0)
        _, nothing, said = queue("balanced_softmax", budget=1e-3)
    assert nothing == []
    assert any("saved, and taken up next time" in line for line in said)
    _, (resumed,), said = queue("balanced_softmax")
    assert any("taken up at iteration 20" in line for line in said)
    assert resumed.weights == whole.weights


def test_a_budget_that_is_too_small_starts_nothing() -> None:
    said: list[str] = []
    done = run_cells(
        [Cell("cifar10-lt", 20, "softmax", 0)],
        lambda cell: RECIPES[cell.method],
        Store(Path("nowhere"), CPU),  # would fail if it were read
        Settings(CPU, say=said.append),
        table="table1",
        write=lambda record: None,
        budget=1.0,
    )
    assert done == []
    assert "too few for cifar10-lt/20/softmax/0" in said[-1]


def test_a_run_that_diverges_leaves_no_record_and_does_not_stop_the_others(queue: Callable[..., tuple]) -> None:
    done, records, said = queue("diverges", "softmax", together=2)
    assert [record.method for record in records] == ["softmax"]
    assert [cell.method for cell in done] == ["softmax"]
    assert any("infinite or not a number" in line for line in said)


def test_what_needs_a_backbone_that_diverges_is_given_up(queue: Callable[..., tuple]) -> None:
    done, records, said = queue("second_of_diverges", "softmax")
    assert [record.method for record in records] == ["softmax"] == [cell.method for cell in done]
    assert sum("infinite or not a number" in line for line in said) == 1
    assert any("second_of_diverges/0: its backbone diverged" in line for line in said)


def test_smoke_tests_and_choices_say_what_they_are(queue: Callable[..., tuple]) -> None:
    _, (record,), _ = queue("softmax", iterations=2, validate=True)
    assert (record.complete, record.iterations, record.evaluated_on) == (False, 2, "held_out")
    assert sum(record.total) == sum(long_tailed_counts(20, 10, 10)) - sum(long_tailed_counts(20, 10, 20))


def test_smaller_groups_are_tried_when_a_whole_one_does_not_fit() -> None:
    timing = Timing("cuda", {False: (4, 0.016)}, setup=10.0)
    whole = timing.estimate(4, 13_000, False)
    assert whole == pytest.approx(10 + 13_000 * 0.016 * 1.05)
    assert timing.largest(4, 13_000, False, whole) == 4
    assert timing.largest(4, 13_000, False, whole - 1) == 3
    assert timing.largest(4, 13_000, False, 20) == 0
    assert Timing("cuda").largest(4, 13_000, False, 540) == 4


def test_before_long_runs_a_cpu_is_timed_and_the_time_said(
    queue: Callable[..., tuple], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, (plain,), said = queue("balanced_softmax")
    assert not any("On this CPU" in line for line in said)
    monkeypatch.setattr("equipoise.training.queue.LONG", TINY.iterations)
    _, (timed,), said = queue("balanced_softmax")
    assert timed.weights == plain.weights
    assert re.match(r"On this CPU an iteration takes \S+ s: .* for a run of 43, about .* for all", said[0])
    done, _, said = queue("balanced_softmax", budget=1.0)  # the setup alone is thought to take longer
    assert done == []
    assert "too few" in said[-1]


def test_a_group_reports_how_far_it_is_after_every_chunk(queue: Callable[..., tuple]) -> None:
    found: list[Status] = []
    queue("softmax", "balanced_softmax", together=2, report=found.append)
    assert [(status.done, status.iterations) for status in found] == [(20, 43), (40, 43), (43, 43)]
    assert found[-1].seconds_to_go == 0
    assert all(status.images_a_second > 0 for status in found)


def test_a_checkpoint_is_kept_until_the_record_is_written(
    queue: Callable[..., tuple], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as context:
        context.setattr(Timing, "estimate", lambda *_: 0.0)
        queue("softmax", budget=1e-3)
    saved = tmp_path / "checkpoints" / "cifar10-lt-20-softmax-0.checkpoint.pt"
    seen: list[bool] = []
    queue("softmax", write=lambda record: seen.append(saved.is_file()))
    assert seen == [True]
    assert not saved.exists()


def interrupted_queue(
    queue: Callable[..., tuple], *methods: str, monkeypatch: pytest.MonkeyPatch, **options: object
) -> list[str]:
    """Out of time after the first chunk: everything is saved."""
    with monkeypatch.context() as context:
        context.setattr(Timing, "estimate", lambda *_: 0.0)
        _, nothing, said = queue(*methods, budget=1e-3, **options)
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
    interrupted_queue(queue, "balanced_softmax", monkeypatch=monkeypatch)
    monkeypatch.setitem(RECIPES, "balanced_softmax", replace(RECIPES["balanced_softmax"], **change))
    _, (resumed,), said = queue("balanced_softmax")
    assert any(words in line and "starting from the beginning" in line for line in said)
    assert not any("taken up at" in line for line in said)
    _, (whole,), _ = queue("balanced_softmax")
    assert resumed.weights == whole.weights


def test_a_checkpoint_of_another_engine_or_of_old_is_not_taken_up(
    queue: Callable[..., tuple], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted_queue(queue, "balanced_softmax", monkeypatch=monkeypatch)
    _, _, said = queue("balanced_softmax", deterministic=False)
    assert any("deterministic True, now False" in line for line in said)
    torch.save({"iteration": 20}, tmp_path / "checkpoints" / "cifar10-lt-20-softmax-0.checkpoint.pt")
    _, (record,), said = queue("softmax")
    assert record.iterations == TINY.iterations
    assert any("starting from the beginning" in line for line in said)


@pytest.mark.parametrize("content", [b"", b"PK", b"no checkpoint"], ids=["empty", "cut", "text"])
def test_a_damaged_checkpoint_is_named_and_not_taken_up(
    content: bytes, queue: Callable[..., tuple], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, (whole,), _ = queue("softmax")
    interrupted_queue(queue, "softmax", monkeypatch=monkeypatch)
    (tmp_path / "checkpoints" / "cifar10-lt-20-softmax-0.checkpoint.pt").write_bytes(content)
    _, (record,), said = queue("softmax")
    assert any("softmax-0.checkpoint.pt cannot be read" in line and "from the beginning" in line for line in said)
    assert record.weights == whole.weights


def test_a_backbone_of_another_recipe_is_trained_again(
    queue: Callable[..., tuple], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, (first,), _ = queue("crt")
    monkeypatch.setitem(RECIPES, "softmax", replace(TINY, weight_decay=0.1))
    _, (second,), said = queue("crt")
    assert sum("starting from the beginning" in line for line in said) == 1
    assert any("softmax/0: top-1" in line for line in said)
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
    interrupted_queue(queue, "softmax", monkeypatch=monkeypatch)
    saved = tmp_path / "checkpoints" / "cifar10-lt-20-softmax-0.checkpoint.pt"
    content = torch.load(saved, weights_only=True)
    assert content["seconds"] > 0
    torch.save(content | {"seconds": 1000.0}, saved)
    interrupted_queue(queue, "softmax", monkeypatch=monkeypatch)
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


def test_ctrl_c_saves_what_was_trained(queue: Callable[..., tuple], tmp_path: Path) -> None:
    _, (whole,), _ = queue("balanced_softmax")
    before = signal.getsignal(signal.SIGINT)
    pressed: list[Status] = []

    def press(status: Status) -> None:
        if not pressed:
            pressed.append(status)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        queue("balanced_softmax", report=press)
    assert signal.getsignal(signal.SIGINT) is before
    assert (tmp_path / "checkpoints" / "cifar10-lt-20-balanced_softmax-0.checkpoint.pt").is_file()
    _, (resumed,), said = queue("balanced_softmax")
    assert any("taken up at iteration 20" in line for line in said)
    assert resumed.weights == whole.weights


def test_a_second_ctrl_c_stops_at_once(queue: Callable[..., tuple], tmp_path: Path) -> None:
    def press(status: Status) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        queue("balanced_softmax", report=press)
    assert not (tmp_path / "checkpoints").exists()


def test_a_second_stage_is_not_taken_up_on_another_backbone(
    queue: Callable[..., tuple], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RECIPES, "crt", replace(RECIPES["crt"], iterations=43))
    queue("softmax")
    interrupted_queue(queue, "crt", monkeypatch=monkeypatch)
    monkeypatch.setitem(RECIPES, "softmax", replace(TINY, weight_decay=0.1))
    _, (resumed,), said = queue("crt")
    assert any("backbone_weights" in line and "from the beginning" in line for line in said)
    _, (whole,), _ = queue("crt")
    assert (resumed.weights, resumed.backbone_weights) == (whole.weights, whole.backbone_weights)


def test_weights_of_another_seed_are_not_a_backbone(queue: Callable[..., tuple], tmp_path: Path) -> None:
    _, (first,), _ = queue("crt")
    path = tmp_path / "checkpoints" / "cifar10-lt-20-softmax-0.weights.pt"
    content = torch.load(path, weights_only=True)
    content["made_from"]["seed"] = 1
    content["weights"] = {name: value + 1 for name, value in content["weights"].items()}
    torch.save(content, path)
    _, (second,), said = queue("crt")
    assert any("seed 1, now 0" in line for line in said)
    assert second.backbone_weights == first.backbone_weights


def test_a_run_is_recorded_before_its_result_is_said(queue: Callable[..., tuple], tmp_path: Path) -> None:
    written: list[Record] = []
    store = Store(tmp_path / "data", CPU)

    def say(line: str) -> None:
        if "top-1" in line:
            raise BrokenPipeError

    with pytest.warns(UserWarning, match="MD5"), pytest.raises(BrokenPipeError):
        run_cells(
            [Cell("cifar10-lt", 20, "softmax", 0)],
            lambda cell: RECIPES[cell.method],
            store,
            Settings(CPU, say=say),
            table="table1",
            write=written.append,
        )
    assert [record.method for record in written] == ["softmax"]


def test_runs_that_cannot_be_recorded_are_saved(queue: Callable[..., tuple]) -> None:
    def full(record: Record) -> None:
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space left"):
        queue("softmax", "balanced_softmax", together=2, write=full)
    _, records, said = queue("softmax", "balanced_softmax", together=2)
    assert sum(f"taken up at iteration {TINY.iterations}" in line for line in said) == 2
    assert len(records) == 2


def test_ctrl_c_while_runs_are_judged_loses_none(queue: Callable[..., tuple], monkeypatch: pytest.MonkeyPatch) -> None:
    predict, pressed, written = Training.predict, [], []

    def judge(run: Training, images: torch.Tensor) -> torch.Tensor:
        if not pressed:
            pressed.append(run)
            signal.raise_signal(signal.SIGINT)
        return predict(run, images)

    monkeypatch.setattr(Training, "predict", judge)
    with pytest.raises(KeyboardInterrupt):
        queue("softmax", "balanced_softmax", together=2, write=lambda record: written.append(record.method))
    assert written == ["softmax", "balanced_softmax"]


def test_a_checkpoint_that_cannot_be_written_is_said_and_the_others_are_tried(
    queue: Callable[..., tuple], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = torch.save

    def full(content: object, path: Path) -> None:
        save(content, path)
        if "balanced" in path.name:
            raise RuntimeError("no space left on device")

    monkeypatch.setattr(torch, "save", full)
    said = interrupted_queue(queue, "balanced_softmax", "softmax", together=2, monkeypatch=monkeypatch)
    assert any("could not be written (no space left on device)" in line for line in said)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["cifar10-lt-20-softmax-0.checkpoint.pt"]


def test_an_ignored_ctrl_c_stays_ignored(queue: Callable[..., tuple]) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        _, records, _ = queue("softmax", report=lambda status: signal.raise_signal(signal.SIGINT))
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(records) == 1
