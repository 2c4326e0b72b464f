"""Images as files and as bytes: opened, rotated upright, converted to RGB, resized, and checked one by one.

Everything that Pillow opens becomes RGB with 8 bits: palettes, grey, 16 bits, CMYK, transparency (dropped) and
animations (the first frame); EXIF orientation is applied. JPEG files are decoded at a reduced scale if that is enough
(`draft`). Decoding runs in threads, as Pillow releases Python's lock. An image that cannot be decoded becomes a
`BadImage` with a reason, never an exception that ends a run.
"""

from __future__ import annotations

import io
import os
import stat
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from equipoise.data.cores import usable_cores
from equipoise.data.reading import counted, shown, visible
from equipoise.files import written_whole
from equipoise.prior import IntArray

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels: TypeAlias = NDArray[np.uint8]
Resize: TypeAlias = Literal["shorter", "square"]
Progress: TypeAlias = Callable[[int, int], object]

ORIENTATION = 0x0112  # of EXIF
TURNS = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}  # EXIF orientation as one of Pillow's `Transpose`
AT_ONCE = 32  # images per task of a thread
CHECKED = 32  # pixels: a check decodes JPEG files at the smallest scale, which reads all of their data


class Images(Protocol):
    """Something that can be decoded: numbered images with names."""

    def __len__(self) -> int: ...

    def key(self, index: int) -> str: ...

    def open(self, index: int) -> str | bytes: ...


@dataclass(frozen=True)
class BadImage:
    """An image that cannot be decoded: its number, its name, and why."""

    index: int
    name: str
    reason: str


@dataclass(frozen=True)
class BadImages:
    """The images of a list that cannot be decoded, in its order."""

    items: tuple[BadImage, ...] = ()

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[BadImage]:
        return iter(self.items)

    @property
    def indices(self) -> IntArray:
        return np.array([item.index for item in self.items], np.int64)

    @property
    def reasons(self) -> dict[str, int]:
        """How many images have each reason, the most frequent first."""
        return dict(Counter(item.reason for item in self.items).most_common())

    def __str__(self) -> str:
        """One line: how many, why, and the first few names.

        >>> print(BadImages((BadImage(3, "cat/3.jpg", "cut off"), BadImage(9, "owl/1.jpg", "no such file"))))
        2 images cannot be read (1 cut off, 1 no such file): cat/3.jpg, owl/1.jpg
        """
        if not self.items:
            return "all images can be read"
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in self.reasons.items())
        return f"{counted(len(self), 'image')} cannot be read ({reasons}): {shown(item.name for item in self.items)}"


@dataclass(frozen=True)
class DecodedImages:
    """Pixels uint8 [N, 3, S, S]; images that could not be decoded are black, and listed in `bad`."""

    pixels: Pixels
    bad: BadImages

    @property
    def good(self) -> IntArray:
        """The rows that hold an image."""
        return np.setdiff1d(np.arange(len(self.pixels)), self.bad.indices)


def decode(
    images: Images,
    size: int,
    *,
    resize: Resize = "shorter",
    workers: int | None = None,
    progress: Progress | None = None,
    store: Path | None = None,
) -> DecodedImages:
    """Every image as a square of `size` pixels.

    With `resize` "shorter" the shorter side becomes `size` and the middle is kept; with "square" the whole image is
    squeezed into the square. `workers` threads decode (by default one per core), and `progress(done, total)` is called
    now and then. The pixels are kept in memory, or in the .npy file `store`, which may be larger than memory and
    appears once everything is decoded.
    """
    check_size(size, resize)
    with _space((len(images), 3, size, size), store) as pixels:

        def work(index: int) -> None:
            pixels[index] = square(images, index, size, resize)

        bad = _each(images, work, workers, progress)
    return DecodedImages(pixels, bad)


def square(images: Images, index: int, size: int, resize: Resize = "shorter") -> Pixels:
    """One image as a square, uint8 [3, size, size], as in a row of `decode`; raises what Pillow raises."""
    return square_of(images.open(index), size, resize)


