"""Pictures with detections: what is drawn where, and that it can be read."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from equipoise.report.detections import (
    BLACK,
    WHITE,
    Mark,
    colour,
    draw_detections,
    draw_marks,
    drawable,
    fitted,
    font,
    ink_on,
)

GREY = (128, 128, 128)


def painted(picture: Image.Image, colour: tuple[int, int, int]) -> NDArray[np.bool_]:
    return np.asarray((np.array(picture) == colour).all(axis=2))


def test_a_box_is_drawn_where_it_is_with_a_seam_and_its_label_above_it() -> None:
    picture = Image.new("RGB", (200, 200), GREY)
    draw_marks(picture, [Mark((50, 80, 150, 160), "owl", (250, 0, 0))])
    red = painted(picture, (250, 0, 0))
    for x, y in ((50, 120), (51, 120), (150, 120), (100, 160), (149, 81)):
        assert red[y, x], (x, y)
    assert not red[100:140, 60:140].any()  # nothing inside
    assert picture.getpixel((49, 120)) == picture.getpixel((100, 161)) == BLACK
    label = np.argwhere(red[:80])
    assert label[:, 0].min() < 72  # the label's ground, above the box
    assert label[:, 1].min() == 50


def test_lines_and_letters_grow_with_the_picture() -> None:
    widths, heights = [], []
    for side in (200, 2000):
        picture = Image.new("RGB", (side, side), GREY)
        draw_marks(picture, [Mark((side / 4, side / 2, side / 2, side * 0.75), "owl", (250, 0, 0))])
        red = painted(picture, (250, 0, 0))
        widths.append(int(red[round(side * 0.6), : side // 3].sum()))
        heights.append(side // 2 - int(np.argwhere(red)[:, 0].min()))
    assert widths == [2, 8]
    assert heights[1] > 3 * heights[0]


@pytest.mark.parametrize("corner", [(0, 0), (0, 80), (80, 0), (80, 80)])
def test_a_label_stays_in_the_picture(corner: tuple[int, int]) -> None:
    picture = Image.new("RGB", (100, 100), GREY)
    x, y = corner
    draw_marks(picture, [Mark((x, y, x + 19, y + 19), "word", (250, 0, 0))])
    # the same label as in a picture with room for all of it
    free = Image.new("RGB", (100, 100), GREY)
    draw_marks(free, [Mark((30, 50, 49, 69), "word", (250, 0, 0))])
    flat = (GREY, BLACK, (250, 0, 0))
    inked = [10_000 - sum(int(painted(drawn, one).sum()) for one in flat) for drawn in (picture, free)]
    assert inked[0] == inked[1] > 50


def test_labels_of_boxes_in_one_place_go_to_different_corners_and_the_rest_are_left_out() -> None:
    colours = [(250, 0, 0), (0, 250, 0), (0, 0, 250)]
    marks = [Mark((60, 60, 140, 140), "owl", one) for one in colours]
    picture = Image.new("RGB", (200, 200), GREY)
    draw_marks(picture, marks)
    grounds = [painted(picture, one) for one in colours]
    alone = Image.new("RGB", (200, 200), GREY)
    draw_marks(alone, marks[:1])
    whole = int((painted(alone, colours[0])[:58]).sum())
    assert int(grounds[0][:58].sum()) == whole  # the best has the place above
    assert all(ground.sum() > 0.9 * whole for ground in grounds)
    crowd = Image.new("RGB", (200, 200), GREY)
    draw_marks(crowd, [*[marks[0]] * 30, marks[1]], most_hidden=0.25)
    assert painted(crowd, colours[1]).sum() == 0  # its lines are under those of better ones, its label has no room


def test_a_dashed_box_is_half_as_much_line() -> None:
    drawn = []
    for dashed in (False, True):
        picture = Image.new("RGB", (300, 300), GREY)
        draw_marks(picture, [Mark((50, 100, 250, 280), "", (250, 0, 0), dashed)])
        drawn.append(int(painted(picture, (250, 0, 0))[110:270].sum()))
    assert 0.4 < drawn[1] / drawn[0] < 0.6


def test_every_text_can_be_read_on_its_ground_and_neighbours_differ() -> None:
    for label in range(1, 300):
        ground, ink = colour(label), ink_on(colour(label))
        light = [sum(w * c for w, c in zip((0.299, 0.587, 0.114), each, strict=True)) for each in (ground, ink)]
        assert abs(light[0] - light[1]) > 100, ground
        assert max(abs(a - b) for a, b in zip(ground, colour(label + 1), strict=True)) > 60
    assert ink_on(WHITE) == BLACK
    assert font(20).getlength("owl") > 1.5 * font(10).getlength("owl")


def test_the_best_detection_is_on_top_whatever_the_order() -> None:
    found = {
        "boxes": torch.tensor([[10.0, 50.0, 90.0, 90.0]] * 2),
        "labels": torch.tensor([1, 2]),
        "scores": torch.tensor([0.4, 0.9]),
    }
    image = torch.full((3, 100, 100), 128, dtype=torch.uint8)
    drawn = draw_detections(image, found, ["owl", "emu"])
    assert drawn.getpixel((10, 70)) == colour(2)
    turned = {key: value.flip(0) for key, value in found.items()}
    assert draw_detections(image, turned, ["owl", "emu"]).tobytes() == drawn.tobytes()


def test_a_box_that_goes_beyond_the_picture_is_drawn_along_its_edge() -> None:
    """Results of others may have such boxes, and a box that ends at the last pixel has all of its line."""
    for box in ((-500.0, -20.0, 1e8, 200.0), (0.0, 0.0, 100.0, 100.0)):
        picture = Image.new("RGB", (100, 100), GREY)
        draw_marks(picture, [Mark(box, "", (250, 0, 0))])
        red = painted(picture, (250, 0, 0))
        assert red[50].sum() == red[:, 50].sum() == 4  # two lines of two pixels
        assert red[50, 98:].all()


def test_a_long_name_is_cut_and_its_score_is_not() -> None:
    written = font(11)
    assert fitted("owl", 100, written, " 0.50") == "owl 0.50"
    short = fitted("a hydrant with a name", 70, written, " 0.50")
    assert short.startswith("a h")
    assert short.endswith("... 0.50")
    assert written.getlength(short) <= 70 < written.getlength(short.replace("...", "a..."))
    found = {"boxes": torch.tensor([[9.0, 9.0, 50.0, 50.0]]), "labels": torch.ones(1, dtype=torch.int64)}
    image = torch.full((3, 100, 60), 128, dtype=torch.uint8)
    drawn = [
        np.array(draw_detections(image, found | {"scores": torch.tensor([score])}, ["a hydrant with a long name"]))
        for score in (0.51, 0.98)
    ]
    assert (drawn[0] != drawn[1]).any()  # the score is in the picture


def test_names_are_drawn_in_the_letters_that_there_are() -> None:
    missing = bytes(font(16).getmask("\uffff"))
    for name in ("Fähre", "Łódź", "smørrebrød", "Straße", "crème brûlée", "猫 cat", "a\nb"):
        shown = drawable(name, "class 7")
        assert shown != "class 7"
        assert all(bytes(font(16).getmask(letter)) != missing for letter in shown)
    assert drawable("Straße", "") == "Strasse"
    assert drawable("猫 cat", "") == "? cat"
    assert drawable("кошка", "class 7") == "class 7"
    assert drawable("what? why? who?", "class 7") == "what? why? who?"
    assert drawable("emu n02018207", "") == "emu"
