"""Mask R-CNN and Faster R-CNN from torchvision's parts, with a replaceable classification part in the box head.

    softmax    K + 1 columns, the first is background             score_j = softmax(z)_j
    sigmoid    K columns, a background box has no class           score_j = σ(z_j), whatever the loss
    seesaw     K + 1 columns, the first: is it an object?         score_j = σ(z_0) · softmax(z)_j

A sigmoid part trains with one of the library's losses, summed over classes and averaged over boxes: plain, equalization
loss or Balanced Sigmoid; the last two treat boxes that hold an object (`foreground`) differently from background boxes.
Its bias starts at log(0.001 / 0.999), so that the many background boxes cost little at the start. All parts keep boxes
above a score of 1e-4, and 300 boxes per image over all classes, following LVIS's evaluation.

The mask predictor computes the mask of one class per box, that of the ground truth in training and the predicted one in
use: its last convolution has one row per class, and gathering the rows first gives the same masks for 1/K of the work.

References: He et al., "Mask R-CNN", 2017; Tan et al., "Equalization Loss", 2020; Ren et al., "Balanced Meta-Softmax",
2020, appendix A.2 (the detection head).
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.error import URLError

import torch
import torch.nn.functional as F
import torchvision  # type: ignore[import-untyped]
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN, MaskRCNN  # type: ignore[import-untyped]
from torchvision.models.detection.backbone_utils import BackboneWithFPN, _resnet_fpn_extractor  # type: ignore[import-untyped]
from torchvision.models.detection.mask_rcnn import MaskRCNNPredictor  # type: ignore[import-untyped]
from torchvision.models.detection.roi_heads import RoIHeads, project_masks_on_boxes  # type: ignore[import-untyped]
from torchvision.models.detection.transform import GeneralizedRCNNTransform, resize_boxes  # type: ignore[import-untyped]
from torchvision.ops import FrozenBatchNorm2d, batched_nms, clip_boxes_to_image, remove_small_boxes  # type: ignore[import-untyped]

from equipoise.losses.balanced_sigmoid import BalancedSigmoidLoss
from equipoise.losses.equalization import SigmoidEqualizationLoss
from equipoise.losses.equalization_v2 import EqualizationV2Loss
from equipoise.losses.federated import FederatedLoss
from equipoise.losses.seesaw import SeesawLoss
from equipoise.models.softmax_detectors import detector_shift
from equipoise.models.weights import Stride, check_stride, load_backbone, move_stride, stride_by_name
from equipoise.prior import Prior, sigmoid_shift

RARE = math.log(0.001 / 0.999)  # logit of a sigmoid head's initial score
FIRST_CANDIDATES = 4096  # boxes considered before NMS; doubled while these leave fewer than wanted
PASTED_PIXELS = 1 << 26  # pixels of masks drawn at a time

Targets = list[dict[str, Tensor]]
Shapes = list[tuple[int, int]]  # height and width of each image


# -------------------------------------------------------------------- the classification part


class SoftmaxClassification(nn.Module):
    """One class per box; background is one of them, column 0."""

    background_columns = 1
    first_bias = 0.0
    ignored = -100  # the label of a box that does not count

    def __init__(self, moved: Tensor | None = None) -> None:
        super().__init__()
        self.moved = moved  # [K + 1] what a trained detector's bias loses, where it is adjusted without training

    def loss(self, logits: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
        """Cross-entropy of `logits` [N, K + 1] against `labels` [N], 0 for background."""
        if weight is not None:
            raise ValueError("unverified classes can be left out of a sigmoid's loss, not of a softmax's")
        return F.cross_entropy(logits.float(), labels)

    def scores(self, logits: Tensor) -> Tensor:
        """[N, K], background left out."""
        return logits.float().softmax(1)[:, 1:]


SigmoidCriterion = BalancedSigmoidLoss | SigmoidEqualizationLoss | EqualizationV2Loss | FederatedLoss


class SigmoidClassification(nn.Module):
    """K binary problems per box. `criterion` is one of the library's sigmoid losses; scores are σ(z) for each of
    them."""

    background_columns = 0
    first_bias = RARE
    ignored = -99

    def __init__(self, criterion: SigmoidCriterion, moved: Tensor | None = None) -> None:
        super().__init__()
        if criterion.reduction != "batchmean":
            raise ValueError(
                f"the loss has reduction={criterion.reduction!r}: a detector sums over classes and averages over "
                "boxes, reduction='batchmean'"
            )
        self.criterion = criterion
        self.moved = moved  # [K] what a trained detector's bias loses, where it is adjusted without training

    def loss(self, logits: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
        """The loss of `logits` [N, K] against `labels` [N], 0 for background; `weight` [N, K] is 0 for unverified
        classes."""
        if isinstance(self.criterion, EqualizationV2Loss) and logits.requires_grad:
            self.criterion.observe(logits, labels - 1, labels > 0, weight)
        return self.criterion(logits, labels - 1, labels > 0, weight)  # type: ignore[no-any-return]

    def scores(self, logits: Tensor) -> Tensor:
        """[N, K]."""
        return logits.float().sigmoid()


class SeesawClassification(nn.Module):
    """Column 0: whether a box holds an object; the others: a softmax over K classes, trained with Seesaw loss on such
    boxes.

    score_j = σ(z_0) · softmax(z_1, ..., z_K)_j
    """

    background_columns = 1
    first_bias = 0.0
    ignored = -100

    def __init__(self, criterion: SeesawLoss) -> None:
        super().__init__()
        if criterion.reduction != "sum" or criterion.ignore_index != self.ignored:
            raise ValueError("the loss is summed over boxes that hold an object: reduction='sum', ignore_index=-100")
        self.criterion = criterion

    def loss(self, logits: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
        """Both losses of `logits` [N, K + 1] against `labels` [N], 0 for background, averaged over all boxes."""
        if weight is not None:
            raise ValueError("unverified classes can be left out of a sigmoid's loss, not of a softmax's")
        counted, holds = labels != self.ignored, labels > 0
        holding = F.binary_cross_entropy_with_logits(
            logits[:, 0].float(), holds.float(), counted.float(), reduction="sum"
        )
        which = self.criterion(logits[:, 1:], torch.where(holds, labels - 1, self.ignored))
        loss: Tensor = (holding + which) / counted.sum().clamp(min=1)
        return loss

    def scores(self, logits: Tensor) -> Tensor:
        """[N, K]."""
        return logits[:, :1].float().sigmoid() * logits[:, 1:].float().softmax(1)


def seesaw(prior: Prior, p: float = 0.8, q: float = 2.0) -> SeesawClassification:
    """Seesaw loss with its authors' exponents. A box has one class, so the prior's counts are taken as shares."""
    shares = Prior.from_counts(prior.counts) if prior.counted else prior
    return SeesawClassification(SeesawLoss(shares, p=p, q=q, reduction="sum"))


def sigmoid(num_classes: int) -> SigmoidClassification:
    """K plain sigmoids: Balanced Sigmoid with every class at the target rate, so that the shift is 0."""
    return balanced_sigmoid(Prior.from_counts([1] * num_classes, total=2), target_rate=0.5)


def equalized_sigmoid(prior: Prior, threshold: float) -> SigmoidClassification:
    """Sigmoids whose rare classes, in a smaller share of the images than `threshold`, get no negatives from other
    objects."""
    return SigmoidClassification(SigmoidEqualizationLoss(prior, threshold, reduction="batchmean"))


def balanced_sigmoid(prior: Prior, target_rate: float | None = None) -> SigmoidClassification:
    """Balanced Sigmoid: the paper's form (None), or that of its authors' released detection code (0.5)."""
    return SigmoidClassification(BalancedSigmoidLoss(prior, target_rate=target_rate, reduction="batchmean"))


def equalized_v2_sigmoid(prior: Prior) -> SigmoidClassification:
    """Sigmoids whose negatives are weighted by the gradients of the class so far; the prior's counts are not used."""
    return SigmoidClassification(EqualizationV2Loss(prior.num_classes, reduction="batchmean"))


