"""COCO and LVIS annotation files."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from equipoise.data.masks import decode_mask
from equipoise.prior import IntArray, Prior


@dataclass(frozen=True)
class CocoCounts:
    """Counts a category in the order of category ids, and what they are out of."""

    counts: IntArray
    total: int
    class_names: tuple[str, ...]
    class_ids: tuple[int, ...]


def read_json(path: str | os.PathLike[str]) -> Any:
    """The content of a JSON file, with orjson where it is installed (about four times faster)."""
    data = Path(path).read_bytes()
    try:
        try:
            import orjson
        except ImportError:
            return json.loads(data)
        return orjson.loads(data)
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None


def count_coco(path: str | os.PathLike[str], by: Literal["images", "instances"] = "images") -> CocoCounts:
    """Images that contain each category, or instances of it, in a COCO or LVIS annotation file."""
    if by not in ("images", "instances"):
        raise ValueError(f"by={by!r}: count 'images' or 'instances'")
    content = read_json(path)
    if not isinstance(content, dict) or not content.get("categories"):
        raise ValueError(f"{path} has no 'categories': expected a COCO or LVIS annotation file")
    if not content.get("annotations"):
        raise ValueError(f"{path} has no 'annotations', so there is nothing to count: is it a test or image-info file?")
    categories = sorted(content["categories"], key=lambda category: category["id"])
    ids = np.array([category["id"] for category in categories], np.int64)
    if len(np.unique(ids)) < len(ids):
        raise ValueError(f"{path}: two of its 'categories' have the id {ids[:-1][ids[1:] == ids[:-1]][0]}")
    annotations = content["annotations"]
    if not {"category_id", "image_id"} <= annotations[0].keys():
        raise ValueError(
            f"{path}: its annotations have the keys {sorted(annotations[0])}, expected 'image_id' and 'category_id' "
            "(panoptic files are not instance annotations)"
        )
    category_ids = np.fromiter((a["category_id"] for a in annotations), np.int64, len(annotations))
    image_ids = np.array([a["image_id"] for a in annotations])  # numbers or names

    column = np.searchsorted(ids, category_ids)
    unknown = ids[np.minimum(column, len(ids) - 1)] != category_ids
    if unknown.any():
        first = annotations[int(unknown.argmax())]
        raise ValueError(
            f"{path}: annotation {first.get('id')} has category_id {first['category_id']}, which 'categories' lack"
        )
    total = len(annotations)
    if by == "images":
        images, image = np.unique(image_ids, return_inverse=True)
        total = len(images)
        column = np.unique(image * len(ids) + column) % len(ids)
    return CocoCounts(
        counts=np.bincount(column, minlength=len(ids)),
        total=total,
        class_names=tuple(str(category.get("name", category["id"])) for category in categories),
        class_ids=tuple(ids.tolist()),
    )


# -------------------------------------------------------------------- images with boxes and masks


@dataclass(frozen=True)
class Image:
    """Where an image is, and what its annotation file says of it. `negative` and `partial` are class indices: known to
    be absent, and present but not all marked (LVIS's federated labels; None in files without them)."""

    id: int
    path: Path
    height: int
    width: int
    negative: IntArray | None
    partial: IntArray | None


class CocoImages:
    """The images of a COCO or LVIS annotation file with their boxes and masks, for torchvision's detectors.

        image    uint8 [3, H, W], RGB whatever the file holds
        target   "boxes" float [n, 4] as x0, y0, x1, y1; "labels" [n] from 1 (0 is background); "masks" uint8 [n, H, W]
                 where the file has masks; "verified" bool [K] where it has LVIS's federated fields: for which classes
                 an unmarked place is known to be free of the class

    Class j is the j-th category by id; categories without instances keep their place. Crowds, boxes without area and
    polygons without area are left out (`left_out` says which annotations), and an image may be empty.
    """

    def __init__(self, annotations: str | os.PathLike[str], images: str | os.PathLike[str]) -> None:
        self.file = Path(annotations)
        content = read_json(self.file)
        if not isinstance(content, dict) or not content.get("categories") or not content.get("images"):
            raise ValueError(f"{self.file} has no 'categories' or no 'images': expected a COCO or LVIS annotation file")
        categories = sorted(content["categories"], key=lambda category: category["id"])
        self.class_ids: tuple[int, ...] = tuple(int(category["id"]) for category in categories)
        self.class_names = tuple(str(category.get("name", category["id"])) for category in categories)
        self._column = {identity: column for column, identity in enumerate(self.class_ids)}
        if len(self._column) < len(self.class_ids):
            raise ValueError(f"{self.file}: two of its 'categories' have the same id")
        self.images = [self._image(image, Path(images)) for image in content["images"]]
        number = {image.id: place for place, image in enumerate(self.images)}
        if len(number) < len(self.images):
            raise ValueError(f"{self.file}: two of its 'images' have the same id")
        self._read_annotations(content.get("annotations") or [], number)

    def _image(self, image: dict[str, Any], folder: Path) -> Image:
        for key in ("id", "height", "width"):
            if key not in image:
                raise ValueError(f"{self.file}: image {image.get('id')} has no {key!r}")
        name = image.get("file_name") or "/".join(str(image.get("coco_url", "")).split("/")[-2:])  # LVIS v1 has no name
        if not name:
            raise ValueError(f"{self.file}: image {image['id']} has neither 'file_name' nor 'coco_url'")
        known = {
            key: self._columns(image[key], f"image {image['id']}, {key}")
            for key in ("neg_category_ids", "not_exhaustive_category_ids")
            if key in image
        }
        return Image(
            image["id"],
            folder / name,
            int(image["height"]),
            int(image["width"]),
            known.get("neg_category_ids"),
            known.get("not_exhaustive_category_ids"),
        )

    def _columns(self, ids: list[int], what: str) -> IntArray:
        try:
            return np.array([self._column[identity] for identity in ids], np.int64)
        except KeyError as error:
            raise ValueError(f"{self.file}: {what} has category_id {error}, which 'categories' lack") from None

    def _read_annotations(self, annotations: list[dict[str, Any]], number: dict[int, int]) -> None:
        self.left_out: dict[str, list[int]] = {"crowd": [], "no area": []}
        masked = [bool(annotation.get("segmentation")) for annotation in annotations]
        self.has_masks = any(masked)
        kept, places, columns, boxes = [], [], [], []
        for annotation, with_mask in zip(annotations, masked, strict=True):
            what = f"{self.file}: annotation {annotation.get('id')}"
            if annotation.get("image_id") not in number:
                raise ValueError(f"{what} has image_id {annotation.get('image_id')}, which 'images' lack")
            column = self._column.get(annotation.get("category_id"))  # type: ignore[arg-type]
            if column is None:
                raise ValueError(f"{what} has category_id {annotation.get('category_id')}, which 'categories' lack")
            if with_mask and not _is_segmentation(annotation["segmentation"]):
                raise ValueError(f"{what} has a segmentation that is neither a list of polygons nor an RLE")
            place = number[annotation["image_id"]]
            box = _corners(annotation.get("bbox"), self.images[place], what)
            if annotation.get("iscrowd"):
                self.left_out["crowd"].append(annotation.get("id", -1))
            elif box[2] <= box[0] or box[3] <= box[1] or (with_mask and _flat(annotation["segmentation"])):
                self.left_out["no area"].append(annotation.get("id", -1))
            elif self.has_masks and not with_mask:
                raise ValueError(f"{what} has no segmentation, others have: give all of them one, or none")
            else:
                kept.append(annotation)
                places.append(place)
                columns.append(column)
                boxes.append(box)
        order = np.argsort(np.array(places, np.int64), kind="stable")
        in_image = np.bincount(np.array(places, np.int64), minlength=len(self.images))
        self._offsets: IntArray = np.concatenate([[0], np.cumsum(in_image)])
        self._boxes = np.array(boxes, np.float32).reshape(-1, 4)[order]
        self._columns_of = np.array(columns, np.int64)[order]
        self._ids = [kept[place].get("id", -1) for place in order]
        self._segmentations = [kept[place].get("segmentation") for place in order]

    @property
    def num_classes(self) -> int:
        return len(self.class_ids)

    @property
    def classes_per_item(self) -> tuple[IntArray, IntArray]:
        """What the samplers take: image i holds classes[offsets[i] : offsets[i + 1]]."""
        return self._offsets, self._columns_of

    def prior(self, by: Literal["images", "instances"] = "images") -> Prior:
        """How often each class occurs: images that hold it out of annotated images, or instances out of all."""
        if by not in ("images", "instances"):
            raise ValueError(f"by={by!r}: count 'images' or 'instances'")
        columns, total = self._columns_of, len(self._columns_of)
        if by == "images":
            image = np.repeat(np.arange(len(self.images)), np.diff(self._offsets))
            columns = np.unique(image * self.num_classes + columns) % self.num_classes
            total = int((np.diff(self._offsets) > 0).sum())
        counts = np.bincount(columns, minlength=self.num_classes)
        return Prior.from_counts(counts, total, class_names=self.class_names, class_ids=self.class_ids)

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
        return self._pixels(image), target

    def pixels(self, index: int) -> Tensor:
        """The image alone: no mask is decoded."""
        return self._pixels(self.images[index])

    def _masks(self, image: Image, mine: slice) -> Tensor:
        masks = np.zeros((mine.stop - mine.start, image.height, image.width), np.uint8)
        for place, (identity, segmentation) in enumerate(zip(self._ids[mine], self._segmentations[mine], strict=True)):
            try:
                masks[place] = decode_mask(segmentation, image.height, image.width)
            except ValueError as error:
                raise ValueError(f"{self.file}: annotation {identity} cannot be used: {error}") from None
        return torch.from_numpy(masks)

    def _pixels(self, image: Image) -> Tensor:
        pixels = read_image(image.path)
        if pixels.shape[1:] != (image.height, image.width):
            raise ValueError(
                f"{image.path} is {pixels.shape[1]} × {pixels.shape[2]} (height × width), but {self.file} says "
                f"{image.height} × {image.width} for image {image.id}"
            )
        return pixels


def read_image(path: str | os.PathLike[str]) -> Tensor:
    """RGB pixels, uint8 [3, H, W], of a colour, grey (8 or 16 bits), palette, transparent or CMYK image; EXIF turns are
    left alone, as in COCO's annotations."""
    from PIL import Image as Pillow

    try:
        with Pillow.open(path) as opened:
            if opened.mode.startswith("I"):  # 16 bits, which Pillow would cut off at 255
                grey = (np.array(opened) >> 8).clip(0, 255).astype(np.uint8)
                pixels = np.repeat(grey[..., None], 3, axis=2)
            else:
                pixels = np.array(opened.convert("RGB"))
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is not there: pass the folder that the file names start from") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read as an image: {error}") from None
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def _corners(box: Any, image: Image, what: str) -> tuple[float, float, float, float]:
    """x0, y0, x1, y1 within the image, of a box given as x, y, width, height."""
    numbers = isinstance(box, list | tuple) and all(isinstance(side, int | float) for side in box)
    if not numbers or len(box) != 4 or not np.isfinite(box).all():
        raise ValueError(f"{what} has the bbox {box}: expected four numbers, x, y, width, height")
    x, y, width, height = box
    return max(x, 0.0), max(y, 0.0), min(x + width, float(image.width)), min(y + height, float(image.height))


def _is_segmentation(segmentation: Any) -> bool:
    if isinstance(segmentation, list):
        return all(isinstance(polygon, list) for polygon in segmentation)
    return isinstance(segmentation, dict)


def _flat(segmentation: Any) -> bool:
    """Whether polygons enclose nothing: fewer than three points each."""
    return isinstance(segmentation, list) and all(len(polygon) < 6 for polygon in segmentation)
