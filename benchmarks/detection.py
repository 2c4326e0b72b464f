"""What many classes cost a mask head, what LVIS evaluation costs, where a training step spends its time: from one run.

    python benchmarks/detection.py masks                  the gathered predictor and torchvision's, 81 and 1,204 classes
    python benchmarks/detection.py step                   a whole training step, 81 and 1,204 classes, both predictors
    python benchmarks/detection.py evaluation             4,000 images × 300 detections × 1,203 classes, beside `lvis`
    python benchmarks/detection.py profile                a step of VOC2012-LT part by part, beside image by image

--out FILE keeps the numbers as JSON. Memory is the device's peak, so it is measured on a GPU only. `lvis` is optional;
it needs np.float, restored here.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import tracemalloc
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.models.detection.mask_rcnn import MaskRCNNPredictor

from equipoise.data.reading import read_json
from equipoise.metrics.detection import Detections, GroundTruth
from equipoise.metrics.detection_measures import ap_at, ap_fixed, ap_pool, pool_calibration
from equipoise.models import batched_rcnn
from equipoise.models.batched_rcnn import Batch, Batched
from equipoise.models.mask_rcnn import MaskPredictor, detector, resnet_fpn, sigmoid
from equipoise.training.records import hardware, versions


def masks(boxes: int, device: torch.device, repeats: int) -> dict[str, Any]:
    """Forward and backward of the mask predictor's loss for `boxes` positive boxes."""
    results: dict[str, Any] = {"boxes": boxes}
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


class EveryClass(MaskPredictor):
    """torchvision's way: the masks of all classes, of which one is used."""

    def forward(self, features: Tensor, classes: Tensor) -> Tensor:
        logits = MaskRCNNPredictor.forward(self, features)
        return logits[torch.arange(len(classes), device=classes.device), classes].float()


def a_batch(images: int, height: int, width: int, classes: int, device: torch.device, instances: int = 7) -> Batch:
    """Random pictures with random boxes, whose masks fill them."""
    random = torch.Generator().manual_seed(0)
    corner = torch.rand(images, instances, 2, generator=random) * torch.tensor([width, height]) * 0.6
    side = (0.1 + 0.3 * torch.rand(images, instances, 2, generator=random)) * torch.tensor([width, height])
    boxes = torch.cat([corner, corner + side], dim=2).round()
    masks = torch.zeros(images * instances, height, width, dtype=torch.uint8)
    for mask, (x0, y0, x1, y1) in zip(masks, boxes.flatten(0, 1).int().tolist(), strict=True):
        mask[y0:y1, x0:x1] = 1
    return Batch(
        torch.randn(images, 3, height, width, generator=random).to(device),
        torch.tensor([[height, width]] * images, dtype=torch.float32).to(device),
        boxes.to(device),
        torch.randint(1, classes + 1, (images, instances), generator=random).to(device),
        masks.to(device),
        (torch.arange(images) * instances).to(device),
    )


def a_detector(classes: int, device: torch.device, every_class: bool = False) -> Any:
    torch.manual_seed(0)
    model = detector(
        resnet_fpn("resnet50", trainable_layers=3),
        classes,
        sigmoid(classes),
        rpn_pre_nms_top_n_train=1000,
        rpn_post_nms_top_n_train=1000,
    )
    if every_class:
        model.roi_heads.mask_predictor = EveryClass(256, 256, classes)
    return model.to(device).to(memory_format=torch.channels_last).train()


