"""COCO and LVIS annotation files: one reader, one counter, and the images with their boxes and masks.

Annotations that training cannot use do not count, neither in `Prior.from_coco` nor in `CocoImages`: crowds, boxes
without area (within the image, if its size is given) and polygons of fewer than three points. A file with inconsistent
ids (missing, not whole, repeated or unknown) or boxes of negative size is refused, and so are RLEs that do not fill
their image where masks are used; the error shows the id.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from equipoise.data.image_files import to_rgb
from equipoise.data.masks import MOST_PIXELS, check_masks, decode_mask, is_rle
from equipoise.data.reading import read_json, shown, twice
from equipoise.prior import IntArray, Prior

Box = tuple[float, float, float, float]
NUMBERS = {int, float}  # in JSON, true and false are not numbers


class Instance(NamedTuple):
    """An annotation of a file: its class index, its image's index, its box as corners within the image (or None), and
    why it is left out: "crowd", "no area", or "" if it is not."""

    annotation: dict[str, Any]
    column: int
    image: int
    box: Box | None
    left_out: str


def count_coco(path: str | os.PathLike[str], by: Literal["images", "instances"] = "images") -> Prior:
    """Images that contain each category, or instances of it, in a COCO or LVIS annotation file."""
    _check_by(by)
    return count_annotations(read_json(path), path, by)


def count_annotations(
    content: Any, path: str | os.PathLike[str], by: Literal["images", "instances"] = "images"
) -> Prior:
    """`count_coco` for the content of `path`, which was already read."""
    categories = categories_of(content, path)
    if not content.get("annotations"):
        raise ValueError(f"{path} has no 'annotations', so there is nothing to count: is it a test or image-info file?")
    found = [(one.column, one.image) for one in instances(content, path) if not one.left_out]
    if not found:
        raise ValueError(f"{path}: all of its 'annotations' are crowds or have no area: there is nothing to count")
    columns, images = np.array(found, np.int64).T
    return _count(columns, images, categories, by)


def _count(columns: IntArray, images: IntArray, categories: dict[int, str], by: str) -> Prior:
    """Instances per class out of all; by "images", images with the class out of images with any."""
    total, num_classes = len(columns), len(categories)
    if by == "images":
        total = len(np.unique(images))
        columns = np.unique(images * num_classes + columns) % num_classes
    counts = np.bincount(columns, minlength=num_classes)
    return Prior.from_counts(counts, total, class_names=list(categories.values()), class_ids=list(categories))


def _check_by(by: str) -> None:
    if by not in ("images", "instances"):
        raise ValueError(f"by={by!r}: count 'images' or 'instances'")


# -------------------------------------------------------------------- the parts of a file


def categories_of(content: Any, path: str | os.PathLike[str]) -> dict[int, str]:
    """The names of the categories by id, in the order of their ids: class j is the j-th category."""
    entries = _entries(content, "categories", path)
    if not entries:
        raise ValueError(f"{path} has no 'categories': expected a COCO or LVIS file")
    for entry in entries:
        if type(entry.get("id")) is not int or abs(entry["id"]) >= 2**62:
            raise ValueError(f"{path}: a category has the id {shown([entry.get('id')])}: expected a whole number")
    named = {entry["id"]: str(entry.get("name", entry["id"])) for entry in entries}
    _check_once(entries, "categories", path)
    return dict(sorted(named.items()))


def check_same_categories(
    found: dict[int, str], path: str | os.PathLike[str], trained: dict[int, str], source: str | os.PathLike[str]
) -> None:
    """Refuse categories of `path` that differ from those of `source`, which a detector is trained on, in number, ids,
    names or order: its class j would be taken for another one."""
    for ours, theirs in zip_longest(found.items(), trained.items()):
        if ours != theirs:
            one, other = ("none" if pair is None else f"{shown([pair[1]])} (id {pair[0]})" for pair in (ours, theirs))
            raise ValueError(
                f"{path} and {source} have different categories: {one} in the first is {other} in the second; use the "
                "ids and names of the second, which the detector is trained on"
            )


def instances(content: dict[str, Any], path: str | os.PathLike[str]) -> Iterator[Instance]:
    """Every annotation of a file, checked against its categories and, if it lists any, its images."""
    column = {identity: place for place, identity in enumerate(categories_of(content, path))}
    images = _entries(content, "images", path)
    for image in images:
        if type(image.get("id")) not in (int, str):
            raise ValueError(f"{path}: an image has the id {shown([image.get('id')])}: expected a number or a name")
    _check_once(images, "images", path)
    number = {image["id"]: place for place, image in enumerate(images)}
    for annotation in _entries(content, "annotations", path):
        if "image_id" not in annotation or "category_id" not in annotation:
            raise ValueError(
                f"{_named(annotation, path)} has the keys {shown(sorted(annotation))}, expected 'image_id' and "
                "'category_id' (panoptic files are not instance annotations)"
            )
        of_image, of_class = annotation["image_id"], annotation["category_id"]
        if type(of_image) not in (int, str) or (images and of_image not in number):
            raise ValueError(f"{_named(annotation, path)} has image_id {shown([of_image])}, not in 'images'")
        if type(of_class) is not int or of_class not in column:
            raise ValueError(f"{_named(annotation, path)} has category_id {shown([of_class])}, not in 'categories'")
        place = number.setdefault(of_image, len(number))
        try:
            made = _instance(annotation, column[of_class], place, images[place] if images else {})
        except ValueError as error:
            raise ValueError(f"{_named(annotation, path)} has {error}") from None
        yield made


def check_masks_of(found: Sequence[Instance], content: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Refuse an RLE that does not fill its image; polygons are checked when a mask is drawn."""
    sizes = [[image.get(key) for key in ("height", "width")] for image in content["images"]]
    known = [[side if type(side) is int else 0 for side in size] for size in sizes]
    masks = [one.annotation.get("segmentation") for one in found]
    check_masks(masks, [known[one.image] for one in found], lambda number: _named(found[number].annotation, path))