def federated_sigmoid(prior: Prior, classes: int = 50) -> SigmoidClassification:
    """Sigmoids whose loss covers the classes of a batch and others drawn by their image counts, `classes` in all."""
    return SigmoidClassification(FederatedLoss(prior, classes, reduction="batchmean"))


def adjusted_sigmoid(prior: Prior, target_rate: float | None = None, tau: float = 1.0) -> SigmoidClassification:
    """Plain sigmoids for a trained detector; `tau` times Balanced Sigmoid's shift is subtracted, without training."""
    plain = sigmoid(prior.num_classes)
    return SigmoidClassification(plain.criterion, tau * sigmoid_shift(prior, target_rate))


def softmax(prior: Prior) -> SoftmaxClassification:
    """A softmax over the classes and background, for recipes; the prior is not used."""
    return SoftmaxClassification()


def adjusted_softmax(prior: Prior, tau: float = 1.0) -> SoftmaxClassification:
    """A softmax for a trained detector; `tau` times the shift of its classes is subtracted, without training."""
    return SoftmaxClassification(detector_shift(prior, tau=tau))


def adjust_bias(model: nn.Module, moved: Tensor) -> None:
    """Permanently subtract `moved`, one value per column, from a detector's class logits; works on torchvision's own,
    too."""
    classifier: Any = model.get_submodule("roi_heads.box_predictor.cls_score")
    if classifier.bias.shape != moved.shape:
        raise ValueError(f"the classifier has {len(classifier.bias)} columns, the shift {len(moved)}")
    with torch.no_grad():
        classifier.bias -= moved.to(classifier.bias)


