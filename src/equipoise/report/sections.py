"""The page as text: its sections, the template, and the escaping that keeps names from becoming markup."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from equipoise.metrics.evaluation import percent
from equipoise.metrics.sweep import WORLDS
from equipoise.report.figures import VEGA_LITE, renderer
from equipoise.report.groups import USUAL, Cuts
from equipoise.report.page_data import Model, cut, headlines
from equipoise.report.specs import neighbours

SCRIPTS = ("page.js", "table.js", "heat_map.js", "pictures.js")


class Section(NamedTuple):
    """A part of the page: the name of its anchor, its heading, and its HTML."""

    name: str
    title: str
    html: str


def headings(cuts: Cuts = USUAL) -> list[tuple[str, str]]:
    """The headline numbers and their names."""
    return [("top1", "top-1"), ("balanced", "mean over classes"), *cuts.words.items()]


LAST = len(WORLDS) - 1  # place of every slider: all sweeps have as many


def conclusion_section(words: str) -> Section:
    """The conclusion in a few sentences; page.js rewrites it for other models."""
    html = (
        f'<section class="first" id="conclusion"><h2 class="unseen">Conclusion</h2><p class="conclusion" '
        f'id="conclusion-words" aria-live="polite">{text(words)}</p><p class="note" id="conclusion-how"></p></section>'
    )
    return Section("conclusion", "Conclusion", html)


def headline_section(models: list[Model]) -> Section:
    rows = []
    heads = [*(words for _, words in headings(models[0].cuts)), "ECE", "p(y) from uniform"]
    for model in models:
        ece = float(np.mean([run.ece for run in model.runs])) if model.calibrated else None
        numbers = [(percent(value.value if value else None), value) for value in headlines(model).values()]
        cells = [(number, f"{percent(v.low)} to {percent(v.high)}" if v else "") for number, v in numbers]
        rows.append((cut(model.name, 200), [*cells, (percent(ece), ""), (percent(model.total_variation), "")]))
    how = (
        "Accuracy in percent, with its 95 % interval below. Groups are by number of training items; a group's accuracy "
        "is the mean over its classes. ECE is the distance between confidence and accuracy; p(y) from uniform, that of "
        "the average prediction from equal classes. A dash marks what could not be computed."
    )
    return headline_table(how, heads, rows)


def headline_table(how: str, heads: Sequence[str], rows: Sequence[tuple[str, Sequence[tuple[str, str]]]]) -> Section:
    """Cards for the chosen models, and a row of numbers per model, each with the text below it."""
    lines = []
    for name, cells in rows:
        made = [f'<th scope="row" role="rowheader">{text(name)}</th>']
        for head, (number, below) in zip(heads, cells, strict=True):
            small = f"<small>{below}</small>" if below else ""
            made.append(f'<td role="cell" data-label="{text(head)}"><span>{number}</span>{small}</td>')
        lines.append(f'<tr role="row">{"".join(made)}</tr>')
    together = [text(title).replace("&lt; ", "&lt;&nbsp;").replace("&gt; ", "&gt;&nbsp;") for title in heads]
    titles = "".join(f'<th scope="col" role="columnheader">{title}</th>' for title in ("model", *together))
    table = (
        f'<table role="table" class="stacks" aria-label="Models"><thead role="rowgroup"><tr role="row">'
        f'{titles}</tr></thead><tbody role="rowgroup">{"".join(lines)}</tbody></table>'
    )
    four = " four" if len(heads) == 8 else ""
    content = f'<div class="cards{four}" id="cards"></div><p class="how">{how}</p><div class="scroll">{table}</div>'
    html = f'<section id="numbers"><h2>The numbers</h2>{content}</section>'
    return Section("numbers", "The numbers", html)


def classes_section(several: bool, num_classes: int) -> Section:
    line = "is the mean of neighbouring classes" if neighbours(num_classes) else "connects them"
    return section(
        "classes",
        "Every class",
        "Each point is a class: its accuracy, with a 95 % interval, against its number of training items. The "
        f"line {line}; it falls to the right if the model neglects the tail.",
        pair("classes", several),
    )


def table_section(several: bool, groups: Sequence[str], how: str) -> Section:
    """The table of classes, which table.js fills."""
    change = (
        " A change is bold if its interval excludes 0; even if nothing changed, up to 5 of 100 classes would be bold "
        'by chance. Columns without the name of a model belong to <span data-name="after"></span>.'
        if several
        else ""
    )
    options = "".join(f'<option value="{group}">{group}</option>' for group in groups)
    tools = (
        '<div class="tools"><label>Find a class <input type="search" id="table-find" autocomplete="off"></label>'
        f'<label>Group <select id="table-group"><option value="">all</option>{options}</select></label>'
        '<label class="narrow">Sort by <select id="table-sort"></select></label>'
        '<button type="button" id="table-csv">Download CSV</button>'
        '<output id="table-count" aria-live="polite"></output></div>'
    )
    table = (
        '<div class="scroll"><table id="class-table" role="table" class="stacks" aria-label="Classes">'
        '<thead role="rowgroup"><tr role="row" id="class-heads"></tr></thead>'
        '<tbody role="rowgroup" id="class-rows"></tbody></table></div>'
        '<p><button type="button" id="table-more" hidden>Show more</button></p>'
    )
    return section("table", "Class by class", how + change, tools + table)


def slopes_section(several: bool) -> Section:
    return section(
        "groups",
        "Head and tail",
        "Mean accuracy of the classes in each group. Bars are 95 % intervals"
        + (" of each model alone; see above whether a change is more than chance." if several else "."),
        figure("slopes", wide=True),
    )


def marginal_section(several: bool) -> Section:
    roles = ["before", "after"] if several else ["after"]
    far = ", ".join(f'<span class="tag {role}"></span><b data-tv="{role}"></b> %' for role in roles)
    return section(
        "prior",
        "Average predictions",
        "p(y) is the mean predicted probability of each class over the whole test set. The thin line is uniform, "
        "where an unbiased model stays on a balanced test set.",
        figure("marginal", wide=True) + f'<p class="note">Distance from uniform (total variation): {far}</p>',
    )


def swallowed_section(several: bool, kept: float) -> Section:
    empty = "No class is mistaken for one with more training items, or the predictions are not available."
    least = f" Only the largest cells are shown, with {percent(kept)} % of the test items." if kept < 1 else ""
    beside = []
    for role in ["before", "after"] if several else ["after"]:
        title = f'<h3><span class="tag {role}"></span><span data-name="{role}"></span></h3>'
        beside.append(
            f'<div class="beside">{title}<div class="two">{heat_map(role)}'
            f"{figure('swallowed', role=role, empty=empty)}</div></div>"
        )
    return section(
        "confusions",
        "Confusions",
        "The first chart shows how the test items of each group are classified. In the confusion matrix, rows are true "
        "classes and columns predicted ones, both from the most training items to the fewest; correct predictions are "
        f"green.{least} The bars show the classes of each group that are most clearly mistaken for one with more "
        "training items (by the lower end of the 95 % interval).",
        pair("flow", several) + "".join(beside),
    )


def heat_map(role: str) -> str:
    """A place for heat_map.js to draw the confusion matrix."""
    buttons = "".join(
        f'<button type="button" data-zoom="{way}" aria-label="{words}">{sign}</button>'
        for way, words, sign in (("in", "zoom in", "+"), ("out", "zoom out", "−"), ("all", "show all classes", "all"))
    )
    return (
        f'<figure class="heat" data-heat="{role}"><div class="known"><div class="canvas"><canvas tabindex="0" '
        f'role="img"></canvas></div><div class="zoom">{buttons}'
        '<output aria-live="polite">Drag to zoom in; point at a cell to read it.</output></div></div>'
        '<p class="empty" hidden>The predictions are not available.</p></figure>'
    )


def pictures_section(several: bool, missing: int, title: str, how: str) -> Section:
    """Pictures of mistakes, which pictures.js shows."""
    places = []
    for role in ["before", "after"] if several else ["after"]:
        heading = f'<h3><span class="tag {role}"></span><span data-name="{role}"></span></h3>'
        places.append(f'<div>{heading}<div class="pictures" data-pictures="{role}"></div></div>')
    lost = f" {missing:,} more could not be opened." if missing else ""
    return section(
        "pictures",
        title,
        how + lost,
        f'<div class="pair">{"".join(places)}</div>',
    )


def calibration_section(several: bool) -> Section:
    return section(
        "calibration",
        "Confidence and accuracy",
        "Accuracy against confidence for each group, in bins with equal numbers of items; bands are 95 % intervals. "
        "Where the band covers the thin diagonal, confidence matches accuracy; below the diagonal the model is "
        "overconfident. Below each chart is the expected calibration error (ECE) of each group, in percent, over 15 "
        "bins of equal width.",
        pair("calibration", several, empty="These results do not include confidences.", below="ece"),
    )


SWEPT = "No sweep: the prior that these predictions are for is not known."


def world_section() -> Section:
    world = slider("alpha", "Class frequencies in use", "long-tailed, as in training", "uniform", "reversed")
    return section(
        "world",
        "If class frequencies change",
        "In use, classes may be as imbalanced as in training, equally frequent, or imbalanced the other way round. The "
        "deployed prior is the training prior to the power alpha, from 1 through 0 to −1. A model that is given the "
        "prior shifts its logits accordingly (<code>eq.adjust_logits</code>).",
        figure("world", wide=True, before=world, empty=SWEPT),
    )


def tau_section(several: bool) -> Section:
    tau = slider("tau", "Correction", "0: none", "1: equal classes", "2: beyond equal", readout="tau-readout")
    both = '<h3>Both sliders together</h3><div class="readout" id="both-readout" aria-live="polite"></div>'
    return section(
        "correction",
        "How much to correct",
        "tau is the multiple of log π_train that is subtracted from the logits of a plain loss. A plain loss starts at "
        "0, a balanced loss at 1. A larger tau favours the tail at the expense of the head. A tau read off here is "
        "chosen on the test set; for use, choose it on other data.",
        tau + pair("tau", several, empty=SWEPT) + both,
    )


def slider(name: str, label: str, *ends: str, readout: str = "world-readout") -> str:
    """A slider over the places of a sweep, and a place for page.js to write what it shows."""
    marks = "".join(f"<span>{end}</span>" for end in ends)
    return (
        f'<div class="slider"><label for="{name}">{label}</label><output id="{name}-value"></output>'
        f'<input type="range" id="{name}" min="0" max="{LAST}" value="{LAST // 2}">'
        f'<div class="ends">{marks}</div></div><div class="readout" id="{readout}" aria-live="polite"></div>'
    )


def counts_section() -> Section:
    return section(
        "training",
        "The training set",
        "Training items per class, largest first, on a logarithmic axis.",
        figure("counts"),
    )


def section(name: str, title: str, how: str, content: str) -> Section:
    """A part of the page with its heading and an explanation; `name` is its anchor."""
    html = f'<section id="{name}"><h2>{title}</h2><p class="how">{how}</p>{content}</section>'
    return Section(name, title, html)


def contents(parts: Sequence[Section]) -> str:
    """The table of contents."""
    links = "".join(f'<li><a href="#{part.name}">{part.title}</a></li>' for part in parts)
    return f'<nav class="contents" aria-label="Contents"><ul>{links}</ul></nav>'


def figure(
    chart: str, *, role: str = "", wide: bool = False, before: str = "", empty: str = "", below: str = ""
) -> str:
    """A place for page.js to draw a chart."""
    chosen = f' data-role="{role}"' if role else ""
    missing = f'<p class="empty" hidden>{empty}</p>' if empty else ""
    size = ' class="wide"' if wide else ""
    return f'<figure data-chart="{chart}"{chosen}{size}>{before}<div class="chart"></div>{missing}{below}</figure>'


def pair(chart: str, several: bool, *, empty: str = "Not available.", below: str = "") -> str:
    """The same chart for both chosen models, or for the only one."""
    parts = []
    for role in ["before", "after"] if several else ["after"]:
        title = f'<h3><span class="tag {role}"></span><span data-name="{role}"></span></h3>'
        under = f'<p class="note">ECE: <span data-{below}="{role}"></span></p>' if below else ""
        parts.append(f"<div>{title}{figure(chart, role=role, empty=empty, below=under)}</div>")
    return f'<div class="pair">{"".join(parts)}</div>'


def picker() -> str:
    labels = "".join(
        f'<label><span class="tag {role}"></span><span class="word">{role}</span>'
        f'<select id="pick-{role}" aria-label="{role}"></select></label>'
        for role in ("before", "after")
    )
    return f'<div class="picker" role="group" aria-label="Models to compare"><div>{labels}</div></div>'


def top(title: str, lead: str) -> str:
    return (
        f'<header class="top"><div><h1>{text(title)}</h1><p class="lead">{text(lead)}</p></div>'
        '<button class="theme" id="theme" type="button">light / dark</button></header>'
    )


WILSON = (
    "Intervals are 95 % Wilson intervals; those of means over classes are for an effective number of items, those of "
    "changes by Newcombe's method for paired proportions if both models saw the same items."
)


def foot(intervals: str = WILSON) -> str:
    from equipoise import __version__

    return (
        f"<footer>Made with Equipoise {__version__} and Vega-Lite. {intervals} This page works without a network."
        "</footer>"
    )


# -------------------------------------------------------------------- text


def page(title: str, body: str, data: dict[str, Any], specs: dict[str, Any]) -> str:
    from equipoise import __version__

    files = resources.files("equipoise.report") / "page_files"
    css = (files / "page.css").read_text(encoding="utf-8")
    script = "".join((files / name).read_text(encoding="utf-8") for name in SCRIPTS)
    parts = {
        "policy": _policy([vega_bundle(), script], css),
        "generator": f"Equipoise {__version__}",
        "title": text(title),
        "css": css,
        "body": body,
        "data": _json(data),
        "specs": _json(specs),
        "bundle": vega_bundle(),
        "script": script,
    }
    pieces = (files / "page.html").read_text(encoding="utf-8").split("{{")
    found = [pieces[0]]
    for piece in pieces[1:]:  # in one pass: inserted text is never searched again
        key, rest = piece.split("}}", 1)
        found += [parts[key], rest]
    return "".join(found)


def frame(page: str, title: str) -> str:
    """A whole page in a frame of its own, for notebooks."""
    style = "width:100%;height:900px;border:1px solid #8884;border-radius:8px"
    return f'<iframe srcdoc="{html.escape(page, quote=True)}" style="{style}" title="{html.escape(title)}"></iframe>'


def _policy(scripts: list[str], css: str) -> str:
    """What the page may do: run these scripts, named by their digests, and no others; no eval, no network."""
    digests = [base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() for content in (*scripts, css)]
    *ours, style = (f"'sha256-{digest}'" for digest in digests)
    sources = f"script-src {' '.join(ours)}; style-src {style}; img-src data:"
    return f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'"


@cache
def vega_bundle() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, from the installed package: no network."""
    script: str = renderer().javascript_bundle(vl_version=VEGA_LITE)
    return "(() => {" + script.replace("</script", r"<\/script").replace("<!--", r"<\!--") + "\n})();"


def _json(content: Any) -> str:
    """JSON that is safe within a script element: no character can end the element or start a tag."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode("utf-8", "replace").decode("utf-8")


def text(words: str) -> str:
    """Words as HTML text; lone surrogates, which no file can hold, become question marks."""
    return html.escape(words.encode("utf-8", "replace").decode("utf-8"))
