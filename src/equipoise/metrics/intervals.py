"""Confidence intervals of proportions."""

from __future__ import annotations

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

        low  =  p̄ − sqrt( Σ_j (p_j − l_j)² ) / G,        high  =  p̄ + sqrt( Σ_j (u_j − p_j)² ) / G

    l_j, u_j are Wilson's ends of class j, G the number of classes: the square-and-add method of Newcombe, 1998, and
    Zou, Huang and Zhang, 2009. It stays within [0, 1], is Wilson's interval for one class, and does not shrink to a
    point if no item of any class is right.

    >>> [round(end, 3) for end in mean_interval([8, 9], [10, 10])]
    [0.633, 0.933]
    """
    k, n = np.asarray(correct, np.float64), np.asarray(total, np.float64)
    k, n = k[n > 0], n[n > 0]
    if len(n) == 0:
        return 0.0, 1.0
    low, high = wilson_intervals(k, n, z)
    p = k / n
    below, above = np.sqrt(((p - low) ** 2).sum()), np.sqrt(((high - p) ** 2).sum())
    return max(float(p.mean() - below / len(n)), 0.0), min(float(p.mean() + above / len(n)), 1.0)


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

        low   =  Δ − sqrt( Σ_j (a_j − l_aj)² − 2φ (a_j − l_aj)(u_bj − b_j) + (u_bj − b_j)² ) / G
        high  =  Δ + sqrt( Σ_j (u_aj − a_j)² − 2φ (u_aj − a_j)(b_j − l_bj) + (b_j − l_bj)² ) / G

    a and b are the accuracies after and before, l and u Wilson's ends, G the number of classes. φ is the correlation of
    the two models' answers: `both` [K] counts the items that both got right; without it φ = 0, as if they had been
    evaluated on different items (then `items_before` may differ). This is Newcombe's method 10 for paired proportions
    (1998), with his continuity correction, φ pooled within classes, and means as in `mean_interval`. (−1, 1) without
    any item.

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
    p1, p2 = k1 / n1, k2 / n2
    phi = 0.0 if both is None else _correlation(k1, k2, n2, np.atleast_1d(np.asarray(both, np.float64))[seen])
    (low1, high1), (low2, high2) = wilson_intervals(k1, n1, z), wilson_intervals(k2, n2, z)
    change = float((p2 - p1).mean())
    below, above = (
        float(np.sqrt(np.maximum(one**2 - 2 * phi * one * other + other**2, 0).sum())) / len(p1)
        for one, other in ((p2 - low2, high1 - p1), (high2 - p2, p1 - low1))
    )
    return max(change - below, -1.0), min(change + above, 1.0)


def _correlation(before: FloatArray, after: FloatArray, items: FloatArray, both: FloatArray) -> float:
    """φ of right and wrong answers within classes; half an item less if it is positive (Newcombe's correction)."""
    together = float((both - before * after / items).sum())
    spread = float((before * (1 - before / items)).sum() * (after * (1 - after / items)).sum())
    if spread <= 0:
        return 0.0
    return float(np.clip((max(together - 0.5, 0.0) if together > 0 else together) / np.sqrt(spread), -1, 1))