# -------------------------------------------------------------------- the heads


class ScaledLinear(nn.Linear):
    """A linear layer with one learned scale per class on its weights, not on its bias: LWS (Kang et al. 2020)."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self.scales = nn.Parameter(torch.ones(out_features, 1))

    def forward(self, features: Tensor) -> Tensor:
        return F.linear(features, self.weight * self.scales, self.bias)


class BoxPredictor(nn.Module):
    """Class logits and one box per class: [N, in_features] to [N, columns] and [N, 4 K]. Always in fp32: a score of
    1e-4 has a logit of −9.2, which bf16 rounds to steps of 1/16."""

    def __init__(self, in_features: int, num_classes: int, classification: Any, *, scaled: bool = False) -> None:
        super().__init__()
        columns = num_classes + classification.background_columns
        self.cls_score = (ScaledLinear if scaled else nn.Linear)(in_features, columns)
        self.bbox_pred = nn.Linear(in_features, 4 * num_classes)
        nn.init.normal_(self.bbox_pred.weight, std=0.001)
        nn.init.zeros_(self.bbox_pred.bias)
        reset_classifier(self.cls_score, classification.first_bias)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(features.device.type, enabled=False):
            return self.classify(features), self.bbox_pred(features.float())

    def classify(self, features: Tensor) -> Tensor:
        """The class logits alone."""
        with torch.autocast(features.device.type, enabled=False):
            logits: Tensor = self.cls_score(features.float())
            return logits


def reset_classifier(classifier: nn.Linear, bias: float) -> None:
    """Weights N(0, 0.01²), bias constant."""
    nn.init.normal_(classifier.weight, std=0.01)
    nn.init.constant_(classifier.bias, bias)


class MaskPredictor(MaskRCNNPredictor):  # type: ignore[misc]
    """torchvision's mask predictor for one class per box: [N, C, H, W] and classes [N] to logits [N, 2 H, 2 W]."""

    def forward(self, features: Tensor, classes: Tensor) -> Tensor:
        hidden = self.relu(self.conv5_mask(features))
        rows = self.mask_fcn_logits.weight[classes].flatten(1)  # [N, C], gathered before the convolution, not after it
        logits = torch.bmm(rows[:, None], hidden.flatten(2)).view(len(hidden), *hidden.shape[2:])
        biased: Tensor = logits.float() + self.mask_fcn_logits.bias[classes][:, None, None]
        return biased


