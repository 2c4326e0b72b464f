"""The shift for detectors with a softmax and a background column: they are rebalanced without training.

    z_j'  =  z_j − tau · log(K π_j)      for the K classes; the logit of background stays

π_j is the share of class j among boxes that hold an object: `Prior.from_coco(path, by="instances")`. At tau = 1 this is
Bayes' rule for a world where the classes are equally frequent, but objects are as frequent as before: background keeps
its logit, and so does a class with the mean share. A constant on all logits does not affect a softmax, but one on the
classes alone does: another constant would make objects more or less frequent.

torchvision's detectors have background in column 0, as do those here; detectron2's have it last.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.losses.shared import full_precision
from equipoise.prior import PriorLike, softmax_shift


def adjust_detector_logits(logits: Tensor, prior: PriorLike, *, tau: float = 1.0, background: int = 0) -> Tensor:
    """Logits [..., K + 1] of a softmax with background, right for equally frequent classes; `background` is its column.

    >>> logits = torch.tensor([[0.5, 0.45, 0.05]]).log()  # background, and classes that are 9 to 1
    >>> adjust_detector_logits(logits, [0.9, 0.1]).softmax(-1)
    tensor([[0.5000, 0.2500, 0.2500]])
    """
    precise = full_precision(logits)
    shift = detector_shift(prior, tau=tau, background=background).to(precise.device)
    if precise.shape[-1] != len(shift):
        raise ValueError(
            f"logits have {precise.shape[-1]} columns, the prior has {len(shift) - 1} classes: expected one column "
            "more, for background"
        )
    return precise - shift


def detector_shift(prior: PriorLike, *, tau: float = 1.0, background: int = 0) -> Tensor:
    """What to subtract from a softmax detector's logits, or from its classifier's bias: fp32 [K + 1], 0 for background.

    >>> detector_shift([0.9, 0.1], background=-1).exp()
    tensor([1.8000, 0.2000, 1.0000])
    """
    shift = softmax_shift(prior, tau=tau)
    if background not in (0, -1, len(shift)):
        raise ValueError(f"background is {background}: expected 0, the first column, or -1, the last")
    parts = [torch.zeros(1), shift]
    return torch.cat(parts if background == 0 else parts[::-1])
