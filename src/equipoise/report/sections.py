"""The page as text: its sections, the template, and what keeps names from becoming markup."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from equipoise.metrics.evaluation import percent
from equipoise.metrics.sweep import WORLDS
from equipoise.report.figures import VEGA_LITE, renderer
from equipoise.report.page_data import Model, cut, headlines
from equipoise.report.specs import neighbours

HEADLINES = (
    ("top1", "top-1"),
    ("balanced", "mean over classes"),
    ("many", "many, > 100"),
    ("medium", "medium, 20 to 100"),
    ("few", "few, < 20"),
)


LAST = len(WORLDS) - 1  # place of every slider: all sweeps have as many


def headline_section(models: list[Model]) -> str:
    rows = []
    for model in models:
        cells = [f"<td>{text(cut(model.name, 200))}</td>"]
        for value in headlines(model).values():
            small = "" if value is None else f"<small>{percent(value.low)} to {percent(value.high)}</small>"
            cells.append(f"<td>{percent(value.value if value else None)}{small}</td>")
        ece = float(np.mean([run.ece for run in model.runs])) if model.calibrated else None
        rows.append(f"<tr>{''.join(cells)}<td>{percent(ece)}</td><td>{percent(model.total_variation)}</td></tr>")
    heads = "".join(
        f"<th>{title}</th>" for title in ("", *(words for _, words in HEADLINES), "ECE", "p(y) off uniform")
    )
    return (
        '<section class="first"><div class="cards" id="cards"></div>'
        '<p class="how">Accuracy in percent; below each its 95 % interval. Groups are by training items; a group\'s '
        "accuracy is the mean over its classes. A dash is a group without test items, not a zero.</p>"
        f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
        "</section>"
    )


def classes_section(several: bool, num_classes: int) -> str:
    line = "is the mean of neighbouring classes" if neighbours(num_classes) else "joins them"
    return section(
        "Every class",
        "Each point is a class: its accuracy against how often it was seen in training, with its 95 % interval. The "
        f"line {line}. A model that ignores the tail falls to the right.",
        pair("classes", several),
    )


def slopes_section(several: bool) -> str:
    compared = ": where they lie apart, the change is more than the chance of the test set" if several else ""
    return section(
        "Head and tail, before → after" if several else "Head and tail",
        f"Mean accuracy of the classes of each group. Bars are 95 % intervals{compared}.",
        figure("slopes", wide=True),
    )


def marginal_section(several: bool) -> str:
    roles = ["before", "after"] if several else ["after"]
    far = ", ".join(f'<span class="tag {role}"></span><b data-tv="{role}"></b> %' for role in roles)
    return section(
        "What the model says by itself",
        "p(y) is the mean predicted probability of each class over the whole test set. The thin line is uniform: on a "
        "balanced test set that is where a fair model stays.",
        figure("marginal", wide=True) + f'<p class="note">Distance from uniform (total variation): {far}</p>',
    )


def swallowed_section(several: bool) -> str:
    empty = "No class is taken for one of a larger group, or the predictions are not known."
    return section(
        "Who swallows whom",
        "Where test items of each group end up, and which rare classes are most surely taken for which more frequent "
        "ones (the pairs with the highest lower end of their 95 % interval).",
        pair("flow", several) + pair("swallowed", several, empty=empty),
    )


def calibration_section(several: bool) -> str:
    return section(
        "How sure, and how right",
        "Accuracy against confidence for each group. On the thin diagonal a model is as sure as it is right; below it, "
        "too sure. The expected calibration error (ECE, in percent) is given for each group.",
        pair("calibration", several, empty="These results do not say how sure the model was.", below="ece"),
    )


def sweep_section(several: bool) -> str:
    world = slider("alpha", "The world it is used in", "long-tailed, as training", "uniform", "reversed")
    tau = slider("tau", "The correction", "0: plain", "1: equal classes", "2: beyond", readout="tau-readout")
    empty = "Not known what these predictions mean: there is no sweep of them."
    both = '<h3>Both together</h3><div class="readout" id="both-readout" aria-live="polite"></div>'
    return section(
        "If the world were different",
        "Classes may be as unequal where the model is used as in training, equal, or the other way round: the deployed "
        "prior is the training prior to the power alpha, from 1 through 0 to −1. A model that is told the prior shifts "
        "its logits by it (<code>eq.adjust_logits</code>); as it is, it does not know.",
        figure("world", wide=True, before=world, empty=empty),
    ) + section(
        "How much to correct",
        "tau is how much of log π_train is taken off the logits of a plain loss. Logits of a plain loss stand at 0 as "
        "they are, those of a balanced loss at 1. A larger tau gives to the tail what it takes from the head.",
        tau + pair("tau", several, empty=empty) + both,
    )


def slider(name: str, label: str, *ends: str, readout: str = "world-readout") -> str:
    """A slider over the places of a sweep, and where page.js writes what it shows."""
    marks = "".join(f"<span>{end}</span>" for end in ends)
    return (
        f'<div class="slider"><label for="{name}">{label}</label><output id="{name}-value"></output>'
        f'<input type="range" id="{name}" min="0" max="{LAST}" value="{LAST // 2}">'
        f'<div class="ends">{marks}</div></div><div class="readout" id="{readout}" aria-live="polite"></div>'
    )


def counts_section() -> str:
    return section(
        "The training set",
        "Training items of each class, the largest first, on a logarithmic axis.",
        figure("counts"),
    )


def section(title: str, how: str, content: str) -> str:
    """A part of the page with its heading and how to read it."""
    return f'<section><h2>{title}</h2><p class="how">{how}</p>{content}</section>'


def figure(
    chart: str, *, role: str = "", wide: bool = False, before: str = "", empty: str = "", below: str = ""
) -> str:
    """A place that page.js draws a chart in."""
    chosen = f' data-role="{role}"' if role else ""
    missing = f'<p class="empty" hidden>{empty}</p>' if empty else ""
    size = ' class="wide"' if wide else ""
    return f'<figure data-chart="{chart}"{chosen}{size}>{before}<div class="chart"></div>{missing}{below}</figure>'


def pair(chart: str, several: bool, *, empty: str = "Not known.", below: str = "") -> str:
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
    return f'<nav class="picker"><div>{labels}</div></nav>'


def top(title: str, lead: str) -> str:
    return (
        f'<header class="top"><div><h1>{text(title)}</h1><p class="lead">{text(lead)}</p></div>'
        '<button class="theme" id="theme" type="button">light / dark</button></header>'
    )


WILSON = "Wilson, 95 %; of means over classes by the square-and-add method"


def foot(intervals: str = WILSON) -> str:
    from equipoise import __version__

    return (
        f"<footer>Made by Equipoise {__version__}, drawn by Vega-Lite. Intervals: {intervals}. This file needs no "
        "network.</footer>"
    )


# -------------------------------------------------------------------- text


def page(title: str, body: str, data: dict[str, Any], specs: dict[str, Any]) -> str:
    from equipoise import __version__

    files = resources.files("equipoise.report") / "page_files"
    css, script = ((files / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
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
    for piece in pieces[1:]:  # in one pass: what is filled in is never looked at again
        key, rest = piece.split("}}", 1)
        found += [parts[key], rest]
    return "".join(found)


def frame(page: str, title: str) -> str:
    """A whole page in a frame of its own, for notebooks."""
    style = "width:100%;height:900px;border:1px solid #8884;border-radius:8px"
    return f'<iframe srcdoc="{html.escape(page, quote=True)}" style="{style}" title="{html.escape(title)}"></iframe>'


def _policy(scripts: list[str], css: str) -> str:
    """What the page may do: run these scripts, named by their digests, and no other; no eval, no network."""
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
    """JSON that is safe within a script element: no character of it can end the element or start a tag."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode("utf-8", "replace").decode("utf-8")


def text(words: str) -> str:
    """Words as HTML text; lone surrogates, which no file can hold, become question marks."""
    return html.escape(words.encode("utf-8", "replace").decode("utf-8"))
