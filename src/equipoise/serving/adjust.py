"""Move a model's predictions from the prior they mean to the prior in use.

    softmax:   log p_target(y|x)  =  z − (tau · log π_source − log π_target) + const
    sigmoid:   logit p_t(y_j|x)   =  z_j − (logit π_j − logit t)

`source` is the prior that the logits *mean*: the training prior after a plain loss, uniform (None) after a balanced
one.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from equipoise.losses.shared import along, full_precision, is_traced
from equipoise.metrics.checks import warn_of_probabilities
from equipoise.prior import PriorLike, sigmoid_shift, softmax_shift


def adjust_logits(
    logits: Tensor,
    *,
    source: PriorLike | None = None,
    target: PriorLike | None = None,
    tau: float = 1.0,
    dim: int = -1,
) -> Tensor:
    """Turn softmax logits that mean `source` into logits for `target`; None is uniform. Shape as `logits`, ≥ fp32.

    A class whose probability in `target` is stated as 0 gets −inf, that is, probability 0. The classes are in dimension
    `dim`, by default the last; for dense logits [N, K, H, W] pass dim=1.

    >>> import torch
    >>> adjust_logits(torch.tensor([0.9, 0.1]).log(), source=[0.9, 0.1]).softmax(-1)   # a model that knows nothing
    tensor([0.5000, 0.5000])
    >>> adjust_logits(torch.zeros(2), target=[0.2, 0.8]).softmax(-1)
    tensor([0.2000, 0.8000])
    """
    precise = full_precision(logits)
    _look_at(logits, dim, several=False)
    return precise - along(softmax_shift(source, target, tau=tau).to(precise.device), precise, dim)


def adjust_sigmoid_logits(
    logits: Tensor,
    *,
    source: PriorLike | float,
    target_rate: float | Sequence[float] | Tensor,
    dim: int = -1,
) -> Tensor:
    """Turn sigmoid logits that mean the rates of `source` into logits for classes with rate `target_rate`.

    Each is one rate for all classes or one per class; `source` may also be a `Prior`.

    >>> import torch
    >>> adjust_sigmoid_logits(torch.tensor([0.01, 0.2]).logit(), source=[0.01, 0.2], target_rate=0.5).sigmoid()
    tensor([0.5000, 0.5000])
    """
    precise = full_precision(logits)
    _look_at(logits, dim, several=True)
    return precise - along(sigmoid_shift(source, target_rate).to(precise.device), precise, dim)


def _look_at(logits: Tensor, dim: int, *, several: bool) -> None:
    """Warn of probabilities [N, K], if a look at them needs no synchronisation: on the CPU, outside of a compiler."""
    if is_traced() or logits.device.type != "cpu" or type(logits) is not Tensor:
        return
    if logits.ndim == 2 and dim in (-1, 1):
        instead = f"logits, e.g. {'p.logit()' if several else 'p.log()'}"
        warn_of_probabilities(logits, several=several, wrong="the result", instead=instead)
