"""The augmentation of photographs: windows to the pixel, RandAugment's operations, draws that can be taken up."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from equipoise.training.augmentation import photographs
from equipoise.training.augmentation.photographs import RANDAUGMENT, Windows, cut, draw_windows, randaugment

IMAGES = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (40, 3, 32, 32), np.uint8))


def test_a_shift_moves_whole_pixels_and_fills_with_zeros() -> None:
    windows = draw_windows(40, "crop", 32, 32, np.random.default_rng(1))
    found = cut(IMAGES, windows, 32)
    shifts = np.stack([windows.x, windows.y]) * 16
    assert np.array_equal(shifts, shifts.round())
    assert set(shifts.ravel().astype(int)) <= set(range(-4, 5))
    assert len(set(shifts.ravel().tolist())) > 5
    for image, out, x, y, flip in zip(IMAGES, found, *shifts.astype(int), windows.mirrored, strict=True):
        padded = torch.nn.functional.pad(image, (4, 4, 4, 4))
        expected = padded[:, 4 + y : 36 + y, 4 + x : 36 + x]
        assert torch.equal(out, expected.flip(-1) if flip else expected)


def test_resized_windows_stay_within_the_image_and_have_the_areas_of_torchvisions() -> None:
    windows = draw_windows(4000, "resized", 28, 32, np.random.default_rng(0))
    area = windows.half_width * windows.half_height
    assert 0.079 < area.min() < 0.12
    assert 0.9 < area.max() <= 1
    for middle, half in ((windows.x, windows.half_width), (windows.y, windows.half_height)):
        assert (np.abs(middle) + half <= 1 + 1e-6).all()
    aspect = windows.half_width / windows.half_height
    assert 0.74 < aspect.min() < 0.8
    assert 1.25 < aspect.max() < 1.34
    assert 0.45 < windows.mirrored.mean() < 0.55


def test_a_window_is_resized_as_interpolation_does() -> None:
    whole = draw_windows(40, "none", 32, 32, np.random.default_rng(0))
    half = cut(IMAGES, whole, 16)
    expected = torch.nn.functional.interpolate(IMAGES.float(), 16, mode="bilinear").round().to(torch.uint8)
    assert (half.int() - expected.int()).abs().max() <= 1
    assert torch.equal(cut(IMAGES, whole, 32), IMAGES)


@pytest.mark.parametrize(("name", "signed"), RANDAUGMENT)
@pytest.mark.parametrize("sign", [-1, 1])
def test_every_operation_is_torchvisions(name: str, signed: bool, sign: int, monkeypatch: pytest.MonkeyPatch) -> None:
    v2 = pytest.importorskip("torchvision.transforms.v2")
    theirs = v2.RandAugment(num_ops=1)
    number = [own for own, _ in RANDAUGMENT].index(name)
    item = list(theirs._AUGMENTATION_SPACE.items())[number]
    monkeypatch.setattr(theirs, "_get_random_item", lambda space: item)
    monkeypatch.setattr(torch, "rand", lambda *_: torch.tensor(0.9 if sign == 1 else 0.1))
    expected = theirs(IMAGES[:4].clone())
    windows = draw_windows(4, "none", 32, 32, np.random.default_rng(0))
    chosen = np.full((4, 1), number)
    one = Windows(**{**vars(windows), "operations": chosen, "signs": np.full((4, 1), sign)})
    assert torch.equal(randaugment(IMAGES[:4].clone(), one), expected)


def test_images_that_drew_another_operation_are_not_touched() -> None:
    windows = draw_windows(40, "randaugment-crop", 32, 32, np.random.default_rng(0))
    together = randaugment(IMAGES.clone(), windows)
    alone = torch.cat([randaugment(IMAGES[i : i + 1].clone(), windows.part(i, i + 1)) for i in range(40)])
    assert torch.equal(together, alone)
    assert len(set(windows.operations.ravel().tolist())) == len(RANDAUGMENT)


def test_the_rows_of_a_process_are_those_of_the_whole_batch() -> None:
    windows = draw_windows(8, "randaugment", 32, 40, np.random.default_rng(0))
    halves = Windows.of([windows.part(0, 4), windows.part(4, 8)])
    assert all(np.array_equal(value, vars(halves)[name]) for name, value in vars(windows).items())
    assert photographs.AUGMENTATIONS[0] == "crop"
