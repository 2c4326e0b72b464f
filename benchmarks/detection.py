"""What many classes cost a mask head, and what LVIS evaluation costs: ratios from one run.

    python benchmarks/detection.py masks                  the gathered predictor and torchvision's, 81 and 1,204 classes
    python benchmarks/detection.py evaluation             4,000 images × 300 detections × 1,203 classes, beside `lvis`
    python benchmarks/detection.py evaluation --images 100

Memory is the device's peak, so it is printed on a GPU only. `lvis` is optional; it needs np.float, restored here.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torchvision.models.detection.mask_rcnn import MaskRCNNPredictor

from equipoise.metrics.detection import Detections, GroundTruth
from equipoise.models.mask_rcnn import MaskPredictor


def masks(boxes: int, device: torch.device, repeats: int) -> dict[str, Any]:
    """Forward and backward of the mask predictor's loss for `boxes` positive boxes."""
    results: dict[str, Any] = {"boxes": boxes, "device": str(device)}
    for name, gathered in (("gathered", True), ("torchvision", False)):
        for classes in (81, 1204):
            torch.manual_seed(0)
            predictor = (MaskPredictor if gathered else MaskRCNNPredictor)(256, 256, classes).to(device)
            features = torch.randn(boxes, 256, 14, 14, device=device, requires_grad=True)
            labels = torch.randint(classes, (boxes,), device=device)
            wanted = torch.rand(boxes, 28, 28, device=device)

            def step(predictor=predictor, features=features, labels=labels, wanted=wanted, gathered=gathered) -> None:
                with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
                    if gathered:
                        logits = predictor(features, labels)
                    else:
                        logits = predictor(features)[torch.arange(len(labels), device=device), labels]
                F.binary_cross_entropy_with_logits(logits.float(), wanted).backward()

            seconds, memory = measure(step, device, repeats)
            results[f"{name}, {classes} classes"] = {"ms": round(1000 * seconds, 2), "MiB": memory}
        small, large = results[f"{name}, 81 classes"], results[f"{name}, 1204 classes"]
        results[f"{name}, 1204 / 81"] = {
            "time": round(large["ms"] / small["ms"], 3),
            "memory": None if small["MiB"] is None else round(large["MiB"] / small["MiB"], 3),
        }
    return results


def measure(step: Callable[[], None], device: torch.device, repeats: int) -> tuple[float, int | None]:
    """Seconds a step, the best of `repeats`, and MiB at the peak."""
    step()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    best = float("inf")
    for _ in range(repeats):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - start)
    return best, torch.cuda.max_memory_allocated(device) >> 20 if device.type == "cuda" else None


def evaluation(images: int, detections: int = 300, classes: int = 1203) -> dict[str, Any]:
    """LVIS-shaped boxes: a dozen instances an image, long-tailed classes, federated lists, most detections wrong."""
    random = np.random.default_rng(0)
    rates = 1 / np.arange(1, classes + 1)
    rates /= rates.sum()
    content: dict[str, Any] = {
        "images": [],
        "annotations": [],
        "categories": [{"id": c + 1, "name": str(c), "frequency": "fcr"[3 * c // classes]} for c in range(classes)],
    }
    rows = []
    for image in range(1, images + 1):
        here = random.choice(classes, 12, p=rates) + 1
        corner, side = random.random((12, 2)) * 400, 10 + random.random((12, 2)) * 200
        for number, category in enumerate(here.tolist()):
            box = [*corner[number].tolist(), *side[number].tolist()]
            entry = {"image_id": image, "category_id": category, "bbox": box, "area": box[2] * box[3]}
            content["annotations"].append({"id": len(content["annotations"]) + 1, **entry})
        absent = np.setdiff1d(random.choice(classes, 20) + 1, here).tolist()
        content["images"].append(
            {
                "id": image,
                "height": 640,
                "width": 640,
                "neg_category_ids": absent,
                "not_exhaustive_category_ids": here[:1].tolist(),
            }
        )
        near = random.integers(12, size=detections)
        boxes = np.concatenate([corner, side], axis=1)[near] + random.normal(0, 8, (detections, 4))
        guess = np.where(random.random(detections) < 0.3, here[near], random.choice(classes, detections, p=rates) + 1)
        scores = random.random(detections)
        rows.append(np.column_stack([np.full(detections, image), guess, scores, boxes.clip(1)]))
    table = np.concatenate(rows)
    found = Detections(table[:, 0].astype(np.int64), table[:, 1].astype(np.int64), table[:, 2], table[:, 3:])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "truth.json"
        path.write_text(json.dumps(content))
        truth = GroundTruth(path)
        ours, numbers = cpu_seconds(lambda: truth.evaluate(found, "bbox"))
        results = {"images": images, "detections": len(found), "ours, CPU s": round(ours, 2)}
        reference = _reference(path, found)
    if reference is not None:
        seconds, expected = reference
        equal = all(abs((numbers[name] or 0) - 100 * max(expected[name], 0)) < 1e-9 for name in numbers)
        results |= {"lvis, CPU s": round(seconds, 2), "faster": round(seconds / ours, 1), "13 numbers equal": equal}
    return results


def _reference(path: Path, found: Detections) -> tuple[float, dict[str, float]] | None:
    sys.modules.setdefault("cv2", types.ModuleType("cv2"))  # it draws with it, and imports it first of all
    setattr(np, "float", float)  # noqa: B010  # plain np.float is what ruff would rewrite
    try:
        import lvis
    except ImportError:
        return None
    truth = lvis.LVIS(str(path))
    results = [
        {"image_id": image, "category_id": category, "score": score, "bbox": box}
        for image, category, score, box in zip(
            found.image_ids.tolist(),
            found.category_ids.tolist(),
            found.scores.tolist(),
            found.boxes.tolist(),
            strict=True,
        )
    ]

    def run() -> dict[str, float]:
        evaluator = lvis.LVISEval(truth, lvis.LVISResults(truth, results), "bbox")
        evaluator.run()
        return dict(evaluator.get_results())

    return cpu_seconds(run)


def cpu_seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["masks", "evaluation"])
    parser.add_argument("--boxes", type=int, default=1024, help="positive boxes of a batch")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    if given.what == "masks":
        print(json.dumps(masks(given.boxes, torch.device(given.device), given.repeats), indent=1))
    else:
        print(json.dumps(evaluation(given.images), indent=1))


if __name__ == "__main__":
    main()
