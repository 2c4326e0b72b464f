"""Confidence intervals of proportions, of their mean over classes, and of changes.

A mean over classes, balanced accuracy say, is a stratified sample with one stratum per class. Its interval is Wilson's
for an effective number of items, as for proportions in surveys (Kott and Carr, 1997; compared with others by Franco,
Little, Louis and Slud, 2019):

    n_eff  =  1 + p̄(1 − p̄) / V,      V = Σ_j v_j / n_j / G²      over the G classes that have items

    v_j    =  (1 − λ_j) · p_j(1 − p_j) · n_j / (n_j − 1)  +  λ_j · v
    λ_j    =  z² w_j / (z² w_j + 4v (n_j − 1)),      w_j = (1/n_j) / Σ_i (1/n_i)

The first part of v_j is the unbiased variance of one item of class j, so that many classes with few items each give
the right width; intervals made from those of the single classes (square-and-add) are up to a third too narrow. As a
class with few items hardly knows its variance, it is shrunk towards v, that of an item of any class: p(1 − p) m/(m − 1)
with m = G²/Σ_j(1/n_j), where p is the mean over classes or, if that gives more, the mean weighted by w, the classes'
shares in the uncertainty. The z² items are those of Agresti and Coull, 1998, shared out by w; a class with one item has
the variance v. One class gives Wilson's interval; if all items are right, or none, the interval is that of m items.
`benchmarks/intervals.py` measures how often the truth is held.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from equipoise.prior import FloatArray

Z = 1.959963984540054  # of 95 %


def wilson_interval(correct: int, total: int, z: float = Z) -> tuple[float, float]:
    """Wilson's score interval of correct/total, 95 % by default; (0, 1) if there are no items.

        centre = (p + z²/2n) / (1 + z²/n),      half width = z/(1 + z²/n) · sqrt(p(1 − p)/n + z²/4n²)

    Unlike p ± z·sqrt(p(1 − p)/n) it stays within [0, 1] and does not shrink to a point at 0 of 5 or 5 of 5.

    >>> [round(end, 3) for end in wilson_interval(8, 10)]
    [0.49, 0.943]
    """
    if not 0 <= correct <= total:
        raise ValueError(f"{correct} correct of {total}: expected 0 ≤ correct ≤ total")
    low, high = wilson_intervals(correct, total, z)
    return float(low), float(high)


def wilson_intervals(correct: ArrayLike, total: ArrayLike, z: float = Z) -> tuple[FloatArray, FloatArray]:
    """`wilson_interval` of many proportions at once; `correct` may be a mean over runs.

    >>> low, high = wilson_intervals([8, 0], [10, 0])
    >>> low.round(3).tolist(), high.round(3).tolist()
    ([0.49, 0.0], [0.943, 1.0])
    """
    k, n = np.asarray(correct, np.float64), np.asarray(total, np.float64)
    if ((k < 0) | (k > n)).any():
        where = int(np.argmax((k < 0) | (k > n)))
        raise ValueError(f"{k[where]} correct of {n[where]}: expected 0 ≤ correct ≤ total")
    some = np.maximum(n, 1)
    p, shrink = k / some, 1 + z * z / some
    centre = (p + z * z / (2 * some)) / shrink
    half = z / shrink * np.sqrt(p * (1 - p) / some + z * z / (4 * some * some))
    return np.where(n > 0, np.maximum(centre - half, 0), 0.0), np.where(n > 0, np.minimum(centre + half, 1), 1.0)


def mean_interval(correct: ArrayLike, total: ArrayLike, z: float = Z) -> tuple[float, float]:
    """The interval of the mean of correct/total over the classes that have items; (0, 1) without any.

    >>> [round(end, 3) for end in mean_interval([8, 9], [10, 10])]
    [0.637, 0.948]
    >>> mean_interval([8], [10]) == wilson_interval(8, 10)
    True
    """
    k, n = np.asarray(correct, np.float64), np.asarray(total, np.float64)
    if not (n > 0).any():
        return 0.0, 1.0
    found = _mean(k[n > 0], n[n > 0], z)
    return found.low, found.high


@dataclass(frozen=True)
class _Mean:
    """A mean over classes with its interval, its variance V, and how far each class was shrunk, λ [K]."""

    value: float
    low: float
    high: float
    variance: float
    shrunk: FloatArray


def _mean(k: FloatArray, n: FloatArray, z: float) -> _Mean:
    """The mean of k/n over classes, all of which have items."""
    p, (share, items) = k / n, _influence(n)
    mean = float(p.mean())
    v = max(q * (1 - q) for q in (mean, float((share * p).sum()))) * _unbiased(items)
    pull = z * z * share
    shrunk = pull / (pull + min(4 * v, 1.0) * (n - 1))
    variance = float((((1 - shrunk) * p * (1 - p) * _unbiased(n) + shrunk * v) / n).sum()) / len(n) ** 2
    spread = mean * (1 - mean)
    effective = 1 + spread / variance if spread > 0 else items
    low, high = wilson_intervals(mean * effective, effective, z)
    return _Mean(mean, float(low), float(high), variance, shrunk)


def _influence(n: FloatArray) -> tuple[FloatArray, float]:
    """The share of each class in the variance of the mean if all were equally hard, w [K], and the items m that one
    class would need to have that variance."""
    inverse = 1 / n
    return inverse / inverse.sum(), len(n) ** 2 / float(inverse.sum())


def _unbiased(n: Any) -> Any:
    """The factor that turns the variance of n items into an unbiased one; that of one item does not count."""
    return n / np.maximum(n - 1, 1e-9)


def change_interval(
    before: ArrayLike,
    after: ArrayLike,
    items: ArrayLike,
    both: ArrayLike | None = None,
    *,
    items_before: ArrayLike | None = None,
    z: float = Z,
) -> tuple[float, float]:
    """The interval of a change of accuracy: the mean over classes of (after − before)/items, [K] correct items each.

        low   =  Δ − sqrt( (a − l_a)² − 2ρ (a − l_a)(u_b − b) + (u_b − b)² )
        high  =  Δ + sqrt( (u_a − a)² − 2ρ (u_a − a)(b − l_b) + (b − l_b)² )

    a and b are the mean accuracies after and before, l and u the ends of their intervals (`mean_interval`), ρ the
    correlation of the two means: `both` [K] counts the items that both models got right; without it ρ = 0, as if they
    had been evaluated on different items (then `items_before` may differ). For one class this is Newcombe's method 10
    for paired proportions (1998), with his continuity correction. (−1, 1) without any item.

    >>> [round(end, 2) for end in change_interval([60], [70], [100], [58])]
    [0.03, 0.17]
    >>> [round(end, 2) for end in change_interval([60], [70], [100])]
    [-0.03, 0.23]
    """
    k1, k2, n2 = (np.atleast_1d(np.asarray(values, np.float64)) for values in (before, after, items))
    n1 = n2 if items_before is None else np.atleast_1d(np.asarray(items_before, np.float64))
    seen = (n1 > 0) & (n2 > 0)
    if not seen.any():
        return -1.0, 1.0
    k1, k2, n1, n2 = (values[seen] for values in (k1, k2, n1, n2))
    b, a = _mean(k1, n1, z), _mean(k2, n2, z)
    rho = 0.0
    if both is not None:
        together = _covariance(k1, k2, n2, np.atleast_1d(np.asarray(both, np.float64))[seen], (b, a))
        sizes = float(np.sqrt(a.variance * b.variance))
        rho = float(np.clip(together / sizes, -1, 1)) if sizes > 0 else 0.0
    change = a.value - b.value
    below, above = (
        float(np.sqrt(max(one**2 - 2 * rho * one * other + other**2, 0.0)))
        for one, other in ((a.value - a.low, b.high - b.value), (a.high - a.value, b.value - b.low))
    )
    return max(change - below, -1.0), min(change + above, 1.0)


def _covariance(
    before: FloatArray, after: FloatArray, items: FloatArray, both: FloatArray, means: tuple[_Mean, _Mean]
) -> float:
    """The covariance of two means over the same items, shrunk as their variances are, towards the lower of both
    covariances over all classes; half an item less if it is positive (Newcombe's correction)."""
    (share, effective), shrunk = _influence(items), np.maximum(*(mean.shrunk for mean in means))
    every = min(
        float((w * both / items).sum() - (w * before / items).sum() * (w * after / items).sum())
        for w in (np.full(len(items), 1 / len(items)), share)
    ) * _unbiased(effective)
    own = (both - before * after / items) / np.maximum(items - 1, 1)
    found = float((((1 - shrunk) * own + shrunk * every) / items).sum())
    half = 0.5 * float((1 / (items * np.maximum(items - 1, 1))).mean())
    return (max(found - half, 0.0) if found > 0 else found) / len(items) ** 2
