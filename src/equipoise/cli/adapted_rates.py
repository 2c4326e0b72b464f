"""`equipoise adapt` where an item may have several labels: from the rates that sigmoids mean to the rates in use."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from equipoise.cli.adapted_files import SHOWN, Whole, read_whole
from equipoise.metrics.evaluation import percent
from equipoise.prior import FloatArray, Prior
from equipoise.report.tables import Table

if TYPE_CHECKING:
    from torch import Tensor

    from equipoise.data.prediction_priors import Rates
    from equipoise.data.predictions import Predictions

Sides: TypeAlias = Sequence[tuple[str, Path]]  # --source and --target: as they were given, and the file, if it is one
SCORES = {
    "map": "mAP, %",
    "micro_ap": "micro-AP, %",
    "f1_macro": "mean F1, %",
    "f1_micro": "micro-F1, %",
    "ece": "ECE",
}
RATES = "a rate between 0 and 1 for all classes, or rates, counts with their total, or labels in a file"


@dataclass(frozen=True)
class AdaptedRates:
    """What was done: the file, its adapted logits, both rates per class, and notes."""

    found: Whole
    adapted: Tensor
    meant: Rates
    wanted: Rates
    notes: list[str]

    @property
    def priors(self) -> dict[str, FloatArray]:
        return {"source": self.meant.values, "target": self.wanted.values}

    @property
    def changed(self) -> int:
        """How many labels are predicted now that were not before, or the other way round."""
        return int((self._predicted(self.adapted) != self._predicted(self.found.logits)).sum())

    @property
    def summary(self) -> str:
        return f"{self.changed:,} of {self.adapted.numel():,} predicted labels changed."

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: the rate of every class from 0 to 1, and the scores if there are labels."""
        columns = (self._names(), *self._rates())
        keys = ("class", "source", "target", "before", "after")
        return {
            "items": len(self.adapted),
            "changed": self.changed,
            "classes": [dict(zip(keys, row, strict=True)) for row in zip(*columns, strict=True)],
            "scores": self._scores(),
            "trusted": None,
            "doubts": [],
            "notes": self.notes,
        }

    def tables(self) -> list[Table]:
        """The classes whose rate changed most and, if there are labels, how good the predictions are."""
        import numpy as np

        from equipoise.arrays import log_odds

        names, rates = self._names(), self._rates()
        moved = np.abs(log_odds(self.wanted.values) - log_odds(self.meant.values))
        order = np.sort(np.argsort(-moved, kind="stable")[:SHOWN])
        title = "Rate of each class, %" + (f" ({SHOWN} of {len(names)}, most changed)" if len(names) > SHOWN else "")
        rows = [(names[j], *(percent(rate[j]) for rate in rates)) for j in order]
        made = [Table(("class", "source", "target", "predicted before", "after"), rows, title=title)]
        scores = self._scores()
        if scores is not None:
            lines = [
                (words, *(self._shown(key, scores[when][key]) for when in scores)) for key, words in SCORES.items()
            ]
            made.append(Table(("", "before", "after"), lines, title=f"Scores on {len(self.adapted):,} labelled items"))
        return made

    # ---------------------------------------------------------------- inside

    def _names(self) -> list[str]:
        names = self.found.file.columns or self.meant.class_names or self.wanted.class_names
        return list(names or map(str, range(self.meant.num_classes)))

    def _limit(self) -> Any:
        """The probability from which a label is predicted: as in the file, or 0.5."""
        return 0.5 if self.found.file.thresholds is None else self.found.file.thresholds

    def _predicted(self, logits: Tensor) -> Tensor:
        import torch

        from equipoise.metrics.multilabel_checks import check_thresholds

        return logits >= torch.from_numpy(check_thresholds(self._limit(), logits.shape[1]))

    def _rates(self) -> list[list[float]]:
        """Of each class: in --source, in --target, predicted before and after."""
        predicted = [self._predicted(logits).double().mean(0).tolist() for logits in (self.found.logits, self.adapted)]
        return [self.meant.values.tolist(), self.wanted.values.tolist(), *predicted]

    def _scores(self) -> dict[str, dict[str, float]] | None:
        """How good the predictions are before and after, against the labels of the file."""
        from equipoise.metrics.multilabel import evaluate_multilabel

        if self.found.labels is None:
            return None
        made = {}
        prior = Prior.uniform(self.found.file.num_classes)
        for when, logits in (("before", self.found.logits), ("after", self.adapted)):
            scores = evaluate_multilabel(logits, self.found.labels, prior, threshold=self._limit()).scores()
            made[when] = {key: scores[key] for key in SCORES}
        return made

    def _shown(self, key: str, number: float) -> str:
        return f"{number:.3f}" if key == "ece" else percent(number)


