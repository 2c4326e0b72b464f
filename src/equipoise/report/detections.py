"""Pictures with what a detector found: boxes, masks, names and scores.

Lines and letters grow with the picture. A box has a dark outline, so that it is visible on any background, and each
label goes to the corner of its box where it covers the least of the labels of better detections. A label that these
would hide by more than a quarter is left out. A box that goes beyond the picture is drawn along its edge, and a name
that is too long for the picture is cut.
"""

from __future__ import annotations

import colorsys
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from equipoise.data.reading import visible

Colour = tuple[int, int, int]
Corners = tuple[float, float, float, float]  # x0, y0, x1, y1
BLACK, WHITE = (0, 0, 0), (255, 255, 255)
GOLDEN = 0.618034  # step of the hue from one class to the next: neighbours never look alike
LETTERS = str.maketrans(
    {"ß": "ss", "æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE", "ø": "o", "Ø": "O", "ł": "l", "Ł": "L", "đ": "d", "Đ": "D"}
)  # those that are not a plain letter with an accent


@dataclass(frozen=True)
class Mark:
    """A box to draw, with the label that goes to one of its corners; `after` follows its text, and is never cut."""

    box: Corners
    text: str
    colour: Colour
    dashed: bool = False
    after: str = ""


def draw_detections(
    image: Tensor, found: dict[str, Tensor], class_names: Sequence[str], *, threshold: float = 0.3
) -> Image.Image:
    """`image`, uint8 [3, H, W], with the detections that score at least `threshold`, the best on top.

    >>> found = {"boxes": torch.tensor([[1.0, 1.0, 6.0, 6.0]]), "labels": torch.tensor([1]), "scores": torch.ones(1)}
    >>> draw_detections(torch.zeros(3, 8, 8, dtype=torch.uint8), found, ["cat"]).size
    (8, 8)
    """
    pixels = image.permute(1, 2, 0).cpu().numpy().astype(np.float32)
    best_first = torch.argsort(found["scores"], descending=True, stable=True).tolist()
    order = [int(i) for i in best_first if found["scores"][i] >= threshold]
    if "masks" in found:
        for place in reversed(order):
            inside = found["masks"][place].cpu().numpy()
            pixels[inside] = 0.5 * pixels[inside] + 0.5 * np.array(colour(int(found["labels"][place])))
    picture = Image.fromarray(pixels.astype(np.uint8))
    marks = []
    for place in order:
        label, score = int(found["labels"][place]), float(found["scores"][place])
        x0, y0, x1, y1 = found["boxes"][place].tolist()
        name = drawable(class_names[label - 1], f"class {label - 1}")
        marks.append(Mark((x0, y0, x1, y1), name, colour(label), after=f" {score:.2f}"))
    draw_marks(picture, marks, most_hidden=0.25)
    return picture


def draw_marks(
    picture: Image.Image, marks: Sequence[Mark], letters: int | None = None, *, most_hidden: float = float("inf")
) -> None:
    """Draw boxes with their labels into a picture; `marks` are best first, `letters` is the size of the text."""
    pen, side = ImageDraw.Draw(picture), min(picture.size)
    width = max(2, round(side / 250))
    written = font(letters or max(11, round(side / 36)))
    room = picture.width - 1 - 2 * width
    marks = [
        replace(mark, box=_inside(mark.box, picture.size), text=fitted(mark.text, room, written, mark.after), after="")
        for mark in marks
    ]
    for mark in reversed(marks):
        _outline(pen, mark, width)
    taken: list[Corners] = []
    for mark in marks:
        _, _, right, bottom = pen.textbbox((0, 0), mark.text, font=written)
        size = right + 2 * width, bottom + width
        place, covered = _freest(_corners(mark.box, size), size, picture.size, taken)
        if covered > most_hidden * size[0] * size[1]:
            continue
        _label(picture, mark, place, taken, written, width)
        taken.append(place)


def _inside(box: Corners, size: tuple[int, int]) -> Corners:
    """The part of a box that is in a picture of this size; its lines are pixels, and the last ones are at size − 1."""
    x0, x1 = (min(max(x, 0.0), size[0] - 1.0) for x in box[::2])
    y0, y1 = (min(max(y, 0.0), size[1] - 1.0) for y in box[1::2])
    return x0, y0, x1, y1


