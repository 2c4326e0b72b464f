"""The methods that a classifier can be trained with, by name: what each changes in a recipe.

softmax            cross-entropy, the baseline
cbw, cbs           weights 1/n; every class sampled equally often
focal, class_balanced, ldam, eql   the losses of their papers; the values are in `methods`
balanced_softmax   the prior inside the softmax
adjusted           the softmax model with the log prior subtracted afterwards; nothing is trained
crt, lws, decoupled_balanced_softmax   a second stage on the frozen backbone of softmax: a new head on balanced
                   samples, one factor per class, a new head with Balanced Softmax
sigmoid, balanced_sigmoid   one binary problem per class
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn

from equipoise.losses.balanced_sigmoid import BalancedSigmoidLoss
from equipoise.losses.balanced_softmax import BalancedSoftmaxLoss
from equipoise.losses.class_balanced import ClassBalancedLoss
from equipoise.losses.equalization import EqualizationLoss
from equipoise.losses.focal import FocalLoss
from equipoise.losses.ldam import LDAMLoss
from equipoise.losses.weights import inverse_frequency_weights
from equipoise.metrics.sweep import LogitsMean
from equipoise.prior import Prior
from equipoise.training.recipe import Recipe

SECOND_STAGE = 0.2  # of the first stage's iterations
RARE = 0.3  # EQL: a class is rare below this share of 1/K


def weighted_cross_entropy(prior: Prior) -> nn.CrossEntropyLoss:
    """Class-balanced weighting: cross-entropy with weights ∝ 1/n_j."""
    return nn.CrossEntropyLoss(weight=inverse_frequency_weights(prior))


def sigmoid_cross_entropy(prior: Prior) -> BalancedSigmoidLoss:
    """K binary problems, summed over classes: Balanced Sigmoid under a uniform prior, so that the shift is 0."""
    return BalancedSigmoidLoss(Prior.uniform(prior.num_classes), reduction="batchmean")


def equalization_loss(prior: Prior) -> EqualizationLoss:
    """EQL with a threshold proportional to 1/K, close to its paper's for 100 classes."""
    return EqualizationLoss(prior, gamma=0.95, threshold=RARE / prior.num_classes)


def with_loss(recipe: Recipe, loss: Callable[..., nn.Module], **options: Any) -> Recipe:
    """A recipe with another loss; an option may differ by data set."""
    return replace(recipe, loss=loss, options=options)


def methods(base: Recipe) -> dict[str, Recipe]:
    """Every method by name, on the same recipe."""
    sigmoid = replace(base, rare_bias=True)
    second = replace(base, backbone="softmax", iterations=max(1, round(SECOND_STAGE * base.iterations)), warmup=0)
    return {
        "softmax": base,
        "cbw": with_loss(base, weighted_cross_entropy),
        "cbs": replace(base, sampler="class_balanced"),
        "focal": with_loss(base, FocalLoss, gamma=1.0),
        "class_balanced": with_loss(base, ClassBalancedLoss, beta=0.999),
        "ldam": with_loss(replace(base, head="normalized"), LDAMLoss, max_margin=0.5, scale=30.0),
        "eql": with_loss(base, equalization_loss),
        "balanced_softmax": with_loss(base, BalancedSoftmaxLoss, tau=1.0),
        "sigmoid": with_loss(sigmoid, sigmoid_cross_entropy),
        "balanced_sigmoid": with_loss(sigmoid, BalancedSigmoidLoss, reduction="batchmean"),
        "adjusted": replace(second, head="kept", iterations=0, adjusted=True, sampler="instance"),
        "crt": replace(second, sampler="class_balanced"),
        "lws": replace(second, sampler="class_balanced", head="scaled"),
        "decoupled_balanced_softmax": with_loss(replace(second, sampler="instance"), BalancedSoftmaxLoss, tau=1.0),
    }


def logits_mean(recipe: Recipe) -> LogitsMean:
    """The prior that a model's logits mean after training with this recipe: what its loss declares, or equal classes
    if weights or sampling balance them."""
    balanced = recipe.loss is weighted_cross_entropy or recipe.adjusted or _sampled_equally(recipe)
    return "uniform" if balanced else _declared(recipe)


def balances_twice(recipe: Recipe) -> bool:
    """Whether class-balanced samples meet a loss that balances the prior of the data, which is no longer theirs."""
    return _sampled_equally(recipe) and _declared(recipe) == "uniform"


def _sampled_equally(recipe: Recipe) -> bool:
    """Whether sampling moves the logits to equal classes."""
    return recipe.sampler == "class_balanced" and not recipe.taught_alone


def _declared(recipe: Recipe) -> LogitsMean:
    declared: LogitsMean = getattr(recipe.loss, "logits_mean", "train")
    return declared
