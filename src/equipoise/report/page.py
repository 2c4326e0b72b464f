"""The long-tail report: one HTML file that shows the tail before and after, without network, drawn by Vega-Lite.

    eq.Report({"Softmax": eq.evaluate(...), "Balanced Softmax": eq.evaluate(...)}).save("report.html")

Evaluations give the headline numbers, classes, groups, p(y) and calibration. `eq.judge` keeps more of the predictions:
which class is mistaken for which, and the prior sweep. What is not known of a model is left out, with a note.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from equipoise.data.reading import counted
from equipoise.files import write_text
from equipoise.metrics.evaluation import percent
from equipoise.metrics.judging import judge
from equipoise.metrics.sweep import TAUS, WORLDS, LogitsMean
from equipoise.prior import Prior
from equipoise.report import changes, page_data, sections, specs
from equipoise.report.changes import change_data
from equipoise.report.class_table import SHAPES, table_columns, table_scores
from equipoise.report.comparison import Comparison
from equipoise.report.count_specs import class_counts
from equipoise.report.figures import standing_alone
from equipoise.report.groups import GROUPS, Cuts
from equipoise.report.heat_map import group_ends, heat_map_data
from equipoise.report.inspection import Inspection, absent_in_words, how_unequal
from equipoise.report.pictures import EACH, Paths, confused, pictures, with_paths
from equipoise.report.sections import Section, foot, headings, text, top
from equipoise.report.specs import Spec, by_count
from equipoise.report.sweep_specs import sweeps, tau_sweep, world_sweep

TITLE = "The tail, before and after"


class Report(Comparison):
    """A page that compares models on a test set, first to last: before → after.

    `results` are evaluations, or what `eq.judge` returns, by name or in a list; several per name are seeds of one
    model. All must share the training prior. Classes with more than `many` training items and fewer than `few` are the
    groups of that name. `paths` of the test items, for all models or by name, show pictures of the most confident
    mistakes: files below the folder `images`, or at absolute paths without one. In a notebook the report shows itself.

    >>> prior = Prior.from_counts([500, 5], class_names=["cat", "owl"])
    >>> one = judge([[2.0, 0.0], [1.0, 0.0]], [0, 1], prior, logits_mean="train")
    >>> other = judge([[2.0, 0.0], [0.0, 1.0]], [0, 1], prior, logits_mean="uniform")
    >>> Report({"Softmax": one, "Balanced Softmax": other})
    Report(2 models: Softmax, Balanced Softmax; 2 classes, 2 test items)
    """

    models: list[page_data.Model]
    _changes: ClassVar[Any] = changes

    def __init__(
        self,
        results: page_data.Results,
        *,
        names: Sequence[str] | None = None,
        title: str = TITLE,
        notes: Mapping[str, Sequence[str]] | None = None,
        many: int = 100,
        few: int = 20,
        paths: Paths | None = None,
        images: str | os.PathLike[str] | None = None,
    ) -> None:
        self.title = title
        self.cuts = Cuts(many, few)
        models = page_data.as_models(results, names, notes or {}, self.cuts)
        self.models = with_paths(models, [model.runs[0].num_items for model in models], paths)
        self.prior = self.models[0].runs[0].prior
        self.cuts.groups(self.prior)  # refuses cut-offs that overlap
        self.images = None if images is None else Path(images)

    @classmethod
    def from_predictions(
        cls,
        predictions: Mapping[str, ArrayLike | Tensor],
        target: ArrayLike | Tensor,
        prior: Prior,
        *,
        logits_mean: LogitsMean | Mapping[str, LogitsMean] = "train",
        probabilities: bool = False,
        title: str = TITLE,
        many: int = 100,
        few: int = 20,
    ) -> Report:
        """The whole page from arrays [N, K] by model, and class indices [N].

        `logits_mean` is the prior that predictions mean, of all or by name: "train" after a plain loss, "uniform" after
        a balanced one.
        """
        means = logits_mean if isinstance(logits_mean, Mapping) else dict.fromkeys(predictions, logits_mean)
        if set(means) != set(predictions):
            raise ValueError(f"logits_mean is of {list(means)}, predictions of {list(predictions)}: name the same")
        results = {
            name: judge(outputs, target, prior, probabilities=probabilities, logits_mean=means[name])
            for name, outputs in predictions.items()
        }
        return cls(results, title=title, many=many, few=few)

    def to_html(self) -> str:
        """The whole page as text."""
        drawn = page_data.drawn_classes(self.prior, len(self.models))
        data = self._data(drawn)
        pairs = max(len(model["rows"].get("swallowed", ())) for model in data["models"])
        lines = ["before", "after"] if len(self.models) > 1 else ["after"]
        charts = specs.charts(self.prior, pairs=pairs, lines=lines, cuts=self.cuts) | sweeps(lines)
        charts["counts"] = class_counts(data["classes"], self.prior, by_count(self.cuts))
        headline, notes = sections.headline_section(self.models), self._notes(drawn)
        body = self._body(headline, notes, self._sections(data), below=sections.WILSON)
        return sections.page(self.title, body, data, charts)

    def figures(self) -> dict[str, Spec]:
        """Every figure of the page by file name: Vega-Lite specifications with their data, which `save` writes."""
        shown = self.models if len(self.models) <= len(specs.COLOURS) else [self.models[0], self.models[-1]]
        drawn = page_data.drawn_classes(self.prior, len(shown))
        classes = page_data.class_data(self.prior, drawn, cuts=self.cuts)
        looks = by_count(self.cuts)
        found = {model.name: page_data.model_data(model, drawn) for model in shown}
        away = {f"{name}, {model['total_variation']:.2f} from uniform": model for name, model in found.items()}
        swept = {name: model for name, model in found.items() if "world" in model["rows"]}

        def figure(spec: Spec, kind: str, models: dict[str, Any], title: str = "", below: str = "") -> Spec:
            return standing_alone(spec, page_data.rows_of(kind, models, classes), title=title, subtitle=below)

        made = {"class-counts": figure(class_counts(classes, self.prior, looks), "counts", {})}
        made["marginal-likelihood"] = figure(specs.marginal_likelihood(self.prior, list(away)), "marginal", away)
        made["group-slopes"] = figure(specs.group_slopes(list(found), groups=looks), "slopes", found)
        if swept:
            made["world-sweep"] = figure(world_sweep(list(swept)), "world", swept)
        for number, (name, model) in enumerate(found.items(), start=1):
            one, rows = {name: model}, model["rows"]
            made[f"{number}-class-accuracy"] = figure(specs.class_accuracy(self.prior, looks), "classes", one, name)
            if "calibration" in rows:
                errors = ", ".join(f"{group} {percent(e)}" for group, e in model["ece"].items() if e is not None)
                below = f"expected calibration error, %: {errors}"
                made[f"{number}-calibration"] = figure(specs.calibration(groups=looks), "calibration", one, name, below)
            if "swallowed" in rows:
                chart = specs.swallowed(len(rows["swallowed"]), looks)
                made[f"{number}-swallowed-classes"] = figure(chart, "swallowed", one, name)
                made[f"{number}-group-flow"] = figure(specs.group_flow(), "flow", one, name)
            if "tau" in rows:
                chart = tau_sweep(float(TAUS[model["sweep"]["as_it_is"]]))
                made[f"{number}-tau-sweep"] = figure(chart, "tau", one, name, "dashed line: as it is")
        return made

    # ---------------------------------------------------------------- inside

    def _items(self) -> int:
        return self.models[0].runs[0].num_items

    def _groups(self) -> dict[str, int]:
        return {name: len(members) for name, members in self.cuts.groups(self.prior).items()}

    def _numbers(self, model: page_data.Model) -> dict[str, Any]:
        return {
            "name": model.name,
            "items": model.runs[0].num_items,
            "runs": len(model.runs),
            "notes": list(model.notes),
            "ece": float(np.mean([run.ece for run in model.runs])),
            "headline": {key: value and vars(value) for key, value in page_data.headlines(model).items()},
        }

    def _data(self, drawn: list[int]) -> dict[str, Any]:
        data: dict[str, Any] = {
            "classes": page_data.class_data(self.prior, drawn, cuts=self.cuts),
            "imbalance": float(self.prior.counts.max() / max(self.prior.counts.min(), 1)),  # absent: as one item
            "headlines": headings(self.cuts),
            "worlds": WORLDS.tolist(),
            "taus": TAUS.tolist(),
            "table": {"items": "test items", "scores": table_scores(self.models), "shapes": SHAPES},
            "models": [page_data.model_data(model, drawn) for model in self.models],
            "changes": change_data(self.models, drawn),
        }
        shown, data["missing"] = pictures([confused(model) for model in self.models], self.images)
        for model, found, some in zip(self.models, data["models"], shown, strict=True):
            found["table"] = table_columns(model, drawn)
            found["pictures"] = some
            if model.confusions is not None:
                data["heat"] = {"classes": self.prior.num_classes, "ends": group_ends(self.cuts.groups(self.prior))}
                found["heat"] = heat_map_data(model.confusions, self.prior, len(self.models))
        return data

    def _sections(self, data: dict[str, Any]) -> list[Section]:
        models, several = self.models, len(self.models) > 1
        kept = [found["heat"]["kept"] for found in data["models"] if "heat" in found]
        found = [
            sections.classes_section(several, self.prior.num_classes),
            sections.table_section(several, GROUPS, TABLE if len(data["table"]["scores"]) > 1 else TABLE_OF_RECALL),
            sections.slopes_section(several),
            sections.marginal_section(several),
        ]
        if kept:
            found.append(sections.swallowed_section(several, min(kept)))
        if any(model["pictures"] for model in data["models"]):
            found.append(sections.pictures_section(several, data["missing"], "The most confident mistakes", PICTURED))
        if any(model.calibrated for model in models):
            found.append(sections.calibration_section(several))
        if any(model.sweep for model in models):
            found += [sections.world_section(), sections.tau_section(several)]
        return [*found, sections.counts_section()]

    def _notes(self, drawn: list[int]) -> list[str]:
        notes = page_data.run_notes(self.models)
        first = self.models[0].runs[0].items
        if any(not np.array_equal(run.items, first) for model in self.models for run in model.runs):
            notes.append("The models were evaluated on different test items, which may explain small differences.")
        if len(drawn) < self.prior.num_classes:
            notes.append(
                f"Charts of classes show {len(drawn):,} of {self.prior.num_classes:,}, evenly spaced from head to "
                "tail; all numbers cover all classes."
            )
        return notes


TABLE_OF_RECALL = (
    "Recall, a class's accuracy, is the share of its test items that are recognised; its 95 % interval is below."
)
TABLE = (
    "Recall, a class's accuracy, is the share of its test items that are recognised; precision is the share of its "
    "predictions that are right; F1 is their harmonic mean. Each number has its 95 % interval below."
)
PICTURED = f"Test images of the pairs above, pair by pair: up to {EACH} of each, its most confident mistakes."


# -------------------------------------------------------------------- the page of a training set


def inspection_page(seen: Inspection) -> str:
    """The page of `equipoise inspect --html`."""
    prior = seen.prior
    title, classes = f"The tail of {Path(seen.source).name}", counted(prior.num_classes, "class")
    unit, held = seen.unit.removesuffix("s"), seen.unit_in_groups.removesuffix("s")
    lead = (
        f"{counted(prior.total, unit)}, {classes}; {how_unequal(prior)}. {seen.half:,} of {classes} "
        f"hold{'s' if seen.half == 1 else ''} half of the data."
    )
    words = dict(headings())
    cards = "".join(
        f'<div class="card"><div class="what"><span class="shape {name}"></span><span>{words[name]}</span></div>'
        f'<div class="big">{group.classes:,}<small> class{"" if group.classes == 1 else "es"}</small></div>'
        f'<div class="range">{text(counted(group.items, held))}, {percent(group.share)} % of the data</div></div>'
        for name, group in seen.groups.items()
    )
    absent = ""
    if seen.absent:
        names = ", ".join(page_data.cut(name, 60) for name in seen.absent[:40])
        more = f", and {len(seen.absent) - 40:,} more" if len(seen.absent) > 40 else ""
        absent = f"<p>{absent_in_words(seen.absent)}: {text(names)}{more}.</p>"
    advice = "".join(
        f"<div><h3>{text(each.title)}</h3><p>{text(each.words)}</p>"
        + (f"<pre><code>{text(each.code)}</code></pre>" if each.code else "")
        + "</div>"
        for each in seen.advice
    )
    body = [
        top(title, lead),
        f'<main class="single"><section class="first"><div class="cards">{cards}</div>{absent}</section>',
        sections.counts_section().html,
        f'<section><h2>What to do about it</h2><div class="advice">{advice}</div></section></main>',
        foot(""),
    ]
    drawn = page_data.class_data(prior, page_data.drawn_classes(prior, 1))
    return sections.page(title, "\n".join(body), {"classes": drawn}, {"counts": class_counts(drawn, prior)})


def save_inspection(seen: Inspection, path: str | os.PathLike[str]) -> Path:
    """Write the page of a training set, whole or not at all; folders are made."""
    write_text(path, inspection_page(seen))
    return Path(path)
