"""The training augmentation of CIFAR with Pillow, one image at a time: the reference that the batched one must equal.

Written from the published description and apart from `equipoise.training.augmentation`, which it shares no table with.
Magnitudes are ten equal steps over the range of each operation; a sign is drawn where the operation has two directions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

GREY = (128, 128, 128)


def _affine(image: Image.Image, matrix: tuple[float, ...], resample: Image.Resampling) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, resample, fillcolor=GREY)


def _rotate(image: Image.Image, degrees: float) -> Image.Image:
    turned = image.convert("RGBA").rotate(degrees)
    return Image.composite(turned, Image.new("RGBA", turned.size, (128,) * 4), turned).convert("RGB")


def apply(image: Image.Image, operation: str, index: int, sign: int) -> Image.Image:
    """One operation of the policy, at magnitude `index` (0 to 9) in direction `sign`."""
    nearest, bicubic = Image.Resampling.NEAREST, Image.Resampling.BICUBIC
    enhance: dict[str, Callable[[Image.Image], ImageEnhance._Enhance]] = {
        "color": ImageEnhance.Color,
        "contrast": ImageEnhance.Contrast,
        "sharpness": ImageEnhance.Sharpness,
        "brightness": ImageEnhance.Brightness,
    }
    if operation in enhance:
        return enhance[operation](image).enhance(1 + np.linspace(0.0, 0.9, 10)[index] * sign)
    match operation:
        case "identity":
            return image
        case "shear_y":
            return _affine(image, (1, 0, 0, np.linspace(0, 0.3, 10)[index] * sign, 1, 0), bicubic)
        case "translate_x":
            shift = np.linspace(0, 150 / 331, 10)[index] * image.size[0] * sign
            return _affine(image, (1, 0, shift, 0, 1, 0), nearest)
        case "translate_y":
            shift = np.linspace(0, 150 / 331, 10)[index] * image.size[1] * sign
            return _affine(image, (1, 0, 0, 0, 1, shift), nearest)
        case "rotate":
            return _rotate(image, np.linspace(0, 30, 10)[index])
        case "posterize":
            return ImageOps.posterize(image, int(np.round(np.linspace(8, 4, 10))[index]))
        case "solarize":
            return ImageOps.solarize(image, np.linspace(256, 0, 10)[index])
        case "autocontrast":
            return ImageOps.autocontrast(image)
        case "equalize":
            return ImageOps.equalize(image)
        case "invert":
            return ImageOps.invert(image)
    raise ValueError(f"unknown operation {operation!r}")


def crop_and_flip(image: Image.Image, top: int, left: int, flip: int) -> Image.Image:
    """The 32×32 window at (top, left) of the image in a border of 4 black pixels, mirrored where `flip` is 1."""
    padded = ImageOps.expand(image, border=4, fill=0).crop((left, top, left + 32, top + 32))
    return padded.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else padded


def cutout(pixels: np.ndarray, centre_y: int, centre_x: int) -> np.ndarray:
    """Zeros in the 16×16 square about the centre, clipped at the border; pixels [32, 32, 3]."""
    rows = slice(max(centre_y - 8, 0), min(centre_y + 8, 32))
    columns = slice(max(centre_x - 8, 0), min(centre_x + 8, 32))
    pixels = pixels.copy()
    pixels[rows, columns] = 0
    return pixels


def sample_images(number: int, seed: int = 0) -> np.ndarray:
    """Noise, smooth, low-contrast and flat images, `number` of each: [4 · number, 32, 32, 3] uint8."""
    random = np.random.default_rng(seed)
    noise = random.integers(0, 256, (number, 32, 32, 3))
    smooth = random.normal(size=(number, 32, 32, 3)).cumsum(1).cumsum(2) * 3 + 128
    low = random.integers(0, 246, (number, 1, 1, 3)) + random.integers(0, 10, (number, 32, 32, 3))
    flat = np.broadcast_to(random.integers(0, 256, (number, 1, 1, 3)), noise.shape)
    return np.concatenate([noise, smooth.clip(0, 255), low, flat]).astype(np.uint8)
