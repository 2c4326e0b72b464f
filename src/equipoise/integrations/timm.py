"""For timm: a criterion for hard and mixed targets, and a loader that draws the classes equally often.

    train_loss_fn = timm.loss(prior, smoothing=args.smoothing)     in place of the criterion of timm's train.py
    loader_train = timm.balanced(loader_train)                     after create_loader, if you would rather sample

`Prior.from_dataset(dataset)` counts timm's image folders without opening an image. `Mixup` and `CutMix` produce soft
targets, which the balanced loss accepts directly: the prior is that of the images before they are mixed.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from equipoise.losses.balanced_softmax import BalancedSoftmaxLoss
from equipoise.prior import Prior
from equipoise.samplers.class_balanced import ClassBalancedSampler, Strength

__all__ = ["MixedTargetLoss", "balanced", "loss"]

KEPT = (  # of a DataLoader that gets another sampler
    "num_workers", "collate_fn", "pin_memory", "drop_last", "timeout", "worker_init_fn", "generator",
    "multiprocessing_context", "prefetch_factor", "persistent_workers", "pin_memory_device",
)  # fmt: skip


def loss(prior: Prior, *, smoothing: float = 0.0, tau: float = 1.0) -> MixedTargetLoss:
    """Balanced Softmax for class indices and for Mixup's soft targets: timm's three softmax criteria in one.

    `smoothing` smooths class indices; mixed targets are already smoothed by `Mixup(label_smoothing=...)`.

    >>> criterion = loss(eq.Prior.from_counts([900, 100]))
    >>> criterion(torch.zeros(1, 2), torch.tensor([1])), criterion(torch.zeros(1, 2), torch.tensor([[0.5, 0.5]]))
    (tensor(2.3026), tensor(1.2040))
    """
    hard = BalancedSoftmaxLoss(prior, tau=tau, label_smoothing=smoothing)
    return MixedTargetLoss(hard, BalancedSoftmaxLoss(prior, tau=tau))


class MixedTargetLoss(nn.Module):
    """One loss for class indices, another for targets [N, K]."""

    def __init__(self, hard: nn.Module, soft: nn.Module) -> None:
        super().__init__()
        self.hard, self.soft = hard, soft

    def forward(self, logits: Tensor, target: Tensor) -> Any:
        chosen = self.soft if target.shape == logits.shape else self.hard
        return chosen.to(logits.device)(logits, target)


def balanced(loader: Any, labels: Any = None, *, strength: Strength = 1.0, seed: int = 0) -> Any:
    """A loader from timm's `create_loader`, or any `DataLoader`, changed to draw the classes equally often.

    Everything else is kept: batches, workers, collation, prefetching. `labels` [N] are read from its data set if they
    are not given. The draws are split among the ranks of the process group, once.
    """
    inner = loader if isinstance(loader, DataLoader) else getattr(loader, "loader", None)
    if type(inner) is not DataLoader or isinstance(inner.dataset, IterableDataset) or inner.batch_size is None:
        raise TypeError(
            f"the loader is a {type(loader if inner is None else inner).__name__} with "
            f"{type(getattr(inner, 'batch_sampler', None)).__name__}: expected a DataLoader with a batch size over a "
            "data set with a length; leave use_multi_epochs_loader and input_size_choices out"
        )
    options = {name: getattr(inner, name) for name in KEPT if hasattr(inner, name)}
    draws: dict[str, Any] = {"strength": strength, "seed": seed}
    if labels is None:
        sampler = ClassBalancedSampler.from_dataset(inner.dataset, **draws)
    else:
        sampler = ClassBalancedSampler(labels, **draws)
    made: DataLoader[Any] = DataLoader(inner.dataset, inner.batch_size, sampler=sampler, **options)
    if loader is inner:
        return made
    outer = copy.copy(loader)  # timm's PrefetchLoader
    outer.loader = made
    return outer
