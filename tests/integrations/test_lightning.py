"""One callback: the balanced loss in place of the plain one, the tail in the logs, a report, checkpoints as before."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.processes import in_two_processes
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, TensorDataset

import equipoise as eq

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    lightning = pytest.importorskip("lightning.pytorch")
from equipoise.integrations.lightning import LongTail
from equipoise.integrations.torchmetrics import LongTailMetrics

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")

LABELS = torch.tensor([0] * 120 + [1] * 30 + [2] * 6)
PRIOR = eq.Prior.from_labels(LABELS)


def data(multilabel: bool = False) -> TensorDataset:
    x = torch.randn(len(LABELS), 4, generator=torch.Generator().manual_seed(0)) + LABELS[:, None]
    return TensorDataset(x, torch.eye(3)[LABELS] if multilabel else LABELS)


class Classifier(lightning.LightningModule):  # type: ignore[misc,name-defined]
    def __init__(self, criterion: nn.Module | None = None) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.criterion = nn.CrossEntropyLoss() if criterion is None else criterion

    def training_step(self, batch: Any, index: int) -> Tensor:
        return self.criterion(self.head(batch[0]), batch[1])  # type: ignore[no-any-return]

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val_loss", self.criterion(self.head(batch[0]), batch[1]))

    test_step = validation_step

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5)


class Undeclared(Classifier):
    """Calls the function, declares no loss, and returns what it predicted."""

    def __init__(self) -> None:
        super().__init__(nn.Identity())

    def training_step(self, batch: Any, index: int) -> Tensor:
        return nn.functional.cross_entropy(self.head(batch[0]), batch[1])

    def validation_step(self, batch: Any, index: int) -> Any:  # type: ignore[override]
        return {"logits": self.head(batch[0]), "target": batch[1]}


def fit(module: Any, callback: Any, folder: Path, dataset: TensorDataset | None = None, **options: Any) -> Any:
    torch.manual_seed(0)
    given = {"max_epochs": 2, "accelerator": "cpu", "devices": 1, "enable_progress_bar": False}
    given |= {"enable_model_summary": False, "default_root_dir": folder, "callbacks": [callback], "logger": False}
    resumed = options.pop("ckpt_path", None)
    trainer = lightning.Trainer(**(given | options))
    dataset = data() if dataset is None else dataset
    trainer.fit(module, DataLoader(dataset, 32, shuffle=True), DataLoader(dataset, 50), ckpt_path=resumed)
    return trainer


def weights(criterion: nn.Module, dataset: TensorDataset, folder: Path) -> Tensor:
    """Trained without the callback."""
    torch.manual_seed(1)
    module = Classifier(criterion)
    fit(module, lightning.Callback(), folder, dataset, enable_checkpointing=False)
    return module.head.weight.detach()


@pytest.mark.parametrize("multilabel", [False, True])
def test_the_module_is_trained_with_the_balanced_loss_and_gets_its_own_back(tmp_path: Path, multilabel: bool) -> None:
    dataset = data(multilabel)
    plain = nn.BCEWithLogitsLoss() if multilabel else nn.CrossEntropyLoss(label_smoothing=0.1)
    prior = eq.Prior.from_multilabel(torch.eye(3)[LABELS]) if multilabel else PRIOR
    balanced = eq.BalancedSigmoidLoss(prior) if multilabel else eq.BalancedSoftmaxLoss(prior, label_smoothing=0.1)
    torch.manual_seed(1)
    module, callback = Classifier(plain), LongTail()
    fit(module, callback, tmp_path, dataset, enable_checkpointing=False)
    assert callback.prior == prior
    assert module.criterion is plain
    torch.testing.assert_close(module.head.weight.detach(), weights(balanced, dataset, tmp_path))
    assert not torch.allclose(module.head.weight, weights(plain, dataset, tmp_path))


def test_the_scores_of_the_validation_set_are_logged_and_reported(tmp_path: Path) -> None:
    module, callback = Classifier(), LongTail(PRIOR)
    loggers = [lightning.loggers.CSVLogger(tmp_path, name, "0") for name in ("one", "two")]
    trainer = fit(module, callback, tmp_path, enable_checkpointing=False, logger=loggers)
    expected = eq.evaluate(module.head(data().tensors[0]), LABELS, PRIOR)
    logged = {name: value.item() for name, value in trainer.callback_metrics.items()}
    scores = {f"val_{name}": value for name, value in expected.scores().items()}
    assert {name: logged[name] for name in scores} == pytest.approx(scores, nan_ok=True, rel=1e-5)
    assert callback.evaluation.items.tolist() == [120, 30, 6]
    assert "Classifier" in (tmp_path / "one" / "0" / "long-tail.html").read_text()
    for logger in loggers:
        assert "val_few" in (Path(logger.log_dir) / "metrics.csv").read_text()
    tested = trainer.test(module, DataLoader(data(), 50), verbose=False)[0]
    assert tested["test_few"] == pytest.approx(scores["val_few"])


class Measured(Classifier):
    """Logs LongTailMetrics, beside what the callback logs."""

    def __init__(self) -> None:
        super().__init__()
        self.metric = LongTailMetrics(PRIOR)

    def validation_step(self, batch: Any, index: int) -> None:
        self.metric.update(self.head(batch[0]), batch[1])
        super().validation_step(batch, index)

    def on_validation_epoch_end(self) -> None:
        self.log_dict({f"metric_{name}": value for name, value in self.metric.compute().items()})
        self.metric.reset()


def test_it_says_which_loss_it_replaced_and_where_the_report_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr("equipoise.integrations.lightning.rank_zero_info", said.append)
    fit(Classifier(), LongTail(), tmp_path, enable_checkpointing=False)
    swapped, written = said
    assert swapped == f"LongTail trains with BalancedSoftmaxLoss in the place of `criterion`, for {PRIOR}"
    assert written == f"LongTail wrote {tmp_path / 'long-tail.html'}"


def one_of_two(rank: int, folder: str) -> None:
    module = Measured()
    options = {"enable_checkpointing": False, "devices": 2, "strategy": "ddp", "num_sanity_val_steps": 0}
    with warnings.catch_warnings(action="ignore"):
        trainer = fit(module, LongTail(), Path(folder), **options)
    torch.save((module.head.state_dict(), dict(trainer.callback_metrics)), f"{folder}/{rank}.pt")


def test_two_processes_log_the_scores_of_all_items(tmp_path: Path) -> None:
    in_two_processes(one_of_two, str(tmp_path))
    head = nn.Linear(4, 3)
    for rank in range(2):
        weights, found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        head.load_state_dict(weights)
        expected = eq.evaluate(head(data().tensors[0]), LABELS, PRIOR).scores()
        for prefix in ("val", "metric"):
            logged = {name: found[f"{prefix}_{name}"].item() for name in expected}
            assert logged == pytest.approx(expected, nan_ok=True, rel=1e-5)
    assert (tmp_path / "long-tail.html").exists()


def test_mixed_targets_are_judged_by_their_main_class(tmp_path: Path) -> None:
    callback, x = LongTail(PRIOR, loss=None), data().tensors[0]
    soft = TensorDataset(x, 0.8 * torch.eye(3)[LABELS] + 0.1 * torch.eye(3)[(LABELS + 1) % 3] + 1 / 30)
    module = Classifier()
    fit(module, callback, tmp_path, soft, enable_checkpointing=False)
    expected = eq.evaluate(module.head(x), LABELS, PRIOR)
    assert callback.evaluation.correct.tolist() == expected.correct.tolist()


def test_a_checkpoint_is_that_of_the_plain_module_and_resumes(tmp_path: Path) -> None:
    module = Classifier()
    trainer = fit(module, LongTail(), tmp_path, max_epochs=1)
    path = trainer.checkpoint_callback.best_model_path
    assert sorted(torch.load(path, weights_only=False)["state_dict"]) == ["head.bias", "head.weight"]
    assert isinstance(Classifier.load_from_checkpoint(path).criterion, nn.CrossEntropyLoss)
    assert fit(Classifier(), LongTail(), tmp_path, ckpt_path=path).current_epoch == 2


def test_without_a_declared_loss_it_judges_what_the_step_returns(tmp_path: Path) -> None:
    callback = LongTail()
    with pytest.warns(UserWarning, match="Undeclared declares no nn.CrossEntropyLoss"):
        trainer = fit(Undeclared(), callback, tmp_path, enable_checkpointing=False)
    assert callback.evaluation.num_items == 156
    assert not math.isnan(trainer.callback_metrics["val_many"])


class Named(Classifier):
    """Calls its loss with the names of torch's arguments."""

    def training_step(self, batch: Any, index: int) -> Tensor:
        return self.criterion(input=self.head(batch[0]), target=batch[1])  # type: ignore[no-any-return]

    def validation_step(self, batch: Any, index: int) -> None:
        self.criterion(self.head(batch[0]), target=batch[1])


