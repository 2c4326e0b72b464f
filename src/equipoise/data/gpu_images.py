"""JPEG files decoded on the GPU: worker processes read their bytes, torchvision (nvJPEG) decodes many at once.

What a GPU decodes badly or not at all is decoded on the CPU, by the worker that read it: other formats, CMYK and raw
RGB, progressive files (nvJPEG decodes these one by one, partly on the host), images of more than 67 million pixels.
Pixels differ a little from Pillow's: nvJPEG repeats subsampled colour, which libjpeg interpolates; the middle square is
cut at whole pixels, not at half ones; Pillow decodes large files at a reduced scale.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset

from equipoise.data.image_files import Pixels, Resize, check_size, jpeg_header, open_rgb, read_bytes, square_of
from equipoise.data.images import ImageList
from equipoise.prior import IntArray

AT_ONCE = 1 << 26  # pixels that are decoded together


class Encoded(NamedTuple):
    """One image: the bytes of a JPEG file with its width, height and turn, or (`content` empty) its square."""

    content: bytes
    width: int
    height: int
    turn: int  # one of Pillow's `Transpose`; −1: upright
    square: Pixels | None


class EncodedBatch(NamedTuple):
    """The images of a batch in a few tensors, as workers pass them on: `about` [N, 4] holds the number of bytes in
    `content`, width, height and turn of each; `squares` are those without bytes, already decoded."""

    content: Tensor
    about: Tensor
    squares: Tensor


class EncodedStream(Dataset[Encoded]):
    """The images of a list as the bytes of their files, for `GpuDecoder`; those it cannot decode, as squares."""

    def __init__(self, images: ImageList, size: int, *, resize: Resize = "shorter") -> None:
        check_size(size, resize)
        self.images, self.size, self.resize = images, size, resize

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Encoded:
        with self.images.naming(index):
            content = read_bytes(self.images.open(index))
            header = jpeg_header(content)
            if header is None or header.width * header.height > AT_ONCE:
                return Encoded(b"", 0, 0, -1, square_of(content, self.size, self.resize))
        return Encoded(content, *header, None)


def collated(items: Sequence[Encoded]) -> EncodedBatch:
    """The batch of these images, their bytes one after the other."""
    content = np.frombuffer(b"".join(item.content for item in items), np.uint8).copy()
    about = [(len(item.content), item.width, item.height, item.turn) for item in items]
    squares = [item.square for item in items if item.square is not None]
    return EncodedBatch(
        torch.from_numpy(content),
        torch.tensor(about, dtype=torch.int64),
        torch.from_numpy(np.stack(squares)) if squares else torch.empty(0, dtype=torch.uint8),
    )


@dataclass
class GpuDecoder:
    """Turns an `EncodedBatch` into images uint8 [N, 3, size, size] on `device`, on a stream of its own, so that
    training goes on meanwhile. On a CPU it does the same without a stream."""

    size: int
    resize: Resize
    device: torch.device

    def __post_init__(self) -> None:
        check_size(self.size, self.resize)
        self._stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def __call__(self, batch: EncodedBatch) -> Tensor:
        if self._stream is None:
            return self._decoded(batch)
        with torch.cuda.stream(self._stream):
            found = self._decoded(batch)
        using = torch.cuda.current_stream(self.device)
        using.wait_stream(self._stream)
        found.record_stream(using)
        return found

    def _decoded(self, batch: EncodedBatch) -> Tensor:
        rows = np.asarray(batch.about)
        out = torch.empty(len(rows), 3, self.size, self.size, dtype=torch.uint8, device=self.device)
        ready = np.flatnonzero(rows[:, 0] == 0)
        if len(ready):
            out[torch.from_numpy(ready).to(self.device)] = batch.squares.to(self.device)
        content = torch.split(batch.content, rows[:, 0].tolist())
        for part in parts(rows[:, 1] * rows[:, 2], np.flatnonzero(rows[:, 0] > 0)):
            if self._stream is not None:
                # torchvision writes on a stream of its own, at once, into memory that this one has perhaps not read yet
                self._stream.synchronize()
            images = self._decode([content[row] for row in part])
            self._resize_into(out, part, images, rows[:, 3])
        return out

    def _decode(self, content: list[Tensor]) -> list[Tensor]:
        """Images [3, H, W]; one that torchvision cannot decode is found by halving, and decoded by Pillow."""
        try:
            return decode_jpegs(content, self.device)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            half = len(content) // 2
            if half:
                return self._decode(content[:half]) + self._decode(content[half:])
            pixels = np.array(open_rgb(content[0].numpy().tobytes(), upright=False))
            return [torch.from_numpy(pixels).to(self.device).permute(2, 0, 1)]

    def _resize_into(self, out: Tensor, rows: list[int], images: list[Tensor], turns: IntArray) -> None:
        """Resize images of one shape together, and put them upright in their rows."""
        cut = [image if self.resize == "square" else middle_square(image) for image in images]
        for shape in dict.fromkeys(image.shape for image in cut):
            same = [place for place, image in enumerate(cut) if image.shape == shape]
            pixels = torch.stack([cut[place] for place in same]).float()
            pixels = F.interpolate(pixels, (self.size, self.size), mode="bilinear", antialias=True)
            found = pixels.round_().clamp_(0, 255).to(torch.uint8)
            out[torch.tensor([rows[place] for place in same], device=self.device)] = found
        for row in rows:
            if turns[row] >= 0:
                out[row] = turned(out[row].clone(), int(turns[row]))


def decode_jpegs(content: list[Tensor], device: torch.device) -> list[Tensor]:
    """JPEG files, the bytes of each a uint8 tensor, as RGB images [3, H, W] on the device."""
    from torchvision.io import ImageReadMode, decode_jpeg  # type: ignore[import-untyped]

    with warnings.catch_warnings():  # later versions point to torchcodec
        warnings.simplefilter("ignore")
        found: list[Tensor] = decode_jpeg(content, mode=ImageReadMode.RGB, device=device)
    return found


def why_not_on(device: torch.device) -> str | None:
    """Why JPEG files cannot be decoded on the device; None if one could be."""
    if device.type != "cuda":
        return "there is no GPU to decode on"
    if str(device) == "cuda":  # without its number
        device = torch.device("cuda", torch.cuda.current_device())
    try:
        from torchvision.io import encode_jpeg

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            one = encode_jpeg(torch.zeros(3, 16, 16, dtype=torch.uint8))
        decode_jpegs([one], device)
    except (ImportError, AttributeError, RuntimeError) as error:
        return f"torchvision cannot decode JPEG files on this GPU ({' '.join(str(error).split())[:200]})"
    return None


def parts(pixels: IntArray, rows: IntArray) -> Iterator[list[int]]:
    """`rows` in parts of at most `AT_ONCE` pixels.

    >>> list(parts(np.array([1 << 25, 1 << 25, 5, 1 << 26]), np.arange(4)))
    [[0, 1], [2], [3]]
    """
    part, total = list[int](), 0
    for row in rows.tolist():
        if part and total + pixels[row] > AT_ONCE:
            yield part
            part, total = [], 0
        part.append(row)
        total += int(pixels[row])
    if part:
        yield part


def middle_square(image: Tensor) -> Tensor:
    """The middle of an image [3, H, W], as wide as its shorter side.

    >>> middle_square(torch.arange(4).expand(3, 2, 4))[0].tolist()
    [[1, 2], [1, 2]]
    """
    height, width = image.shape[1:]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return image[:, top : top + side, left : left + side]


def turned(image: Tensor, turn: int) -> Tensor:
    """An image [3, S, S] after one of Pillow's `Transpose`."""
    if turn in (0, 1):
        return image.flip(2 - turn)
    if turn in (5, 6):
        image = image.transpose(1, 2)
        return image if turn == 5 else image.flip(1, 2)
    return image.rot90(turn - 1, (1, 2))
