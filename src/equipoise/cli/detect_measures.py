"""The numbers of `equipoise detect eval`: as lines of text, and as plain data for JSON."""

from __future__ import annotations

from typing import Any

import numpy as np

BOTH = ("expected", "observed")  # of a bin of scores


def kinds_of(truth: Any, found: Any) -> list[str]:
    """What can be evaluated: boxes and, if both files have them, masks."""
    return ["bbox", "segm"] if found.masks is not None and truth.has_masks else ["bbox"]


def measured(truth: Any, found: Any, caps: list[int] | None, *, fixed: bool, pool: bool) -> dict[str, Any]:
    """The numbers by kind, box and mask, and by measure."""
    from equipoise.metrics.detection_measures import ap_at, ap_fixed, ap_pool

    made: dict[str, Any] = {}
    for kind in kinds_of(truth, found):
        made[kind] = {"lvis": truth.evaluate(found, kind)}
        matches: Any = truth.match(found, kind) if caps or fixed or pool else None
        made[kind] |= {f"at {cap}": ap_at(matches, cap) for cap in caps or ()}
        made[kind] |= {"fixed": ap_fixed(matches)} if fixed else {}
        made[kind] |= {"pool": ap_pool(matches), "calibration": _calibration(matches)} if pool else {}
    return made


def lines(truth: Any, found: Any, caps: list[int] | None, *, fixed: bool, pool: bool) -> list[str]:
    """The same as lines of text, with LVIS's cap, scaled to the number of classes, beside `caps`."""
    made = []
    for kind in kinds_of(truth, found):
        made.append(f"{kind}: {_numbers(truth.evaluate(found, kind))}")
        if caps or fixed or pool:
            made += _measures(kind, truth.match(found, kind), caps, fixed=fixed, pool=pool)
    return made


def capped(found: Any) -> str:
    """What is not known of a results file that AP-fixed and AP-pool are computed from."""
    most = int(np.unique(found.image_ids, return_counts=True)[1].max(initial=0))
    return (
        f"at most {most} detections per image: if it was capped when written, AP-fixed and AP-pool are those of the "
        "capped detections"
    )


def _measures(kind: str, matches: Any, caps: list[int] | None, *, fixed: bool, pool: bool) -> list[str]:
    from equipoise.metrics.detection_measures import ap_at, ap_fixed, ap_pool, pool_calibration, scaled_cap

    said, scaled = [], scaled_cap(len(matches.instances))
    for cap in sorted({*caps, scaled}, reverse=True) if caps else ():
        words = ", LVIS's scaled to the classes" if cap == scaled else ""
        said.append(f"{kind}, {cap} per image{words}: {_numbers(ap_at(matches, cap))}")
    if fixed:
        said.append(f"{kind}, AP-fixed: {_numbers(ap_fixed(matches))}")
    if pool:
        said.append(f"{kind}, AP-pool: {_numbers(ap_pool(matches))}")
        try:
            calibration = pool_calibration(matches)
        except ValueError as error:
            return [*said, f"{kind}, no calibration: {error}"]
        for group, bins in calibration.items():
            seen = zip(bins.number, bins.edges, bins.edges[1:], bins.expected, bins.observed, strict=False)
            each = [f"{low:g}-{high:g} {100 * e:.1f} ({100 * p:.1f})" for n, low, high, e, p in seen if n]
            said.append(
                f"{kind}, scores of {group}, mean % (right at IoU 0.5, %): {', '.join(each)}; error "
                f"{100 * bins.error:.2f}"
            )
    return said


def _numbers(numbers: dict[str, float | None]) -> str:
    return ", ".join(f"{name} {'–' if value is None else f'{value:.2f}'}" for name, value in numbers.items())


def _calibration(matches: Any) -> dict[str, Any] | None:
    """The calibration of the scores by group, with None for an empty bin's mean score and share of right ones; None if
    they are not probabilities."""
    from equipoise.metrics.detection_measures import pool_calibration

    try:
        calibration = pool_calibration(matches)
    except ValueError:
        return None
    made = {}
    for group, bins in calibration.items():
        means = {name: [None if np.isnan(x) else x for x in getattr(bins, name).tolist()] for name in BOTH}
        made[group] = {"edges": bins.edges.tolist(), "number": bins.number.tolist(), **means, "error": bins.error}
    return made
