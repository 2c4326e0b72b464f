"""Images decoded on demand, for data sets too large to be kept in memory."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from equipoise.data.image_files import Resize, check_size
from equipoise.data.images import ImageList


class ImageStream(Dataset[tuple[Tensor, int | Tensor]]):
    """The images of a list as squares, uint8 [3, size, size], each with its label, or its zeros and ones [K]: the same
    as in `decode`, one by one.

    Choose a `size` a little above the crop that is trained on, and draw the crop from it on the device. Leave out
    unreadable images first (`images.without(bad)`); here they are an error that names the image. Works in the worker
    processes of a `DataLoader`.
    """

    def __init__(self, images: ImageList, size: int, *, resize: Resize = "shorter") -> None:
        check_size(size, resize)
        self.images, self.size, self.resize = images, size, resize

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int | Tensor]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"image {index} of {len(self)}")
        pixels, label = self.images.square(index, self.size, self.resize), self.images.labels[index]
        found = torch.from_numpy(np.ascontiguousarray(pixels))
        return found, int(label) if label.ndim == 0 else torch.from_numpy(label)