def _named(annotation: dict[str, Any], path: str | os.PathLike[str]) -> str:
    return f"{path}: annotation {shown([annotation.get('id')])}"


def _instance(annotation: dict[str, Any], column: int, place: int, image: dict[str, Any]) -> Instance:
    segmentation, box = annotation.get("segmentation"), annotation.get("bbox")
    polygons = segmentation if type(segmentation) is list else []  # their content is checked when a mask is drawn
    if segmentation and not (polygons and all(type(one) is list for one in polygons)) and not is_rle(segmentation):
        raise ValueError("a segmentation that is neither a list of polygons nor an RLE")
    flat = bool(polygons) and all(len(polygon) < 6 for polygon in polygons)
    corners = None if box is None else _corners(box, image)
    empty = corners is not None and (corners[2] <= corners[0] or corners[3] <= corners[1])
    left_out = "crowd" if annotation.get("iscrowd") else "no area" if empty or flat else ""
    return Instance(annotation, column, place, corners, left_out)


def _corners(box: Any, image: dict[str, Any]) -> Box:
    """x0, y0, x1, y1 within the image, of a box given as x, y, width, height."""
    if type(box) is not list or len(box) != 4 or not NUMBERS.issuperset(map(type, box)) or max(map(abs, box)) > 1e9:
        raise ValueError(f"the bbox {shown([box])}: expected four numbers, x, y, width, height")
    x, y, width, height = box
    if width < 0 or height < 0:
        raise ValueError(f"the bbox {shown([box])}: its width or height is negative")
    right, bottom = image.get("width"), image.get("height")
    x1, y1 = x + width, y + height
    return (
        max(x, 0.0),
        max(y, 0.0),
        min(x1, right) if type(right) is int else x1,
        min(y1, bottom) if type(bottom) is int else y1,
    )


