"""AutoAugment's CIFAR policy on batches of uint8 images, on the device of the data, bitwise equal to Pillow.

For every image one of 25 pairs of operations is drawn; each of the two is applied with its own probability, most with a
random sign. The policy can only draw 66 distinct (operation, magnitude, sign) atoms, and on 8-bit images each is a
finite table or whole-number arithmetic:

    invert, posterize, solarize      a table [256]
    brightness, contrast, colour,    blend(degenerate, image, factor): a table [256, 256] per factor, where the
    sharpness                        degenerate image is black, its mean grey, its grey version, or itself smoothed
    autocontrast                     a table [256] for each (darkest, lightest) pair
    equalize                         a table [256] from the image's own histogram
    translate, rotate                where each of the 1,024 pixels comes from; outside: 128
    shear                            four taps down a column, float64, in Pillow's order of operations; outside: 128

Everything is drawn on the host, so that each operation touches only the images that drew it and no number has to be
read from a device; the same draw gives the same bytes on a CPU and on a GPU.

References: Cubuk et al., "AutoAugment", 2019, arXiv 1805.09501. Pairs, magnitudes, signs and the grey fill are those of
the policy that the released code of Ren et al. 2020 uses (github.com/DeepVoltaire/AutoAugment); torchvision's differs.
Copies of that policy differ in one number, the 0.8 of ("equalize", 4) below: 0.6 in later ones and in torchvision.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

SIZE = 32
FILL = 128

# (probability, operation, magnitude index), twice a pair
POLICY: tuple[tuple[tuple[float, str, int], tuple[float, str, int]], ...] = (
    ((0.1, "invert", 7), (0.2, "contrast", 6)),
    ((0.7, "rotate", 2), (0.3, "translate_x", 9)),
    ((0.8, "sharpness", 1), (0.9, "sharpness", 3)),
    ((0.5, "shear_y", 8), (0.7, "translate_y", 9)),
    ((0.5, "autocontrast", 8), (0.9, "equalize", 2)),
    ((0.2, "shear_y", 7), (0.3, "posterize", 7)),
    ((0.4, "color", 3), (0.6, "brightness", 7)),
    ((0.3, "sharpness", 9), (0.7, "brightness", 9)),
    ((0.6, "equalize", 5), (0.5, "equalize", 1)),
    ((0.6, "contrast", 7), (0.6, "sharpness", 5)),
    ((0.7, "color", 7), (0.5, "translate_x", 8)),
    ((0.3, "equalize", 7), (0.4, "autocontrast", 8)),
    ((0.4, "translate_y", 3), (0.2, "sharpness", 6)),
    ((0.9, "brightness", 6), (0.2, "color", 8)),
    ((0.5, "solarize", 2), (0.0, "invert", 3)),
    ((0.2, "equalize", 0), (0.6, "autocontrast", 0)),
    ((0.2, "equalize", 8), (0.8, "equalize", 4)),
    ((0.9, "color", 9), (0.6, "equalize", 6)),
    ((0.8, "autocontrast", 4), (0.2, "solarize", 8)),
    ((0.1, "brightness", 3), (0.7, "color", 0)),
    ((0.4, "solarize", 5), (0.9, "autocontrast", 3)),
    ((0.9, "translate_y", 9), (0.7, "translate_y", 9)),
    ((0.9, "autocontrast", 2), (0.8, "solarize", 3)),
    ((0.8, "equalize", 8), (0.1, "invert", 3)),
    ((0.7, "translate_y", 9), (0.9, "autocontrast", 1)),
)
BLENDS = ("color", "contrast", "sharpness", "brightness")
SIGNED = {"shear_y", "translate_x", "translate_y", *BLENDS}
MAGNITUDES = {
    **dict.fromkeys(BLENDS, np.linspace(0.0, 0.9, 10)),
    **dict.fromkeys(("translate_x", "translate_y"), np.linspace(0, 150 / 331, 10) * SIZE),
    "shear_y": np.linspace(0, 0.3, 10),
    "rotate": np.linspace(0, 30, 10),
    "posterize": np.round(np.linspace(8, 4, 10), 0),
    "solarize": np.linspace(256, 0, 10),
}


class Atom(NamedTuple):
    """One thing the policy can do to an image."""

    operation: str
    magnitude_index: int = 0
    sign: int = 1

    @property
    def magnitude(self) -> float:
        """The operation's argument: degrees, pixels, bits, a threshold, a slope, or the factor of a blend.

        >>> Atom("rotate", 9).magnitude, Atom("brightness", 9, -1).magnitude
        (30.0, 0.09999999999999998)
        """
        if self.operation not in MAGNITUDES:
            return 0.0
        magnitude = float(MAGNITUDES[self.operation][self.magnitude_index]) * self.sign
        return 1 + magnitude if self.operation in BLENDS else magnitude


_DRAWN = [  # for each pair, stage and sign, in this order
    Atom(operation, index, sign if operation in SIGNED else 1)
    for pair in POLICY
    for _, operation, index in pair
    for sign in (1, -1)
]
ATOMS = tuple(dict.fromkeys([Atom("identity"), *_DRAWN]))
"""Every atom the policy can draw, after the identity (atom 0)."""

OPERATIONS = tuple(dict.fromkeys(atom.operation for atom in ATOMS))
_OPERATION_OF = np.array([OPERATIONS.index(atom.operation) for atom in ATOMS])
_PROBABILITY = np.array([[stage[0] for stage in pair] for pair in POLICY])
_ATOM_OF = np.array([ATOMS.index(atom) for atom in _DRAWN]).reshape(len(POLICY), 2, 2)


def draw_atoms(number: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Two atoms per image, [number, 2], as the policy draws them; 0 if an operation is not applied."""
    pair = random.integers(len(POLICY), size=number)
    applied = random.random((number, 2)) < _PROBABILITY[pair]
    sign = random.integers(2, size=(number, 2))
    atoms = np.stack([_ATOM_OF[pair, stage, sign[:, stage]] for stage in (0, 1)], axis=1)
    return np.where(applied, atoms, 0)


