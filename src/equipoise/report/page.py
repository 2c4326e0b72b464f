"""The long-tail report: one HTML file that shows the tail before and after, without network, drawn by Vega-Lite.

    eq.Report({"Softmax": eq.evaluate(...), "Balanced Softmax": eq.evaluate(...)}).save("report.html")

Evaluations give the headline numbers, classes, groups, p(y) and calibration. `eq.judge` keeps more of the predictions:
who is taken for whom, and the prior sweep. Whatever is not known of a model is left out and said.
"""

from __future__ import annotations

import html
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from equipoise.files import write_text
from equipoise.metrics.judging import judge
from equipoise.metrics.sweep import TAUS, WORLDS, LogitsMean
from equipoise.prior import Prior
from equipoise.report import sections, specs
from equipoise.report.figures import save, standing_alone
from equipoise.report.inspection import Inspection, counted, how_unequal
from equipoise.report.page_data import (
    Results,
    as_models,
    class_data,
    cut,
    drawn_classes,
    model_data,
    model_notes,
    rows_of,
    runs_note,
)
from equipoise.report.sections import HEADLINES, foot, text, top
from equipoise.report.specs import Spec


class Report:
    """A page that compares models on a test set, first to last: before → after.

    `results` are evaluations, or what `eq.judge` returns, by name or in a list; several a name are seeds of one model.
    All must share the training prior. In a notebook the report shows itself.

    >>> prior = Prior.from_counts([500, 5], class_names=["cat", "owl"])
    >>> one = judge([[2.0, 0.0], [1.0, 0.0]], [0, 1], prior, logits_mean="train")
    >>> other = judge([[2.0, 0.0], [0.0, 1.0]], [0, 1], prior, logits_mean="uniform")
    >>> Report({"Softmax": one, "Balanced Softmax": other})
    Report(2 models: Softmax, Balanced Softmax; 2 classes, 2 test items)
    """

    def __init__(
        self,
        results: Results,
        *,
        names: Sequence[str] | None = None,
        title: str = "The tail, before and after",
        notes: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.title = title
        self.models = as_models(results, names, notes or {})
        self.prior = self.models[0].runs[0].prior

    @classmethod
    def from_predictions(
        cls,
        predictions: Mapping[str, ArrayLike | Tensor],
        target: ArrayLike | Tensor,
        prior: Prior,
        *,
        logits_mean: LogitsMean | Mapping[str, LogitsMean] = "train",
        probabilities: bool = False,
        title: str = "The tail, before and after",
    ) -> Report:
        """The whole page from arrays [N, K] by model, and class indices [N].

        `logits_mean` is the prior that predictions mean, of all or by name: "train" after a plain loss, "uniform" after
        a balanced one.
        """
        if isinstance(logits_mean, Mapping) and set(logits_mean) != set(predictions):
            raise ValueError(
                f"logits_mean is of {list(logits_mean)}, predictions of {list(predictions)}: name the same"
            )
        means = {name: logits_mean[name] if isinstance(logits_mean, Mapping) else logits_mean for name in predictions}
        results = {
            name: judge(outputs, target, prior, probabilities=probabilities, logits_mean=means[name])
            for name, outputs in predictions.items()
        }
        return cls(results, title=title)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page, whole or not at all; folders are made."""
        write_text(path, self.to_html())
        return Path(path)

    def to_html(self) -> str:
        """The whole page as text."""
        drawn = drawn_classes(self.prior, len(self.models))
        data = self._data(drawn)
        pairs = max(len(model["rows"].get("swallowed", ())) for model in data["models"])
        lines = ["before", "after"] if len(self.models) > 1 else ["after"]
        return sections.page(self.title, self._body(drawn), data, specs.charts(self.prior, pairs=pairs, lines=lines))

    def figures(self) -> dict[str, Spec]:
        """Every figure of the page by file name: Vega-Lite specifications with their data, which `save` writes."""
        shown = self.models if len(self.models) <= len(specs.COLOURS) else [self.models[0], self.models[-1]]
        drawn = drawn_classes(self.prior, len(shown))
        classes, found = class_data(self.prior, drawn), {model.name: model_data(model, drawn) for model in shown}
        away = {f"{name}, {model['total_variation']:.2f} from uniform": model for name, model in found.items()}
        swept = {name: model for name, model in found.items() if "world" in model["rows"]}

        def figure(spec: Spec, kind: str, models: dict[str, Any], title: str = "", below: str = "") -> Spec:
            return standing_alone(spec, rows_of(kind, models, classes), title=title, subtitle=below)

        made = {"class-counts": figure(specs.class_counts(self.prior, most_names=60), "counts", {})}
        made["marginal-likelihood"] = figure(specs.marginal_likelihood(self.prior, list(away)), "marginal", away)
        made["group-slopes"] = figure(specs.group_slopes(list(found)), "slopes", found)
        if swept:
            made["world-sweep"] = figure(specs.world_sweep(list(swept)), "world", swept)
        for number, (name, model) in enumerate(found.items(), start=1):
            one, rows = {name: model}, model["rows"]
            made[f"{number}-class-accuracy"] = figure(specs.class_accuracy(self.prior), "classes", one, name)
            if "calibration" in rows:
                errors = ", ".join(f"{group} {100 * e:.1f}" for group, e in model["ece"].items() if e is not None)
                below = f"expected calibration error, %: {errors}"
                made[f"{number}-calibration"] = figure(specs.calibration(), "calibration", one, name, below)
            if "swallowed" in rows:
                chart = specs.swallowed(len(rows["swallowed"]))
                made[f"{number}-swallowed-classes"] = figure(chart, "swallowed", one, name)
                made[f"{number}-group-flow"] = figure(specs.group_flow(), "flow", one, name)
            if "tau" in rows:
                chart = specs.tau_sweep(float(TAUS[model["sweep"]["as_it_is"]]))
                made[f"{number}-tau-sweep"] = figure(chart, "tau", one, name, "the dashed line: as it is")
        return made

    def save_figures(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write every figure as PNG and SVG into a folder."""
        figures = self.figures().items()
        return [save(figure, Path(folder) / f"{name}.{end}") for name, figure in figures for end in ("png", "svg")]

    def _repr_html_(self) -> str:
        """The page in a frame of its own, for notebooks."""
        page = html.escape(self.to_html(), quote=True)
        style = "width:100%;height:900px;border:1px solid #8884;border-radius:8px"
        return f'<iframe srcdoc="{page}" style="{style}" title="{html.escape(self.title)}"></iframe>'

    def __repr__(self) -> str:
        names = ", ".join(model.name for model in self.models)
        items = self.models[0].runs[0].num_items
        models = f"{len(self.models)} model{'s' if len(self.models) > 1 else ''}"
        return f"Report({models}: {names}; {self.prior.num_classes:,} classes, {items:,} test items)"

    # ---------------------------------------------------------------- inside

    def _data(self, drawn: list[int]) -> dict[str, Any]:
        return {
            "classes": class_data(self.prior, drawn),
            "groups": {name: len(members) for name, members in self.prior.groups().items()},
            "imbalance": float(self.prior.counts.max() / max(self.prior.counts.min(), 1)),  # absent: as one item
            "headlines": HEADLINES,
            "worlds": WORLDS.tolist(),
            "taus": TAUS.tolist(),
            "models": [model_data(model, drawn) for model in self.models],
        }

    def _body(self, drawn: list[int]) -> str:
        prior, several = self.prior, len(self.models) > 1
        items = self.models[0].runs[0].num_items
        lead = (
            f"{counted(prior.num_classes, 'classes')}, {counted(prior.total, 'training items')}; {how_unequal(prior)}. "
            f"Judged on {counted(items, 'test items')}."
        )
        parts = [top(self.title, lead), sections.picker() if several else ""]
        parts.append(f'<main class="{"" if several else "single"}">')
        parts += [
            sections.headline_section(self.models),
            *self._notes(drawn),
            sections.classes_section(several, prior.num_classes),
            sections.slopes_section(several),
        ]
        parts.append(sections.marginal_section(several))
        parts.append(sections.swallowed_section(several) if any(m.confusions for m in self.models) else "")
        parts.append(sections.calibration_section(several) if any(m.calibrated for m in self.models) else "")
        parts.append(sections.sweep_section(several) if any(m.sweep for m in self.models) else "")
        parts += [sections.counts_section(), "</main>", foot()]
        return "\n".join(parts)

    def _notes(self, drawn: list[int]) -> list[str]:
        notes = runs_note(self.models)
        notes += [f"{model.name}: {note}" for model in self.models for note in (*model_notes(model), *model.notes)]
        first = self.models[0].runs[0].items
        if any(not np.array_equal(run.items, first) for model in self.models for run in model.runs):
            notes.append("The models were judged on different test items: small differences may come from those.")
        if len(drawn) < self.prior.num_classes:
            notes.append(
                f"Charts of classes show {len(drawn):,} of {self.prior.num_classes:,}, evenly spaced from head to "
                "tail; all numbers are of all classes."
            )
        return [f'<p class="note">{text(note)}</p>' for note in notes]


# -------------------------------------------------------------------- the page of a training set


def inspection_page(seen: Inspection) -> str:
    """The page of `equipoise inspect --html`."""
    prior = seen.prior
    drawn = drawn_classes(prior, 1)
    classes = counted(prior.num_classes, "classes")
    lead = (
        f"{counted(prior.total, seen.unit)}, {classes}; {how_unequal(prior)}. Half of the data is in {seen.half:,} of "
        f"{classes}."
    )
    words = dict(HEADLINES)
    cards = "".join(
        f'<div class="card"><div class="what"><span class="shape {name}"></span><span>{words[name]}</span></div>'
        f'<div class="big">{group.classes:,}<small> class{"" if group.classes == 1 else "es"}</small></div>'
        f'<div class="range">{text(counted(group.items, seen.unit))}, {100 * group.share:.1f} % of the data</div></div>'
        for name, group in seen.groups.items()
    )
    absent = ""
    if seen.absent:
        names = ", ".join(cut(name, 60) for name in seen.absent[:40])
        more = f", and {len(seen.absent) - 40:,} more" if len(seen.absent) > 40 else ""
        count = "1 class never occurs" if len(seen.absent) == 1 else f"{len(seen.absent):,} classes never occur"
        absent = f"<p>{count}: {text(names)}{more}.</p>"
    advice = "".join(
        f"<div><h3>{text(each.title)}</h3><p>{text(each.words)}</p>"
        + (f"<pre><code>{text(each.code)}</code></pre>" if each.code else "")
        + "</div>"
        for each in seen.advice
    )
    body = [
        top(f"The tail of {Path(seen.source).name}", lead),
        f'<main class="single"><section class="first"><div class="cards">{cards}</div>{absent}</section>',
        sections.counts_section(),
        f'<section><h2>What to do about it</h2><div class="advice">{advice}</div></section></main>',
        foot(),
    ]
    data = {"classes": class_data(prior, drawn)}
    return sections.page(
        f"The tail of {Path(seen.source).name}", "\n".join(body), data, {"counts": specs.class_counts(prior)}
    )


def save_inspection(seen: Inspection, path: str | os.PathLike[str]) -> Path:
    """Write the page of a training set, whole or not at all; folders are made."""
    write_text(path, inspection_page(seen))
    return Path(path)
