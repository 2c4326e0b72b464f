"""Photometric distortion: each operation beside Python's own colours, and the windows that go with it."""

from __future__ import annotations

import colorsys
from dataclasses import replace

import numpy as np
import pytest
import torch

from equipoise.training.augmentation.distortion import AT_ONCE, Distortions, distorted, draw_distortions
from equipoise.training.augmentation.photographs import cut, draw_windows

IMAGES = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 3, 6, 5), np.uint8))


def nothing(number: int) -> Distortions:
    zeros, ones = np.zeros(number, np.float32), np.ones(number, np.float32)
    return Distortions(zeros, ones, ones, ones, zeros, np.tile(np.arange(3), (number, 1)))


def by_hand(pixel: np.ndarray, row: int, draws: Distortions) -> np.ndarray:
    """One pixel, as the formulas have it."""
    value = (pixel + draws.brightness[row]) * draws.contrast_before[row]
    hue, saturation, bright = colorsys.rgb_to_hsv(*value.tolist())
    deep = bright * saturation * float(draws.saturation[row])
    turned = (hue * 6 + float(draws.hue[row]) / 60) % 6
    rgb = [bright - deep * max(0, min((turned + k) % 6, 4 - (turned + k) % 6, 1)) for k in (5, 3, 1)]
    changed = np.array(rgb) * draws.contrast_after[row]
    return changed[draws.channels[row]]


def test_nothing_drawn_changes_nothing() -> None:
    assert torch.equal(distorted(IMAGES, nothing(3)), IMAGES)


@pytest.mark.parametrize(
    "change",
    [
        {"brightness": [20, -30, 5]},
        {"contrast_before": [0.5, 1.5, 1.2], "brightness": [10, 0, -10]},
        {"contrast_after": [0.5, 1.5, 1.2], "saturation": [1.4, 1.2, 0.6]},
        {"saturation": [0.5, 1.5, 1.0]},
        {"hue": [18, -18, 7]},
        {"channels": [[2, 0, 1], [0, 1, 2], [1, 0, 2]], "hue": [3, 4, 5]},
    ],
    ids=["brightness", "contrast before", "contrast after", "saturation", "hue", "channels"],
)
def test_colours_are_those_of_the_formulas(change: dict[str, list[float]]) -> None:
    arrays = {name: np.array(value, np.int64 if name == "channels" else np.float32) for name, value in change.items()}
    draws = replace(nothing(3), **arrays)
    pixels = IMAGES.numpy().astype(np.float64)
    expected = np.stack([np.apply_along_axis(by_hand, 0, pixels[row], row, draws) for row in range(3)])
    found = distorted(IMAGES, draws).numpy().astype(np.float64)
    # fp32 may round a value within 1e-3 of a half the other way
    assert np.abs(found - expected.clip(0, 255)).max() <= 0.501


def test_draws_are_in_their_ranges_and_each_happens_half_of_the_time() -> None:
    draws = draw_distortions(4000, np.random.default_rng(0))
    assert np.abs(draws.brightness).max() <= 32
    assert np.abs(draws.hue).max() <= 18
    both = draws.contrast_before * draws.contrast_after
    assert not ((draws.contrast_before != 1) & (draws.contrast_after != 1)).any()
    assert (both.min(), both.max()) == pytest.approx((0.5, 1.5), abs=0.01)
    assert (draws.saturation.min(), draws.saturation.max()) == pytest.approx((0.5, 1.5), abs=0.01)
    happened = [draws.brightness != 0, both != 1, draws.saturation != 1, draws.hue != 0]
    for values in happened:
        assert 0.46 < values.mean() < 0.54  # five standard deviations of 4,000 coins
    assert 0.2 < (draws.contrast_before != 1).mean() < 0.3
    assert 0.37 < (draws.channels != np.arange(3)).any(1).mean() < 0.46  # half, and five of six orders change it
    assert (np.sort(draws.channels, 1) == np.arange(3)).all()


def test_many_images_are_done_in_parts() -> None:
    many = IMAGES.repeat(AT_ONCE // 3 + 2, 1, 1, 1)
    draws = draw_distortions(len(many), np.random.default_rng(1))
    last = distorted(many[-1:], draws.part(len(many) - 1, len(many)))
    assert torch.equal(distorted(many, draws)[-1:], last)
    assert np.array_equal(Distortions.of([draws.part(0, 5), draws.part(5, 9)]).hue, draws.hue[:9])


def test_windows_have_four_fifths_of_either_side_or_more_and_stay_within() -> None:
    windows = draw_windows(4000, "distorted", 28, 32, np.random.default_rng(0))
    for middle, half in ((windows.x, windows.half_width), (windows.y, windows.half_height)):
        assert 0.8 <= half.min() < 0.805
        assert 0.995 < half.max() <= 1
        assert (np.abs(middle) + half <= 1 + 1e-6).all()
        assert np.abs(middle).max() > 0.15
    assert 0.46 < windows.mirrored.mean() < 0.54
    assert abs(np.corrcoef(windows.half_width, windows.half_height)[0, 1]) < 0.08


def test_the_whole_is_every_pixel_of_what_is_stored() -> None:
    images = IMAGES[..., :5, :]
    windows = draw_windows(3, "whole", 5, 5, np.random.default_rng(0))
    assert torch.equal(cut(images, windows, 5), images)
    edge = torch.zeros(1, 1, 8, 8, dtype=torch.uint8)
    edge[..., 0] = 200  # the middle of 6 would not see it
    assert cut(edge, draw_windows(1, "whole", 6, 8, np.random.default_rng(0)), 6)[0, 0, :, 0].min() > 100