def test_a_compiled_loss_is_replaced_and_comes_back(tmp_path: Path) -> None:
    compiled = torch.compile(nn.CrossEntropyLoss(), backend="eager")
    torch.manual_seed(1)
    module, callback = Classifier(compiled), LongTail(report=None)
    fit(module, callback, tmp_path, enable_checkpointing=False)
    assert callback.evaluation.num_items == 156
    assert module.criterion is compiled
    torch.testing.assert_close(module.head.weight.detach(), weights(eq.BalancedSoftmaxLoss(PRIOR), data(), tmp_path))


def test_arguments_by_name_are_those_of_the_plain_loss(tmp_path: Path) -> None:
    module, callback = Named(), LongTail(report=None)
    fit(module, callback, tmp_path, enable_checkpointing=False)
    expected = eq.evaluate(module.head(data().tensors[0]), LABELS, PRIOR)
    assert callback.evaluation.correct.tolist() == expected.correct.tolist()


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_module_gets_its_loss_back_when_training_is_cut_short(tmp_path: Path, error: type[BaseException]) -> None:
    class Stop(lightning.Callback):  # type: ignore[misc,name-defined]
        def on_train_batch_end(self, *given: Any) -> None:
            raise error

    module = Classifier()
    plain, begun = module.criterion, LongTail()
    with pytest.raises((RuntimeError, SystemExit)):
        fit(module, begun, tmp_path, callbacks=[begun, Stop()], enable_checkpointing=False)
    assert module.criterion is plain
    assert not plain._forward_hooks


