"""Images that may have several labels each, from a table: the path of an image, its labels, and its part (train, test).

    part,file,labels
    train,images/0001.webp,bottle person
    test,images/0002.webp,car

Labels are names separated by spaces, or lists as in `tags.py` (cat;owl, cat|owl, ["cat", "owl"]); an empty cell is an
image without labels. Paths are relative to the folder of the table.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from equipoise.data.image_lists import PATH_COLUMNS
from equipoise.data.images import ImageList
from equipoise.data.reading import read_table, reading, shown, twice, visible
from equipoise.data.sources import full_cell, label_column
from equipoise.data.tags import is_list, multi_hot, tags_of

TAG_COLUMNS = ("labels", "tags", "label", "classes")


def read_tagged_images(
    source: str | os.PathLike[str], *, part: str | None = None, class_names: Sequence[str] | None = None
) -> ImageList:
    """The images of a .csv or .tsv table with their labels, zeros and ones [N, K]; none is opened.

    With `part`, only those with this value in the column `part`. Classes are the labels of these images in sorted
    order, or the `class_names` of a training set; a label that is not among them is then refused.
    """
    path = Path(source)
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist: give a table of images and their labels")
    with reading(path):
        lines, files, lists = _rows(path, part)
        if not files:
            raise ValueError(f"{path} lists no images" + (f" of the part {shown([part])!r}" if part else ""))
        if twice(files) is not None:
            raise ValueError(f"{path} has {shown([twice(files)])} twice: list an image once, with all of its labels")
        found = sorted({tag for tags in lists for tag in tags})
        names = tuple(found if class_names is None else class_names)
        if not found or not names:
            raise ValueError(f"{path} has no labels: there is nothing to learn")
        labels, unknown, row = multi_hot(lists, {name: place for place, name in enumerate(names)}, len(names))
        if unknown:
            raise ValueError(
                f"{path}, line {lines[row]}: {shown([unknown])!r} is not a class: expected one of {shown(names)}"
            )
    made = ImageList(path, path.parent, tuple(files), labels.astype(np.int64), names)
    if not any(os.path.exists(os.path.join(made.root, file)) for file in files):
        first = visible(os.path.join(made.root, files[0]))
        raise FileNotFoundError(f"{path} lists {len(made):,} images and none of them exists, e.g. {first}")
    return made


def _rows(path: Path, part: str | None) -> tuple[list[int], list[str], list[list[str]]]:
    """Line, file and labels of every image."""
    (_, header), rows = read_table(path)
    header = [name.strip() for name in header]
    file = label_column(header, None, path, "", PATH_COLUMNS, "paths of the images")
    tags = label_column(header, None, path, "", TAG_COLUMNS)
    if part is not None and "part" not in header:
        raise ValueError(f"{path} has the columns {shown(header)}: expected one called part")
    lines, files, lists = [], [], []
    for line, row in rows:
        if part is not None and full_cell(row, header.index("part"), header, f"{path}, line {line}") != part:
            continue
        files.append(full_cell(row, file, header, f"{path}, line {line}"))
        cell = row[tags].strip() if tags < len(row) else ""
        try:
            lists.append(tags_of(cell if is_list(cell) else ";".join(cell.split())))
        except ValueError as error:
            raise ValueError(f"{path}, line {line}: {error}") from None
        lines.append(line)
    return lines, files, lists