def autocast(device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")


def whole_step(images: int, height: int, width: int, device: torch.device, repeats: int) -> dict[str, Any]:
    """Forward and backward of all losses of Mask R-CNN R50-FPN."""
    results: dict[str, Any] = {"images": images, "size": [height, width]}
    for name, every_class in (("gathered", False), ("torchvision", True)):
        for classes in (81, 1204):
            batched = Batched(a_detector(classes, device, every_class))
            batch = a_batch(images, height, width, classes, device)

            def step(batched=batched, batch=batch) -> None:
                torch.manual_seed(0)
                batched.zero_grad(set_to_none=True)
                with autocast(device):
                    losses = batched(batch)
                sum(losses.values()).backward()

            seconds, memory = measure(step, device, repeats)
            results[f"{name}, {classes} classes"] = {"ms": round(1000 * seconds, 2), "MiB": memory}
            del batched, batch, step
        small, large = results[f"{name}, 81 classes"], results[f"{name}, 1204 classes"]
        results[f"{name}, 1204 / 81"] = {
            "time": round(large["ms"] / small["ms"], 3),
            "memory": None if small["MiB"] is None else round(large["MiB"] / small["MiB"], 3),
        }
    return results


PARTS = ("features", "proposals", "proposal_losses", "regions", "picture", "pool", "classification_loss")


def profile(images: int, height: int, width: int, device: torch.device, repeats: int, kernels: bool) -> dict[str, Any]:
    """Milliseconds of each part of a step of 20 classes; the same losses image by image beside it."""
    from torch.optim import SGD

    model = a_detector(20, device)
    batched, batch = Batched(model), a_batch(images, height, width, 20, device, instances=2)
    optimizer = SGD(
        [p for p in model.parameters() if p.requires_grad], lr=1e-4, momentum=0.9, fused=device.type == "cuda"
    )
    spent: dict[str, float] = {}

    def clock() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    def timed(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def inner(*arguments: Any, **options: Any) -> Any:
            start = clock()
            result = work(*arguments, **options)
            spent[name] = spent.get(name, 0.0) + clock() - start
            return result

        return inner

    def step(parts: bool = False) -> None:
        run = timed if parts else lambda name, work: work
        optimizer.zero_grad(set_to_none=True)
        with autocast(device):
            losses = run("forward, all", batched)(batch)
        run("backward", sum(losses.values()).backward)()
        run("optimizer", optimizer.step)()

    step()
    seconds, memory = measure(step, device, repeats)
    results: dict[str, Any] = {
        "images": images,
        "size": [height, width],
        "batched": {"ms": round(1000 * seconds, 1), "images/s": round(images / seconds, 1), "MiB": memory},
    }
    for name in PARTS:
        setattr(batched, name, timed(name, getattr(batched, name)))
    heads = model.roi_heads
    for name in ("box_head", "mask_head", "mask_predictor"):
        getattr(heads, name).forward = timed(name, getattr(heads, name).forward)
    nms = batched_rcnn.survivors
    batched_rcnn.survivors = timed("of proposals: nms", nms)
    for _ in range(repeats):
        step(parts=True)
    batched_rcnn.survivors = nms
    results["parts, ms (with a wait after each)"] = {
        name: round(1000 * value / repeats, 2) for name, value in spent.items()
    }
    if kernels and device.type == "cuda":
        from torch.profiler import ProfilerActivity
        from torch.profiler import profile as profiled

        with profiled(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
            step()
            torch.cuda.synchronize(device)
        print(found.key_averages().table(sort_by="cuda_time_total", row_limit=40, max_name_column_width=70))
    pictures = [batch.pixels[n] for n in range(images)]
    targets = [
        {"boxes": batch.boxes[n], "labels": batch.labels[n], "masks": batch.masks[2 * n : 2 * n + 2]}  # type: ignore[index]
        for n in range(images)
    ]
    plain = a_detector(20, device)
    plain.transform.min_size, plain.transform.max_size = (min(height, width),), max(height, width)

    def image_by_image() -> None:
        plain.zero_grad(set_to_none=True)
        with autocast(device):
            losses = plain(pictures, targets)
        sum(losses.values()).backward()

    seconds, memory = measure(image_by_image, device, max(1, repeats // 2))
    results["image by image, no optimizer"] = {
        "ms": round(1000 * seconds, 1),
        "images/s": round(images / seconds, 1),
        "MiB": memory,
    }
    return results


def measure(step: Callable[[], None], device: torch.device, repeats: int) -> tuple[float, int | None]:
    """Seconds per step, the best of `repeats` (CPU seconds on a CPU, which others may share), and MiB at the peak."""
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    step()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    best = float("inf")
    for _ in range(repeats):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start = clock()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, clock() - start)
    return best, torch.cuda.max_memory_allocated(device) >> 20 if device.type == "cuda" else None


def evaluation(
    images: int, detections: int = 300, classes: int = 1203, categories: Path | None = None
) -> dict[str, Any]:
    """LVIS-shaped boxes: a dozen instances per image, long-tailed classes, federated lists, most detections wrong."""
    random = np.random.default_rng(0)
    rates = 1 / np.arange(1, classes + 1)
    if categories is not None:
        listed = sorted(read_json(categories), key=lambda category: category["id"])
        rates = np.array([category["image_count"] for category in listed], float)
        classes = len(rates)
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
        measures, at_300 = cpu_seconds(lambda: every_measure(truth, found))
        results = {
            "images": images,
            "detections": len(found),
            "classes": classes,
            "rates": "1 / rank" if categories is None else "LVIS v1",
            "ours, CPU s": round(ours, 2),
            "all measures, CPU s": round(measures, 2),
            "all measures, MiB": peak_memory(lambda: every_measure(truth, found)),
            "all measures, times the 13 numbers": round(measures / ours, 2),
            "AP at 300 equal": abs((at_300 or 0) - (numbers["AP"] or 0)) < 1e-9,
        }
        reference = _reference(path, found)
    if reference is not None:
        seconds, expected = reference
        equal = all(abs((numbers[name] or 0) - 100 * max(expected[name], 0)) < 1e-9 for name in numbers)
        results |= {"lvis, CPU s": round(seconds, 2), "faster": round(seconds / ours, 1), "13 numbers equal": equal}
    return results


def every_measure(truth: GroundTruth, found: Detections) -> float | None:
    """AP at five caps, AP-fixed, AP-pool and its calibration, all by group; the AP at 300 is returned."""
    matches = truth.match(found, "bbox")
    first, *_ = [ap_at(matches, cap) for cap in (300, 100, 50, 20, 10)]
    ap_fixed(matches)
    ap_pool(matches)
    pool_calibration(matches)
    return first["AP"]


def peak_memory(work: Callable[[], Any]) -> int:
    """MiB that `work` has allocated at its peak, as Python and NumPy count it (what others allocate is not seen)."""
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak >> 20


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
    parser.add_argument("what", choices=["masks", "step", "evaluation", "profile"])
    parser.add_argument("--boxes", type=int, default=1024, help="masks: positive boxes of a batch")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--images", type=int, help="of a batch (16, on a CPU 2), or to evaluate (4,000)")
    parser.add_argument("--size", type=int, nargs=2, help="height and width of the images of a batch")
    parser.add_argument(
        "--categories", type=Path, help="evaluation: LVIS's categories with image_count, for real rates"
    )
    parser.add_argument("--kernels", action="store_true", help="profile: also the slowest kernels, on a GPU")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="a JSON file, in which other benchmarks of this script are kept")
    given = parser.parse_args()
    device = torch.device(given.device)
    images = given.images or (4000 if given.what == "evaluation" else 16 if device.type == "cuda" else 2)
    if given.what == "masks":
        found = masks(given.boxes, device, given.repeats)
    elif given.what == "step":
        found = whole_step(images, *(given.size or (800, 1344)), device, given.repeats)
    elif given.what == "profile":
        found = profile(images, *(given.size or (320, 480)), device, given.repeats, given.kernels)
    else:
        found = evaluation(images, categories=given.categories)
    found |= {"versions": versions(), "hardware": hardware(device)}
    print(json.dumps(found, indent=1))
    if given.out is not None:
        kept = json.loads(given.out.read_text()) if given.out.is_file() else {}
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(kept | {given.what: found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
