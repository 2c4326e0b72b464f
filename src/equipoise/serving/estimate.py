"""Estimate the class prior where a model is used, from its predictions on unlabelled items.

It is assumed that p(x|y) stays the same between training and use, and only the prior π changes (label shift).

    EM     π_j ← mean_i p(y = j|x_i) under π,   p(j|x_i) ∝ π_j · r_ij,   r_ij = p_source(j|x_i) / π_source,j
           climbs to the π of greatest likelihood Π_i Σ_j π_j r_ij; needs calibrated probabilities, no labels
    BBSE   M π = μ,   M_ij = share predicted i among validation items of class j,   μ_i = share of items predicted i
           needs a labelled validation set, but no calibration: only that the same classifier made both predictions

The log-likelihood is concave in π, and no π is better by more than max_j mean_i r_ij / Σ_k π_k r_ik − 1 per item; EM
stops when that bound is negligible. Every second step is extrapolated (SQUAREM), which saves most of the steps.

References: Saerens, Latinne, Decaestecker, "Adjusting the outputs of a classifier to new a priori probabilities", 2002.
Lipton, Wang, Smola, "Detecting and correcting for label shift with black box predictors", 2018, arXiv 1802.03916.
Varadhan, Roland, "Simple and globally convergent methods for accelerating ... any EM algorithm", 2008.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from equipoise.arrays import outside
from equipoise.metrics.checks import check_labels, check_probabilities
from equipoise.prior import FloatArray, IntArray, Prior, PriorLike, as_prior, log_ratio

Predictions: TypeAlias = ArrayLike | Tensor
METHODS = ("em", "bbse")

LEAST_ITEMS_A_CLASS = 10  # with fewer, on average, an estimate is a guess
LEAST_SINGULAR_VALUE = 0.1  # of the confusion matrix: below it, sampling noise grows more than tenfold
LARGEST_SPREAD = 0.1  # total variation by which resampling the items may move the estimate
MOST_CERTAIN_ROWS = 0.5  # share of rows that are exactly 0 or 1: beyond it they are decisions, not probabilities
TEMPERATURES = (0.8, 1.25)  # if a validation set asks for one outside of these, the probabilities are off
LARGEST_EXCESS = 0.25  # of the sum of a class's probabilities over (or under) its validation items, as a share of them
MEAN_OF_HALF_NORMAL = 0.7978845608028654  # sqrt(2 / π): the mean distance from 0, in standard errors
Z_99 = 2.3263478740408408  # a normal variable exceeds it once in a hundred
CERTAINTY = 10.83  # of a likelihood ratio with one degree of freedom: one in a thousand by chance
MAX_STEPS = 3000
ELEMENTS_AT_ONCE = 1 << 24
MOST_RESAMPLED_ITEMS = 20_000


@dataclass(frozen=True, eq=False, repr=False)
class PriorEstimate:
    """What `estimate_prior` found. `prior` is a `Prior` to pass to `adjust_logits(..., target=estimate.prior)`.

    `low` and `high` are bootstrap 95 % intervals [K] (NaN if none were requested); `spread` is how far resampling the
    items moves the whole estimate on average (total variation); `doubts` lists, in words, the reasons not to trust the
    estimate, and is empty if there are none.

    >>> p = np.tile([[0.9, 0.1], [0.2, 0.8], [0.1, 0.9], [0.1, 0.9]], (100, 1))
    >>> estimate = estimate_prior(p, [0.5, 0.5])
    >>> estimate.prior.probabilities.round(2).tolist(), estimate.method, estimate.num_items
    ([0.2, 0.8], 'em', 400)
    >>> bool((estimate.low <= estimate.probabilities).all())
    True
    """

    prior: Prior  # the estimate
    low: FloatArray  # [K] lower ends of the 95 % intervals
    high: FloatArray  # [K] upper ends
    spread: float  # how far resampling moves the estimate, in total variation
    method: str  # "em" or "bbse"
    num_items: int  # how many items it is based on
    doubts: tuple[str, ...]  # reasons not to trust it
    calibration_checked: bool  # whether a validation set was given to check the probabilities with

    @property
    def probabilities(self) -> FloatArray:
        """The estimated prior: float64 [K], read-only."""
        return self.prior.probabilities

    @property
    def trusted(self) -> bool:
        """Whether none of the checks raised a doubt about the estimate."""
        return not self.doubts

    def __repr__(self) -> str:
        word = "trusted" if self.trusted else f"not trusted: {len(self.doubts)} doubts"
        return f"PriorEstimate({self.method}, {self.num_items:,} items, {word}, {self.prior!r})"

    def __str__(self) -> str:
        """A table, largest classes first (at most 20), then the doubts."""
        order = np.argsort(-self.probabilities, kind="stable")
        lines = [f"{'class':<16}{'estimate':>10}  95 % interval   ({self.method}, {self.num_items:,} items)"]
        for j in order[:20]:
            name = " ".join(self.prior.name(int(j)).split())[:15]
            interval = "–" if np.isnan(self.low[j]) else f"{self.low[j]:.4f} to {self.high[j]:.4f}"
            lines.append(f"{name:<16}{self.probabilities[j]:>10.4f}  {interval}")
        if len(order) > 20:
            lines.append(f"... and {len(order) - 20} more classes")
        lines += [f"not trusted: {doubt}" for doubt in self.doubts]
        if self.method == "em" and not self.calibration_checked:
            lines.append("calibration was not checked: pass validation=(probabilities, labels)")
        return "\n".join(lines)


def estimate_prior(
    probabilities: Predictions,
    source: PriorLike | None,
    *,
    method: str = "em",
    validation: tuple[Predictions, ArrayLike | Tensor] | None = None,
    resamples: int = 200,
    seed: int = 0,
) -> PriorEstimate:
    """The class prior of items whose predicted `probabilities` [N, K] mean the prior `source` (None: uniform).

    `method="em"` needs calibrated probabilities, and checks them if `validation=(probabilities [M, K], labels [M])` is
    given; `method="bbse"` requires it. The validation set may have any class frequencies, but its predictions must come
    from the same model, which must not have been trained on it. `resamples=0` skips the bootstrap.

    A class that would get less than half an item is given half an item, so that the estimate never rules one out.

    method       "em" (expectation maximisation) or "bbse" (confusion matrix)
    validation   probabilities [M, K] and labels [M] of a labelled set, or None
    resamples    bootstrap draws for the intervals; 0 skips them
    seed         the seed of the bootstrap

    >>> generator = np.random.default_rng(0)
    >>> labels = generator.choice(2, 2000, p=[0.2, 0.8])                       # eight of ten are owls
    >>> x = generator.normal(2.0 * labels - 1)
    >>> p = 1 / (1 + np.exp(2 * x))                                            # trained where half were
    >>> estimate = estimate_prior(np.stack([p, 1 - p], 1), [0.5, 0.5])
    >>> estimate.probabilities.round(2).tolist(), estimate.trusted
    ([0.21, 0.79], True)
    """
    _check_options(method, resamples, validation)
    scores = check_probabilities(probabilities)
    num_items, num_classes = scores.shape
    prior = Prior.uniform(num_classes) if source is None else as_prior(source)
    check_source(prior, num_classes)
    if num_items == 0:
        raise ValueError("probabilities have no row: there is nothing to estimate a prior from")
    held_out = None if validation is None else _check_validation(validation, num_classes)
    generator = np.random.default_rng(seed)

    doubts = []
    if num_items < LEAST_ITEMS_A_CLASS * num_classes:
        doubts.append(
            f"{num_items} items are few for {num_classes} classes: use {LEAST_ITEMS_A_CLASS * num_classes} or more"
        )
    if method == "bbse":
        assert held_out is not None
        estimate, replicates, found = _bbse(scores, held_out, prior, resamples, generator)
    else:
        estimate, replicates, found = _em(scores, prior, resamples, generator)
        if held_out is not None:
            found += _calibration_doubts(*held_out, prior)
    doubts += found

    estimate = _none_ruled_out(estimate, num_items)
    low, high, spread = _interval(estimate, _none_ruled_out(replicates, num_items))
    if spread > LARGEST_SPREAD:
        doubts.append(
            f"resampling the items moves the estimate by {spread:.2f} (total variation): use more items, "
            "or a model that tells the classes apart better"
        )
    if doubts:
        warnings.warn(f"the estimated prior cannot be trusted: {'; '.join(doubts)}", stacklevel=outside())
    return PriorEstimate(
        prior=Prior.from_probabilities(estimate, class_names=prior.class_names),
        low=low,
        high=high,
        spread=spread,
        method=method,
        num_items=num_items,
        doubts=tuple(doubts),
        calibration_checked=method == "em" and held_out is not None,
    )


def _interval(estimate: FloatArray, replicates: FloatArray) -> tuple[FloatArray, FloatArray, float]:
    """95 % limits [K] of resampled estimates [resamples, K], and their mean distance from the estimate."""
    if not len(replicates):
        return np.full_like(estimate, np.nan), np.full_like(estimate, np.nan), float("nan")
    low, high = np.quantile(replicates, [0.025, 0.975], axis=0)
    spread = float(np.abs(replicates - estimate).sum(axis=1).mean() / 2)
    return np.minimum(low, estimate), np.maximum(high, estimate), spread


# -------------------------------------------------------------------- EM


def _em(
    scores: Tensor, prior: Prior, resamples: int, generator: np.random.Generator
) -> tuple[FloatArray, FloatArray, list[str]]:
    """The estimate [K], resampled estimates [resamples, K], and doubts."""
    seen = torch.from_numpy(np.exp(log_ratio(prior))).to(scores.device)
    ratios = scores / seen
    num_items = len(ratios)
    start = (seen / seen.sum())[:, None]
    pi, bound = _climb(ratios, torch.full((num_items, 1), 1 / num_items).to(ratios), start, 1e-9)
    doubts = []
    if bound > 1e-4:
        doubts.append(f"EM has not converged after {MAX_STEPS} steps: the classes can hardly be told apart")
    certain = float((scores.max(1).values == 1).double().mean())
    if certain > MOST_CERTAIN_ROWS:
        doubts.append(
            f"{100 * certain:.0f} % of the rows are exactly 0 or 1: these are decisions, or probabilities that "
            "saturated; pass calibrated probabilities (docs/estimation.md)"
        )
    doubts += _flat_doubts(ratios, pi, prior)
    replicates = _resampled(ratios, pi, start, resamples, generator)
    return pi[:, 0].cpu().numpy(), replicates, doubts


def _flat_doubts(ratios: Tensor, pi: Tensor, prior: Prior) -> list[str]:
    """Doubts about a direction in which the likelihood is almost flat: classes that are always predicted in proportion.

    The bootstrap cannot see it, because every resampled estimate stays where it started along that direction.
    """
    num_items = len(ratios)
    found = pi[:, 0] >= LEAST_ITEMS_A_CLASS / num_items  # at the edge of the simplex the curvature says nothing
    if int(found.sum()) < 2:
        return []
    posteriors = (ratios * pi[:, 0])[:, found]
    posteriors = posteriors / (ratios @ pi).clamp_min(1e-300)
    root = pi[found, 0].sqrt()
    # What an item tells about π, relative to its label: 1 in every direction if the classes are never confused.
    information = posteriors.T @ posteriors / num_items / root[:, None] / root
    unit = (root / root.norm())[:, None]
    bend, directions = torch.linalg.eigh(information + (2 - unit.T @ information @ unit) * unit * unit.T)
    step = directions[:, 0] * root / (num_items * bend[0].clamp_min(1e-12)).sqrt()  # one standard error
    step = step - step.sum() * root**2 / (root**2).sum()
    if float(step.abs().sum()) / 2 * MEAN_OF_HALF_NORMAL <= LARGEST_SPREAD:
        return []
    classes = found.nonzero()[:, 0]
    names = [prior.name(int(classes[place])) for place in (int(step.argmax()), int(step.argmin()))]
    return [
        f"the predictions do not tell classes {names[0]} and {names[1]} apart, so their shares are a guess: merge "
        "them, or use a model that does"
    ]


def _resampled(ratios: Tensor, pi: Tensor, start: Tensor, resamples: int, generator: np.random.Generator) -> FloatArray:
    """Bootstrap estimates [resamples, K]; with very many items only a part is resampled, and its deviations are
    scaled."""
    num_items, num_classes = ratios.shape
    replicates = np.empty((resamples, num_classes))
    if not resamples:
        return replicates
    centre, size = pi, min(num_items, MOST_RESAMPLED_ITEMS)
    if size < num_items:
        ratios = ratios[torch.from_numpy(generator.choice(num_items, size, replace=False)).to(ratios.device)]
        centre, _ = _climb(ratios, ratios.new_full((size, 1), 1 / size), 0.9 * pi + 0.1 * start, 1e-9)
    start = 0.9 * centre + 0.1 * start  # not from the optimum itself: a class at 0 could not come back
    at_once = max(1, ELEMENTS_AT_ONCE // size)
    for first in range(0, resamples, at_once):
        columns = min(at_once, resamples - first)
        drawn = generator.multinomial(size, np.full(size, 1 / size), size=columns)
        weights = torch.from_numpy(drawn.T / size).to(ratios)
        close = 5e-3 * num_classes / size  # a hundredth of what sampling alone does to the likelihood, K / 2N
        found, _ = _climb(ratios, weights, start.expand(-1, columns), close)
        replicates[first : first + columns] = found.T.cpu().numpy()
    scaled = pi.T.cpu().numpy() + (size / num_items) ** 0.5 * (replicates - centre.T.cpu().numpy())
    return np.maximum(scaled, 0) if size < num_items else replicates


def _climb(ratios: Tensor, weights: Tensor, pi: Tensor, tolerance: float) -> tuple[Tensor, float]:
    """The columns π [K, B] that maximise Σ_i weights_ib · log Σ_j π_jb ratios_ij, and a bound on the remaining gap.

    `ratios` [N, K], `weights` [N, B] with columns that sum to 1, `pi` [K, B] to start from.
    """

    def likelihood_and_gain(pi: Tensor) -> tuple[Tensor, Tensor]:
        mixture = (ratios @ pi).clamp_min(1e-300)
        return (weights * mixture.log()).sum(0), ratios.T @ (weights / mixture)

    bound = float("inf")
    for _ in range(MAX_STEPS // 3):
        _, gain = likelihood_and_gain(pi)
        bound = float(gain.max()) - 1
        if bound < tolerance:
            break
        once = pi * gain
        likelihood, gain = likelihood_and_gain(once)
        twice = once * gain
        step, bend = once - pi, twice - 2 * once + pi
        length = (step.norm(dim=0) / bend.norm(dim=0).clamp_min(1e-300)).clamp(1, 1e4)
        leap = torch.maximum(pi + 2 * length * step + length**2 * bend, 0.1 * twice)
        leap = leap / leap.sum(0)
        reached, gain = likelihood_and_gain(leap)
        pi = torch.where(reached >= likelihood, leap * gain, twice)  # an extrapolation that did not help is not taken
    return pi / pi.sum(0), bound


# -------------------------------------------------------------------- BBSE


def _bbse(
    scores: Tensor, validation: tuple[Tensor, IntArray], prior: Prior, resamples: int, generator: np.random.Generator
) -> tuple[FloatArray, FloatArray, list[str]]:
    """The estimate [K], resampled estimates [resamples, K], and doubts."""
    held_out, labels = validation
    num_items, num_classes = scores.shape
    predicted = np.bincount(scores.argmax(1).cpu().numpy(), minlength=num_classes)
    cells = held_out.argmax(1).cpu().numpy() * num_classes + labels
    confusion = np.bincount(cells, minlength=num_classes**2).reshape(num_classes, num_classes)
    items = confusion.sum(axis=0)
    absent = np.flatnonzero(items == 0)
    if len(absent):
        names = ", ".join(prior.name(int(j)) for j in absent[:10]) + (", ..." if len(absent) > 10 else "")
        raise ValueError(
            f"the validation set has no item of {len(absent)} classes ({names}), and it is unknown how they are "
            "predicted: add some, or use method='em'"
        )
    shares = confusion / items
    doubts = []
    smallest = float(np.linalg.svd(shares, compute_uv=False)[-1])
    if smallest < LEAST_SINGULAR_VALUE:
        never = int((confusion.sum(axis=1) == 0).sum())
        why = f" ({never} classes are never predicted)" if never else ""
        doubts.append(
            f"the confusion matrix is ill-conditioned, its smallest singular value is {smallest:.2g}{why}: "
            "some classes cannot be told apart by what is predicted; try method='em'"
        )
    if items.min() < LEAST_ITEMS_A_CLASS:
        name = prior.name(int(items.argmin()))
        doubts.append(
            f"the validation set has only {items.min()} items of class {name}: use {LEAST_ITEMS_A_CLASS} or more of "
            "each"
        )
    estimate = _solve(shares, predicted / num_items)
    replicates = np.empty((resamples, num_classes))
    for row in replicates:
        drawn = np.stack([generator.multinomial(n, column) for n, column in zip(items, shares.T, strict=True)], 1)
        row[:] = _solve(drawn / items, generator.multinomial(num_items, predicted / num_items) / num_items)
    return estimate, replicates, doubts


def _solve(shares: FloatArray, predicted: FloatArray) -> FloatArray:
    """π with shares @ π = predicted, in the least-squares sense; negative values are set to 0."""
    pi = np.maximum(np.linalg.lstsq(shares, predicted, rcond=1e-10)[0], 0)
    return np.asarray(pi / pi.sum())


# -------------------------------------------------------------------- doubts about an estimate


def _calibration_doubts(held_out: Tensor, labels: IntArray, prior: Prior) -> list[str]:
    """Doubts if a temperature other than 1 explains the labels of the validation set far better, or if the
    probabilities of some class do not sum to about the number of its items."""
    counts = np.bincount(labels, minlength=prior.num_classes)
    seen = torch.from_numpy(np.exp(log_ratio(prior))).to(held_out.device)
    moved = held_out / seen * torch.from_numpy(counts / counts.sum()).to(held_out.device)  # to the prior of this set
    logits = (moved / moved.sum(1, keepdim=True).clamp_min(1e-300)).clamp_min(1e-300).log()
    target = torch.from_numpy(labels).to(held_out.device)

    def loss(temperature: float) -> float:
        return float(torch.nn.functional.cross_entropy(logits / temperature, target))

    grid = np.exp(np.linspace(np.log(0.1), np.log(10), 93))  # holds 1 and steps of 5 %
    best = float(grid[int(np.argmin([loss(temperature) for temperature in grid]))])
    certain = 2 * len(labels) * (loss(1.0) - loss(best)) > CERTAINTY
    doubts = []
    if certain and not TEMPERATURES[0] <= best <= TEMPERATURES[1]:
        how = "over-confident" if best > 1 else "under-confident"
        doubts.append(
            f"the probabilities are {how}: the validation set asks for temperature {best:.2g}; calibrate them first, "
            "e.g. eq.fit_temperature(..., bias=True)"
        )
    p = logits.exp()
    expected = p.sum(0).cpu().numpy()
    excess = expected - counts  # the score of a bias per class, and below its covariance
    covariance = (torch.diag(p.sum(0)) - p.T @ p).cpu().numpy()
    surprise = float(excess @ np.linalg.pinv(covariance, rcond=1e-9, hermitian=True) @ excess)
    share = np.abs(excess) / np.maximum(counts, 1)
    worst = int(np.argmax(np.where(counts > 0, share, 0)))
    if surprise > _chi_squared(prior.num_classes - 1) and share[worst] > LARGEST_EXCESS:
        doubts.append(
            f"the probabilities of whole classes are off: on the validation set those of class {prior.name(worst)} sum "
            f"to {expected[worst]:.1f}, but it has {counts[worst]} items; calibrate them first, "
            "e.g. eq.fit_temperature(..., bias=True)"
        )
    return doubts


def _chi_squared(degrees: int) -> float:
    """The value that a sum of squares of this many normals exceeds once in a hundred (Wilson and Hilferty's cube
    root)."""
    spread = 2 / (9 * max(degrees, 1))
    return float(max(degrees, 1) * (1 - spread + Z_99 * spread**0.5) ** 3)


def _none_ruled_out(pi: FloatArray, num_items: int) -> FloatArray:
    """Raise every share to at least half an item."""
    raised = np.maximum(pi, 0.5 / num_items)
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True))


# -------------------------------------------------------------------- what comes in


def _check_options(method: str, resamples: int, validation: Any) -> None:
    if method not in METHODS:
        raise ValueError(f"method is {method!r}: expected 'em' or 'bbse'")
    if resamples < 0:
        raise ValueError(f"resamples is {resamples}: expected 0 (no intervals) or more, e.g. 200")
    if method == "bbse" and validation is None:
        raise ValueError(
            "method 'bbse' measures the model's confusions: pass validation=(probabilities, labels) of a labelled "
            "set that it was not trained on, or use method='em', which needs no labels"
        )


def check_source(prior: Prior, num_classes: int) -> None:
    """Refuse a prior with another number of classes, or one counted over items with several classes or none."""
    if prior.num_classes != num_classes:
        raise ValueError(
            f"source has {prior.num_classes} classes, probabilities have {num_classes}: "
            f"build it with num_classes={num_classes}"
        )
    total = float(prior.probabilities.sum())
    if abs(total - 1) > 1e-4:
        raise ValueError(
            f"the probabilities of source sum to {total:.4g}: they are rates of items with several classes or none; "
            "estimating a prior is for items of exactly one class"
        )


def _check_validation(validation: Any, num_classes: int) -> tuple[Tensor, IntArray]:
    if not isinstance(validation, tuple | list) or len(validation) != 2:
        raise TypeError(f"validation is a {type(validation).__name__}: expected a pair (probabilities, labels)")
    scores = check_probabilities(validation[0], "the validation probabilities")
    if scores.shape[1] != num_classes:
        raise ValueError(
            f"the validation probabilities have {scores.shape[1]} classes, the others have {num_classes}: predict both "
            "with the same model"
        )
    if len(scores) == 0:
        raise ValueError("the validation set is empty: leave it out, or pass a labelled set")
    return scores, check_labels(validation[1], len(scores), num_classes, "the validation labels")
