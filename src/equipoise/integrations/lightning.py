"""A Lightning callback: count the training set, train with the balanced loss, log the tail, write the report.

    Trainer(callbacks=[LongTail()])

A module that declares `self.criterion = nn.CrossEntropyLoss()` (or `nn.BCEWithLogitsLoss()`) and calls it in its steps
needs no other change: the callback replaces it by the balanced loss during training, and reads logits and targets where
the loss is called. Checkpoints have the same content as those of the plain module.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any, Literal

import torch.distributed as dist
from torch import Tensor, nn

from equipoise.arrays import outside
from equipoise.losses.balanced_sigmoid import BalancedSigmoidLoss
from equipoise.losses.balanced_softmax import BalancedSoftmaxLoss
from equipoise.losses.shared import SigmoidLoss, SoftmaxLoss
from equipoise.metrics.evaluation import Evaluation, evaluate
from equipoise.metrics.multilabel import MultilabelEvaluation, evaluate_multilabel
from equipoise.prior import Prior
from equipoise.samplers.resumable import ResumableSampler

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.utilities import rank_zero_info
except ImportError as error:
    raise ImportError(
        f"equipoise.integrations.lightning needs Lightning: pip install 'equipoise[lightning]' ({error})"
    ) from error

__all__ = ["LongTail"]

PLAIN = (nn.CrossEntropyLoss, nn.BCEWithLogitsLoss)


class LongTail(Callback):
    """Trains with the balanced loss, logs `val_many`, `val_medium`, `val_few`, ... and writes the report page.

    `prior` is that of the training set; "auto" counts the data set of the training loader once, at the start. If the
    loader uses a sampler of Equipoise, the loss is built from the prior of what is drawn.

    `loss` names the attribute of the module that holds the plain loss, e.g. "criterion"; "auto" finds it, None keeps it
    as it is. If the module has no such attribute, its validation_step may return {"logits": ..., "target": ...}.
    `report` is the name of the page, in the logger's folder; None writes no page. `evaluation` is the last evaluation.
    """

    def __init__(
        self,
        prior: Prior | Literal["auto"] = "auto",
        *,
        loss: str | None = "auto",
        label: str = "label",
        report: str | os.PathLike[str] | None = "long-tail.html",
    ) -> None:
        if not isinstance(prior, Prior) and prior != "auto":
            raise TypeError(f"prior is {prior!r}: expected a Prior of the training set, or 'auto'")
        self.prior: Prior | None = prior if isinstance(prior, Prior) else None
        self.evaluation: Evaluation | MultilabelEvaluation | None = None
        self.loss, self.label, self.report = loss, label, report
        self._parts: list[Any] = []
        self._undo: list[Any] = []
        self._follow: Any = None

    # ---------------------------------------------------------------- training

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._let_go()
        found = _find_loss(pl_module, self.loss)
        sampler = _sampler(trainer)
        if self.prior is None:
            self.prior = self._count(trainer, isinstance(found[1] if found else None, nn.BCEWithLogitsLoss))
        if found is None:
            if self.loss is not None:
                warnings.warn(
                    f"{type(pl_module).__name__} declares no nn.CrossEntropyLoss or nn.BCEWithLogitsLoss: its loss "
                    "stays as it is; declare one, or train with eq.BalancedSoftmaxLoss",
                    stacklevel=outside(),
                )
            return
        name, criterion = found
        declared = pl_module.get_submodule(name)  # the loss, or what torch.compile put around it
        if isinstance(criterion, PLAIN) and self.loss is not None:
            drawn = self.prior if sampler is None else sampler.prior
            balanced = _Swapped(_balanced(criterion, drawn))
            _set(pl_module, name, balanced)
            self._undo.append(lambda: _set(pl_module, name, declared))
            rank_zero_info(f"LongTail trains with {balanced.name} in the place of `{name}`, for {drawn}")
            self._watch(trainer, balanced, criterion)
            if sampler is not None:
                self._follow = lambda: balanced.hold(_balanced(criterion, sampler.prior))
        else:
            self._watch(trainer, declared, criterion)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._follow is not None:  # if the strength changes with the epoch, so does what is drawn
            self._follow()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        folder = trainer.log_dir or trainer.default_root_dir  # read on every rank: Lightning broadcasts it
        if self.report is None or not trainer.is_global_zero or not isinstance(self.evaluation, Evaluation):
            return
        from equipoise.report.page import Report

        page = Path(folder) / self.report
        Report({type(pl_module).__name__: self.evaluation}).save(page)
        rank_zero_info(f"LongTail wrote {page}")

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._let_go()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._let_go()

    # ---------------------------------------------------------------- judging

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin(trainer, pl_module)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin(trainer, pl_module)

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *others: Any, **more: Any
    ) -> None:
        self._read(trainer, outputs)

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *others: Any, **more: Any
    ) -> None:
        self._read(trainer, outputs)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._log(trainer, pl_module, "val")

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._log(trainer, pl_module, "test")

    # ---------------------------------------------------------------- inside

    def _count(self, trainer: Trainer, multilabel: bool) -> Prior:
        dataset = getattr(trainer.train_dataloader, "dataset", None)
        if dataset is None:
            raise TypeError(
                f"the training loader is a {type(trainer.train_dataloader).__name__} without a data set to count: "
                "pass LongTail(prior)"
            )
        return Prior.from_dataset(dataset, label=self.label, kind="multilabel" if multilabel else "labels")

    def _begin(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._parts = []
        if not self._undo and not trainer.sanity_checking and self.prior is not None:  # trainer.validate(), .test()
            found = _find_loss(pl_module, self.loss)
            if found is not None:
                self._watch(trainer, pl_module.get_submodule(found[0]), found[1])

    def _watch(self, trainer: Trainer, called: nn.Module, criterion: nn.Module) -> None:
        """Evaluate the arguments of `called` while the module is validated or tested; `criterion` gives their
        meaning."""
        several = isinstance(criterion, nn.BCEWithLogitsLoss | SigmoidLoss)

        def seen(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any], value: Any) -> None:
            if (trainer.validating or trainer.testing) and not trainer.sanity_checking:
                logits, target = (*given, *(named[name] for name in ("input", "logits", "target") if name in named))[:2]
                self._add(logits, target, getattr(criterion, "ignore_index", None), several)

        self._undo.append(called.register_forward_hook(seen, with_kwargs=True).remove)

    def _read(self, trainer: Trainer, outputs: Any) -> None:
        watched = bool(self._undo) or trainer.sanity_checking or self.prior is None
        if not watched and isinstance(outputs, dict) and {"logits", "target"} <= outputs.keys():
            logits, target = outputs["logits"], outputs["target"]
            self._add(logits, target, -100, several=target.shape == logits.shape)

    def _add(self, logits: Tensor, target: Tensor, ignore_index: int | None, several: bool) -> None:
        assert self.prior is not None
        if several:
            rows = (len(logits), -1)  # a single logit per item may have the shape [N]
            part: Any = evaluate_multilabel(logits.detach().reshape(rows), target.reshape(rows), self.prior)
        else:
            labels = target.argmax(1) if target.shape == logits.shape else target  # a mixed target's main class
            part = evaluate(logits.detach(), labels, self.prior, ignore_index=ignore_index)
        self._parts = [sum([*self._parts, part])]

    def _log(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if trainer.sanity_checking or self.prior is None:
            return
        parts = _of_all_ranks(self._parts)
        if parts:
            self.evaluation = sum(parts)
            scores = {f"{stage}_{name}": value for name, value in self.evaluation.scores().items()}
            pl_module.log_dict(scores, sync_dist=True)  # already equal on every rank

    def _let_go(self) -> None:
        self._follow = None
        while self._undo:
            self._undo.pop()()


class _Swapped(nn.Module):
    """A loss outside the module's state: checkpoints keep the keys of the plain module, and the prior follows its
    device."""

    def __init__(self, criterion: nn.Module) -> None:
        super().__init__()
        self.hold(criterion)

    def hold(self, criterion: nn.Module) -> None:
        self._held = (criterion,)  # in a tuple, so that it is not part of the state

    @property
    def name(self) -> str:
        return type(self._held[0]).__name__

    def forward(self, input: Tensor, target: Tensor) -> Any:  # named like those of torch's losses
        return self._held[0].to(input.device)(input, target)


def _balanced(plain: nn.Module, prior: Prior) -> nn.Module:
    """The balanced loss in place of a plain one, with its options."""
    options: dict[str, Any] = {"reduction": plain.reduction}
    weighted = [name for name in ("weight", "pos_weight") if getattr(plain, name, None) is not None]
    if weighted:
        raise ValueError(
            f"{type(plain).__name__} has a {weighted[0]}; with the prior, classes would be balanced twice: leave it "
            "out, or keep the loss with LongTail(loss=None)"
        )
    if isinstance(plain, nn.BCEWithLogitsLoss):
        return BalancedSigmoidLoss(prior, **options)
    options |= {"ignore_index": plain.ignore_index, "label_smoothing": plain.label_smoothing}
    return BalancedSoftmaxLoss(prior, **options)


def _find_loss(module: nn.Module, wanted: str | None) -> tuple[str, nn.Module] | None:
    """The loss that a module declares, and its name (if it is compiled, that of the compiled loss)."""
    kinds = (*PLAIN, SoftmaxLoss, SigmoidLoss, _Swapped)
    named = ((name.removesuffix("._orig_mod"), child) for name, child in module.named_modules())
    found = {name: child for name, child in named if isinstance(child, kinds)}
    if wanted not in (None, "auto"):
        if wanted not in found:
            raise ValueError(f"the module has no loss {wanted!r}: it declares {', '.join(found) or 'none'}")
        return str(wanted), found[str(wanted)]
    if len(found) > 1 and wanted is not None:
        raise ValueError(f"the module declares several losses: name one of {', '.join(found)} with LongTail(loss=...)")
    return next(iter(found.items()), None)


def _set(module: nn.Module, name: str, value: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(module.get_submodule(parent), last, value)


def _sampler(trainer: Trainer) -> ResumableSampler | None:
    """The sampler of the training loader, if it is one of Equipoise's; refused unless it is sharded exactly once."""
    loader = trainer.train_dataloader
    batches = getattr(loader, "batch_sampler", None)  # the loader knows nothing about a batch sampler's own sampler
    sampler = getattr(loader if batches is None else batches, "sampler", None)
    inner = getattr(getattr(sampler, "dataset", None), "_sampler", None)  # Lightning's wrapper shards its draws
    if isinstance(inner, ResumableSampler):
        if inner.num_replicas > 1:
            raise ValueError(
                f"Lightning shards {inner!r}, which shards itself: every rank would see 1/{inner.num_replicas}² of the "
                "draws; build it with num_replicas=1, rank=0"
            )
        return inner
    if not isinstance(sampler, ResumableSampler):
        return None
    if sampler.num_replicas != trainer.world_size:
        raise ValueError(
            f"{sampler!r} is shared by {sampler.num_replicas}, but there are {trainer.world_size} processes: leave "
            "num_replicas and rank out, to use those of the process group"
        )
    return sampler


def _of_all_ranks(parts: list[Any]) -> list[Any]:
    if not (dist.is_available() and dist.is_initialized()):
        return parts
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, parts)
    return [part for rank in gathered for part in rank]
