"""Detectors from the files that `equipoise run` kept, and how their scores are moved to other class frequencies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from equipoise.cli import options as o

PRIOR_FOR_GROUPS = typer.Option(help="The training annotations: for groups r, c, f where the file has none.")


@dataclass(frozen=True)
class Network:
    """What is known of a trained detector; None: as in training, if the note is still beside its weights."""

    backbone: Annotated[str | None, typer.Option(help="resnet50 or resnet101; by default as trained.")] = None
    stride: o.Stride = None
    size: Annotated[int | None, typer.Option(help="The shorter side to which images are resized.")] = None


@dataclass(frozen=True)
class Shift:
    """How scores are moved, if at all."""

    prior: Annotated[Path | None, typer.Option(help="The training annotations, for --target-rate or --softmax.")] = None
    target_rate: Annotated[
        str | None,
        typer.Option(metavar="RATE", help="Move sigmoid scores to this rate for every class, or mean; needs --prior."),
    ] = None
    softmax: Annotated[
        bool,
        typer.Option("--softmax", help="Move scores of a softmax with background to equal classes; needs --prior."),
    ] = False
    tau: Annotated[
        float | None,
        typer.Option(help="With --target-rate or --softmax: the share of the shift to apply; by default 1."),
    ] = None

    def rate(self, prior: Any) -> tuple[float | None] | None:
        """The value of --target-rate: None if it is not given, (None,) for the mean rate."""
        if self.target_rate is None:
            return None
        if prior is None:
            raise ValueError("--target-rate needs to know how often each class occurs in training: pass --prior FILE")
        if self.target_rate == "mean":
            return (None,)
        try:
            return (float(self.target_rate),)
        except ValueError:
            raise ValueError(f"--target-rate {self.target_rate}: expected a rate between 0 and 1, or mean") from None

    @property
    def strength(self) -> float:
        """The value of --tau; it is an error if there is no shift that it could be a share of."""
        if self.tau is None:
            return 1.0
        if not self.softmax and self.target_rate is None:
            raise ValueError(
                f"--tau {self.tau:g} is the share of a shift: say of which one, with --target-rate or --softmax"
            )
        if not math.isfinite(self.tau):
            raise ValueError(f"--tau {self.tau}: expected a finite number, 1 for the whole shift")
        return self.tau

    def class_shares(self) -> Any:
        """For --softmax: the share of each class among the training instances; None if it is not given."""
        from equipoise.prior import Prior

        if not self.softmax:
            return None
        if self.target_rate is not None:
            raise ValueError(
                "--target-rate is for sigmoids, --softmax for a softmax: give the one that fits the detector"
            )
        if self.prior is None:
            raise ValueError("--softmax needs to know the share of each class in training: pass --prior FILE")
        return Prior.from_coco(self.prior, by="instances")


@dataclass(frozen=True)
class ShiftOfResults(Shift):
    """The same for a results file, whose classes are grouped by the prior, too."""

    prior: Annotated[Path | None, PRIOR_FOR_GROUPS] = None


def prior_of(path: Path | None) -> Any:
    """The images that hold each class of training annotations."""
    from equipoise.prior import Prior

    return None if path is None else Prior.from_coco(path)


def load(weights: Path, annotations: Path, categories: dict[int, str], network: Network) -> Any:
    """The detector of a weights file, for the categories of the annotations. What is not known of it, without the note
    of its training: a ResNet-50 with its stride in the 3×3 convolutions, at 800 pixels."""
    from equipoise.data.coco import categories_of, check_same_categories
    from equipoise.models.mask_rcnn import (
        SoftmaxClassification,
        detector,
        load_detector_weights,
        resnet_fpn,
        seesaw,
        sigmoid,
    )
    from equipoise.models.weights import read_tensors
    from equipoise.prior import Prior
    from equipoise.training.kept import note_of, read_note

    tensors, note, num_classes = read_tensors(weights), note_of(weights), len(categories)
    backbone, stride, size = network.backbone, network.stride, network.size
    trained: dict[str, Any] = {"backbone": "resnet50", "stride": "3x3", "size": 800, "longest": 1333}
    if note != weights and note.is_file():
        trained |= read_note(weights).get("detector", {})
        if "categories" in trained:  # notes of earlier runs have none
            check_same_categories(categories, annotations, categories_of(trained, note), note)
    elif None in (backbone, stride, size):
        typer.echo(
            f"there is no {note.name} beside the weights: assuming a {backbone or trained['backbone']} with its stride "
            f"in the {stride or trained['stride']} convolutions, at {size or trained['size']} pixels",
            err=True,
        )
    regression = tensors.get("roi_heads.box_predictor.bbox_pred.weight")
    if regression is not None and len(regression) != 4 * num_classes:
        raise ValueError(f"{weights} has {len(regression) // 4} classes, the annotations have {num_classes}")
    columns = len(tensors.get("roi_heads.box_predictor.cls_score.bias", ()))
    part: Any = sigmoid(num_classes)
    if columns == num_classes + 1:
        plain = trained.get("classification") == SoftmaxClassification.__name__
        part = SoftmaxClassification() if plain else seesaw(Prior.uniform(num_classes))
    if size is not None:
        trained |= {"size": size, "longest": round(size * trained["longest"] / trained["size"])}
    model = detector(
        resnet_fpn(backbone or trained["backbone"], stride=stride or trained["stride"]),  # type: ignore[arg-type]
        num_classes,
        part,
        masks=any("mask_predictor" in name for name in tensors),
        scaled=any(name.endswith("cls_score.scales") for name in tensors),
        min_size=trained["size"],
        max_size=trained["longest"],
    )
    load_detector_weights(model, tensors)
    return model.eval()


def adjust(model: Any, shift: Shift, annotations: Path, categories: dict[int, str]) -> None:
    """Subtract the shift of the training prior from a detector's logits, if requested."""
    from equipoise.data.coco import check_same_categories
    from equipoise.models.mask_rcnn import SigmoidClassification, SoftmaxClassification, adjust_bias, adjusted_sigmoid
    from equipoise.models.softmax_detectors import detector_shift

    share, prior = shift.strength, prior_of(shift.prior)
    rate, shares = shift.rate(prior), shift.class_shares()
    if rate is None and shares is None:
        if shift.prior is not None:
            raise ValueError("--prior is for --target-rate or --softmax: give one of them, or leave it out")
        return
    part = model.roi_heads.classification
    if shift.softmax and not isinstance(part, SoftmaxClassification):
        has = "sigmoids" if isinstance(part, SigmoidClassification) else "a softmax without background"
        raise ValueError(f"--softmax moves the scores of a softmax with background: this detector has {has}")
    if not shift.softmax and not isinstance(part, SigmoidClassification):
        raise ValueError("--target-rate moves the scores of sigmoids: this detector has a softmax")
    trained = dict(zip(prior.class_ids, prior.class_names, strict=True))
    assert shift.prior is not None
    check_same_categories(categories, annotations, trained, shift.prior)
    if rate is not None:
        adjust_bias(model, adjusted_sigmoid(prior, rate[0], share).moved)  # type: ignore[arg-type]
    else:
        adjust_bias(model, detector_shift(shares, tau=share))
