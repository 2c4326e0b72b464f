"""The picture of `equipoise detect compare`: one image with its instances, and with what two detectors found in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np


def beside(results: dict[str, Any], annotations: Path, images: Path, wanted: int | None) -> tuple[Any, str]:
    """The picture of an image with its instances and the best detections of each file, and which image it is."""
    from PIL import Image

    from equipoise.data.coco import CocoImages
    from equipoise.metrics.detection_measures import right_at
    from equipoise.report.compared import LISTED, Seen, panels
    from equipoise.report.detections import drawable

    data = CocoImages(annotations, images)
    groups = next(iter(results.values()))[1].groups
    offsets, classes = data.classes_per_item
    index, why = _image_of(data, groups, wanted)
    pixels, target = data[index]
    names = [drawable(name, f"category {i}") for name, i in zip(data.class_names, data.class_ids, strict=True)]
    mine = classes[offsets[index] : offsets[index + 1]]
    seen = {
        "annotated": [
            Seen(tuple(box), names[column], str(groups[column]))
            for box, column in zip(target["boxes"].tolist(), mine.tolist(), strict=True)
        ]
    }
    for title, (found, matches) in results.items():
        right = right_at(matches)
        rows = np.flatnonzero(found.image_ids == data.images[index].id)
        best = rows[np.argsort(-found.scores[rows], kind="stable")][:LISTED]
        columns = np.searchsorted(data.class_ids, found.category_ids[best])
        ends = np.concatenate([found.boxes[best, :2], found.boxes[best, :2] + found.boxes[best, 2:]], axis=1)
        seen[f"{title}, best {LISTED}"] = [
            Seen(tuple(box), names[column], str(groups[column]), float(found.scores[row]), bool(right[row]))
            for box, column, row in zip(ends.tolist(), columns.tolist(), best.tolist(), strict=True)
        ]
    return panels(Image.fromarray(pixels.permute(1, 2, 0).numpy()), seen), why


def _image_of(data: Any, groups: Any, wanted: int | None) -> tuple[int, str]:
    """The index of an image, and a description of it: by its id, or the one with the most rare classes (where no image
    has any, common ones, then frequent ones) and, among ties, the fewest instances; the choice does not depend on the
    results."""
    from equipoise.report.compared import GROUPS

    offsets, classes = data.classes_per_item
    if len(classes) == 0:
        raise ValueError(f"{data.file}: all of its 'annotations' are crowds or have no area: there is nothing to draw")
    ids = [image.id for image in data.images]
    if wanted is not None:
        if wanted not in ids:
            raise ValueError(f"--image {wanted}: {data.file} has no image with this id")
        return ids.index(wanted), f"image {wanted}"
    order, names = list(GROUPS), [name for name, _ in GROUPS.values()]
    rarest = next(place for place, group in enumerate(order) if (groups[classes] == group).any())
    held = [len(set(each[groups[each] == order[rarest]].tolist())) for each in np.split(classes, offsets[1:-1])]
    index = min(range(len(ids)), key=lambda i: (-held[i], offsets[i + 1] - offsets[i]))
    absent = f"; no image has a {' or '.join(names[:rarest])} class" if rarest else ""
    most = f"the one with the most {names[rarest]} classes ({held[index]}) and the fewest instances"
    return index, f"image {ids[index]}, {most}{absent}"
