"""The Trainer with a balanced loss, the long-tail scores and a balanced sampler, on models made in place."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.processes import in_two_processes
from torch import Tensor

import equipoise as eq

transformers = pytest.importorskip("transformers")
datasets = pytest.importorskip("datasets")
pytest.importorskip("accelerate")
from equipoise.integrations import huggingface  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

PRIOR = eq.Prior.from_counts([300, 60, 6])


class Tagger(torch.nn.Module):
    """Token or sequence classifier: an embedding and a linear layer, with the outputs of a Hugging Face model."""

    def __init__(self, pooled: bool = False) -> None:
        super().__init__()
        self.embed, self.head, self.pooled = torch.nn.Embedding(20, 8), torch.nn.Linear(8, 3), pooled

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Any:
        hidden = self.embed(input_ids)
        return transformers.modeling_outputs.TokenClassifierOutput(
            logits=self.head(hidden.mean(1) if self.pooled else hidden)
        )


def tokens(items: int = 16) -> Any:
    """Sentences of 6 tokens with unequal numbers of labels: the others are padding."""
    random = np.random.default_rng(0)
    labels = random.choice(3, (items, 6), p=PRIOR.probabilities)
    labels[np.arange(6)[None] >= random.integers(1, 7, (items, 1))] = -100
    return datasets.Dataset.from_dict({"input_ids": random.integers(0, 20, (items, 6)), "labels": labels})


def arguments(folder: Path | str, **options: Any) -> Any:
    given = {"max_steps": 2, "learning_rate": 0.5, "optim": "sgd", "lr_scheduler_type": "constant", "max_grad_norm": 0}
    given |= {"logging_steps": 1, "report_to": "none", "use_cpu": True, "disable_tqdm": True, "save_strategy": "no"}
    given |= {"per_device_train_batch_size": 8, "train_sampling_strategy": "sequential"}
    return transformers.TrainingArguments(str(folder), **(given | options))


def train(folder: Path | str, loss: Any, **options: Any) -> tuple[Any, list[float]]:
    torch.manual_seed(0)
    model = Tagger()
    trainer = transformers.Trainer(model, arguments(folder, **options), train_dataset=tokens(), compute_loss_func=loss)
    trainer.train()
    return model, [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_accumulated_batches_give_the_loss_and_the_weights_of_one_batch(tmp_path: Path) -> None:
    whole, logged = train(tmp_path, huggingface.loss(PRIOR))
    parts, logged_in_parts = train(
        tmp_path, huggingface.loss(PRIOR), per_device_train_batch_size=2, gradient_accumulation_steps=4
    )
    assert logged_in_parts == pytest.approx(logged, abs=2e-4)  # logs are rounded to 4 digits
    for one, other in zip(whole.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    torch.manual_seed(0)
    start, first = Tagger(), tokens().with_format("torch")[:8]
    mean = eq.BalancedSoftmaxLoss(PRIOR)(start(first["input_ids"]).logits.flatten(0, 1), first["labels"].flatten())
    assert logged[0] == pytest.approx(mean.item(), abs=1e-4)


class BalancedTrainer(huggingface.BalancedSampling, transformers.Trainer):  # type: ignore[misc]
    pass


def balanced_trainer(folder: Path | str) -> Any:
    columns = {"input_ids": [[i % 20] for i in range(32)], "labels": [0] * 24 + [1] * 6 + [2] * 2}
    data = datasets.Dataset.from_dict(columns)
    return BalancedTrainer(Tagger(True), arguments(folder, per_device_train_batch_size=4), train_dataset=data)


def drawn(loader: Any) -> list[int]:
    return [item for batch in loader for item in batch["labels"].tolist()]


def _process(rank: int, folder: str) -> None:
    model, logged = train(folder, huggingface.loss(PRIOR), per_device_train_batch_size=2, gradient_accumulation_steps=2)
    mine = drawn(balanced_trainer(folder).get_train_dataloader())
    torch.save((model.state_dict(), logged, mine), f"{folder}/{rank}.pt")


def test_two_processes_give_the_weights_of_one(tmp_path: Path) -> None:
    in_two_processes(_process, str(tmp_path))
    state, logged, first = torch.load(tmp_path / "0.pt", weights_only=True)
    second = torch.load(tmp_path / "1.pt", weights_only=True)[2]
    whole, expected = train(tmp_path, huggingface.loss(PRIOR))
    torch.testing.assert_close(state, dict(whole.state_dict()))
    assert logged == pytest.approx(expected, abs=2e-4)
    together = drawn(balanced_trainer(tmp_path).get_train_dataloader())
    assert sorted(first + second) == sorted(together)
    assert len(first) == len(second) == 16


def test_the_number_of_items_is_that_of_rows_or_of_elements() -> None:
    random = torch.Generator().manual_seed(0)
    logits, soft = torch.randn(4, 3, generator=random), torch.rand(4, 3, generator=random)
    hard, output = torch.tensor([0, 1, -100, 2]), SimpleNamespace(logits=logits)
    softmax, sigmoid = eq.BalancedSoftmaxLoss(PRIOR), eq.BalancedSigmoidLoss(PRIOR)
    rows = eq.BalancedSigmoidLoss(PRIOR, reduction="batchmean")
    for criterion, target, items in [(softmax, hard, 3), (softmax, soft, 12), (sigmoid, soft, 12), (rows, soft, 12)]:
        for number in (items, torch.tensor(items), None):  # None: a model that is asked outside of a step
            found = huggingface.loss(criterion)(output, target, num_items_in_batch=number)
            torch.testing.assert_close(found, criterion(logits, target))


@pytest.mark.parametrize("missing", [-100.0, -1.0, float("nan")])
def test_missing_labels_do_not_count_though_the_trainer_counts_them(missing: float) -> None:
    logits, soft = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), torch.eye(3)[[0, 1, 2, 0]]
    soft[0, 1] = soft[2] = missing
    items = int((soft != -100).sum())
    for reduction in ("mean", "batchmean"):
        criterion = eq.BalancedSigmoidLoss(PRIOR, ignore_index=-1 if missing == -1 else -100, reduction=reduction)
        expected, adapted = criterion(logits, soft), huggingface.loss(criterion)
        torch.testing.assert_close(adapted(logits, soft, num_items_in_batch=items), expected)
    half = adapted(logits, soft, num_items_in_batch=2 * items)  # one of two batches that are alike
    torch.testing.assert_close(half + half, expected)


def test_ignored_pixels_and_class_weights_leave_the_mean_of_the_criterion() -> None:
    logits, maps = (
        torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0)),
        torch.arange(32).view(2, 4, 4) % 3,
    )
    maps[0, :3] = 255
    expected = eq.BalancedSoftmaxLoss(PRIOR, ignore_index=255)(logits, maps)
    found = huggingface.loss(PRIOR, ignore_index=255)({"logits": logits}, maps, num_items_in_batch=32)
    torch.testing.assert_close(found, expected)
    weighted = torch.nn.CrossEntropyLoss(torch.tensor([0.1, 1.0, 10.0]), ignore_index=255)
    adapted = huggingface.loss(weighted)
    torch.testing.assert_close(adapted(logits, maps, num_items_in_batch=32), weighted(logits, maps))


def test_a_batch_of_padding_alone_adds_nothing() -> None:
    logits = torch.zeros(2, 3, requires_grad=True)
    for criterion in (eq.BalancedSoftmaxLoss(PRIOR), torch.nn.CrossEntropyLoss()):  # torch's gives NaN
        value = huggingface.loss(criterion)(logits, torch.tensor([-100, -100]), num_items_in_batch=torch.tensor(5))
        value.backward()
        assert value == 0
        assert logits.grad is not None
        assert not logits.grad.any()


def test_a_prior_of_several_labels_per_item_wants_a_sigmoid() -> None:
    prior = eq.Prior.from_multilabel([[1, 1, 0], [1, 0, 0], [0, 0, 1]])
    with pytest.raises(
        ValueError, match=r"counts 4 labels in 3 items.*huggingface.loss\(eq.BalancedSigmoidLoss\(prior"
    ):
        huggingface.loss(prior)


def test_outputs_of_every_form_are_read() -> None:
    logits, labels = torch.randn(2, 3), torch.tensor([0, 2])
    expected = eq.BalancedSoftmaxLoss(PRIOR)(logits, labels)
    forms = [logits, {"logits": logits}, SimpleNamespace(logits=logits), (logits, torch.zeros(2))]
    assert all(torch.equal(huggingface.loss(PRIOR)(form, labels), expected) for form in forms)
    with pytest.raises(TypeError, match="SimpleNamespace without logits"):
        huggingface.loss(PRIOR)(SimpleNamespace(loss=1), labels)
    with pytest.raises(ValueError, match="no 'labels'"):
        huggingface.loss(PRIOR)(logits, None)
    with pytest.raises(TypeError, match="reduction='mean'"):
        huggingface.loss(eq.BalancedSoftmaxLoss(PRIOR, reduction="none"))


def test_segmentation_logits_are_scaled_up_to_their_label_maps() -> None:
    logits, maps = torch.randn(2, 3, 4, 4), torch.randint(3, (2, 8, 8))
    up = torch.nn.functional.interpolate(logits, size=(8, 8), mode="bilinear", align_corners=False)
    found = huggingface.loss(PRIOR)({"logits": logits}, maps, num_items_in_batch=128)
    torch.testing.assert_close(found, eq.BalancedSoftmaxLoss(PRIOR)(up, maps))


@pytest.mark.parametrize("ignore_index", [-100, 255])
def test_label_maps_are_judged_at_their_resolution(ignore_index: int) -> None:
    logits, maps = torch.randn(3, 3, 4, 4), torch.randint(3, (3, 8, 8))
    maps[0, :5] = ignore_index
    up = torch.nn.functional.interpolate(logits, size=(8, 8), mode="bilinear", align_corners=False)
    metrics = huggingface.metrics(PRIOR, ignore_index=ignore_index)
    found = metrics(SimpleNamespace(predictions=logits.numpy(), label_ids=maps.numpy()))
    expected = eq.evaluate_dense(up, maps, PRIOR, ignore_index=ignore_index)
    assert found == pytest.approx(expected.scores(), nan_ok=True)
    assert isinstance(metrics.evaluation, eq.DenseEvaluation)
    assert metrics.evaluation.labelled.sum() == 3 * 64 - 40


@pytest.mark.parametrize("streamed", [False, True])
def test_the_trainer_logs_the_scores_of_labels_that_count(tmp_path: Path, streamed: bool) -> None:
    torch.manual_seed(0)
    model, data, metrics = Tagger(), tokens(11), huggingface.metrics(PRIOR)
    options = arguments(tmp_path, per_device_eval_batch_size=4, batch_eval_metrics=streamed)
    adapters = {"compute_loss_func": huggingface.loss(PRIOR), "compute_metrics": metrics}
    trainer = transformers.Trainer(model, options, eval_dataset=data, **adapters)
    found = [trainer.evaluate() for _ in range(2)][1]  # the second is not added to the first
    every = data.with_format("torch")[:]
    with torch.no_grad():
        logits = model(every["input_ids"]).logits.flatten(0, 1)
    expected = eq.evaluate(logits, every["labels"].flatten(), PRIOR, ignore_index=-100)
    scores = {f"eval_{name}": value for name, value in expected.scores().items()}
    assert {name: found[name] for name in scores} == pytest.approx(scores, nan_ok=True)
    assert metrics.evaluation is not None
    assert metrics.evaluation.num_items == int((every["labels"] != -100).sum())


def test_several_labels_per_item_are_judged_as_such() -> None:
    logits, labels = np.random.default_rng(0).normal(size=(9, 3)), np.eye(3)[np.arange(9) % 3]
    prior = eq.Prior.from_counts([300, 60, 6], total=400)
    found = huggingface.metrics(prior)(SimpleNamespace(predictions=(logits, 0), label_ids=labels))
    assert found == pytest.approx(eq.evaluate_multilabel(logits, labels, prior).scores(), nan_ok=True)
    found = huggingface.metrics(prior, many=50, few=10)(SimpleNamespace(predictions=logits, label_ids=labels))
    assert found == pytest.approx(eq.evaluate_multilabel(logits, labels, prior).scores(many=50, few=10), nan_ok=True)
    labels[2, 1] = -100  # as a collator pads, and as the loss ignores
    found = huggingface.metrics(prior)(SimpleNamespace(predictions=logits, label_ids=labels))
    labels[2, 1] = np.nan
    assert found == pytest.approx(eq.evaluate_multilabel(logits, labels, prior).scores(), nan_ok=True)


def test_the_mixin_draws_classes_equally_often_and_anew_each_epoch(tmp_path: Path) -> None:
    trainer = balanced_trainer(tmp_path)
    assert sorted(np.bincount(drawn(trainer.get_train_dataloader()))) == [10, 11, 11]
    sampler = trainer._get_train_sampler()
    first = list(sampler)
    sampler.set_epoch(1)
    assert list(sampler) != first
    trainer.sampler_strength = 0.0
    assert sorted(trainer._get_train_sampler()) == list(range(32))


def test_the_mixin_reads_the_labels_of_torch_data_sets_and_refuses_streams(tmp_path: Path) -> None:
    items = [{"input_ids": [i % 20], "labels": label} for i, label in enumerate([0] * 24 + [1] * 6 + [2] * 2)]
    trainer = BalancedTrainer(Tagger(True), arguments(tmp_path), train_dataset=items)
    assert sorted(np.bincount(drawn(trainer.get_train_dataloader()))) == [10, 11, 11]
    stream = datasets.Dataset.from_list(items).to_iterable_dataset()
    trainer = BalancedTrainer(Tagger(True), arguments(tmp_path), train_dataset=stream)
    with pytest.raises(TypeError, match="read in its own order, so no class can be drawn more often"):
        trainer.train()


def test_balancing_twice_is_noticed(tmp_path: Path) -> None:
    trainer = balanced_trainer(tmp_path)
    trainer.compute_loss_func = huggingface.loss(eq.Prior.from_counts([24, 6, 2]))
    with pytest.warns(UserWarning, match="balances them again"):
        trainer._get_train_sampler()
    trainer.compute_loss_func = huggingface.loss(trainer._get_train_sampler().prior)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer._get_train_sampler()


def test_the_loss_can_be_copied_and_leaves_its_module_alone() -> None:
    criterion = eq.BalancedSoftmaxLoss(PRIOR)
    made, logits, labels = copy.deepcopy(huggingface.loss(criterion)), torch.randn(2, 3), torch.tensor([0, 2])
    assert made.criterion is not criterion
    torch.testing.assert_close(made(logits, labels, num_items_in_batch=4), criterion(logits, labels) / 2)
    assert criterion.reduction == "mean"


def pretrained(prior: eq.Prior, **options: Any) -> Any:
    """A model of transformers that holds its loss."""

    class Pretrained(transformers.PreTrainedModel):  # type: ignore[misc,name-defined]
        config_class, base_model_prefix = transformers.PretrainedConfig, "body"

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.body = torch.nn.Linear(2, 3)
            self.loss = eq.BalancedSoftmaxLoss(prior, **options)
            self.post_init()

    return Pretrained


def test_a_loss_inside_a_pretrained_model_keeps_its_prior(tmp_path: Path) -> None:
    saved = pretrained(PRIOR)(transformers.PretrainedConfig())
    saved.save_pretrained(tmp_path / "all")
    body = {name: value for name, value in saved.state_dict().items() if "loss" not in name}
    saved.save_pretrained(tmp_path / "body", state_dict=body)
    for folder in ("all", "body"):  # "body": a checkpoint without the loss, as of a published model
        for dtype in (torch.float32, torch.bfloat16):
            with warnings.catch_warnings():
                warnings.simplefilter("error", UserWarning)
                loaded = pretrained(PRIOR).from_pretrained(tmp_path / folder, dtype=dtype)
            assert torch.equal(loaded.body.weight, saved.body.weight.to(dtype))
            assert torch.equal(loaded.loss.log_prior, saved.loss.log_prior)
    other = eq.Prior.from_counts([6, 60, 300])
    with pytest.warns(
        UserWarning, match="replaces log_prior of this BalancedSoftmaxLoss, which was built from another"
    ):
        older = pretrained(other).from_pretrained(tmp_path / "all")
    assert torch.equal(older.loss.log_prior, saved.loss.log_prior)


def test_what_a_pretrained_model_loses_of_a_loss_is_refused(tmp_path: Path) -> None:
    pretrained(PRIOR)(transformers.PretrainedConfig()).save_pretrained(tmp_path)

    class Weighted(pretrained(PRIOR)):  # type: ignore[misc]
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.loss = eq.BalancedSoftmaxLoss(PRIOR, weight=torch.ones(3))  # made on the meta device by transformers

    loaded = Weighted.from_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match="weight of this BalancedSoftmaxLoss came from the meta device"):
        loaded.loss(torch.zeros(1, 3), torch.tensor([0]))