def square_of(source: str | bytes, size: int, resize: Resize = "shorter") -> Pixels:
    """A file, or the bytes of one, as such a square."""
    image = open_rgb(source, at_least=size)
    return np.asarray(_to_square(image, size, resize)).transpose(2, 0, 1)


def check_images(images: Images, *, workers: int | None = None, progress: Progress | None = None) -> BadImages:
    """Decode every image without keeping it, and list those that cannot be decoded, with the reason."""
    return _each(images, lambda index: open_rgb(images.open(index), at_least=CHECKED), workers, progress)


def _each(images: Images, work: Callable[[int], object], workers: int | None, progress: Progress | None) -> BadImages:
    """Call `work` for every number, in threads; an exception makes a bad image."""
    total = len(images)

    def part(start: int) -> list[BadImage]:
        bad = []
        for index in range(start, min(start + AT_ONCE, total)):
            try:
                work(index)
            except MemoryError:
                raise
            except Exception as error:
                bad.append(BadImage(index, images.key(index), why_bad(error)))
        return bad

    found: list[BadImage] = []
    with quiet(), ThreadPoolExecutor(workers or usable_cores()) as pool:
        tasks = [pool.submit(part, start) for start in range(0, total, AT_ONCE)]
        try:
            for number, task in enumerate(tasks, start=1):
                found += task.result()
                if progress is not None:
                    progress(min(number * AT_ONCE, total), total)
        finally:  # also on Ctrl-C: tasks that have not started are dropped
            pool.shutdown(wait=False, cancel_futures=True)
    return BadImages(tuple(found))


@contextmanager
def _space(shape: tuple[int, ...], store: Path | None) -> Iterator[Pixels]:
    """Zeros in memory, or in a file that appears once everything is written."""
    if store is None:
        yield np.zeros(shape, np.uint8)
        return
    with written_whole(store) as scratch:
        made = np.lib.format.open_memmap(scratch, "w+", np.uint8, shape)
        if hasattr(os, "posix_fallocate") and made.size:
            with open(scratch, "rb+") as file:  # a full disk is an error here, but would be a crash later
                os.posix_fallocate(file.fileno(), 0, os.path.getsize(scratch))
        yield made
        made.flush()


def check_size(size: int, resize: str) -> None:
    """Refuse an invalid size or way to resize."""
    if size < 1:
        raise ValueError(f"size is {size}: expected the number of pixels of a side")
    if resize not in ("shorter", "square"):
        raise ValueError(f"resize is {resize!r}: expected 'shorter' or 'square'")


# -------------------------------------------------------------------- one image


@contextmanager
def quiet() -> Iterator[None]:
    """Silence Pillow's warnings about odd files (large ones, broken EXIF), which would repeat for every image."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")
        warnings.filterwarnings("ignore", category=_pillow().DecompressionBombWarning)
        yield


def open_rgb(source: str | bytes, *, at_least: int | None = None, upright: bool = True) -> Image:
    """A file, or the bytes of one, as an RGB image, rotated upright as its EXIF data say.

    A JPEG file is decoded at 1/2, 1/4 or 1/8 of its size if its shorter side still has `at_least` pixels then. Raises
    what Pillow raises; `why_bad` describes it in words.
    """
    pillow = _pillow()
    _refuse_empty(source)
    with pillow.open(io.BytesIO(source) if isinstance(source, bytes) else source) as opened:
        if at_least is not None and min(opened.size) >= 2 * at_least:
            scale = at_least / min(opened.size)
            opened.draft(None, (int(opened.width * scale), int(opened.height * scale)))  # JPEG only: others ignore it
        opened.load()
        turn = _turn(opened) if upright else None
        image = to_rgb(opened)
    return image if turn is None else image.transpose(turn)


class JpegHeader(NamedTuple):
    """Width and height as stored, and how the image is turned upright: one of Pillow's `Transpose`, or −1."""

    width: int
    height: int
    turn: int