class Heads(RoIHeads):  # type: ignore[misc]
    """torchvision's heads on regions, with a classification part, boxes and masks without a background class."""

    classification: Any  # one of the classification parts above
    least: Tensor | None = None  # [K] the score from which each class counts, without a cap per image: for AP-fixed
    boxes_only = False  # in use

    def has_mask(self) -> bool:
        return not self.boxes_only and bool(super().has_mask())

    def forward(
        self, features: dict[str, Tensor], proposals: list[Tensor], image_shapes: Shapes, targets: Targets | None = None
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        if self.training:
            return [], self._losses(features, proposals, image_shapes, targets)
        logits, boxes = self._predict(features, proposals, image_shapes)
        results = self._detections(logits, boxes, proposals, image_shapes)
        if self.has_mask():
            found = [result["boxes"] for result in results]
            classes = torch.cat([result["labels"] for result in results]) - 1
            logits = self.mask_predictor(self.mask_head(self.mask_roi_pool(features, found, image_shapes)), classes)
            for result, mask in zip(results, logits.sigmoid().split([len(box) for box in found]), strict=True):
                result["masks"] = mask[:, None]
        return results, {}

    def _predict(
        self, features: dict[str, Tensor], proposals: list[Tensor], image_shapes: Shapes
    ) -> tuple[Tensor, Tensor]:
        logits, boxes = self.box_predictor(self.box_head(self.box_roi_pool(features, proposals, image_shapes)))
        return logits, boxes

    def _losses(
        self, features: dict[str, Tensor], proposals: list[Tensor], image_shapes: Shapes, targets: Targets | None
    ) -> dict[str, Tensor]:
        proposals, matched, labels, wanted = self.select_training_samples(proposals, targets)
        assert targets is not None  # select_training_samples refuses None
        logits, boxes = self._predict(features, proposals, image_shapes)
        flat = torch.cat(labels)
        losses = {
            "loss_classifier": self.classification.loss(logits, flat, verified_weight(labels, targets, logits.shape[1]))
        }
        if self.trains("bbox_pred"):
            losses["loss_box_reg"] = box_loss(boxes, flat, torch.cat(wanted))
        if self.has_mask() and self.trains("mask"):
            positive = [torch.where(label > 0)[0] for label in labels]
            regions = [proposal[places] for proposal, places in zip(proposals, positive, strict=True)]
            instances = [match[places] for match, places in zip(matched, positive, strict=True)]
            hidden = self.mask_head(self.mask_roi_pool(features, regions, image_shapes))
            masks = self.mask_predictor(hidden, flat[flat > 0] - 1)
            losses["loss_mask"] = mask_loss(masks, targets, regions, instances)
        return losses

    def trains(self, part: str) -> bool:
        """Whether this part is trained; the loss of a frozen one is not computed."""
        return not torch.is_grad_enabled() or any(
            parameter.requires_grad for name, parameter in self.named_parameters() if part in name
        )

    def _detections(
        self, logits: Tensor, regression: Tensor, proposals: list[Tensor], image_shapes: Shapes
    ) -> list[dict[str, Tensor]]:
        sizes, every = [len(boxes) for boxes in proposals], self.classification.scores(logits)
        decoded = self.box_coder.decode(regression, proposals).reshape(*every.shape, 4)  # also for no box at all
        images = zip(decoded.split(sizes), every.split(sizes), image_shapes, strict=True)
        return [self.best(clip_boxes_to_image(boxes, shape), scores) for boxes, scores, shape in images]

    def best(self, boxes: Tensor, scores: Tensor) -> dict[str, Tensor]:
        """The detections in an image, from clipped boxes [N, K, 4] with scores [N, K]."""
        if self.least is not None:
            return every_box(boxes, scores, least=self.least, overlap=self.nms_thresh)
        options = {"threshold": self.score_thresh, "overlap": self.nms_thresh, "most": self.detections_per_img}
        return best_boxes(boxes, scores, **options)


def verified_weight(labels: list[Tensor], targets: Targets, columns: int) -> Tensor | None:
    """1 if a class is known to be right or wrong for a box, else 0: [N, K]; None if the targets do not tell.

    A box is verified for its own class, and for the classes that its image was searched for ("verified", [K]).
    """
    if any("verified" not in target for target in targets):
        return None
    known = torch.cat(
        [target["verified"].expand(len(label), -1) for label, target in zip(labels, targets, strict=True)]
    )
    own = F.one_hot(torch.cat(labels), columns + 1)[:, 1:].bool()
    return (known | own).float()


def box_loss(regression: Tensor, labels: Tensor, wanted: Tensor) -> Tensor:
    """Smooth L1 loss of the ground-truth classes' boxes, out of [N, 4 K], summed, per sampled box."""
    rows = torch.where(labels > 0)[0]
    chosen = regression.view(len(labels), -1, 4)[rows, labels[rows] - 1]
    return F.smooth_l1_loss(chosen, wanted[rows], beta=1 / 9, reduction="sum") / max(len(labels), 1)


def mask_loss(logits: Tensor, targets: Targets, regions: list[Tensor], instances: list[Tensor]) -> Tensor:
    """Mean binary cross-entropy between masks [N, M, M] of regions and the ground truth of their instances."""
    if len(logits) == 0:
        return logits.sum()
    wanted = [
        project_masks_on_boxes(target["masks"], boxes, matched, logits.shape[-1])
        for target, boxes, matched in zip(targets, regions, instances, strict=True)
        if len(boxes)
    ]
    return F.binary_cross_entropy_with_logits(logits, torch.cat(wanted))


def best_boxes(boxes: Tensor, scores: Tensor, *, threshold: float, overlap: float, most: int) -> dict[str, Tensor]:
    """The `most` best of `boxes` [N, K, 4] with `scores` [N, K] above `threshold`, after NMS within each class.

    NMS looks only at the best candidates, and at twice as many while too few are left. Whether a box is dropped depends
    only on better ones, so the result equals NMS over all N · K.
    """
    row, column = torch.where(scores > threshold)
    flat = scores[row, column]
    flat, order = flat.sort(descending=True, stable=True)
    row, column = row[order], column[order]
    looked_at = FIRST_CANDIDATES
    while True:
        best = boxes[row[:looked_at], column[:looked_at]]
        valid = remove_small_boxes(best, min_size=1e-2)
        kept = valid[batched_nms(best[valid], flat[:looked_at][valid], column[:looked_at][valid], overlap)][:most]
        if len(kept) == most or looked_at >= len(flat):
            return {"boxes": best[kept], "labels": column[kept] + 1, "scores": flat[kept]}
        looked_at *= 2


def every_box(boxes: Tensor, scores: Tensor, *, least: Tensor, overlap: float) -> dict[str, Tensor]:
    """The `boxes` [N, K, 4] with `scores` [N, K] of at least `least` [K], after NMS within each class; best first."""
    row, column = torch.where(scores >= least)
    flat, order = scores[row, column].sort(descending=True, stable=True)
    row, column = row[order], column[order]
    chosen = boxes[row, column]
    valid = remove_small_boxes(chosen, min_size=1e-2)
    kept = valid[batched_nms(chosen[valid], flat[valid], column[valid], overlap)]
    return {"boxes": chosen[kept], "labels": column[kept] + 1, "scores": flat[kept]}


# -------------------------------------------------------------------- images in, masks out


class Transform(GeneralizedRCNNTransform):  # type: ignore[misc]
    """torchvision's resizing and normalisation; also takes uint8 images, and draws all masks of an image at once."""

    def normalize(self, image: Tensor) -> Tensor:
        return super().normalize(image if image.is_floating_point() else image / 255)  # type: ignore[no-any-return]

    def postprocess(
        self, result: list[dict[str, Tensor]], image_shapes: Shapes, original_image_sizes: Shapes
    ) -> list[dict[str, Tensor]]:
        if self.training:
            return result
        for found, shape, original in zip(result, image_shapes, original_image_sizes, strict=True):
            found["boxes"] = resize_boxes(found["boxes"], shape, original)
            if "masks" in found:
                found["masks"] = paste_masks(found["masks"][:, 0], found["boxes"], original)
        return result


def paste_masks(masks: Tensor, boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Mask probabilities [N, M, M] drawn into their boxes: bool [N, height, width], true where above one half.

    A pixel takes the mask's value, bilinear, at the pixel's centre.

    >>> paste_masks(torch.ones(1, 28, 28), torch.tensor([[1.0, 0.0, 3.0, 1.0]]), (2, 4)).int()
    tensor([[[0, 1, 1, 0],
             [0, 0, 0, 0]]], dtype=torch.int32)
    """
    height, width = size
    pasted = torch.zeros(len(masks), height, width, dtype=torch.bool, device=masks.device)
    x = torch.arange(width, device=masks.device) + 0.5
    y = torch.arange(height, device=masks.device) + 0.5
    at_once = max(1, PASTED_PIXELS // (height * width))
    for rows in (slice(first, first + at_once) for first in range(0, len(masks), at_once)):
        x0, y0, x1, y1 = boxes[rows].float().unbind(1)
        across = (x - x0[:, None]) / (x1 - x0).clamp(min=1e-6)[:, None] * 2 - 1
        down = (y - y0[:, None]) / (y1 - y0).clamp(min=1e-6)[:, None] * 2 - 1
        grid = torch.stack([across[:, None].expand(-1, height, -1), down[:, :, None].expand(-1, -1, width)], dim=-1)
        inside = (across.abs() <= 1)[:, None] & (down.abs() <= 1)[:, :, None]
        drawn = F.grid_sample(masks[rows].float()[:, None], grid, padding_mode="border", align_corners=False)[:, 0]
        pasted[rows] = (drawn > 0.5) & inside
    return pasted


# -------------------------------------------------------------------- backbones


class FrozenBatchNorm(FrozenBatchNorm2d):  # type: ignore[misc]
    """torchvision's, but its output has the dtype of its input: under autocast half the memory traffic."""

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)


BACKBONES = ("resnet18", "resnet50", "resnet101")


def resnet_fpn(
    name: Literal["resnet18", "resnet50", "resnet101"] = "resnet50",
    weights: str | os.PathLike[str] | None = None,
    *,
    stride: Stride = None,
    trainable_layers: int = 3,
) -> BackboneWithFPN:
    """A ResNet with frozen batch norm and a feature pyramid.

    weights            a file of tensors under torchvision's names (.safetensors, or .pth that holds only tensors);
                       "torchvision" downloads its own; None: random, and every layer is trained
    stride             where a bottleneck halves the picture: in the 3×3 convolution as in torchvision, or in the 1×1
                       before it as in the original networks (MSRA, Caffe). The tensors do not show it: by default a
                       file with msra or caffe in its name has it in the 1×1, any other in the 3×3
    trainable_layers   how many of the five stages are trained, from the end
    """
    if name not in BACKBONES:
        raise ValueError(f"no backbone is named {name!r}: expected one of {', '.join(BACKBONES)}")
    check_stride(stride)
    wanted = "DEFAULT" if str(weights) == "torchvision" else None
    try:
        body = getattr(torchvision.models, name)(weights=wanted, norm_layer=FrozenBatchNorm)
    except URLError as error:
        raise OSError(f"torchvision's weights of {name} cannot be downloaded ({error}): pass a file instead") from None
    if weights is not None and wanted is None:
        load_backbone(body, Path(weights))
    if (stride or stride_by_name(weights)) == "1x1":
        move_stride(body)
    return _resnet_fpn_extractor(body, trainable_layers if weights is not None else 5)


def stride_of(model: nn.Module) -> Literal["1x1", "3x3"]:
    """Where a detector's backbone has its stride: as passed to `resnet_fpn`, or taken from a file's name."""
    block: Any = model.get_submodule("backbone.body.layer2.0")
    return "1x1" if hasattr(block, "conv3") and block.conv1.stride == (2, 2) else "3x3"


# -------------------------------------------------------------------- whole detectors


def detector(
    backbone: nn.Module,
    num_classes: int,
    classification: SoftmaxClassification | SigmoidClassification | SeesawClassification,
    *,
    masks: bool = True,
    scaled: bool = False,
    min_size: int | Sequence[int] = 800,
    max_size: int = 1333,
    score_threshold: float = 1e-4,
    detections: int = 300,
    **options: Any,
) -> FasterRCNN:
    """Mask R-CNN, or Faster R-CNN for boxes only, on `backbone`, for `num_classes` classes without background.

    In training, `model(images, targets)` returns a dict of losses. In use, `model(images)` returns one dict per image:
    "boxes" [n, 4], "labels" [n] from 1, "scores" [n] and "masks" bool [n, H, W]. `min_size` may be several sizes, one
    of which is drawn for each image in training; otherwise the last one is used. `options` are torchvision's for Mask
    R-CNN. `scaled` makes the classifier learn one scale per class (LWS).
    """
    size = {"min_size": min_size, "max_size": max_size}
    kept = {"box_score_thresh": score_threshold, "box_detections_per_img": detections}
    model = (MaskRCNN if masks else FasterRCNN)(backbone, num_classes, **size, **kept, **options)
    if masks:
        model.roi_heads.mask_predictor = MaskPredictor(256, 256, num_classes)
    width = model.roi_heads.box_predictor.cls_score.in_features
    model.roi_heads.box_predictor = BoxPredictor(width, num_classes, classification, scaled=scaled)
    model.roi_heads.__class__ = Heads  # changed in place: it already has torchvision's parts and options
    model.roi_heads.classification = classification
    model.rpn.head.register_forward_hook(_full_precision)
    old = model.transform
    model.transform = Transform(old.min_size, old.max_size, old.image_mean, old.image_std, old.size_divisible)
    return model


def _full_precision(module: nn.Module, inputs: Any, output: tuple[list[Tensor], list[Tensor]]) -> Any:
    """The proposal network's outputs as fp32: torchvision computes boxes in its dtype, and bf16 rounds to 2 pixels."""
    return tuple([level.float() for level in levels] for levels in output)


LOSS_STATE = "roi_heads.classification."  # the prior belongs to the loss and is not part of a detector's weights


def detector_weights(model: nn.Module) -> dict[str, Tensor]:
    """The state of a detector without that of its loss: checkpoints hold it, and another loss can start from it."""
    return {name: value for name, value in model.state_dict().items() if not name.startswith(LOSS_STATE)}


def load_detector_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Load what `detector_weights` returned. A scale per class that the weights lack keeps its value, 1."""
    own = model.state_dict()
    wrong = next((name for name in weights if name in own and own[name].shape != weights[name].shape), None)
    if wrong is not None:
        raise ValueError(
            f"these weights are of another detector: {wrong} has shape {tuple(weights[wrong].shape)}, here it has "
            f"{tuple(own[wrong].shape)}"
        )
    missing, unexpected = model.load_state_dict(weights, strict=False)
    lost = [name for name in missing if not name.startswith(LOSS_STATE) and not name.endswith("cls_score.scales")]
    if lost or unexpected:
        raise ValueError(
            f"these weights are of another detector: {len(lost)} tensors are missing (first: {lost[:1]}), "
            f"{len(unexpected)} unknown (first: {unexpected[:1]})"
        )