def _label(
    picture: Image.Image, mark: Mark, place: Corners, above: Sequence[Corners], written: Any, width: int
) -> None:
    """Draw a label under those that are already there, which keep their place."""
    x0, y0, x1, y1 = (round(side) for side in place)
    label = Image.new("RGB", (x1 - x0 + 1, y1 - y0 + 1), mark.colour)
    ImageDraw.Draw(label).text((width, 0), mark.text, fill=ink_on(mark.colour), font=written)
    free = Image.new("L", label.size, 255)
    for other in above:
        left, top, right, bottom = (round(side) for side in other)
        corners = left - x0, top - y0, right - x0, bottom - y0
        ImageDraw.Draw(free).rectangle(corners, fill=0)
    picture.paste(label, (x0, y0), free)


def _outline(pen: Any, mark: Mark, width: int) -> None:
    """A box whose lines are inside it, with a dark outline of one pixel around it; or dashed."""
    x0, y0, x1, y1 = (round(side) for side in mark.box)
    x1, y1 = max(x0, x1), max(y0, y1)
    if not mark.dashed:
        pen.rectangle((x0 - 1, y0 - 1, x1 + 1, y1 + 1), outline=BLACK, width=1)
        pen.rectangle((x0, y0, x1, y1), outline=mark.colour, width=width)
        return
    dash = 4 * width
    for start in range(x0, x1, 2 * dash):
        for y in (y0, y1 - width + 1):
            pen.rectangle((start, y, min(start + dash, x1), y + width - 1), fill=mark.colour)
    for start in range(y0, y1, 2 * dash):
        for x in (x0, x1 - width + 1):
            pen.rectangle((x, start, x + width - 1, min(start + dash, y1)), fill=mark.colour)


def _corners(box: Corners, size: tuple[float, float]) -> list[tuple[float, float]]:
    """Where a label of this size can go: above its box, inside, below, on the left and then on the right."""
    x0, y0, x1, y1 = box
    right = x1 - size[0]
    tops = (y0 - size[1], y0, y1 - size[1], y1)
    return [(x0, top) for top in tops] + [(right, top) for top in tops]


def _freest(
    places: Sequence[tuple[float, float]], size: tuple[float, float], limits: tuple[int, int], taken: Sequence[Corners]
) -> tuple[Corners, float]:
    """The first of the places, moved into the picture, that covers the least of what is already taken, and by how
    much."""
    best, least = (0.0, 0.0, 0.0, 0.0), float("inf")
    for x, y in places:
        x0 = max(0.0, min(x, limits[0] - 1 - size[0]))
        y0 = max(0.0, min(y, limits[1] - 1 - size[1]))
        label = (x0, y0, x0 + size[0], y0 + size[1])
        covered = sum(_overlap(label, other) for other in taken)
        if covered < least:
            best, least = label, covered
    return best, least


def _overlap(a: Corners, b: Corners) -> float:
    """The area that two boxes share."""
    across, down = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    return max(0.0, across) * max(0.0, down)


def fitted(text: str, room: float, written: Any, after: str = "") -> str:
    """A text with what follows it, cut off before that if there is not enough room for both."""
    if written.getlength(text + after) <= room:
        return text + after
    while text and written.getlength(text + "..." + after) > room:
        text = text[:-1]
    return text + "..." + after


def drawable(name: str, otherwise: str) -> str:
    r"""A name in the letters that `font` has, which are those of English; `otherwise` if hardly any is left.

    >>> drawable("Fähre", "class 3"), drawable("crème\nbrûlée", "class 3"), drawable("フェリー", "class 3")
    ('Fahre', 'creme\\nbrulee', 'class 3')
    """
    name = re.sub(r"[ _]n\d{8}$", "", name)  # WordNet's number, which some data sets append
    plain = unicodedata.normalize("NFKD", visible(name).translate(LETTERS))
    plain = "".join(c if c.isascii() else "?" for c in plain if not unicodedata.combining(c))
    return plain if 2 * plain.count("?") <= len(plain) or name.isascii() else otherwise


def font(size: int) -> Any:
    """Pillow's own font: the same letters on every machine."""
    return ImageFont.load_default(size)


def colour(label: int) -> Colour:
    """A bright colour, the same for a class in every picture.

    >>> colour(1), colour(2)
    ((65, 117, 242), (168, 242, 65))
    """
    red, green, blue = colorsys.hsv_to_rgb(label * GOLDEN % 1, 0.73, 0.95)
    return int(255 * red), int(255 * green), int(255 * blue)


def ink_on(ground: Colour) -> Colour:
    """Black or white, whichever is easier to read on a colour.

    >>> ink_on((255, 255, 0)), ink_on((0, 0, 200))
    ((0, 0, 0), (255, 255, 255))
    """
    return BLACK if 0.299 * ground[0] + 0.587 * ground[1] + 0.114 * ground[2] > 140 else WHITE
