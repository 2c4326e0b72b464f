"""Batched augmentation against Pillow, one image at a time."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from equipoise.training.augmentation.autoaugment import ATOMS, POLICY, Atom, AutoAugment, draw_atoms
from equipoise.training.augmentation.cifar import TrainingAugmentation, cutout, draw, normalise

CPU = torch.device("cpu")


def load_reference() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "pillow_augmentation.py"
    spec = importlib.util.spec_from_file_location("pillow_augmentation", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pillow = load_reference()
PIXELS = pillow.sample_images(40)
AUTOAUGMENT = AutoAugment(CPU)


def batch(pixels: np.ndarray) -> Tensor:
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()


def pixels_of(images: Tensor) -> np.ndarray:
    return images.permute(0, 2, 3, 1).numpy()


def test_the_policy_can_draw_66_atoms() -> None:
    assert len(POLICY) == 25
    assert len(set(ATOMS)) == len(ATOMS) == 67
    assert ATOMS[0] == Atom("identity")


@pytest.mark.parametrize("number", range(len(ATOMS)), ids=lambda number: "-".join(map(str, ATOMS[number])))
def test_every_atom_equals_pillow_to_the_bit(number: int) -> None:
    ours = pixels_of(AUTOAUGMENT(batch(PIXELS), np.full((len(PIXELS), 1), number)))
    theirs = np.stack([np.asarray(pillow.apply(Image.fromarray(image), *ATOMS[number])) for image in PIXELS])
    np.testing.assert_array_equal(ours, theirs)


def test_thousands_of_random_augmentations_equal_pillow_to_the_bit() -> None:
    number = 4000
    index = np.random.default_rng(3).integers(len(PIXELS), size=number)
    drawn = draw(number, np.random.default_rng(4))
    ours = pixels_of(TrainingAugmentation(batch(PIXELS))(index, drawn))
    for i in range(number):
        image = Image.fromarray(PIXELS[index[i]])
        image = pillow.crop_and_flip(image, int(drawn.top[i]), int(drawn.left[i]), int(drawn.flip[i]))
        for atom in drawn.atoms[i]:
            image = pillow.apply(image, *ATOMS[atom])
        theirs = pillow.cutout(np.asarray(image), int(drawn.centre_y[i]), int(drawn.centre_x[i]))
        np.testing.assert_array_equal(ours[i], theirs, err_msg=f"{[ATOMS[atom] for atom in drawn.atoms[i]]}")


def test_crops_and_flips_alone_equal_pillow_to_the_bit() -> None:
    index = np.arange(len(PIXELS))
    drawn = draw(len(PIXELS), np.random.default_rng(5))
    ours = pixels_of(TrainingAugmentation(batch(PIXELS))(index, drawn, "crop"))
    assert set(drawn.flip.tolist()) == {0, 1}
    for i, image in enumerate(PIXELS):
        place = int(drawn.top[i]), int(drawn.left[i]), int(drawn.flip[i])
        np.testing.assert_array_equal(ours[i], np.asarray(pillow.crop_and_flip(Image.fromarray(image), *place)))


def test_the_atoms_of_an_image_do_not_depend_on_its_neighbours() -> None:
    atoms = draw_atoms(len(PIXELS), np.random.default_rng(0))
    whole = AUTOAUGMENT(batch(PIXELS), atoms)
    backwards = AUTOAUGMENT(batch(PIXELS[::-1].copy()), atoms[::-1].copy()).flip(0)
    assert torch.equal(whole, backwards)


def test_the_input_is_not_written_to() -> None:
    images = batch(PIXELS)
    before = images.clone()
    AUTOAUGMENT(images, draw_atoms(len(images), np.random.default_rng(0)))
    assert torch.equal(images, before)


def test_operations_are_drawn_as_often_as_the_policy_says() -> None:
    number = 200_000
    atoms = draw_atoms(number, np.random.default_rng(0))
    expected = np.zeros((2, len(ATOMS)))
    for pair in POLICY:
        for stage, (probability, operation, magnitude) in enumerate(pair):
            signs = [sign for sign in (1, -1) if Atom(operation, magnitude, sign) in ATOMS]
            for sign in signs:
                expected[stage, ATOMS.index(Atom(operation, magnitude, sign))] += probability / 25 / len(signs)
    expected[:, 0] = 1 - expected.sum(axis=1)
    for stage in (0, 1):
        share = np.bincount(atoms[:, stage], minlength=len(ATOMS)) / number
        error = np.sqrt(expected[stage] * (1 - expected[stage]) / number)
        assert (np.abs(share - expected[stage]) <= 5 * error + 1e-12).all()


def test_crops_flips_and_centres_are_uniform() -> None:
    number = 100_000
    drawn = draw(number, np.random.default_rng(0))
    for values, choices in (
        (drawn.top, 9),
        (drawn.left, 9),
        (drawn.flip, 2),
        (drawn.centre_y, 32),
        (drawn.centre_x, 32),
    ):
        share = np.bincount(values, minlength=choices) / number
        assert len(share) == choices
        assert np.abs(share - 1 / choices).max() < 5 * np.sqrt(1 / choices / number)


def test_cutout_covers_what_the_square_leaves_inside() -> None:
    ones = torch.ones(3, 3, 32, 32, dtype=torch.uint8)
    cut = cutout(ones, torch.tensor([0, 16, 31]), torch.tensor([0, 16, 31]))
    assert (cut == 0).sum((2, 3))[:, 0].tolist() == [8 * 8, 16 * 16, 9 * 9]


def test_normalise_equals_totensor_and_normalize() -> None:
    transforms = pytest.importorskip("torchvision.transforms")
    usual = transforms.Compose(
        [transforms.ToTensor(), transforms.Normalize((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))]
    )
    theirs = torch.stack([usual(Image.fromarray(image)) for image in PIXELS])
    torch.testing.assert_close(normalise(batch(PIXELS)), theirs, rtol=1e-6, atol=1e-6)


def test_images_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"float32 \(1, 3, 32, 32\): expected uint8"):
        AUTOAUGMENT(torch.zeros(1, 3, 32, 32), np.zeros((1, 2), np.int64))
    with pytest.raises(ValueError, match="for 2 images"):
        AUTOAUGMENT(torch.zeros(2, 3, 32, 32, dtype=torch.uint8), np.zeros((1, 2), np.int64))
