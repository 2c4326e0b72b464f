"""The correction of a served model, from one prior to another, as plain data that can be stored in a file.

softmax:   shift  =  tau · log π_source − log π_target             sigmoid:   shift  =  logit π_source − logit t
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

from equipoise.arrays import as_array, fp32, rate_logits
from equipoise.prior import Prior, sigmoid_shift, softmax_shift

# Below this, in log odds, two priors count as the same: single precision can hardly tell them apart.
SAME = 1e-6


@dataclass(frozen=True)
class SoftmaxCorrection:
    """From the prior that softmax logits mean to the prior that they should mean."""

    source: Prior
    target: Prior
    tau: float = 1.0
    scale: float | None = None
    dim: int = -1

    def __post_init__(self) -> None:
        _make_plain(self, "tau", "scale", "dim")
        if self.source.num_classes != self.target.num_classes:
            raise ValueError(
                f"source has {self.source.num_classes} classes, target has {self.target.num_classes}: "
                "build both with the model's num_classes"
            )
        for what in ("class_names", "class_ids"):
            check_names(getattr(self.source, what), getattr(self.target, what), what, "source", "target")

    @property
    def class_names(self) -> tuple[str, ...] | None:
        return self.source.class_names or self.target.class_names

    def shift(self) -> Tensor:
        return softmax_shift(self.source, self.target, tau=self.tau)

    def changes(self, shift: Tensor) -> bool:
        """Whether the shift is more than a constant, which would not affect a softmax."""
        return float(shift.max() - shift.min()) > SAME

    def to_metadata(self) -> dict[str, str]:
        content = {"source": self.source.to_json(), "target": self.target.to_json(), "tau": json.dumps(self.tau)}
        return content | _shared_metadata(self)

    @classmethod
    def from_metadata(cls, content: Mapping[str, str]) -> Self:
        source, target = Prior.from_json(content["source"]), Prior.from_json(content["target"])
        scale, dim = json.loads(content["scale"]), json.loads(content["dim"])
        return cls(source, target, json.loads(content["tau"]), scale, dim)


@dataclass(frozen=True)
class SigmoidCorrection:
    """From the rates that sigmoid logits mean to the rates that they should mean."""

    source: Prior | float | tuple[float, ...]
    target_rate: float | tuple[float, ...]
    scale: float | None = None
    dim: int = -1
    threshold: float | tuple[float, ...] = 0.5

    def __post_init__(self) -> None:
        _make_plain(self, "scale", "dim")
        shift = self.shift()  # refuses invalid rates, and numbers of classes that disagree
        limit = self.limit()
        if shift.ndim == limit.ndim == 1 and len(shift) != len(limit):
            raise ValueError(
                f"threshold has {len(limit)} classes, the rates have {len(shift)}: give one, or one per class"
            )

    @property
    def class_names(self) -> tuple[str, ...] | None:
        return self.source.class_names if isinstance(self.source, Prior) else None

    def shift(self) -> Tensor:
        return sigmoid_shift(self.source, self.target_rate)

    def limit(self) -> Tensor:
        """The corrected logit from which a class is predicted: fp32 [K], or []."""
        return fp32(rate_logits(self.threshold, "threshold"))

    def changes(self, shift: Tensor) -> bool:
        return float(shift.abs().max()) > SAME

    def to_metadata(self) -> dict[str, str]:
        source = self.source.to_json() if isinstance(self.source, Prior) else json.dumps(self.source)
        content = {"source": source, "target_rate": json.dumps(self.target_rate)}
        return content | {"threshold": json.dumps(self.threshold)} | _shared_metadata(self)

    @classmethod
    def from_metadata(cls, content: Mapping[str, str]) -> Self:
        source = json.loads(content["source"])
        rates = Prior.from_json(content["source"]) if isinstance(source, dict) else as_rates(source)
        scale, dim = json.loads(content["scale"]), json.loads(content["dim"])
        threshold = as_rates(json.loads(content.get("threshold", "0.5")))  # older files have none
        return cls(rates, as_rates(json.loads(content["target_rate"])), scale, dim, threshold)


def as_rates(value: Any) -> Any:
    """One rate as a float, several as a tuple: frozen, comparable, and unchanged by JSON. A Prior is refused later."""
    rates = value if isinstance(value, Prior) else as_array(value).tolist()
    return tuple(rates) if isinstance(rates, list) else rates


def _make_plain(correction: SoftmaxCorrection | SigmoidCorrection, *options: str) -> None:
    """Options as plain Python numbers, which JSON can hold: 1 / calibration.temperature, for one, is a tensor."""
    for name in options:
        value = getattr(correction, name)
        if value is None and name == "scale":
            continue
        try:
            if isinstance(value, str):
                raise TypeError
            object.__setattr__(correction, name, int(value) if name == "dim" else float(value))
        except (TypeError, ValueError):
            raise TypeError(f"{name} is {value!r}: expected a number") from None
    scale = correction.scale
    if scale is not None and not (math.isfinite(scale) and scale > 0):
        raise ValueError(
            f"scale is {scale:g}: expected a number above 0, the one that training multiplied the logits by"
        )


def check_names(ours: Sequence[Any] | None, theirs: Sequence[Any] | None, what: str, our: str, their: str) -> None:
    """Refuse class names that differ between two sides: their columns would mean different classes."""
    if ours is None or theirs is None or tuple(ours) == tuple(theirs):
        return
    if len(ours) != len(theirs):
        raise ValueError(f"{our} has {len(ours)} {what}, {their} has {len(theirs)}")
    where = next(j for j, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
    order = "the same names in another order: reorder one to match" if set(ours) == set(theirs) else "not those of"
    raise ValueError(
        f"the {what} of {their} are {order} {our} (column {where} is {ours[where]!r} in {our}, "
        f"{theirs[where]!r} in {their}), so their columns mean different classes"
    )


def _shared_metadata(correction: SoftmaxCorrection | SigmoidCorrection) -> dict[str, str]:
    content = {"scale": json.dumps(correction.scale), "dim": json.dumps(correction.dim)}
    if correction.class_names is not None:
        content["class_names"] = json.dumps(correction.class_names, ensure_ascii=False)
    return content