def several_labels(opened: Predictions, sides: Sides, column: str | None) -> bool:
    """Whether items may have several labels: by the labels in the file or, if it has none, by the rates."""
    from equipoise.data.prediction_priors import holds_rates

    if opened.labelled:
        return opened.multilabel
    return any(_one_rate(text) or (path.exists() and holds_rates(path, column=column)) for text, path in sides)


def adapt_rates(file: Predictions, sides: Sides, column: str | None) -> AdaptedRates:
    """Adapt predictions for items with several labels."""
    import numpy as np

    from equipoise.serving.adjust import adjust_sigmoid_logits
    from equipoise.serving.correction import check_names

    if sides[1][0] == "estimate":
        raise ValueError(
            f"--target estimate needs items of one class each, and those of {file.path} may have several labels: pass "
            "the rates in use, e.g. --target rates.json"
        )
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        meant = _rates(*sides[0], file, "--source", column, None)
        wanted = _rates(*sides[1], file, "--target", column, float(meant.values.mean()))
        check_names(meant.class_names, wanted.class_names, "class names", "--source", "--target")
        found = read_whole(file)
        adapted = adjust_sigmoid_logits(found.logits, source=meant.values, target_rate=wanted.values.tolist())
    notes = [str(note.message) for note in noted]
    if not file.labelled:
        notes.append("The file has no labels: taken as one for several labels per item, as --source or --target are.")
    if np.allclose(meant.values, wanted.values, rtol=1e-6, atol=0):
        notes.append("--source and --target are the same rates: nothing changed.")
    if file.thresholds is not None:
        notes.append("The thresholds in the file are kept: choose them anew for the rates in use (eq.f1_thresholds).")
    if found.labels is not None:
        with np.errstate(invalid="ignore"):
            shares = (found.labels == 1).sum(0) / (found.labels >= 0).sum(0)
        notes += nearer_to_source(shares, meant.values, wanted.values)
    return AdaptedRates(found, adapted, meant, wanted, notes)


def nearer_to_source(shares: FloatArray, meant: FloatArray, wanted: FloatArray) -> list[str]:
    """A note if the labels of a file follow --source: then its scores do not show what adapting gains in use."""
    import numpy as np

    if not np.nansum(np.abs(shares - meant)) < np.nansum(np.abs(shares - wanted)):
        return []
    return [
        "The labels are closer to --source than to --target in their class frequencies, so these scores do not show "
        "how good the predictions are where --target holds."
    ]


def _one_rate(text: str) -> bool:
    from equipoise.data.sources import is_number

    return is_number(text) and 0 < float(text) < 1


def _rates(text: str, path: Path, file: Predictions, option: str, column: str | None, mean: float | None) -> Rates:
    """The rates that an option names, in the order of the columns; `mean` is what uniform stands for."""
    import numpy as np

    from equipoise.data.prediction_priors import Rates, rates_of_columns

    names = None if file.columns is None else tuple(file.columns)
    if text == "uniform" and mean is None:
        raise ValueError(
            f"--source uniform, but items of {file.path} may have several labels: pass the rate that the balanced loss "
            "gave every class, by default the mean rate of the training set, e.g. --source 0.05"
        )
    if text == "uniform" or (_one_rate(text) and not path.exists()):
        return Rates(np.full(file.num_classes, mean if text == "uniform" else float(text)), names)
    if not path.exists():
        more = "" if option == "--source" else "uniform, "
        raise ValueError(f"{option} {text} does not exist: expected {more}{RATES}")
    return rates_of_columns(path, file, column=column)
