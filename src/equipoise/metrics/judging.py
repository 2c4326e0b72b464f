"""Everything that a report shows about one model, as sums over its test items: `judge` and what it returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.arrays import as_array, is_tensor
from equipoise.metrics.answers import Answers
from equipoise.metrics.confusions import Confusions
from equipoise.metrics.evaluation import Evaluation, evaluate
from equipoise.metrics.sweep import LogitsMean, PriorSweep, prior_sweep
from equipoise.prior import Prior

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Judged:
    """What `judge` returns: an evaluation, its confusions, the answer for each item and, if requested, a prior sweep.
    Adds up with `+`.

    >>> found = judge([[2.0, 0.0], [1.0, 0.0], [3.0, 0.0]], [0, 0, 1], Prior.from_counts([500, 5]))
    >>> (found + found).evaluation.num_items, found.sweep
    (6, None)
    """

    evaluation: Evaluation  # what `evaluate` returns
    confusions: Confusions  # which class is taken for which
    sweep: PriorSweep | None = None  # accuracy under other class priors; None without `logits_mean`
    answers: Answers | None = None  # the class predicted for each item; None if a part has none

    @property
    def prior(self) -> Prior:
        """The class prior of the training set."""
        return self.evaluation.prior

    def __add__(self, other: Judged) -> Judged:
        if not isinstance(other, Judged):
            return NotImplemented
        sweep = other.sweep if self.sweep is None else self.sweep if other.sweep is None else self.sweep + other.sweep
        known = self.answers is not None and other.answers is not None
        answers = self.answers + other.answers if known else None  # type: ignore[operator]
        return Judged(self.evaluation + other.evaluation, self.confusions + other.confusions, sweep, answers)

    def __radd__(self, other: int) -> Judged:
        """Lets `sum(parts)` work."""
        return self if other == 0 else NotImplemented


def judge(
    logits: ArrayLike | Tensor,
    target: ArrayLike | Tensor,
    prior: Prior,
    *,
    probabilities: bool = False,
    logits_mean: LogitsMean | None = None,
    swept: ArrayLike | None = None,
) -> Judged:
    """Evaluate predictions [N, K] against class indices [N] as `evaluate` does, and keep what else a report shows.

    `logits_mean` is the prior that the predictions mean: "train" after a plain loss, "uniform" after a balanced one;
    None skips the prior sweep. `swept` are the rows that the sweep uses (41 predictions each), by default all.

    logits_mean   "train" after a plain loss, "uniform" after a balanced one; None skips the prior sweep
    swept         indices of the rows that the sweep uses; None is all

    >>> prior = Prior.from_counts([500, 5])
    >>> found = judge([[2.0, 0.0], [1.0, 0.0], [3.0, 0.0]], [0, 0, 1], prior, logits_mean="train")
    >>> found.evaluation, found.confusions.swallowed(prior)[0].times
    (Evaluation(3 items, top-1 66.7, many 100.0, medium –, few 0.0), 1)
    """
    import torch

    outputs = logits.detach().cpu() if is_tensor(logits) else torch.from_numpy(np.array(logits))
    evaluation = evaluate(outputs, target, prior, probabilities=probabilities)
    labels = torch.from_numpy(as_array(target).astype(np.int64))
    predicted = outputs.argmax(1).numpy() if len(labels) else labels.numpy()
    confusions = Confusions.count(labels.numpy(), predicted, prior.num_classes)
    sure = _confidence(outputs, probabilities) if len(labels) else np.zeros(0, np.float32)
    answers = Answers(labels.numpy().astype(np.int32), predicted.astype(np.int32), sure)
    if logits_mean is None:
        return Judged(evaluation, confusions, answers=answers)
    if swept is not None:
        rows = torch.from_numpy(np.asarray(swept, np.int64))
        outputs, labels = outputs[rows], labels[rows]
    scores = outputs.double().log().float() if probabilities else outputs
    return Judged(evaluation, confusions, prior_sweep(scores, labels, prior, logits_mean=logits_mean), answers)


def _confidence(outputs: Tensor, probabilities: bool) -> NDArray[np.float32]:
    """The largest probability of each row."""
    best = outputs.amax(1).float()
    found = best if probabilities else (best - outputs.float().logsumexp(1)).exp()
    return np.asarray(found.numpy(), np.float32)
