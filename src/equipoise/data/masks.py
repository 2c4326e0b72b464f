"""Masks of instances: polygons and run lengths (COCO's RLE) to pixels and back.

Run lengths go down the columns and start with zeros. COCO's compressed form writes each length in groups of five bits,
lowest first, one printable character per group; from the fourth length on, it writes the difference from the length two
before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.data.reading import shown
from equipoise.prior import IntArray

Rle = dict[str, Any]
MOST_PIXELS = 1 << 28  # of a mask: more than any image that Pillow opens without complaint
CHECKED_AT_ONCE = 1 << 18  # characters of run lengths
MOST_BITS = 30  # bits before the last five of a compressed run length


def run_lengths(counts: str | bytes) -> IntArray:
    """The run lengths of COCO's compressed string.

    >>> run_lengths(";4600000a1").tolist()
    [11, 4, 6, 4, 6, 4, 6, 4, 55]
    """
    characters = np.frombuffer(counts.encode() if isinstance(counts, str) else bytes(counts), np.uint8)
    groups = characters.astype(np.int64) - 48
    if len(groups) == 0 or groups.min() < 0 or groups.max() > 63 or groups[-1] & 32:
        raise ValueError("its 'counts' are not a compressed RLE string")
    last = np.flatnonzero(groups & 32 == 0)
    first = np.concatenate([[0], last[:-1] + 1])
    place = 5 * (np.arange(len(groups)) - np.repeat(first, last - first + 1))
    if place.max() > MOST_BITS:  # more would overflow, and no image has that many pixels
        raise ValueError("its 'counts' hold a run that is longer than any image")
    values = np.add.reduceat((groups & 31) << place, first)
    negative = groups[last] & 16 != 0
    values -= negative.astype(np.int64) << (place[last] + 5)
    for start in (1, 2):  # every second length, from the fourth on, adds to the one two before
        values[start::2] = np.cumsum(values[start::2])
    return values


def first_wrong_runs(masks: Sequence[Any]) -> int | None:
    """The number of the first RLE whose runs do not fill its size exactly, or None; no mask is decoded.

    >>> first_wrong_runs([{"size": [10, 10], "counts": ";4600000a1"}, {"size": [2, 2], "counts": [1, 4]}])
    1
    """
    compressed, wrong = [], []
    for number, mask in enumerate(masks):
        if isinstance(mask["counts"], list):
            wrong += [] if _fills(mask) else [number]
        else:
            compressed.append(number)
    texts = [_bytes(masks[number]["counts"]) for number in compressed]
    pixels = np.array([min(math.prod(masks[number]["size"]), MOST_PIXELS + 1) for number in compressed], np.int64)
    parts = np.cumsum([len(text) for text in texts]) // CHECKED_AT_ONCE  # of about this many characters
    for rows in np.split(np.arange(len(texts)), np.flatnonzero(np.diff(parts)) + 1):
        if len(rows):
            found = rows[_wrong_compressed([texts[row] for row in rows], pixels[rows])]
            wrong += [compressed[row] for row in found.tolist()]
    return min(wrong, default=None)


def check_masks(masks: Sequence[Any], sizes: Sequence[Sequence[int]], named: Callable[[int], str]) -> None:
    """Refuse an RLE that does not have its image's size (height and width; 0 if unknown), or does not fill it, by the
    name of its number. Polygons are not looked at.

    >>> check_masks([[[1, 1, 5, 1, 5, 5]], {"size": [2, 2], "counts": [1, 4]}], [[9, 9], [2, 2]], "mask {}".format)
    Traceback (most recent call last):
    ValueError: mask 1 has an RLE whose runs do not fill its size exactly
    """
    runs = [number for number, mask in enumerate(masks) if isinstance(mask, Mapping)]
    for number in runs:
        mine, size = list(masks[number]["size"]), list(sizes[number])
        if 0 not in size and mine != size:
            wrong_size = f"{named(number)} has a mask of {shown([mine])} pixels"
            raise ValueError(f"{wrong_size}, its image has {size} (height and width)")
    wrong = first_wrong_runs([masks[number] for number in runs])
    if wrong is not None:
        raise ValueError(f"{named(runs[wrong])} has an RLE whose runs do not fill its size exactly")


def _bytes(text: str | bytes) -> bytes:
    return text.encode(errors="replace") if isinstance(text, str) else text


def _fills(mask: Mapping[str, Any]) -> bool:
    """Whether run lengths in a list fill the mask's size."""
    try:
        lengths = _whole_runs(mask["counts"])
    except ValueError:
        return False
    return bool((lengths >= 0).all()) and int(lengths.sum()) == math.prod(mask["size"]) <= MOST_PIXELS