class AutoAugment:
    """Applies atoms to images; holds their tables on one device.

    >>> images = torch.full((2, 3, 32, 32), 200, dtype=torch.uint8)
    >>> augment = AutoAugment(torch.device("cpu"))
    >>> invert = ATOMS.index(Atom("invert", 7))
    >>> augment(images, np.array([[0, 0], [invert, 0]]))[:, 0, 0, 0].tolist()
    [200, 55]
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        tables = np.zeros((len(ATOMS), 256), np.uint8)
        blends = np.zeros((len(ATOMS), 256, 256), np.uint8)
        sources = np.zeros((len(ATOMS), SIZE * SIZE), np.int64)
        rows = np.zeros((len(ATOMS), 4, SIZE * SIZE), np.int64)
        fractions = np.zeros((len(ATOMS), SIZE * SIZE))
        for number, atom in enumerate(ATOMS):
            match atom.operation:
                case "invert" | "posterize" | "solarize":
                    tables[number] = _table(atom)
                case "brightness":
                    tables[number] = _blend_table(atom.magnitude)[0]
                case "contrast" | "color" | "sharpness":
                    blends[number] = _blend_table(atom.magnitude)
                case "translate_x" | "translate_y" | "rotate":
                    sources[number] = _sources(atom)
                case "shear_y":
                    rows[number], fractions[number] = _shear_taps(atom.magnitude)
        self._tables = torch.from_numpy(tables).to(device)
        self._blends = torch.from_numpy(blends).to(device)
        self._sources = torch.from_numpy(sources).to(device)
        self._shear_rows = torch.from_numpy(rows).to(device)
        self._shear_fractions = torch.from_numpy(fractions).to(device)
        self._autocontrast_tables = torch.from_numpy(_autocontrast_tables()).to(device)
        self._apply = {
            **dict.fromkeys(("invert", "posterize", "solarize", "brightness"), self._look_up),
            **dict.fromkeys(("translate_x", "translate_y", "rotate"), self._gather),
            "contrast": self._contrast,
            "color": self._color,
            "sharpness": self._sharpness,
            "autocontrast": self._autocontrast,
            "equalize": self._equalize,
            "shear_y": self._shear,
        }

    def __call__(self, images: Tensor, atoms: NDArray[np.int64]) -> Tensor:
        """Images [N, 3, 32, 32] uint8 after the atoms [N, stages] of each, in order; `atoms` is on the host."""
        if images.shape[1:] != (3, SIZE, SIZE) or images.dtype != torch.uint8:
            raise ValueError(f"images are {images.dtype} {tuple(images.shape)}: expected uint8 [N, 3, {SIZE}, {SIZE}]")
        if atoms.ndim != 2 or len(atoms) != len(images):
            raise ValueError(f"atoms have shape {atoms.shape} for {len(images)} images: give [N, stages]")
        images = images.clone()
        for stage in range(atoms.shape[1]):
            self._apply_stage(images, atoms[:, stage])
        return images

    def _apply_stage(self, images: Tensor, atoms: NDArray[np.int64]) -> None:
        operation = _OPERATION_OF[atoms]
        order = np.argsort(operation, kind="stable")
        ends = np.cumsum(np.bincount(operation, minlength=len(OPERATIONS)))
        chosen, which = upload(np.stack([order, atoms[order]]), self.device)
        for number, name in enumerate(OPERATIONS[1:], start=1):
            start, end = int(ends[number - 1]), int(ends[number])
            if start < end:
                index = chosen[start:end]
                images[index] = self._apply[name](images[index], which[start:end])

    # ---------------------------------------------------------------- operations: images [n, 3, 32, 32], atoms [n]

    def _look_up(self, images: Tensor, atoms: Tensor) -> Tensor:
        return _look_up(self._tables[atoms], images)

    def _contrast(self, images: Tensor, atoms: Tensor) -> Tensor:
        mean = (2 * _grey(images).flatten(1).sum(1) + SIZE * SIZE) // (2 * SIZE * SIZE)
        return _look_up(self._blends[atoms, mean], images)

    def _color(self, images: Tensor, atoms: Tensor) -> Tensor:
        return self._blend(_grey(images)[:, None], images, atoms)

    def _sharpness(self, images: Tensor, atoms: Tensor) -> Tensor:
        return self._blend(_smooth(images), images, atoms)

    def _blend(self, degenerate: Tensor, images: Tensor, atoms: Tensor) -> Tensor:
        return self._blends.flatten()[(atoms[:, None, None, None] * 256 + degenerate) * 256 + images]

    def _autocontrast(self, images: Tensor, atoms: Tensor) -> Tensor:
        pixels = images.flatten(2)
        darkest, lightest = pixels.amin(2).long(), pixels.amax(2).long()
        return _look_up(self._autocontrast_tables[darkest, lightest], images)

    def _equalize(self, images: Tensor, atoms: Tensor) -> Tensor:
        pixels = images.flatten(2).long()
        ones = torch.ones_like(pixels, dtype=torch.int32)
        histogram = torch.zeros(*pixels.shape[:2], 256, dtype=torch.int32, device=self.device)
        histogram.scatter_add_(2, pixels, ones)
        last = histogram.gather(2, pixels.amax(2, keepdim=True))
        step = (SIZE * SIZE - last) // 255
        before = histogram.cumsum(2, dtype=torch.int32) - histogram
        table = ((step // 2 + before) // step.clamp(min=1)).clamp(max=255)
        identity = torch.arange(256, device=self.device, dtype=torch.int32)
        return _look_up(torch.where(step > 0, table, identity).to(torch.uint8), images)

    def _gather(self, images: Tensor, atoms: Tensor) -> Tensor:
        number = len(images)
        outside = torch.full((number, 3, 1), FILL, dtype=torch.uint8, device=self.device)
        pixels = torch.cat([images.flatten(2), outside], dim=2)
        return pixels.gather(2, self._sources[atoms][:, None].expand(number, 3, SIZE * SIZE)).view_as(images)

    def _shear(self, images: Tensor, atoms: Tensor) -> Tensor:
        pixels = images.flatten(2).double()
        rows = self._shear_rows[atoms]  # [n, 4, 1024], -1 outside
        taps = [
            pixels.gather(2, rows[:, tap, None].clamp(min=0).expand(len(images), 3, SIZE * SIZE)) for tap in range(4)
        ]
        values = _cubic(taps[0], taps[1], taps[2], taps[3], self._shear_fractions[atoms][:, None])
        inside = values.clamp(0, 255).to(torch.uint8)
        return torch.where(rows[:, :1] < 0, FILL, inside).to(torch.uint8).view_as(images)


def upload(array: NDArray[Any], device: torch.device) -> Tensor:
    """A host array on the device, without waiting for it."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def _look_up(tables: Tensor, images: Tensor) -> Tensor:
    """tables [n, 256] or [n, 3, 256] applied to images [n, 3, 32, 32]."""
    tables = tables[:, None].expand(-1, 3, -1) if tables.ndim == 2 else tables
    return tables.gather(2, images.flatten(2).long()).view_as(images)