def test_a_loss_of_ones_own_is_kept_and_watched(tmp_path: Path) -> None:
    mine = eq.FocalLoss(gamma=2.0)
    module, callback = Classifier(mine), LongTail(report=None)
    fit(module, callback, tmp_path, enable_checkpointing=False)
    assert module.criterion is mine
    assert callback.evaluation.num_items == 156
    assert not list(tmp_path.glob("*.html"))


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    weighted = Classifier(nn.CrossEntropyLoss(weight=torch.ones(3)))
    with pytest.raises(ValueError, match="has a weight; with the prior, classes would be balanced twice"):
        fit(weighted, LongTail(), tmp_path)
    several = Classifier()
    several.auxiliary = nn.CrossEntropyLoss()
    with pytest.raises(ValueError, match="name one of criterion, auxiliary"):
        fit(several, LongTail(), tmp_path)
    fit(several, LongTail(loss="criterion"), tmp_path, enable_checkpointing=False)
    with pytest.raises(ValueError, match="no loss 'loss'"):
        fit(several, LongTail(loss="loss"), tmp_path)
    with pytest.raises(TypeError, match="prior is None"):
        LongTail(None)  # type: ignore[arg-type]


def start(sampler: Any, processes: int = 1) -> Any:
    """What the callback puts in place of the loss under this sampler."""
    module, loader = Classifier(), SimpleNamespace(sampler=sampler, dataset=data())
    stage = {"validating": False, "testing": False, "world_size": processes}
    LongTail().on_train_start(SimpleNamespace(train_dataloader=loader, **stage), module)
    return module.criterion


def test_under_a_sampler_the_loss_has_the_prior_of_what_is_drawn() -> None:
    sampler = eq.ClassBalancedSampler(LABELS, strength=0.5, num_replicas=1, rank=0)
    logits, target = torch.randn(5, 3), torch.tensor([0, 1, 2, 0, 1])
    found = start(sampler)(logits, target)
    torch.testing.assert_close(found, eq.BalancedSoftmaxLoss(sampler.prior)(logits, target))


def watch_prior(seen: list[Tensor]) -> Any:
    """A callback that sees the prior of the loss in every epoch."""

    class Watch(lightning.Callback):  # type: ignore[misc,name-defined]
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
            if index == 0:
                seen.append(module.criterion._held[0].log_prior)

    return Watch()


@pytest.mark.parametrize("batched", [False, True])
def test_the_loss_follows_a_sampler_whose_strength_changes(tmp_path: Path, batched: bool) -> None:
    sampler, seen = eq.ClassBalancedSampler(LABELS, strength=eq.progressive(3)), []
    options: dict[str, Any] = {"batch_size": 32, "sampler": sampler}
    if batched:
        options = {"batch_sampler": BatchSampler(sampler, 32, drop_last=False)}
    given = {"max_epochs": 3, "accelerator": "cpu", "devices": 1, "logger": False, "enable_checkpointing": False}
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "default_root_dir": tmp_path}
    trainer = lightning.Trainer(**given, **quiet, callbacks=[LongTail(report=None), watch_prior(seen)])
    trainer.fit(Classifier(), DataLoader(data(), **options))
    assert len(seen) == 3
    for epoch, found in enumerate(seen):
        sampler.set_epoch(epoch)
        assert torch.equal(found, eq.BalancedSoftmaxLoss(sampler.prior).log_prior)
    assert not seen[2].any()  # drawn equally often: nothing is left to shift


def test_a_sampler_that_is_not_sharded_exactly_once_is_refused() -> None:
    from lightning.fabric.utilities.distributed import DistributedSamplerWrapper

    once = eq.ClassBalancedSampler(LABELS, num_replicas=1, rank=0)
    start(DistributedSamplerWrapper(once, num_replicas=2, rank=0), 2)
    start(eq.ClassBalancedSampler(LABELS, num_replicas=2, rank=1), 2)
    with pytest.raises(ValueError, match="is shared by 1, but there are 2 processes"):
        start(once, 2)
    twice = eq.ClassBalancedSampler(LABELS, num_replicas=2, rank=0)
    with pytest.raises(ValueError, match="build it with num_replicas=1"):
        start(DistributedSamplerWrapper(twice, num_replicas=2, rank=0), 2)