def _wrong_compressed(texts: Sequence[bytes], pixels: IntArray) -> NDArray[np.bool_]:
    """Which compressed strings are not runs that fill this many pixels; all of them are checked together."""
    sizes = np.array([len(text) for text in texts])
    wrong = (sizes == 0) | (pixels > MOST_PIXELS)
    groups = np.frombuffer(b"".join(texts), np.uint8).astype(np.int64) - 48
    of = np.repeat(np.arange(len(texts)), sizes)
    wrong[of[(groups < 0) | (groups > 63)]] = True
    wrong[sizes > 0] |= groups[np.cumsum(sizes)[sizes > 0] - 1] & 32 != 0
    if wrong.any():  # else the strings run into each other
        return np.asarray(wrong)
    last = np.flatnonzero(groups & 32 == 0)
    first = np.concatenate([[0], last[:-1] + 1])
    place = 5 * (np.arange(len(groups)) - np.repeat(first, last - first + 1))
    wrong[of[place > MOST_BITS]] = True
    place = np.minimum(place, MOST_BITS)
    values = np.add.reduceat((groups & 31) << place, first)
    values -= (groups[last] & 16 != 0).astype(np.int64) << (place[last] + 5)
    of = of[last]
    number = np.bincount(of, minlength=len(texts))
    begin = np.cumsum(number) - number
    turn = np.arange(len(values)) - begin[of]
    # one string's first length, then every second one from the second on, then from the third on: each a running sum
    odd = number[of] // 2
    chain = begin[of] + np.where(turn == 0, 0, np.where(turn % 2 == 1, 1, 1 + odd))
    target = chain + np.where(turn == 0, 0, (turn - 1) // 2)
    arranged = np.empty_like(values)
    arranged[target] = values
    total = np.cumsum(arranged)
    runs = total[target] - (total - arranged)[chain]
    wrong[of[(runs < 0) | (runs > pixels[of])]] = True
    wrong |= np.bincount(of, runs, minlength=len(texts)) != pixels
    return np.asarray(wrong)


def decode_mask(segmentation: Any, height: int, width: int) -> NDArray[np.uint8]:
    """Polygons or an RLE, compressed or not, as ones and zeros [height, width]. Polygons need hotcoco.

    Anything else, or an RLE that does not fill the image exactly, is a ValueError.

    >>> decode_mask({"size": [2, 2], "counts": [1, 3]}, 2, 2).tolist()
    [[0, 1], [1, 1]]
    """
    if not 0 < height * width <= MOST_PIXELS:
        raise ValueError(f"the image is {height} × {width} (height × width): masks have 1 to {MOST_PIXELS:,} pixels")
    if isinstance(segmentation, Mapping):
        return _decode_rle(segmentation, height, width)
    if not is_polygons(segmentation):
        raise ValueError(f"its segmentation is a {type(segmentation).__name__}: expected lists of numbers, or an RLE")
    polygons = [polygon for polygon in segmentation if len(polygon) >= 6 and len(polygon) % 2 == 0]
    if not polygons:
        return np.zeros((height, width), np.uint8)
    mask = hotcoco().mask
    return np.asarray(mask.decode(mask.merge(mask.frPyObjects(polygons, height, width))))


def is_polygons(segmentation: Any) -> bool:
    """Whether a segmentation is a list of lists of finite numbers."""
    return isinstance(segmentation, list | tuple) and all(
        isinstance(polygon, list | tuple) and all(isinstance(side, int | float) and abs(side) < 1e9 for side in polygon)
        for polygon in segmentation
    )


def is_rle(segmentation: Any) -> bool:
    """Whether a segmentation has the form of an RLE; its runs are not checked."""
    if not isinstance(segmentation, Mapping) or not isinstance(segmentation.get("counts"), str | bytes | list):
        return False
    size = segmentation.get("size")
    return isinstance(size, list | tuple) and len(size) == 2 and all(type(side) is int and side > 0 for side in size)


def _decode_rle(segmentation: Mapping[str, Any], height: int, width: int) -> NDArray[np.uint8]:
    size, counts = segmentation.get("size"), segmentation.get("counts")
    if counts is None or not isinstance(size, list | tuple) or list(size) != [height, width]:
        raise ValueError(f"its RLE has the size {size!r:.60}, the image is {height} × {width} (height × width)")
    lengths = run_lengths(counts) if isinstance(counts, str | bytes) else _whole_runs(counts)
    # each run first: a sum of runs that exceed the image may overflow to the right number
    if ((lengths < 0) | (lengths > height * width)).any() or lengths.sum() != height * width:
        raise ValueError(
            f"its RLE covers {sum(lengths.tolist())} pixels (least run {lengths.min(initial=0)}), the image has "
            f"{height * width}"
        )
    ones = np.arange(len(lengths)) % 2
    return np.repeat(ones.astype(np.uint8), lengths).reshape(width, height).T


def _whole_runs(counts: Any) -> IntArray:
    try:
        found = np.array(counts)
    except (ValueError, OverflowError):  # ragged
        found = np.array(None)
    if found.ndim != 1 or found.dtype.kind not in "iu" or (found.size and found.max() > MOST_PIXELS):
        raise ValueError(f"its 'counts' are {counts!r:.60}: expected run lengths, whole numbers of pixels")
    return found.astype(np.int64)


def encode_images(images: Sequence[Tensor]) -> list[list[Rle]]:
    """Compressed RLEs of the masks of several images, each [N, H, W], bool, computed on their device.

    Only the characters leave the device, with one synchronisation for all images.

    >>> small, large = torch.ones(1, 1, 2, dtype=torch.bool), torch.zeros(1, 2, 2, dtype=torch.bool)
    >>> [rle["counts"] for masks in encode_images([small, large]) for rle in masks]
    ['02', '4']
    """
    numbers = [len(masks) for masks in images]
    if sum(numbers) == 0:
        return [[] for _ in images]
    row, end = _run_ends(images)
    none = torch.zeros(sum(numbers), dtype=torch.int64, device=row.device)
    in_row = none.index_add(0, row, torch.ones_like(row))  # bincount would wait for the device
    turn = torch.arange(len(row), device=row.device) - (in_row.cumsum(0) - in_row)[row]
    lengths = end - torch.where(turn > 0, end.roll(1), 0)
    values = lengths - torch.where(turn > 2, lengths.roll(2), 0)
    which = torch.arange(6, device=row.device)
    limits = 16 << 5 * which[:5]
    groups = 1 + ((values[:, None] >= limits) | (values[:, None] < -limits)).sum(dim=1)
    characters = ((values[:, None] >> 5 * which) & 31) + 32 * (which < groups[:, None] - 1) + 48
    text = characters[which < groups[:, None]].to(torch.uint8).cpu().numpy().tobytes().decode("ascii")
    ends = none.index_add(0, row, groups).cumsum(0).tolist()
    counts = iter([text[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)])
    return [[{"size": list(masks.shape[1:]), "counts": next(counts)} for _ in masks] for masks in images]


def _run_ends(images: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Every run of every mask: the number of the mask, counted over all images, and where the run ends in it."""
    flags = []
    for masks in images:
        flat = masks.transpose(1, 2).flatten(1)
        ends = flat.new_ones(flat.shape[0], flat.shape[1] + 1)  # one flag per pixel, and one for the mask's end
        ends[:, 0] = flat[:, 0]
        torch.ne(flat[:, 1:], flat[:, :-1], out=ends[:, 1:-1])
        flags.append(ends)
    place = torch.cat([ends.flatten() for ends in flags]).nonzero()[:, 0]
    sizes = torch.tensor([ends.shape[1] for ends in flags for _ in ends]).to(place.device)
    starts = sizes.cumsum(0) - sizes
    row = torch.searchsorted(starts, place, right=True) - 1
    return row, place - starts[row]


def compress(rle: Rle) -> Rle:
    """An RLE with its counts as COCO's compressed string, for files. Needs hotcoco.

    >>> compress({"size": [10, 10], "counts": [11, 4, 6, 4, 6, 4, 6, 4, 55]})["counts"]
    ';4600000a1'
    """
    packed = hotcoco().mask.frPyObjects(rle, *rle["size"])
    return {"size": list(rle["size"]), "counts": packed["counts"].decode()}


def hotcoco() -> Any:
    """The evaluator and rasteriser, or how to get it."""
    try:
        import hotcoco as found
    except ImportError:
        raise ImportError(
            "polygons and evaluation need hotcoco, which is not installed: pip install 'equipoise[detection]'"
        ) from None
    return found
