"""The Hugging Face `Trainer`: a balanced loss, the long-tail scores and a balanced sampler, each one argument.

    Trainer(..., compute_loss_func=huggingface.loss(prior), compute_metrics=huggingface.metrics(prior))

The Trainer counts the labels of all batches that make up one step, on all processes, and passes the number to the loss.
The loss here is the mean over a batch times the batch's share of that number, so that with gradient accumulation and
unequal batches it adds up to the mean over the step. A loss averaged per batch does not (with 4 accumulated batches it
is logged 4 times too large).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from equipoise.arrays import as_array, outside
from equipoise.losses.balanced_softmax import BalancedSoftmaxLoss
from equipoise.losses.shared import ratio
from equipoise.metrics.dense import DenseEvaluation, evaluate_dense
from equipoise.metrics.evaluation import Evaluation, evaluate
from equipoise.metrics.multilabel import MultilabelEvaluation, evaluate_multilabel
from equipoise.prior import Prior
from equipoise.samplers.class_balanced import ClassBalancedSampler

__all__ = ["BalancedSampling", "TrainerLoss", "TrainerMetrics", "loss", "metrics"]

IGNORED = -100  # what collators pad labels with


def loss(prior: Prior | nn.Module, *, tau: float = 1.0, ignore_index: int = IGNORED) -> TrainerLoss:
    """A loss for `Trainer(compute_loss_func=...)`: Balanced Softmax with `prior`, or a loss module of your choice.

    It works for sequence and image classification, token classification and segmentation (logits of lower resolution
    are scaled up). Labels equal to `ignore_index` do not count; label maps often use 255. For several labels per item
    pass `eq.BalancedSigmoidLoss(prior)`.

    >>> balanced = loss(eq.Prior.from_counts([900, 100]))
    >>> outputs = {"logits": torch.zeros(2, 2)}
    >>> balanced(outputs, torch.tensor([1, -100]), num_items_in_batch=4)  # the sum, 2.3026, over 4 labels of the step
    tensor(0.5756)
    """
    if not isinstance(prior, Prior):
        return TrainerLoss(prior)
    if prior.counted and prior.total != prior.counts.sum():
        raise ValueError(
            f"{prior!r} counts {prior.counts.sum():,} labels in {prior.total:,} items, that is, several or none per "
            "item: pass huggingface.loss(eq.BalancedSigmoidLoss(prior))"
        )
    return TrainerLoss(BalancedSoftmaxLoss(prior, tau=tau, ignore_index=ignore_index), prior)


class TrainerLoss:
    """A loss module as the Trainer calls it: with the model's outputs and the number of labels in the step.

    Each batch is weighted by its share of the labels that the Trainer counts, which are all but −100. If the module
    ignores others (255, NaN) or weights classes, its mean over a batch is exact, and that over accumulated batches
    nearly so.
    """

    def __init__(self, criterion: nn.Module, prior: Prior | None = None) -> None:
        if getattr(criterion, "reduction", None) not in ("mean", "batchmean"):
            raise TypeError(f"{criterion!r}: pass a Prior, or a loss module with reduction='mean'")
        self.criterion, self.prior = criterion, prior

    def __call__(self, outputs: Any, labels: Tensor | None, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        if labels is None:
            raise ValueError("the batch has no 'labels', the one name that the Trainer reads: rename the column to it")
        logits, labels = _rows(_logits_of(outputs), labels)
        mean: Tensor = self.criterion.to(logits.device)(logits, labels)
        if num_items_in_batch is None:
            return mean
        counted = (labels != IGNORED).sum()
        return ratio(torch.where(counted > 0, mean * counted, 0.0), num_items_in_batch)  # torch's empty mean is NaN


def metrics(prior: Prior, *, many: int = 100, few: int = 20, ignore_index: int = IGNORED) -> TrainerMetrics:
    """Metrics for `Trainer(compute_metrics=...)`: `Evaluation.scores` of the evaluation set, logged as `eval_few` etc.

    Labels equal to `ignore_index` do not count. A target [N, K] is evaluated by `evaluate_multilabel`, label maps by
    `evaluate_dense` (logits of lower resolution are scaled up), which has groups of its own. Works with
    `batch_eval_metrics`, which keeps no predictions: use it for label maps. `.evaluation` is the last evaluation, for
    `eq.Report`.
    """
    return TrainerMetrics(prior, many, few, ignore_index)


class TrainerMetrics:
    """`evaluate`, `evaluate_multilabel` and `evaluate_dense` as the Trainer calls them."""

    def __init__(self, prior: Prior, many: int = 100, few: int = 20, ignore_index: int = IGNORED) -> None:
        self.prior, self.ignore_index = prior, ignore_index
        self.evaluation: Evaluation | MultilabelEvaluation | DenseEvaluation | None = None
        self._groups = {"many": many, "few": few}
        self._parts: list[Any] = []

    def __call__(self, prediction: Any, compute_result: bool = True) -> dict[str, float]:
        self._parts.append(self._judged(prediction.predictions, prediction.label_ids))
        if not compute_result:  # batch_eval_metrics: more batches follow
            self._parts = [sum(self._parts)]
            return {}
        self.evaluation, self._parts = sum(self._parts), []
        if isinstance(self.evaluation, DenseEvaluation):  # whose groups are shares of the pixels
            return self.evaluation.scores()
        return self.evaluation.scores(**self._groups)

    def _judged(self, predictions: Any, label_ids: Any) -> Evaluation | MultilabelEvaluation | DenseEvaluation:
        first = predictions[0] if isinstance(predictions, tuple) else predictions  # hidden states may follow
        logits, labels = as_array(first), as_array(label_ids[0] if isinstance(label_ids, tuple) else label_ids)
        if labels.shape == logits.shape:
            unknown = labels == self.ignore_index
            return evaluate_multilabel(logits, np.where(unknown, np.nan, labels), self.prior)
        if logits.ndim == 4:
            return self._judged_maps(logits, labels)
        if logits.ndim == 3 and labels.shape == logits.shape[:2]:
            logits, labels = logits.reshape(-1, logits.shape[-1]), np.ravel(labels)
        return evaluate(logits, labels, self.prior, ignore_index=self.ignore_index)

    def _judged_maps(self, logits: NDArray[Any], labels: NDArray[Any]) -> DenseEvaluation:
        images = zip(torch.from_numpy(logits).float()[:, None], torch.from_numpy(labels)[:, None], strict=True)
        judged = partial(evaluate_dense, prior=self.prior, ignore_index=self.ignore_index)
        parts = [judged(*_rows(image, label)) for image, label in images]  # one at a time: scaled up, they are large
        return sum(parts[1:], parts[0])


class BalancedSampling:
    """Draws the classes of the training set equally often: `class BalancedTrainer(BalancedSampling, Trainer): pass`.

    The draws are those of `ClassBalancedSampler` with the Trainer's seed, and accelerate distributes them among the
    processes. Use it with the plain loss, or pass `huggingface.loss` the prior of what is drawn, since both balance.
    """

    sampler_label: str | None = None  # the column of the labels: "labels", else "label"
    sampler_strength: float = 1.0  # 0.5: square-root sampling

    def get_train_dataloader(self) -> Any:
        trainer: Any = self
        if isinstance(trainer.train_dataset, IterableDataset):  # for which the Trainer asks for no sampler
            raise TypeError(
                f"the training set is a {type(trainer.train_dataset).__name__}, which is read in its own order, so no "
                "class can be drawn more often: train with huggingface.loss(prior) and the plain Trainer"
            )
        return super().get_train_dataloader()  # type: ignore[misc]

    def _get_train_sampler(self, train_dataset: Any = None) -> ClassBalancedSampler:
        trainer: Any = self
        dataset = trainer.train_dataset if train_dataset is None else train_dataset
        columns = getattr(dataset, "column_names", None)
        if columns is None:  # a torch data set: the Trainer's items are dictionaries
            columns = dataset[0] if isinstance(dataset[0], Mapping) else ()
        label = self.sampler_label or ("labels" if "labels" in columns else "label")
        seed = trainer.args.seed if trainer.args.data_seed is None else trainer.args.data_seed
        # one rank: accelerate shards every sampler, also one that has sharded itself
        options = {"strength": self.sampler_strength, "seed": seed, "num_replicas": 1, "rank": 0}
        sampler = ClassBalancedSampler.from_dataset(dataset, label=label, **options)
        known = getattr(getattr(trainer, "compute_loss_func", None), "prior", None)
        if known is not None and not np.allclose(known.probabilities, sampler.prior.probabilities, atol=0.02):
            warnings.warn(
                "the sampler balances the classes, and huggingface.loss(prior) balances them again: train with the "
                "plain loss, or build it from the prior of what is drawn, ClassBalancedSampler.from_dataset(...).prior",
                stacklevel=outside(),
            )
        return sampler


def _logits_of(outputs: Any) -> Tensor:
    """The logits of a model's output: an object or dictionary that names them, a tuple that begins with them."""
    if isinstance(outputs, Tensor):
        return outputs
    found = outputs.get("logits") if isinstance(outputs, dict) else getattr(outputs, "logits", None)
    if found is None and isinstance(outputs, tuple) and outputs:
        found = outputs[0]
    if not isinstance(found, Tensor):
        raise TypeError(f"the model returned a {type(outputs).__name__} without logits: expected .logits, or a tuple")
    return found


def _rows(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Token logits [N, T, K] as rows; segmentation logits [N, K, h, w] at the resolution of the label maps."""
    if labels.shape == logits.shape:
        return logits, labels
    if logits.ndim == 3 and labels.shape == logits.shape[:2]:
        return logits.flatten(0, 1), labels.flatten()
    if logits.ndim == 4 and labels.ndim == 3 and logits.shape[2:] != labels.shape[1:]:
        logits = F.interpolate(logits, size=labels.shape[1:], mode="bilinear", align_corners=False)
    return logits, labels
