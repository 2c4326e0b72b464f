"""Calibration: temperature scaling that takes into account which prior the logits mean and where they will be used.

    calibrated logits   c = z / T + b                    T: one temperature,   b: one bias per class, or none
    used under π        c − shift(source, target)        shift: softmax_shift, or sigmoid_shift
    fitted              min over T, b of  Σ_i w(y_i) · loss(c_i − shift, y_i),     w(y) = π_target(y) / π_validation(y)

A validation set may have any class frequencies; the weights make it represent the target. Calibrated logits still mean
`source`, so they can be moved to any prior afterwards, or passed to `estimate_prior`. If the three priors are equal, T
is that of plain temperature scaling.

References: Guo et al., "On calibration of modern neural networks", 2017, arXiv 1706.04599 (temperature). Alexandari,
Kundaje, Shrikumar, "Maximum likelihood with bias-corrected calibration is hard-to-beat at label shift adaptation",
2020, arXiv 1901.06852 (bias-corrected temperature scaling).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike
from torch import Tensor

from equipoise.arrays import as_array, outside
from equipoise.losses.balanced_sigmoid import Rate
from equipoise.losses.shared import PriorModule, along, class_dim, full_precision
from equipoise.metrics.calibration import CalibrationScores, sigmoid_calibration_scores, softmax_scores
from equipoise.metrics.checks import check_labels, warn_of_probabilities
from equipoise.prior import FloatArray, PriorLike, as_prior, sigmoid_shift, softmax_shift

LEAST_EFFECTIVE_ITEMS = 30
LARGEST_LOG_TEMPERATURE = 10.0  # bound of the search; near it there is no best temperature


class Calibration(PriorModule):
    """logits / temperature + bias: calibrated logits, which mean the same prior as before.

    A module without parameters, to be put behind a model: `nn.Sequential(model, calibration)`. `before` and `after` are
    the scores on the validation set, weighted to the target prior.

    temperature     by which logits are divided: one number
    bias            added after that, [K]; None is no bias
    before, after   scores on the validation set, if known

    >>> Calibration(2.0)(torch.tensor([[4.0, 0.0]]))
    tensor([[2., 0.]])
    """

    temperature: Tensor
    bias: Tensor | None

    def __init__(
        self,
        temperature: float | Tensor,
        bias: Sequence[float] | FloatArray | Tensor | None = None,
        *,
        before: CalibrationScores | None = None,
        after: CalibrationScores | None = None,
    ) -> None:
        super().__init__()
        if not 0 < float(temperature) < math.inf:
            raise ValueError(f"temperature is {float(temperature)}: expected a finite number above 0")
        self.register_buffer("temperature", torch.tensor(float(temperature)))
        self.register_buffer("bias", None if bias is None else torch.from_numpy(as_array(bias).astype(np.float32)))
        self.before, self.after = before, after

    def forward(self, logits: Tensor) -> Tensor:
        return _calibrated(logits, self.temperature, self.bias)

    def extra_repr(self) -> str:
        bias = "" if self.bias is None else f", bias of {self.bias.numel()} classes"
        scores = f"; {self.before} -> {self.after}" if self.before and self.after else ""
        return f"temperature={float(self.temperature):.4g}{bias}{scores}"


def _calibrated(logits: Tensor, temperature: Tensor, bias: Tensor | None) -> Tensor:
    scaled = full_precision(logits) / temperature
    return scaled if bias is None else scaled + along(bias, logits, class_dim(logits), "calibration")


@torch.inference_mode(False)  # fitting needs gradients, even inside no_grad and inference_mode
def fit_temperature(
    logits: Tensor,
    labels: ArrayLike | Tensor,
    *,
    source: PriorLike | None = None,
    target: PriorLike | None = None,
    bias: bool = False,
) -> Calibration:
    """Fit a temperature, and with `bias=True` a bias per class, to validation logits [N, K] that mean `source`.

    `labels` [N] are class indices, with any class frequencies; `target` is the prior for which the probabilities should
    be right. None is uniform, as everywhere: for a validation set like the training set, and the same prior in use,
    pass source=target=prior. Calibrated logits still mean `source`.

    labels   class indices, [N]
    bias     True to fit a bias per class too

    >>> generator = torch.Generator().manual_seed(0)
    >>> labels = torch.arange(3000) % 3
    >>> x = torch.randn(3000, 3, generator=generator) + 2 * F.one_hot(labels)
    >>> calibration = fit_temperature(6 * x, labels)                  # 2 x would be right: three times too sure
    >>> round(float(calibration.temperature), 1)
    3.0
    >>> calibration.after.log_loss < calibration.before.log_loss
    True
    """
    scores = _in_double(logits)
    if scores.ndim != 2:
        raise ValueError(f"logits have shape {tuple(scores.shape)}, expected [N, K]: one row per item")
    num_items, num_classes = scores.shape
    index = check_labels(labels, num_items, num_classes)
    if num_items == 0:
        raise ValueError("there is no item to fit a temperature to")
    warn_of_probabilities(scores, wrong="the calibration", instead="logits, e.g. p.log()")
    same = source is None and target is None
    shift = torch.zeros(num_classes) if same else softmax_shift(source, target)
    shift = along(shift.to(scores), scores, 1)  # raises if the classes do not fit
    wanted = np.full(num_classes, 1 / num_classes) if target is None else as_prior(target).probabilities
    counts = np.bincount(index, minlength=num_classes)
    if bias and (counts == 0).any():
        absent = np.flatnonzero(counts == 0)
        raise ValueError(
            f"{len(absent)} of {num_classes} classes have no validation item (the first is {absent[0]}), so their bias "
            "could be anything: add items, or fit the temperature alone with bias=False"
        )
    weights = torch.from_numpy((wanted / np.maximum(counts, 1))[index]).to(scores)
    kept = weights > 0  # a class ruled out in the target does not count
    if not kept.any():
        raise ValueError("no validation item has a class that the target prior allows: check source and target")
    scores, weights, truth = scores[kept], weights[kept], torch.from_numpy(index).to(scores.device)[kept]
    weights = _checked_weights(weights)

    def loss(calibrated: Tensor) -> Tensor:
        return (F.cross_entropy(calibrated - shift, truth, reduction="none") * weights).sum()

    def judged(calibrated: Tensor) -> CalibrationScores:
        return softmax_scores(calibrated - shift, truth, weights)

    return _fit(loss, judged, scores, bias).to(logits.device)


@torch.inference_mode(False)
def fit_sigmoid_temperature(
    logits: Tensor, labels: ArrayLike | Tensor, *, source: PriorLike | float, target_rate: Rate, bias: bool = False
) -> Calibration:
    """The counterpart for yes-or-no questions: validation logits [N, K], or [N], that mean the rates of `source`.

    `labels` are zeros and ones of the same shape; `target_rate` is the rate, or one per class, for which the
    probabilities should be right. Positive and negative items of a class are weighted so that it has that rate. There
    is one temperature for all classes and, with `bias=True`, one bias per class.

    labels   zeros and ones, shaped like the logits
    bias     True to fit a bias per class too

    >>> generator = torch.Generator().manual_seed(0)
    >>> labels = torch.arange(4000) % 2
    >>> x = torch.randn(4000, generator=generator) + 2 * labels - 1
    >>> calibration = fit_sigmoid_temperature(6 * x, labels, source=0.5, target_rate=0.5)   # 2 x would be right
    >>> round(float(calibration.temperature), 1)
    3.0
    """
    scores = _in_double(logits)
    answers = _check_answers(labels, scores)
    questions = scores.reshape(len(scores), -1)
    warn_of_probabilities(questions, several=True, wrong="the calibration", instead="logits, e.g. p.logit()")
    shift = sigmoid_shift(source, target_rate).to(scores)
    scores, answers, shift, weights = _columns(scores, answers, shift, target_rate)
    weights = _checked_weights(weights)

    def loss(calibrated: Tensor) -> Tensor:
        each = F.binary_cross_entropy_with_logits(calibrated - shift, answers, reduction="none")
        return (each * weights).sum()

    def judged(calibrated: Tensor) -> CalibrationScores:
        found = sigmoid_calibration_scores((calibrated - shift).sigmoid(), answers, weights=weights)
        return CalibrationScores(float(loss(calibrated)), found.brier, found.ece)

    calibration = _fit(loss, judged, scores, bias)
    if calibration.bias is not None and logits.ndim == 1:
        calibration.bias = calibration.bias.squeeze(0)
    return calibration.to(logits.device)


def rate_thresholds(
    logits: ArrayLike | Tensor,
    rate: Rate,
    *,
    labels: ArrayLike | Tensor | None = None,
    target_rate: Rate | None = None,
) -> Tensor:
    """One threshold per class, fp32 [K] (or []), that a share `rate` of the items exceeds: logits [N, K] or [N].

    No labels are needed, so nothing can be overfitted. If the items have other class rates than those in use, pass
    their `labels` (zeros and ones, same shape) and the rates in use as `target_rate`; positive and negative items are
    then weighted to those. Logits and probabilities both work; the thresholds are on the scale of what you pass.

    rate     the share of the items that should exceed the threshold: one number, or one per class
    labels   zeros and ones, shaped like the logits; only needed with `target_rate`

    >>> rate_thresholds(torch.arange(100.0), 0.1)
    tensor(89.5000)
    """
    given = logits if isinstance(logits, Tensor) else torch.from_numpy(np.array(as_array(logits)))  # of any strides
    scores = _in_double(given)
    if scores.ndim not in (1, 2) or scores.numel() == 0:
        raise ValueError(f"logits have shape {tuple(scores.shape)}: expected [N, K] or [N], with an item")
    if (labels is None) != (target_rate is None):
        raise ValueError("labels and target_rate go together: they weight the items to the rates in use")
    columns = scores.reshape(len(scores), -1)
    weights = torch.ones_like(columns)
    if labels is not None and target_rate is not None:
        *_, weights = _columns(scores, _check_answers(labels, scores), torch.zeros(()).to(scores), target_rate)
    shares = _rates(rate, columns.shape[1])
    least = 1 / len(columns)
    if min(shares.min(), 1 - shares.max()) < least:
        warnings.warn(
            f"a rate of {shares.min():.3g} to {shares.max():.3g} is less than one of the {len(columns)} items: "
            "the threshold is at their edge",
            stacklevel=outside(),
        )
    found = [
        _threshold(column, weight, share) for column, weight, share in zip(columns.T, weights.T, shares, strict=True)
    ]
    thresholds = torch.tensor(found, dtype=torch.float32)
    _check_ties(columns, weights, shares, thresholds)
    return thresholds.reshape(scores.shape[1:])


# -------------------------------------------------------------------- inside


def _in_double(logits: Tensor) -> Tensor:
    """A copy in float64, on its device if that supports it, detached and ready for gradients."""
    found = full_precision(logits).detach()
    if not bool(found.isfinite().all()):
        where = tuple((~found.isfinite()).nonzero()[0].tolist())
        raise ValueError(f"logits{list(where)} is {float(found[where])}: expected finite numbers")
    return (found.cpu() if found.device.type == "mps" else found).clone().double()


def _fit(
    loss: Callable[[Tensor], Tensor], judged: Callable[[Tensor], CalibrationScores], scores: Tensor, bias: bool
) -> Calibration:
    """The temperature and bias [K] with the lowest loss; the bias has mean 0 if its mean does not affect the loss."""
    scale = scores.std().clamp_min(1e-12) if scores.numel() > 1 else scores.new_ones(())
    log_sharpness = (-scale.log()).clamp(-LARGEST_LOG_TEMPERATURE, LARGEST_LOG_TEMPERATURE).clone().requires_grad_()
    offset = scores.new_zeros(scores.shape[1]).requires_grad_(bias)
    parameters = [log_sharpness, offset] if bias else [log_sharpness]
    optimizer = torch.optim.LBFGS(
        parameters, max_iter=1000, tolerance_grad=1e-10, tolerance_change=1e-14, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(scores * log_sharpness.clamp(-LARGEST_LOG_TEMPERATURE, LARGEST_LOG_TEMPERATURE).exp() + offset)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    with torch.enable_grad():
        optimizer.step(closure)  # type: ignore[no-untyped-call]
    temperature = (-log_sharpness.detach()).clamp(-LARGEST_LOG_TEMPERATURE, LARGEST_LOG_TEMPERATURE).exp()
    left = float(loss(_calibrated(scores, temperature, offset.detach())))
    why = ""
    if left < 1e-6:
        why = "the validation items are all predicted right, so they do not determine a confidence: use more, or others"
    elif float(temperature) > 100 * float(scale):
        why = "the logits say nothing about the labels: check that rows and labels belong together"
    if why:
        warnings.warn(f"there is no best temperature ({float(temperature):.2g} was found): {why}", stacklevel=outside())
    found = offset.detach() if bias else None
    after = judged(_calibrated(scores, temperature, found))
    return Calibration(temperature, found, before=judged(scores), after=after)


def _checked_weights(weights: Tensor) -> Tensor:
    """Weights that sum to 1, with a warning if a few items carry most of the weight."""
    weights = weights / weights.sum()
    effective = float(1 / (weights.sum(1) if weights.ndim == 2 else weights).square().sum())
    if effective < LEAST_EFFECTIVE_ITEMS:
        warnings.warn(
            f"weighted to the target, the {len(weights)} validation items count as {effective:.0f}: the calibration is "
            "uncertain; add items of the rare classes",
            stacklevel=outside(),
        )
    return weights


def _check_answers(labels: ArrayLike | Tensor, scores: Tensor) -> Tensor:
    """Zeros and ones [N, K] or [N] as float64, on the device of the logits."""
    answers = torch.from_numpy(as_array(labels).astype(np.float64)).to(scores.device)
    if scores.ndim not in (1, 2) or len(scores) == 0 or answers.shape != scores.shape:
        raise ValueError(
            f"logits have shape {tuple(scores.shape)}, labels {tuple(answers.shape)}: expected [N, K] or [N], both"
        )
    if not bool(((answers == 0) | (answers == 1)).all()):
        raise ValueError("labels hold values other than 0 and 1: expected the answer to every question")
    return answers


def _columns(
    scores: Tensor, answers: Tensor, shift: Tensor, target_rate: Rate
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Everything as [N, K], with weights that give every class its rate in use and the same total weight."""
    scores, answers = scores.reshape(len(scores), -1), answers.reshape(len(answers), -1)
    num_classes = scores.shape[1]
    if shift.numel() not in (1, num_classes):
        raise ValueError(f"the rates have {shift.numel()} classes, logits have {num_classes}: give one per class")
    yes = answers.sum(0)
    one_sided = ((yes == 0) | (yes == len(answers))).nonzero()
    if len(one_sided):
        column = int(one_sided[0])
        raise ValueError(
            f"class {column} has {int(yes[column])} positive items of {len(answers)}: a rate needs both kinds; "
            "leave the class out"
        )
    rate = torch.from_numpy(_rates(target_rate, num_classes)).to(scores)
    weights = torch.where(answers == 1, rate / yes, (1 - rate) / (len(answers) - yes))
    return scores, answers, shift.reshape(-1), weights


