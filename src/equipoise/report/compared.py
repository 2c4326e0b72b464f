"""Two detectors side by side: the best detections of one image, and which classes fill the top of the ranking.

Both show what average precision cannot: whether rare classes get a place among the first detections of an image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image, ImageDraw

from equipoise.prior import FloatArray
from equipoise.report.detections import Colour, Corners, Mark, draw_marks, drawable, fitted, font
from equipoise.report.figures import finished, heading
from equipoise.report.specs import DASHES, LINES, ROLE_COLOURS, Spec, by, layer, number

GROUPS: dict[str, tuple[str, Colour]] = {  # the name of each, and its colour: distinguishable for the colour-blind, too
    "r": ("rare", (232, 46, 140)),
    "c": ("common", (245, 180, 0)),
    "f": ("frequent", (60, 160, 240)),
}
INK, MUTED, LINE = (28, 33, 39), (91, 99, 110), (228, 230, 233)
SIDE, TALLEST = 520, 640  # size of a panel's picture, in pixels
GAP, ROW, LETTERS = 28, 27, 18
LISTED = 20  # lines below a picture, in two columns


@dataclass(frozen=True)
class Seen:
    """A detection or an instance: its box, name and group, its score (None for an instance), and whether it is
    right."""

    box: Corners
    name: str
    group: str
    score: float | None = None
    right: bool = True


def panels(image: Image.Image, seen: Mapping[str, Sequence[Seen]]) -> Image.Image:
    """The same image once for each title, with numbered boxes and the list of what they are, best first."""
    scale = min(SIDE / image.width, TALLEST / image.height)
    size = round(image.width * scale), round(image.height * scale)
    shown = image.convert("RGB").resize(size, Image.Resampling.LANCZOS)
    rows = max(1, max(min(len(found), LISTED) + 1 for found in seen.values()) // 2)
    more = any(len(found) > LISTED for found in seen.values())
    height = 3 * GAP + LETTERS + size[1] + ROW * (rows + 1 + more)
    page = Image.new("RGB", (len(seen) * (SIDE + GAP) + GAP, height), "white")
    for place, (title, found) in enumerate(seen.items()):
        left = GAP + place * (SIDE + GAP)
        _panel(page, shown, title, found, scale, left)
    _legend(page, height - ROW - GAP // 2, scored=any(one.score is not None for each in seen.values() for one in each))
    return page


def _panel(page: Image.Image, image: Image.Image, title: str, found: Sequence[Seen], scale: float, left: int) -> None:
    """One picture with its title and its list."""
    pen = ImageDraw.Draw(page)
    pen.text((left, GAP // 2), fitted(drawable(title, "?"), SIDE, font(LETTERS + 6)), fill=INK, font=font(LETTERS + 6))
    drawn = image.copy()
    marks = []
    for rank, one in enumerate(found, start=1):
        x0, y0, x1, y1 = (scale * side for side in one.box)
        marks.append(Mark((x0, y0, x1, y1), str(rank), GROUPS[one.group][1], dashed=not one.right))
    draw_marks(drawn, marks, LETTERS - 4)
    top = GAP + LETTERS + GAP // 2
    page.paste(drawn, (left, top))
    column = (min(len(found), LISTED) + 1) // 2
    for rank, one in enumerate(found[:LISTED]):
        x = left + (rank // max(column, 1)) * (SIDE // 2)
        y = top + image.height + 12 + (rank % max(column, 1)) * ROW
        _line(pen, x, y, rank + 1, one)
    if not found:
        pen.text((left, top + image.height + 12), "none in this image", fill=MUTED, font=font(LETTERS - 2))
    if len(found) > LISTED:
        pen.text((left, y + ROW), f"and {len(found) - LISTED} more", fill=MUTED, font=font(LETTERS - 3))


def _line(pen: Any, x: int, y: int, rank: int, one: Seen) -> None:
    """A line of the list: rank, whether it is right, its class and its score."""
    pen.text((x + 22, y), str(rank), fill=MUTED, font=font(LETTERS - 2), anchor="ra")
    _swatch(pen, x + 30, y + 3, GROUPS[one.group][1], filled=one.right)
    score = "" if one.score is None else f"{one.score:.2f}"
    room = SIDE // 2 - 56 - (46 if score else 0)
    pen.text((x + 52, y), fitted(drawable(one.name, "?"), room, font(LETTERS - 2)), fill=INK, font=font(LETTERS - 2))
    if score:
        pen.text((x + SIDE // 2 - 12, y), score, fill=MUTED, font=font(LETTERS - 2), anchor="ra")


def _swatch(pen: Any, x: int, y: int, colour: Colour, *, filled: bool) -> None:
    pen.rectangle((x, y, x + 14, y + 14), fill=colour if filled else None, outline=colour, width=2)


def _legend(page: Image.Image, y: int, *, scored: bool) -> None:
    """The legend for colours, and for full and empty boxes."""
    pen, x, written = ImageDraw.Draw(page), GAP, font(LETTERS - 2)
    entries = [(words, colour, True) for words, colour in GROUPS.values()]
    if scored:
        entries += [("right: this class, IoU 0.5 or more", MUTED, True), ("wrong: dashed box", MUTED, False)]
    pen.line((GAP, y - 10, page.width - GAP, y - 10), fill=LINE)
    for words, colour, filled in entries:
        _swatch(pen, x, y + 3, colour, filled=filled)
        pen.text((x + 22, y), words, fill=INK, font=written)
        x += 22 + round(pen.textlength(words, font=written)) + GAP


def shares_figure(shares: Mapping[str, Mapping[str, FloatArray]], truth: Mapping[str, float]) -> Spec:
    """Which share of the best k detections per image belongs to rare, common and frequent classes, one panel per group.

    `shares` has, by detector and group, the share for k = 1, 2, ...; `truth` is that of the instances.
    """
    parts = [_group_panel(group, shares, truth[group]) for group in GROUPS if group in truth]
    return finished(
        {"hconcat": parts, "spacing": 28, "resolve": {"legend": {"color": "shared", "strokeDash": "shared"}}}
    )


def _group_panel(group: str, shares: Mapping[str, Mapping[str, FloatArray]], truth: float) -> Spec:
    rows = [
        {"detector": name, "k": k, "share": 100 * share}
        for name, found in shares.items()
        for k, share in enumerate(found[group].tolist(), start=1)
    ]
    most = max((row["k"] for row in rows), default=1)
    rows += [{"detector": "the instances", "k": k, "share": 100 * truth} for k in (1, max(most, 2))]
    highest = max(row["share"] for row in rows)
    names = [*shares, "the instances"]
    legend = LINES | {"columns": len(names)}
    colour = by("detector", names, [*ROLE_COLOURS, "var(--muted)"], legend)
    dash = by("detector", names, [DASHES[1], DASHES[0], [2, 3]], legend)
    ticks = [k for k in (1, 3, 10, 30, 100, 300) if k <= most]
    x = number("k", "best k detections per image", scale={"type": "log", "domain": [1, max(most, 2)], "nice": False})
    y = number("share", f"share of {GROUPS[group][0]} classes, %", scale={"domain": [0, min(100, 1.08 * highest)]})
    encoding = {"x": x | {"axis": {"values": ticks, "format": "d"}}, "y": y, "color": colour, "strokeDash": dash}
    lines = layer("line", {"strokeWidth": 2.5, "clip": most > 1, "point": most == 1}, encoding)  # one point is no line
    return {"title": heading(GROUPS[group][0]), "width": 240, "height": 240, "data": {"values": rows}, **lines}
