"""An experiment on real data: what the prior is worth when the class frequencies change after training.

Two losses are trained on long-tailed digits. The held-out images are split into a balanced validation set, which only
calibration and BBSE see, and a pool from which test sets with other class frequencies are drawn without replacement:
long-tailed forward (as in training) and backward, balanced, and drawn from a Dirichlet distribution. Every test set is
predicted with the model as trained, with the true class frequencies, and with frequencies estimated from the unlabelled
predictions, each without and with calibration (bias-corrected temperature scaling).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.data.digits import Digits, load_digits_lt
from equipoise.experiments.demo import Settings, fitted
from equipoise.experiments.prior_shift.published import NAME as NAME
from equipoise.experiments.prior_shift.published import SHIFTS as SHIFTS
from equipoise.experiments.prior_shift.records import PriorShiftRecord as PriorShiftRecord
from equipoise.losses.balanced_softmax import BalancedSoftmaxLoss
from equipoise.metrics.calibration import calibration_scores
from equipoise.prior import FloatArray, IntArray, Prior
from equipoise.serving.adjust import adjust_logits
from equipoise.serving.calibrate import Calibration, fit_temperature
from equipoise.serving.estimate import estimate_prior
from equipoise.training.records import hardware, versions

SEEDS = (0, 1, 2, 3, 4)
IMBALANCE = 50
BASE = Settings(IMBALANCE)
VALIDATION_PER_CLASS = 15
TEST_PER_CLASS = 50
DIRICHLET_DRAWS = 4  # per seed

Loss = Callable[[Prior], nn.Module]
METHODS: dict[str, tuple[Loss, bool]] = {  # loss, and whether its logits mean the training prior
    "softmax": (lambda prior: nn.CrossEntropyLoss(), True),
    "balanced_softmax": (lambda prior: BalancedSoftmaxLoss(prior), False),
}


def load() -> Digits:
    """The long-tailed training images, and those that are held out for validation and test."""
    return load_digits_lt(IMBALANCE, VALIDATION_PER_CLASS + TEST_PER_CLASS)


def fit(method: str, seed: int, digits: Digits, iterations: int) -> nn.Module:
    """Train one model."""
    return fitted(METHODS[method][0](digits.prior), digits, replace(BASE, iterations=iterations), seed)


def record(method: str, seed: int, digits: Digits, logits: Tensor, **more: Any) -> PriorShiftRecord:
    """Evaluate the logits of all held-out images on every test set of the seed; `more` holds the other fields of a
    record."""
    validation, pool = split(digits)
    source = digits.prior if METHODS[method][1] else Prior.uniform(digits.prior.num_classes)
    held_out = (logits[validation], digits.test_labels[validation])
    temperature = fit_temperature(*held_out, source=source)
    corrected = fit_temperature(*held_out, source=source, bias=True)
    return PriorShiftRecord(
        table=NAME,
        method=method,
        seed=seed,
        imbalance=IMBALANCE,
        counts=digits.prior.counts.tolist(),
        validation_per_class=VALIDATION_PER_CLASS,
        test_per_class=TEST_PER_CLASS,
        calibration={
            "before": _scores(logits[pool], digits.test_labels[pool], source),
            "temperature": _scores(logits[pool], digits.test_labels[pool], source, temperature),
            "bias-corrected": _scores(logits[pool], digits.test_labels[pool], source, corrected),
        },
        test_sets=[
            {
                "shift": shift,
                "counts": counts.tolist(),
                "results": {
                    "raw": judged(logits, digits.test_labels, chosen, validation, source),
                    "calibrated": judged(corrected(logits), digits.test_labels, chosen, validation, source),
                },
            }
            for shift, counts, chosen in test_sets(digits.test_labels, pool, seed)
        ],
        versions=versions(),
        hardware=hardware(torch.device("cpu")),
        **more,
    )


def split(digits: Digits) -> tuple[IntArray, IntArray]:
    """Indices into the held-out images: validation and test pool, a fixed random share of each class."""
    random = np.random.RandomState(0)
    shuffled = [random.permutation(np.flatnonzero(digits.test_labels.numpy() == j)) for j in range(10)]
    validation = np.concatenate([index[:VALIDATION_PER_CLASS] for index in shuffled])
    return validation, np.concatenate([index[VALIDATION_PER_CLASS:] for index in shuffled])


def test_sets(labels: Tensor, pool: IntArray, seed: int) -> Iterator[tuple[str, IntArray, IntArray]]:
    """Every shift: its name, the counts of each class, and which images; all images of the most frequent class are
    used."""
    generator = np.random.default_rng(seed)
    of_class = [pool[labels.numpy()[pool] == j] for j in range(10)]
    rank = np.arange(10) / 9
    wanted: list[tuple[str, FloatArray]] = [
        ("forward-50", 50.0**-rank),
        ("forward-10", 10.0**-rank),
        ("uniform", np.ones(10)),
        ("backward-10", 10.0 ** (rank - 1)),
        ("backward-50", 50.0 ** (rank - 1)),
    ]
    wanted += [("dirichlet", generator.dirichlet(np.ones(10))) for _ in range(DIRICHLET_DRAWS)]
    for shift, share in wanted:
        counts = np.rint(TEST_PER_CLASS * share / share.max()).astype(np.int64)
        chosen = [generator.permutation(index)[:n] for index, n in zip(of_class, counts, strict=True)]
        yield shift, counts, np.concatenate(chosen)


test_sets.__test__ = False  # type: ignore[attr-defined]  # pytest: this is no test


def judged(
    logits: Tensor, labels: Tensor, chosen: IntArray, validation: IntArray, source: Prior
) -> dict[str, dict[str, Any]]:
    """Every treatment of one test set."""
    truth = labels[chosen]
    true_prior = Prior.from_labels(truth, num_classes=10)
    probabilities = logits.softmax(1)
    labelled = (probabilities[validation], labels[validation])
    results: dict[str, dict[str, Any]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # doubts are recorded, and classes without items are expected
        estimates = {
            name: estimate_prior(probabilities[chosen], source, method=name.lower(), validation=labelled)
            for name in ("EM", "BBSE")
        }
        targets = {"as trained": source, "known": true_prior} | {name: e.prior for name, e in estimates.items()}
        for name, target in targets.items():
            served = adjust_logits(logits[chosen], source=source, target=target)
            distance = float(np.abs(target.probabilities - true_prior.probabilities).sum() / 2)
            results[name] = {
                "accuracy": round(100 * float((served.argmax(1) == truth).double().mean()), 3),
                "log_loss": round(float(F.cross_entropy(served.double(), truth)), 5),
                "total_variation": round(distance, 4),
            }
        for name, estimate in estimates.items():
            within = (estimate.low <= true_prior.probabilities) & (true_prior.probabilities <= estimate.high)
            results[name] |= {"trusted": estimate.trusted, "covered": float(within.mean())}
    return results


def _scores(logits: Tensor, labels: Tensor, source: Prior, calibration: Calibration | None = None) -> dict[str, float]:
    """log-loss, Brier and ECE on the balanced pool, predicted for balanced classes."""
    means = logits if calibration is None else calibration(logits)
    probabilities = adjust_logits(means, source=source, target=Prior.uniform(10)).softmax(1)
    found = {name: round(value, 5) for name, value in asdict(calibration_scores(probabilities, labels)).items()}
    return found | ({} if calibration is None else {"temperature": round(float(calibration.temperature), 4)})
