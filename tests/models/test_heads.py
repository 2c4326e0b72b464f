"""The neck before a head, its dropout, and the stages of a ResNet that stay as they are."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from equipoise.models.classifiers import freeze_stages, make_backbone
from equipoise.models.heads import Dropout, make_neck


def test_dropout_keeps_its_share_and_scales_what_is_left() -> None:
    torch.manual_seed(0)
    dropout = Dropout(0.3)
    found = torch.stack([dropout(torch.ones(50, 400)) for _ in range(5)])
    assert found.unique().tolist() == pytest.approx([0.0, 1 / 0.7])
    # five standard deviations of 100,000 draws, of 250 of a place and of 2,000 of a row
    assert abs((found == 0).float().mean() - 0.3) < 5 * (0.21 / 100_000) ** 0.5
    assert abs((found == 0).float().mean((0, 2)) - 0.3).max() < 5 * (0.21 / 2_000) ** 0.5
    assert abs((found == 0).float().mean((0, 1)) - 0.3).max() < 5 * (0.21 / 250) ** 0.5
    together = ((found[0] == 0) & (found[1] == 0)).float().mean()  # calls do not know of each other
    assert abs(together - 0.09) < 5 * (0.09 * 0.91 / 20_000) ** 0.5


def test_dropout_taken_up_again_drops_what_it_would_have_dropped() -> None:
    torch.manual_seed(0)
    dropout, other = Dropout(0.5), Dropout(0.5)
    x = torch.ones(4, 64)
    first = dropout(x)
    assert not torch.equal(first, other(x))  # each has a seed of its own
    again = Dropout(0.5)
    again.load_state_dict(copy.deepcopy(dropout.state_dict()))
    torch.manual_seed(7)  # which is nothing to it
    torch.rand(5)
    second = dropout(x)
    assert not torch.equal(first, second)
    assert torch.equal(again(x), second)
    assert torch.equal(dropout.eval()(x), x)
    assert dropout.calls == 2  # an evaluation is no call


def test_a_neck_is_linear_then_normalised_then_dropped() -> None:
    torch.manual_seed(0)
    neck = make_neck(64, 32, 0.5)
    x = torch.randn(16, 64)
    assert [type(layer) for layer in neck] == [nn.Linear, nn.BatchNorm1d, Dropout]
    assert neck[0].weight.std().item() == pytest.approx((2 / 32) ** 0.5, rel=0.1)  # type: ignore[operator, union-attr]
    torch.testing.assert_close(neck.eval()(x), neck[1](neck[0](x)))


def test_a_neck_takes_the_place_of_the_last_layer() -> None:
    network, width = make_backbone("resnet18", 32, neck=24, dropout=0.5)
    assert width == 24
    assert network.fc[0].in_features == 512  # type: ignore[index, union-attr]
    with pytest.raises(ValueError, match="cifar_resnet20 has no last layer that a neck could replace"):
        make_backbone("cifar_resnet20", 32, neck=24)


def test_frozen_stages_learn_nothing_and_every_statistic_stays() -> None:
    network, _ = make_backbone("resnet18", 32, neck=24)
    kept = freeze_stages(network, 1)
    frozen = {name.split(".")[0] for name, value in network.named_parameters() if not value.requires_grad}
    assert frozen == {"conv1", "bn1", "layer1"}
    learning = {name.split(".")[0] for name, value in network.named_parameters() if value.requires_grad}
    assert learning == {"layer2", "layer3", "layer4", "fc"}
    assert len(kept) == 20  # of images; that of the neck goes on
    with pytest.raises(ValueError, match="ShuffleNetV2 has no bn1: stages can only be frozen in ResNets"):
        freeze_stages(make_backbone("shufflenet_v2_x0_5", 32)[0], 1)
