"""Confidence intervals of proportions."""

from __future__ import annotations

import math


def wilson_interval(correct: int, total: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """Wilson's score interval of correct/total, 95 % by default; (0, 1) where there is nothing to go by.

        centre = (p + z²/2n) / (1 + z²/n),      half width = z/(1 + z²/n) · sqrt(p(1 − p)/n + z²/4n²)

    Unlike p ± z·sqrt(p(1 − p)/n) it stays within [0, 1] and does not shrink to a point at 0 of 5 or 5 of 5.

    >>> [round(end, 3) for end in wilson_interval(8, 10)]
    [0.49, 0.943]
    """
    if not 0 <= correct <= total:
        raise ValueError(f"{correct} correct of {total}: expected 0 ≤ correct ≤ total")
    if total == 0:
        return 0.0, 1.0
    p, shrink = correct / total, 1 + z * z / total
    centre = (p + z * z / (2 * total)) / shrink
    half = z / shrink * math.sqrt(p * (1 - p) / total + z * z / (4 * total * total))
    return max(centre - half, 0.0), min(centre + half, 1.0)