def _entries(content: Any, key: str, path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The objects that a file lists under `key`; none if it has no such list."""
    if not isinstance(content, dict):
        raise ValueError(f"{path} has no {key!r}: expected a COCO or LVIS file")
    entries = content.get(key)
    if entries is not None and (not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries)):
        raise ValueError(f"{path}: its {key!r} are not a list of objects: expected a COCO or LVIS file")
    return entries or []


def _check_once(entries: list[dict[str, Any]], key: str, path: str | os.PathLike[str]) -> None:
    found = twice(entry["id"] for entry in entries)
    if found is not None:
        raise ValueError(f"{path}: two of its {key!r} have the id {shown([found])}")


# -------------------------------------------------------------------- images with boxes and masks


@dataclass(frozen=True)
class Image:
    """An image's path and size, and LVIS's federated labels: `negative` are the indices of classes known to be absent,
    `partial` of classes that are present but not fully annotated (None in files without them)."""

    id: int
    path: Path
    height: int
    width: int
    negative: IntArray | None
    partial: IntArray | None


class CocoImages:
    """The images of a COCO or LVIS annotation file with their boxes and masks, for torchvision's detectors.

        image    uint8 [3, H, W], always RGB
        target   "boxes" float [n, 4] as x0, y0, x1, y1; "labels" [n] from 1 (0 is background); "masks" uint8 [n, H, W]
                 if the file has masks; "verified" bool [K] if it has LVIS's federated fields: the classes for which an
                 unmarked place is known to be free of the class

    Class j is the j-th category by id; categories without instances keep their place. Crowds, boxes without area and
    polygons without area are left out (`left_out` lists them), and an image may be empty.
    """

    def __init__(self, annotations: str | os.PathLike[str], images: str | os.PathLike[str]) -> None:
        self.file = Path(annotations)
        content = read_json(self.file)
        self.categories = categories_of(content, self.file)
        self.class_ids, self.class_names = tuple(self.categories), tuple(self.categories.values())
        self._column = {identity: column for column, identity in enumerate(self.class_ids)}
        found = list(instances(content, self.file))
        if not content.get("images"):
            raise ValueError(f"{self.file} has no 'images': expected a COCO or LVIS file")
        self.images = [self._image(image, Path(images)) for image in content["images"]]
        self._keep(found)
        check_masks_of(found, content, self.file)

    def _image(self, image: dict[str, Any], folder: Path) -> Image:
        what = f"{self.file}: image {shown([image['id']])}"
        for key in ("height", "width"):
            if key not in image:
                raise ValueError(f"{what} has no {key!r}")
            if type(image[key]) is not int or not 0 < image[key] <= MOST_PIXELS:
                raise ValueError(f"{what} has the {key} {shown([image[key]])}: expected a number of pixels")
        name = image_name(image, what)
        known = [self._columns(image, key, what) for key in ("neg_category_ids", "not_exhaustive_category_ids")]
        return Image(image["id"], folder / name, image["height"], image["width"], *known)

    def _columns(self, image: dict[str, Any], key: str, what: str) -> IntArray | None:
        if key not in image:
            return None
        ids = image[key]
        wrong = next((i for i in ids if type(i) is not int or i not in self._column), None) if ids else None
        if not isinstance(ids, list) or wrong is not None:
            raise ValueError(f"{what}, {key} has category_id {shown([wrong])}, not in 'categories'")
        return np.array([self._column[identity] for identity in ids], np.int64)

    def _keep(self, found: list[Instance]) -> None:
        """Sort the usable annotations by image, and note those that are left out."""
        self.left_out: dict[str, list[int]] = {"crowd": [], "no area": []}
        self.has_masks = any(bool(one.annotation.get("segmentation")) for one in found)
        kept = []
        for one in found:
            if one.box is None:
                what = _named(one.annotation, self.file)
                raise ValueError(f"{what} has the bbox None: expected four numbers, x, y, width, height")
            if one.left_out:
                self.left_out[one.left_out].append(one.annotation.get("id", -1))
            elif self.has_masks and not one.annotation.get("segmentation"):
                what = _named(one.annotation, self.file)
                raise ValueError(f"{what} has no segmentation, but others have: give one to all of them, or to none")
            else:
                kept.append(one)
        kept.sort(key=lambda one: one.image)
        in_image = np.bincount(np.array([one.image for one in kept], np.int64), minlength=len(self.images))
        self._offsets: IntArray = np.concatenate([[0], np.cumsum(in_image)])
        self._boxes = np.array([one.box for one in kept], np.float32).reshape(-1, 4)
        self._columns_of = np.array([one.column for one in kept], np.int64)
        self._ids = [one.annotation.get("id", -1) for one in kept]
        self._segmentations = [one.annotation.get("segmentation") for one in kept]

    @property
    def num_classes(self) -> int:
        return len(self.class_ids)

    @property
    def classes_per_item(self) -> tuple[IntArray, IntArray]:
        """Classes in the form that samplers take: image i holds classes[offsets[i] : offsets[i + 1]]."""
        return self._offsets, self._columns_of

    def prior(self, by: Literal["images", "instances"] = "images") -> Prior:
        """How often each class occurs: images that hold it out of annotated images, or instances out of all."""
        _check_by(by)
        image = np.repeat(np.arange(len(self.images)), np.diff(self._offsets))
        return _count(self._columns_of, image, self.categories, by)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, dict[str, Tensor]]:
        image = self.images[index]
        mine = slice(int(self._offsets[index]), int(self._offsets[index + 1]))
        columns = torch.from_numpy(self._columns_of[mine])
        target = {"boxes": torch.from_numpy(self._boxes[mine].copy()), "labels": columns + 1}
        if self.has_masks:
            target["masks"] = self._masks(image, mine)
        if image.negative is not None:
            verified = torch.zeros(self.num_classes, dtype=torch.bool)
            verified[columns] = True
            verified[torch.from_numpy(image.negative)] = True
            if image.partial is not None:
                verified[torch.from_numpy(image.partial)] = False
            target["verified"] = verified
        return self.pixels(index), target

    def pixels(self, index: int) -> Tensor:
        """The image alone; no mask is decoded."""
        image = self.images[index]
        pixels = read_image(image.path)
        if pixels.shape[1:] != (image.height, image.width):
            raise ValueError(
                f"{image.path} is {pixels.shape[1]} × {pixels.shape[2]} (height × width), but {self.file} says "
                f"{image.height} × {image.width} for image {image.id}"
            )
        return pixels

    def _masks(self, image: Image, mine: slice) -> Tensor:
        masks = np.zeros((mine.stop - mine.start, image.height, image.width), np.uint8)
        for place, (identity, segmentation) in enumerate(zip(self._ids[mine], self._segmentations[mine], strict=True)):
            try:
                masks[place] = decode_mask(segmentation, image.height, image.width)
            except ValueError as error:
                raise ValueError(f"{self.file}: annotation {identity} cannot be used: {error}") from None
        return torch.from_numpy(masks)


def image_name(image: dict[str, Any], what: str) -> str:
    """The file of an image; LVIS v1 names the last two parts of an address instead."""
    name = image.get("file_name") or "/".join(str(image.get("coco_url", "")).split("/")[-2:])
    if not name or not isinstance(name, str):
        raise ValueError(f"{what} has neither 'file_name' nor 'coco_url'")
    return name


def read_image(path: str | os.PathLike[str]) -> Tensor:
    """RGB pixels, uint8 [3, H, W], of a colour, grey (8 or 16 bits), palette, transparent or CMYK image; EXIF
    orientation is not applied, as in COCO's annotations."""
    from PIL import Image as Pillow

    try:
        with Pillow.open(path) as opened:
            pixels = np.array(to_rgb(opened))
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist: pass the folder that file names are relative to") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read as an image: {error}") from None
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