def _grey(images: Tensor) -> Tensor:
    """Pillow's conversion to "L": [n, 32, 32] int64."""
    red, green, blue = images.long().unbind(1)
    return (19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16


def _smooth(images: Tensor) -> Tensor:
    """Pillow's SMOOTH filter, (1 1 1; 1 5 1; 1 1 1) / 13 rounded, the border copied: int64."""
    smooth = images.long()
    columns = smooth[:, :, :-2] + smooth[:, :, 1:-1] + smooth[:, :, 2:]
    total = columns[..., :-2] + columns[..., 1:-1] + columns[..., 2:] + 4 * smooth[:, :, 1:-1, 1:-1]
    smooth[:, :, 1:-1, 1:-1] = (2 * total + 13) // 26  # never a tie: 13 is odd
    return smooth


def _cubic(above: Tensor, here: Tensor, below: Tensor, beyond: Tensor, fraction: Tensor) -> Tensor:
    """Pillow's bicubic, one operation after another: a fused multiply-add would round differently."""
    first = below - above
    second = 2 * (above - here) + below - beyond
    third = here - above - below + beyond
    inner = fraction * third
    inner = fraction * (second + inner)
    inner = fraction * (first + inner)
    return here + inner


# -------------------------------------------------------------------- tables


def _table(atom: Atom) -> NDArray[np.uint8]:
    values: NDArray[np.int64] = np.arange(256)
    if atom.operation == "invert":
        return (255 - values).astype(np.uint8)
    if atom.operation == "posterize":
        return (values & ~((1 << (8 - int(atom.magnitude))) - 1)).astype(np.uint8)
    return np.where(values < atom.magnitude, values, 255 - values).astype(np.uint8)


def _blend_table(factor: float) -> NDArray[np.uint8]:
    """[degenerate, pixel] -> degenerate + factor · (pixel − degenerate), in C's single precision, truncated."""
    degenerate: NDArray[np.float32] = np.arange(256, dtype=np.float32)[:, None]
    pixel = np.arange(256, dtype=np.float32)[None]
    blend = degenerate + np.float32(factor) * (pixel - degenerate)
    table: NDArray[np.uint8] = np.clip(blend, 0, 255).astype(np.uint8)
    return table


def _autocontrast_tables() -> NDArray[np.uint8]:
    """[darkest, lightest] -> the table that stretches them to 0 and 255; the identity if they are equal."""
    darkest, lightest, value = np.ogrid[:256, :256, :256]
    scale = 255.0 / np.maximum(lightest - darkest, 1)
    stretched = np.clip(np.trunc(value * scale + -darkest * scale), 0, 255)
    return np.where(lightest > darkest, stretched, value).astype(np.uint8)


def _sources(atom: Atom) -> NDArray[np.int64]:
    """For each pixel the index of the pixel it comes from (nearest neighbour), or 1,024 if that is outside."""
    y, x = np.mgrid[:SIZE, :SIZE]
    if atom.operation == "translate_x":
        x = np.floor(x + 0.5 + atom.magnitude).astype(np.int64)
    elif atom.operation == "translate_y":
        y = np.floor(y + 0.5 + atom.magnitude).astype(np.int64)
    else:
        x, y = _rotated(atom.magnitude, x, y)
    inside = (x >= 0) & (x < SIZE) & (y >= 0) & (y < SIZE)
    return np.where(inside, y * SIZE + x, SIZE * SIZE).ravel()


def _rotated(degrees: float, x: NDArray[np.int64], y: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where a pixel comes from under a rotation about the centre, in the 16.16 fixed point that Pillow uses."""
    angle = -math.radians(degrees)
    cosine, sine = round(math.cos(angle), 15), round(math.sin(angle), 15)
    centre = SIZE / 2
    offset_x = cosine * -centre + sine * -centre + centre
    offset_y = -sine * -centre + cosine * -centre + centre

    def fixed(value: float) -> int:
        return math.floor(value * 65536 + 0.5)

    start_x, start_y = fixed(offset_x + cosine * 0.5 + sine * 0.5), fixed(offset_y - sine * 0.5 + cosine * 0.5)
    from_x = (start_x + fixed(cosine) * x + fixed(sine) * y) >> 16
    from_y = (start_y + fixed(-sine) * x + fixed(cosine) * y) >> 16
    return from_x, from_y


def _shear_taps(slope: float) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The four source pixels [4, 1024] of each pixel, in its own column (−1 outside), and the fraction between them."""
    y, x = np.mgrid[:SIZE, :SIZE].astype(np.float64)
    source = slope * (x + 0.5) + (y + 0.5)
    outside = (source < 0) | (source >= SIZE)
    row = np.floor(source - 0.5)
    fraction = (source - 0.5) - row
    taps = np.stack([np.clip(row + tap, 0, SIZE - 1) for tap in (-1, 0, 1, 2)]) * SIZE + x
    return np.where(outside, -1, taps).astype(np.int64).reshape(4, -1), fraction.ravel()
