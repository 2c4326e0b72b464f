"""Files in CIFAR's official layout, a few hundred KB, made for tests."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np

LARGEST = 20  # images of each class


def write_cifar10(root: Path, *, blank: int | None = None) -> Path:
    """CIFAR-10 with 20 training and 4 test images per class; class j is brighter than class j − 1."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    labels = random.permutation(np.repeat(np.arange(10), LARGEST))
    images = (labels[:, None] * 20 + random.integers(1, 60, (len(labels), 3072))).astype(np.uint8)
    if blank is not None:
        images[blank] = 0
    test_labels = np.repeat(np.arange(10), 4)
    test_images = (test_labels[:, None] * 20 + random.integers(1, 60, (len(test_labels), 3072))).astype(np.uint8)
    files = {
        f"data_batch_{i + 1}": {"data": images[i * 40 : (i + 1) * 40], "labels": labels[i * 40 : (i + 1) * 40].tolist()}
        for i in range(5)
    }
    files["test_batch"] = {"data": test_images, "labels": test_labels.tolist()}
    files["batches.meta"] = {"label_names": [f"class {j}" for j in range(10)]}
    for name, content in files.items():
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    return folder