def _rates(rate: Any, num_classes: int) -> FloatArray:
    rates = as_array(rate).astype(np.float64)
    if rates.ndim > 1 or rates.size not in (1, num_classes) or not ((rates > 0) & (rates < 1)).all():
        raise ValueError(
            f"the rate is {rates if rates.size <= 10 else f'{rates.size} values'}: expected one, or one for each of "
            f"{num_classes} classes, strictly between 0 and 1"
        )
    return np.array(np.broadcast_to(rates.reshape(-1), num_classes))


def _check_ties(scores: Tensor, weights: Tensor, shares: FloatArray, thresholds: Tensor) -> None:
    """Warn if no threshold lets exactly the rate through, because many items have the same score."""
    weights = weights / weights.sum(0)
    exceeding = (weights * (scores > thresholds.to(scores))).sum(0).cpu().numpy()
    missing = np.abs(exceeding - shares) - weights.max(0).values.cpu().numpy()
    column = int(missing.argmax())
    if missing[column] > 1e-6:
        warnings.warn(
            f"{exceeding[column]:.3g} of the items exceed the threshold of class {column}, not {shares[column]:.3g}: "
            "many have the same score; pass logits instead of probabilities that saturated or were rounded",
            stacklevel=outside(),
        )


def _threshold(scores: Tensor, weights: Tensor, rate: float) -> float:
    """Halfway between the last score within the weighted `rate` from the top and the next one below."""
    order = scores.argsort(descending=True)
    above = weights[order].cumsum(0) / weights.sum()
    last = min(max(int((above <= rate + 1e-12).sum()), 1), len(order) - 1) if len(order) > 1 else 0
    return float((scores[order[max(last - 1, 0)]] + scores[order[last]]) / 2)
