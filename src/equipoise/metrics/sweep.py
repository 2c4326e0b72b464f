"""The prior sweep: a model's accuracy as the prior in use, and the correction for it, change.

    world alpha      π_deployed ∝ π_train^alpha        1: as long-tailed as training, 0: uniform, −1: reversed
    correction tau   argmax z_train − tau · log π_train        0: a plain loss as it is, 1: right for equal classes

z_train are logits that mean the training prior. A balanced loss gives z_uniform = z_train − log π_train, so its
uncorrected logits are at tau = 1, and those of a plain loss at tau = 0. Bayes' rule gives tau = 1 − alpha. Accuracy in
a world is Σ_j π_deployed(j) · accuracy of class j, so one test set serves for every world.

A sweep is kept as sums, the correct items per class at each tau, so sweeps of parts add up with `+`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from equipoise.prior import FloatArray, IntArray, Prior

if TYPE_CHECKING:
    from torch import Tensor

LogitsMean = Literal["train", "uniform"]
TAUS: FloatArray = np.round(np.linspace(0, 2, 41), 2)
WORLDS: FloatArray = np.round(1 - TAUS, 2)  # the alpha that each tau is right for


@dataclass(frozen=True, eq=False)
class PriorSweep:
    """Correct items per class at each tau, [41, K], out of `items` [K] test items."""

    prior: Prior
    logits_mean: LogitsMean
    correct: IntArray
    items: IntArray

    def __add__(self, other: PriorSweep) -> PriorSweep:
        if not isinstance(other, PriorSweep):
            return NotImplemented
        if (self.prior, self.logits_mean) != (other.prior, other.logits_mean):
            raise ValueError("sweeps under different priors, or of logits that mean different ones, do not add")
        return PriorSweep(self.prior, self.logits_mean, self.correct + other.correct, self.items + other.items)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PriorSweep):
            return NotImplemented
        same = self.prior == other.prior and self.logits_mean == other.logits_mean
        return same and np.array_equal(self.correct, other.correct) and np.array_equal(self.items, other.items)

    __hash__ = None  # type: ignore[assignment]

    @property
    def num_items(self) -> int:
        return int(self.items.sum())

    @property
    def as_it_is(self) -> int:
        """The index in `TAUS` of the logits without any correction."""
        return int(np.flatnonzero((0.0 if self.logits_mean == "train" else 1.0) == TAUS)[0])

    def accuracy(self) -> FloatArray:
        """[worlds, taus]: accuracy in each of `WORLDS` with each of `TAUS`; NaN if there are no items.

        The diagonal is the model that is told the prior in use; the column `as_it_is` is the one that is not.
        """
        seen = self.items > 0
        if not seen.any():
            return np.full((len(WORLDS), len(TAUS)), np.nan)
        weights = np.exp(WORLDS[:, None] * np.log(np.maximum(self.prior.counts[seen], 1)))
        weights /= weights.sum(axis=1, keepdims=True)
        found: FloatArray = weights @ (self.correct[:, seen] / self.items[seen]).T
        return found

    def groups(self, groups: Mapping[str, Sequence[int]] | None = None) -> dict[str, FloatArray]:
        """Mean accuracy of the classes of each group at each tau, [41]; groups without test items are left out.

        The classes of each group are `groups`, by default those of the prior.
        """
        members = {"all": range(len(self.items))} | dict(self.prior.groups() if groups is None else groups)
        found = {}
        for name, classes in members.items():
            seen = [index for index in classes if self.items[index] > 0]
            if seen:
                found[name] = (self.correct[:, seen] / self.items[seen]).mean(axis=1)
        return found


def prior_sweep(logits: Tensor, target: Tensor, prior: Prior, *, logits_mean: LogitsMean) -> PriorSweep:
    """Predict from outputs [N, K] at each tau; `logits_mean` is whether they mean the training prior or equal classes.

    >>> prior = Prior.from_counts([90, 10])
    >>> sweep = prior_sweep(torch.tensor([[1.0, 0.0]] * 2), torch.tensor([0, 1]), prior, logits_mean="train")
    >>> sweep.correct.sum(axis=0).tolist()  # up to tau = 0.45 both are called class 0
    [10, 31]
    """
    import torch

    if logits_mean not in get_args(LogitsMean):
        raise ValueError(f"logits_mean is {logits_mean!r}: 'train' after a plain loss, 'uniform' after a balanced one")
    log_prior = torch.from_numpy(np.log(np.maximum(prior.counts, 1) / prior.total)).float()
    at = 0.0 if logits_mean == "train" else 1.0
    scores, labels = logits.detach().cpu().float(), target.cpu()
    correct = np.zeros((len(TAUS), prior.num_classes), np.int64)
    moved = torch.empty_like(scores)
    for place, tau in enumerate(TAUS):
        torch.add(scores, log_prior, alpha=at - float(tau), out=moved)
        right = labels[moved.argmax(1) == labels] if len(labels) else labels
        correct[place] = torch.bincount(right, minlength=prior.num_classes).numpy()
    items = torch.bincount(labels, minlength=prior.num_classes).numpy().astype(np.int64)
    return PriorSweep(prior, logits_mean, correct, items)
