"""The page for several labels per item: average precision and F1 from head to tail, in one HTML file.

    eq.MultilabelReport({"BCE": eq.judge_multilabel(...), "Balanced": eq.judge_multilabel(...)}).save("page.html")

The page is that of `Report`, with other charts: average precision cannot see a prior, F1 and micro-AP can, so both are
shown; which classes are missed where which others are present; what the thresholds do; calibration.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from equipoise.metrics.evaluation import percent
from equipoise.metrics.multilabel import RESAMPLES
from equipoise.metrics.multilabel_judging import LOG_ODDS, JudgedMultilabel
from equipoise.report import multilabel_changes, multilabel_data, multilabel_specs, page_data, sections
from equipoise.report.class_table import SHAPES, score
from equipoise.report.comparison import Comparison
from equipoise.report.count_specs import class_counts
from equipoise.report.figures import standing_alone
from equipoise.report.groups import Cuts
from equipoise.report.multilabel_changes import change_data
from equipoise.report.multilabel_data import HEADLINES, headlines
from equipoise.report.multilabel_specs import GROUPS, by_place
from equipoise.report.pictures import EACH, Paths, missed, pictures, with_paths
from equipoise.report.sections import Section, figure, pair, section, slider
from equipoise.report.specs import COLOURS, Spec, neighbours

BOOTSTRAP = (
    "Intervals are the middle 95 % of seeded bootstrap draws of the test items; those of changes are of the paired "
    "differences."
)
TITLE = "Several labels, from head to tail"


class MultilabelReport(Comparison):
    """A page that compares models with several labels per item on a test set, first to last: before → after.

    `results` are what `judge_multilabel` returns, by name; all must share the training prior. Intervals come from
    `resamples` bootstrap draws of the test items. Classes with more than `many` training items are the head, those with
    fewer than `few` the tail. `paths` of the test items, for all models or by name, show pictures of what is missed
    most: files below the folder `images` or, without one, at absolute paths.

    >>> from equipoise import Prior, judge_multilabel
    >>> prior = Prior.from_counts([500, 5], total=600, class_names=["cat", "owl"])
    >>> one = judge_multilabel([[2.0, -1.0], [1.0, -0.5]], [[1, 0], [1, 1]], prior)
    >>> MultilabelReport({"BCE": one})
    MultilabelReport(1 model: BCE; 2 classes, 2 test items)
    """

    models: list[multilabel_data.Model]
    _changes: ClassVar[Any] = multilabel_changes

    def __init__(
        self,
        results: Mapping[str, JudgedMultilabel],
        *,
        title: str = TITLE,
        notes: Mapping[str, Sequence[str]] | None = None,
        resamples: int = RESAMPLES,
        many: int = 100,
        few: int = 20,
        paths: Paths | None = None,
        images: str | os.PathLike[str] | None = None,
    ) -> None:
        self.title = title
        self.cuts = Cuts(many, few)
        models = multilabel_data.as_models(results, notes or {}, resamples, self.cuts)
        self.models = with_paths(models, [model.evaluation.num_items for model in models], paths)
        self.prior = self.models[0].judged.prior
        self.images = None if images is None else Path(images)

    def to_html(self) -> str:
        """The whole page as text."""
        drawn = page_data.drawn_classes(self.prior, len(self.models))
        models = [multilabel_data.model_data(model, drawn) for model in self.models]
        shown, missing = pictures([missed(model) for model in self.models], self.images)
        for model, some in zip(models, shown, strict=True):
            model["pictures"] = some
        data = {
            "classes": page_data.class_data(self.prior, drawn, GROUPS, self.cuts),
            "headlines": HEADLINES,
            "odds": LOG_ODDS.tolist(),
            "table": {"items": "positives", "scores": SCORES, "shapes": SHAPES},
            "models": models,
            "changes": change_data(self.models, drawn),
        }
        pairs = max(len(model["rows"]["missed"]) for model in models)
        lines = ["before", "after"] if len(models) > 1 else ["after"]
        specs = multilabel_specs.charts(self.prior, pairs=pairs, lines=lines, cuts=self.cuts)
        specs["counts"] = class_counts(data["classes"], self.prior, by_place(self.cuts))
        certain = any(model.drawn is not None for model in self.models)
        body = self._body(
            _headline_section(self.models, certain, self.cuts),
            multilabel_data.notes_of(self.models, drawn, self.prior.num_classes),
            self._sections(certain, missing if any(shown) else None),
            tested=f" {multilabel_data.how_many(self.prior, self.models[0].evaluation)}",
            below=BOOTSTRAP if certain else "",
        )
        return sections.page(self.title, body, data, specs)

    def figures(self) -> dict[str, Spec]:
        """Every figure of the page by file name: Vega-Lite specifications with their data."""
        shown = self.models if len(self.models) <= len(COLOURS) else [self.models[0], self.models[-1]]
        drawn = page_data.drawn_classes(self.prior, len(shown))
        classes = page_data.class_data(self.prior, drawn, GROUPS, self.cuts)
        found = {model.name: multilabel_data.model_data(model, drawn) for model in shown}
        both = multilabel_specs.charts(self.prior, pairs=1, lines=list(found), cuts=self.cuts)
        both["counts"] = class_counts(classes, self.prior, by_place(self.cuts))

        def drawn_of(kind: str, models: dict[str, Any], spec: Spec, title: str = "") -> Spec:
            return standing_alone(spec, multilabel_data.rows_of(kind, models, classes), title=title)

        made = {
            name: drawn_of(kind, found, both[kind])
            for name, kind in (
                ("class-counts", "counts"),
                ("group-average-precision", "precision_slopes"),
                ("group-f1", "f1_slopes"),
            )
        }
        for number, (name, model) in enumerate(found.items(), start=1):
            pairs = len(model["rows"]["missed"])
            one = multilabel_specs.charts(self.prior, pairs=pairs, lines=[name], cuts=self.cuts)
            for kind in ("precision", "f1", "missed", "curve", "chosen", "calibration"):
                if kind in model["columns"] or kind == "chosen" or model["rows"].get(kind):
                    made[f"{number}-{NAMES[kind]}"] = drawn_of(kind, {name: model}, one[kind], name)
        return made

    # ---------------------------------------------------------------- inside

    def _items(self) -> int:
        return self.models[0].evaluation.num_items

    def _groups(self) -> dict[str, int]:
        return {name: len(members) for name, members in self.models[0].members}

    def _numbers(self, model: multilabel_data.Model) -> dict[str, Any]:
        return {
            "name": model.name,
            "items": model.evaluation.num_items,
            "notes": list(model.notes),
            "headline": {key: value and vars(value) for key, value in headlines(model).items()},
            "scores": model.scores,
        }

    def _sections(self, certain: bool, missing: int | None) -> list[Section]:
        """`missing` is how many pictures could not be opened; None if there are no pictures."""
        several = len(self.models) > 1
        return [
            _classes_section(several, self.prior.num_classes, certain),
            sections.table_section(several, list(GROUPS.values()), TABLE),
            _slopes_section(several, certain),
            _missed_section(several),
            *([] if missing is None else [_pictures_section(several, missing)]),
            _thresholds_section(several),
            _calibration_section(several),
            sections.counts_section(),
        ]


TABLE = (
    "Average precision (AP) ranks the items of a class; recall, precision and F1 are at its threshold. Each number has "
    "its 95 % interval below."
)
SCORES = [
    score("ap", "AP", "precision", "precision_low", "precision_high"),
    score("recall", "recall"),
    score("precision", "precision"),
    score("f1", "F1", "f1", "f1_low", "f1_high"),
]
NAMES = {
    "precision": "class-average-precision",
    "f1": "class-f1",
    "missed": "missed-classes",
    "curve": "f1-by-threshold",
    "chosen": "thresholds",
    "calibration": "calibration",
}


# -------------------------------------------------------------------- sections


def _headline_section(models: list[multilabel_data.Model], certain: bool, cuts: Cuts) -> Section:
    rows = []
    for model in models:
        cells = []
        for value in headlines(model).values():
            known = value is not None and value.low is not None
            ends = f"{percent(value.low)} to {percent(value.high)}" if value and known else ""
            cells.append((percent(value.value if value else None), ends))
        rows.append((page_data.cut(model.name, 200), cells))
    below = ", with the 95 % interval below" if certain else ""
    how = (
        f"In percent{below}. mAP is the mean average precision of the classes with positive test items; it ranks the "
        "items of one class at a time and does not compare classes, as micro-AP and F1 do. Groups are by number of "
        f"training items: head more than {cuts.many:,}, tail fewer than {cuts.few:,}. A dash marks a group without "
        "positives."
    )
    return sections.headline_table(how, [words for _, words, _ in HEADLINES], rows)


def _classes_section(several: bool, num_classes: int, certain: bool) -> Section:
    line = "is the mean of neighbouring classes" if neighbours(num_classes) else "connects them"
    return section(
        "classes",
        "Every class",
        "Each point is a class: its average precision, then its F1 at its threshold"
        f"{', with 95 % intervals' if certain else ''}, against its number of training items. The line {line}. If F1 "
        "falls to the right and average precision does not, the tail is ranked well but its thresholds are wrong.",
        pair("precision", several) + pair("f1", several),
    )


def _slopes_section(several: bool, certain: bool) -> Section:
    compared = " of each model alone; see above whether a change is more than chance" if several else ""
    return section(
        "groups",
        "Head and tail",
        f"Means over the classes in each group.{f' Bars are 95 % intervals{compared}.' if certain else ''}",
        f'<div class="two">{figure("precision_slopes")}{figure("f1_slopes")}</div>',
    )


def _missed_section(several: bool) -> Section:
    return section(
        "missed",
        "Classes missed beside others",
        "The share of test items with both classes for which the first is not predicted, with its 95 % interval. The "
        "grey mark is its share of misses without the other class. Only pairs with a significant difference are shown, "
        "corrected for the number of pairs compared.",
        pair("missed", several, empty="No class is missed significantly more often beside another than without it."),
    )


def _pictures_section(several: bool, missing: int) -> Section:
    how = (
        "Test images of the most clearly missed classes of each group (by the lower end of the 95 % interval), class "
        f"by class: up to {EACH} of each, those with the lowest probability."
    )
    return sections.pictures_section(several, missing, "What is missed most", how)


def _thresholds_section(several: bool) -> Section:
    moved = slider("odds", "One threshold for all classes", "0.03 %", "50 %", "99.97 %", readout="odds-readout")
    return section(
        "thresholds",
        "Thresholds",
        "Mean F1 of each group at one threshold for all classes. Below, the threshold of each class (tick) and "
        "the one with the best F1 on these items (point), which is optimistic: choose thresholds on other data, "
        "with <code>eq.f1_thresholds</code>.",
        moved + pair("curve", several) + pair("chosen", several),
    )


def _calibration_section(several: bool) -> Section:
    return section(
        "calibration",
        "Probability and frequency",
        "How often a label is present against its predicted probability, for each group, in bins with equal numbers of "
        "item-class pairs; bands are 95 % intervals. Where the band covers the thin diagonal, probabilities match "
        "frequencies; below the diagonal they are too high. The expected calibration error (ECE, in percent, over 15 "
        "bins of equal width) is the mean over the classes in a group.",
        pair("calibration", several, below="ece"),
    )
