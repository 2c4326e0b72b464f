"""Classifier heads: cosines, a trained head with one learnable factor per class, and a neck before the head."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class NormalizedLinear(nn.Module):
    """Cosines between features [..., in_features] and one vector per class: no bias, outputs in [−1, 1].

    The head for LDAM. A loss other than LDAM, or a prior added to these logits, needs them scaled first (by about 30):
    log n is far larger than a cosine.

    in_features    size D of the features
    out_features   number of classes K

    >>> head = NormalizedLinear(4, 3)
    >>> bool((head(torch.randn(5, 4)).abs() <= 1 + 1e-6).all())
    True
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        directions = torch.empty(out_features, in_features, device=device, dtype=dtype).uniform_(-1, 1)
        self.weight = nn.Parameter(F.normalize(directions, dim=1))

    def forward(self, features: Tensor) -> Tensor:
        return F.linear(_unit(features), _unit(self.weight))

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"


class ScaledHead(nn.Module):
    """`head`, frozen, with a learnable factor per class: learnable weight scaling (LWS).

        logits_j = s_j · (w_j · x + b_j),      s_j = 1 at first; only s is learnt

    Reference: Kang et al., "Decoupling Representation and Classifier for Long-Tailed Recognition", ICLR 2020,
    arXiv 1910.09217.

    >>> scaled = ScaledHead(nn.Linear(4, 3))
    >>> [name for name, parameter in scaled.named_parameters() if parameter.requires_grad]
    ['scales']
    """

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self.head = head.requires_grad_(False)
        self.scales = nn.Parameter(torch.ones(head.out_features))

    def forward(self, features: Tensor) -> Tensor:
        return self.scales * self.head(features)  # type: ignore[no-any-return]

    def plain(self) -> nn.Linear:
        """The same as one linear layer."""
        made = nn.Linear(self.head.in_features, self.head.out_features, device=self.scales.device)
        with torch.no_grad():
            made.weight.copy_(self.scales[:, None] * self.head.weight)
            made.bias.copy_(self.scales * self.head.bias)
        return made


class Dropout(nn.Module):
    """Dropout that depends on a seed and on how often it was called, and on nothing else.

    Both are in its state, so a resumed run drops what it would have dropped, on any device, inside a CUDA graph, and
    whatever other models draw in the meantime. The seed comes from torch's generator when the module is created.

    >>> dropout = Dropout(0.5)
    >>> sorted(set(dropout(torch.ones(100)).tolist())), bool((dropout.eval()(torch.ones(100)) == 1).all())
    ([0.0, 2.0], True)
    """

    seed: Tensor
    calls: Tensor

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share
        self.register_buffer("seed", torch.randint(2**31, ()))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, features: Tensor) -> Tensor:
        if not self.training or not self.share:
            return features
        row = _mixed(self.seed + _mixed(self.calls))
        drawn = _mixed(_mixed(torch.arange(features.numel(), device=features.device)) ^ row)
        self.calls += 1
        kept = (drawn >= int(self.share * 2**32)).view_as(features)
        return features * kept / (1 - self.share)

    def extra_repr(self) -> str:
        return f"share={self.share}"


def _mixed(words: Tensor) -> Tensor:
    """Numbers from 0 to 2^32 − 1 that look random, from whole numbers (the hash "lowbias32" of Wellons)."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        words = ((words ^ (words >> shift)) * factor) & 0xFFFFFFFF
    return words ^ (words >> 16)


def make_neck(in_features: int, out_features: int, dropout: float) -> nn.Sequential:
    """A linear layer, batch normalisation and dropout, without a nonlinearity, as Wu et al. 2020 put before the head.

    >>> make_neck(8, 4, 0.5)(torch.zeros(2, 8)).shape
    torch.Size([2, 4])
    """
    linear = nn.Linear(in_features, out_features)
    nn.init.kaiming_normal_(linear.weight, mode="fan_out")
    nn.init.zeros_(linear.bias)
    return nn.Sequential(linear, nn.BatchNorm1d(out_features), Dropout(dropout))


def _unit(vectors: Tensor) -> Tensor:
    """Vectors of length 1; lengths are computed in at least fp32, since half precision overflows at 65,504."""
    if vectors.dtype in (torch.float16, torch.bfloat16):
        return F.normalize(vectors.float(), dim=-1).to(vectors.dtype)
    return F.normalize(vectors, dim=-1)
