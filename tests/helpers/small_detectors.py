"""Detectors that train and predict in milliseconds, for tests of what is around a detector."""

from __future__ import annotations

from typing import Any

import pytest
from torchvision.models.detection.faster_rcnn import FasterRCNN  # type: ignore[import-untyped]
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads  # type: ignore[import-untyped]
from torchvision.ops import MultiScaleRoIAlign  # type: ignore[import-untyped]

from equipoise.models.mask_rcnn import detector

LEVELS = ["0", "1", "2", "3"]


def small_detector(*parts: Any, masks: bool = True, **options: Any) -> FasterRCNN:
    """As `detector`, with few proposals, boxes pooled to 2 × 2 and masks to 4 × 4, and one layer that draws masks."""
    options |= {"detections": 10, "box_batch_size_per_image": 32, "box_roi_pool": MultiScaleRoIAlign(LEVELS, 2, 2)}
    options |= {f"rpn_{when}_nms_top_n_{stage}": 50 for when in ("pre", "post") for stage in ("train", "test")}
    if masks:
        options |= {"mask_roi_pool": MultiScaleRoIAlign(LEVELS, 4, 2), "mask_head": MaskRCNNHeads(256, (256,), 1)}
    return detector(*parts, masks=masks, **options)


def use_small_detectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """In training and in the commands that use what was trained."""
    monkeypatch.setattr("equipoise.training.detection.detector", small_detector)
    monkeypatch.setattr("equipoise.models.mask_rcnn.detector", small_detector)
