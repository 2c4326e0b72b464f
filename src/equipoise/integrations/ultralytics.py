"""Ultralytics' trainers with a balanced loss: `YOLO("yolo26n.yaml").train(trainer=BalancedDetectionTrainer, ...)`.

    classify    Balanced Softmax in place of cross-entropy
    detect      Balanced Sigmoid in the classification loss, on anchors with an assigned object; the others keep the
                plain sigmoid

The prior is that of the training set, counted by the trainer. Losses shown during validation are the plain ones.
Checkpoints are Ultralytics' own, and can be loaded without Equipoise.

This file is only an adapter. Ultralytics is licensed under the AGPL-3.0, or commercially; it is not a dependency of
Equipoise, and whoever trains with it accepts its licence.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from equipoise.integrations.anchors import AnchorLoss, prior_of_objects
from equipoise.losses.balanced_softmax import BalancedSoftmaxLoss
from equipoise.prior import Prior

try:
    from ultralytics.models.yolo.classify import ClassificationTrainer
    from ultralytics.models.yolo.detect import DetectionTrainer
    from ultralytics.utils.torch_utils import unwrap_model
except ImportError as error:
    raise ImportError(
        f"equipoise.integrations.ultralytics needs Ultralytics: pip install ultralytics ({error})"
    ) from error

__all__ = ["BalancedClassificationTrainer", "BalancedDetectionTrainer", "BalancedTrainer"]


class BalancedTrainer:
    """A mixin for trainers: counts the training set and replaces the criterion, once the trainer has both."""

    prior: Prior | None = None  # counted at the start if it is not set

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        trainer: Any = self
        trainer.add_callback("on_train_start", type(self).balance)

    def balance(self) -> None:
        """Count the training set, and replace the criterion of the trained model (not of its average, which is
        saved)."""
        trainer: Any = self
        names = trainer.data["names"]
        if self.prior is None:
            self.prior = self.count(trainer.train_loader.dataset, [str(names[index]) for index in range(len(names))])
        model = unwrap_model(trainer.model)
        if getattr(model, "class_weights", None) is not None:
            raise ValueError("cls_pw weights the classes; with the prior they would be balanced twice: leave it out")
        model.criterion = self.criterion(model, self.prior)

    def count(self, dataset: Any, names: list[str]) -> Prior:
        raise NotImplementedError

    def criterion(self, model: nn.Module, prior: Prior) -> Any:
        raise NotImplementedError


class BalancedClassificationTrainer(BalancedTrainer, ClassificationTrainer):
    """`YOLO("yolo26n-cls.yaml").train(trainer=BalancedClassificationTrainer, data=...)`."""

    def count(self, dataset: Any, names: list[str]) -> Prior:
        return Prior.from_labels([sample[1] for sample in dataset.samples], class_names=names)

    def criterion(self, model: nn.Module, prior: Prior) -> Any:
        return ClassificationCriterion(prior)


class BalancedDetectionTrainer(BalancedTrainer, DetectionTrainer):
    """`YOLO("yolo26n.yaml").train(trainer=BalancedDetectionTrainer, data="data.yaml")`."""

    def count(self, dataset: Any, names: list[str]) -> Prior:
        return prior_of_objects((label["cls"] for label in dataset.labels), names)

    def criterion(self, model: nn.Module, prior: Prior) -> Any:
        found: Any = model.init_criterion()  # type: ignore[operator]
        parts = [part for part in (found, *vars(found).values()) if isinstance(getattr(part, "bce", None), nn.Module)]
        if not parts:
            raise TypeError(f"the criterion {type(found).__name__} has no bce to replace")
        for part in parts:  # a head without NMS has two: one2many and one2one
            part.bce = AnchorLoss(prior).to(next(model.parameters()).device)
        return found


class ClassificationCriterion:
    """Balanced Softmax with the arguments and return value of Ultralytics' criterion."""

    def __init__(self, prior: Prior) -> None:
        self.loss = BalancedSoftmaxLoss(prior)

    def __call__(self, preds: Any, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        logits = preds[1] if isinstance(preds, list | tuple) else preds
        value = self.loss.to(logits.device)(logits, batch["cls"])
        return value, {"loss": value.detach()}