def jpeg_header(content: bytes) -> JpegHeader | None:
    """The header of a baseline JPEG file, grey or YCbCr, which a GPU decodes; None for others, also progressive ones.

    >>> jpeg_header(b"no image") is None
    True
    """
    if not content.startswith(b"\xff\xd8"):
        return None
    with _pillow().open(io.BytesIO(content)) as opened:
        raw = opened.mode == "RGB" and opened.info.get("adobe_transform") == 0  # RGB that was never made YCbCr
        if opened.mode not in ("L", "RGB") or raw or opened.info.get("progressive"):
            return None
        turn = _turn(opened)
        width, height = opened.size
        return JpegHeader(width, height, -1 if turn is None else int(turn))


def sides(source: str | bytes) -> tuple[int, int]:
    """Width and height as stored, from the head of a file; raises what Pillow raises."""
    if not isinstance(source, bytes):
        _size(source)
    with _pillow().open(io.BytesIO(source) if isinstance(source, bytes) else source) as opened:
        width, height = opened.size
    return width, height


def read_bytes(source: str | bytes) -> bytes:
    """The bytes of an image, from its file if need be; an empty one is refused."""
    _refuse_empty(source)
    return source if isinstance(source, bytes) else Path(source).read_bytes()


def _refuse_empty(source: str | bytes) -> None:
    if not (len(source) if isinstance(source, bytes) else _size(source)):
        raise EmptyFile


def _size(path: str) -> int:
    """The size of a file in bytes; anything but a regular file is refused (reading a pipe would block)."""
    found = os.stat(path)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("no ordinary file")
    return found.st_size


def to_rgb(image: Image) -> Image:
    """Any image as RGB with 8 bits: 16 bits keep their upper half, where Pillow would clip at 255."""
    if image.mode.startswith("I"):
        grey = (np.array(image) >> 8).clip(0, 255).astype(np.uint8)
        image = _pillow().fromarray(grey)
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")


def _to_square(image: Image, size: int, resize: Resize) -> Image:
    """The image in a square of `size` pixels, resized with a filter as wide as the scale (antialiased)."""
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    box = (0.0, 0.0, width, height) if resize == "square" else (left, top, left + side, top + side)
    return image.resize((size, size), _pillow().Resampling.BILINEAR, box=box)


def _turn(image: Image) -> Any:
    try:
        orientation = image.getexif().get(ORIENTATION)
    except Exception:  # broken EXIF data: the pixels are still fine
        return None
    turn = TURNS.get(orientation) if isinstance(orientation, int) else None
    return None if turn is None else _pillow().Transpose(turn)


class EmptyFile(ValueError):
    """No bytes where an image should be."""


def why_bad(error: Exception) -> str:
    """Why an image could not be decoded, in a few words that name no file."""
    pillow = _pillow()
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return "no such file"
    if isinstance(error, IsADirectoryError):
        return "a folder, not a file"
    if isinstance(error, PermissionError):
        return "no permission to read it"
    if isinstance(error, pillow.DecompressionBombError):
        return f"more than {2 * (pillow.MAX_IMAGE_PIXELS or 0):,} pixels"
    if isinstance(error, EmptyFile):
        return "an empty file"
    if isinstance(error, _unidentified()):
        return "not an image that Pillow can read"
    if "truncated" in str(error).lower():
        return "cut off"
    if isinstance(error, OSError) and error.strerror:  # without the rest of the text, which names the file
        return error.strerror.lower()
    return visible(" ".join((str(error) or type(error).__name__).split()))[:100]


def _pillow() -> Any:
    try:
        from PIL import Image as Pillow
    except ImportError:
        raise ImportError("reading images needs Pillow: pip install 'equipoise[train]'") from None
    return Pillow


def _unidentified() -> type[Exception]:
    from PIL import UnidentifiedImageError

    return UnidentifiedImageError
