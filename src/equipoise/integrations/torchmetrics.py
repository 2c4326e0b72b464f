"""`eq.evaluate` as a torchmetrics `Metric`: updated batch by batch, summed over ranks, in any `MetricCollection`.

    metric = LongTailMetrics(prior)
    metric.update(logits, target)
    metric.compute()                 {"top1": ..., "balanced": ..., "many": ..., "medium": ..., "few": ..., ...}

The states are the sums of an `Evaluation`, so ranks and batches together give the same as one pass over all items.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from equipoise.metrics.evaluation import SUMS, Evaluation, evaluate
from equipoise.prior import Prior

try:
    from torchmetrics import Metric
except ImportError as error:
    raise ImportError(
        f"equipoise.integrations.torchmetrics needs torchmetrics: pip install 'equipoise[torchmetrics]' ({error})"
    ) from error

__all__ = ["LongTailMetrics"]


class LongTailMetrics(Metric):
    """Accuracy over all items, averaged over classes, and for classes with many, medium and few training items.

    `prior` is that of the training set. `update` takes logits [N, K] (or, with `probabilities=True`, probabilities)
    and class indices [N], or dense ones [N, K, ...] and [N, ...]; targets equal to `ignore_index` do not count.
    `compute` returns fractions from 0 to 1 by name, like `Evaluation.scores`; a group without test items is NaN.

    >>> metric = LongTailMetrics(eq.Prior.from_counts([500, 5]))
    >>> metric.update(torch.tensor([[2.0, 0.0], [1.0, 0.0], [3.0, 0.0]]), torch.tensor([0, 0, 1]))
    >>> {name: round(value.item(), 3) for name, value in metric.compute().items() if name != "ece"}
    {'top1': 0.667, 'balanced': 0.5, 'many': 1.0, 'medium': nan, 'few': 0.0, 'total_variation': 0.355}
    >>> metric.evaluation
    Evaluation(3 items, top-1 66.7, many 100.0, medium –, few 0.0)
    """

    is_differentiable = False
    higher_is_better = None
    full_state_update = False

    def __init__(
        self,
        prior: Prior,
        *,
        probabilities: bool = False,
        ignore_index: int | None = None,
        many: int = 100,
        few: int = 20,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        empty = evaluate(torch.zeros(0, prior.num_classes), torch.zeros(0, dtype=torch.long), prior)
        self.prior = prior
        self.probabilities = probabilities
        self.ignore_index = ignore_index
        self.groups = {"many": many, "few": few}
        for name, kind in SUMS.items():
            self.add_state(name, torch.from_numpy(getattr(empty, name).astype(kind)), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch."""
        options = {"probabilities": self.probabilities, "ignore_index": self.ignore_index}
        found = evaluate(preds, target, self.prior, **options)  # type: ignore[arg-type]
        for name in SUMS:
            sums = getattr(self, name)
            sums += torch.from_numpy(getattr(found, name).copy()).to(sums)

    def compute(self) -> dict[str, Tensor]:
        """The scores so far, of all ranks."""
        scores = self.evaluation.scores(**self.groups)
        device = self.items.device
        return {name: torch.tensor(value, dtype=torch.float32, device=device) for name, value in scores.items()}

    @property
    def evaluation(self) -> Evaluation:
        """The evaluation of this rank or, inside `compute` and `sync_context`, of all ranks; for `eq.Report`."""
        sums = {name: getattr(self, name).cpu().numpy().copy() for name in SUMS}
        return Evaluation(self.prior, **sums)
