"""The fused kernels against torch, in fp32 by Triton's interpreter, which needs no GPU.

Triton decides when it is imported whether it interprets, so test_resnet_cifar_fused.py runs these in a process of their
own; by hand: TRITON_INTERPRET=1 python -m pytest tests/experiments/fused_kernels.py
"""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from equipoise.experiments.resnet32 import fused
from equipoise.losses.balanced_softmax import BalancedSoftmaxLoss
from equipoise.models.resnet_cifar import FEATURES, ResNetCifar
from equipoise.prior import Prior
from equipoise.training.augmentation.cifar import normalise
from equipoise.training.classification import Training, build_model
from equipoise.training.distillation import Teacher
from equipoise.training.recipe import Recipe
from equipoise.training.sets import CifarSet

LAYERS = [(3, 16, 1), (16, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1)]
LAYERS += [(3, 32, 1), (64, 128, 2), (128, 128, 1)]  # more of width 2
BATCH, SIDE = 3, 8  # 192 pixels, or 48: no whole number of tiles


def layer(channels: int, to: int, stride: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x [N, I, H, W], weight [O, I, 3, 3] and a gradient of their convolution."""
    generator = torch.Generator().manual_seed(channels + to)
    x = torch.randn(BATCH, channels, SIDE, SIDE, generator=generator)
    weight = torch.randn(to, channels, 3, 3, generator=generator)
    slope = torch.randn(BATCH, to, SIDE // stride, SIDE // stride, generator=generator)
    return x.requires_grad_(), weight.to(memory_format=torch.channels_last).requires_grad_(), slope


def pixels_first(x: torch.Tensor) -> torch.Tensor:
    return x.detach().permute(0, 2, 3, 1).contiguous()


def bordered(x: torch.Tensor) -> torch.Tensor:
    """As what is convolved: pixels first, a border of zeros; three channels are four, the last of them not used."""
    padded = functional.pad(x.detach(), (1, 1, 1, 1, 0, 1 if x.shape[1] == 3 else 0))
    if x.shape[1] == 3:
        padded[:, 3] = 7.0
    return pixels_first(padded)


@pytest.mark.parametrize(("channels", "to", "stride"), LAYERS)
def test_convolution_is_torchs_and_sums_its_result(channels: int, to: int, stride: int) -> None:
    x, weight, _ = layer(channels, to, stride)
    expected = pixels_first(functional.conv2d(x, weight, stride=stride, padding=1))
    y, partial = fused.convolution(bordered(x), weight.detach(), stride)
    # A value is a sum of n = 9 * 128 products of unit normals at most: of size sqrt(n) = 34, with about sqrt(n)
    # roundings of 2**-24 of that, 6.9e-5, in either order. Sums over pixels are of 192 squares of these: 2e5.
    torch.testing.assert_close(y, expected, atol=1e-4, rtol=1e-5)
    sums = torch.stack([expected.sum((0, 1, 2)), expected.square().sum((0, 1, 2))])
    torch.testing.assert_close(partial.sum(0), sums, atol=1e-2, rtol=1e-5)


@pytest.mark.parametrize(("channels", "to", "stride"), LAYERS)
def test_the_gradients_of_a_layer_are_torchs(channels: int, to: int, stride: int) -> None:
    x, weight, slope = layer(channels, to, stride)
    y = functional.conv2d(x, weight, stride=stride, padding=1)
    gain, bias = torch.rand(2, to).add(0.5).requires_grad_().unbind()
    normalised = functional.batch_norm(y, None, None, gain, bias, training=True)
    dw, dy, dgain, dbias = torch.autograd.grad(normalised, (weight, y, gain, bias), slope)
    mean, inverse = y.mean((0, 2, 3)), (y.var((0, 2, 3), correction=0) + 1e-5).rsqrt()
    statistics = torch.stack([mean, inverse, gain * inverse, bias - mean * gain * inverse]).detach()
    given = fused.Layer(weight, stride, bordered(x), pixels_first(y), bordered(y), statistics, residual=True)
    dz = pixels_first(slope)
    sums = torch.stack([dz.sum((0, 1, 2)), (dz * (given.y - mean) * inverse).sum((0, 1, 2))]).detach()
    found_dy = torch.zeros_like(given.out)
    found, (found_dbias, found_dgain) = fused.weight_gradient(dz, sums[None], given, found_dy)
    assert found.is_contiguous(memory_format=torch.channels_last)  # as the weight is: SGD is one kernel for both
    # dy is a difference of terms of size scale * slope, at most 1.5 * 5 / 5 (y deviates by sqrt(9 I), 5 for I = 3 and
    # more): a dozen roundings of 2**-24 of that are 1e-6 at most. A weight's gradient sums 192 products of it and of
    # unit normals, about 14 in size, and a gain's or bias's 192 slopes or products.
    torch.testing.assert_close(found_dy, bordered(dy), atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(found, dw, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(found_dbias, dbias, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(found_dgain, dgain, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(("channels", "to", "stride"), [layer for layer in LAYERS if layer[0] > 3])
def test_the_gradient_of_the_layer_below_is_torchs(channels: int, to: int, stride: int) -> None:
    x, weight, slope = layer(channels, to, stride)
    (dx,) = torch.autograd.grad(functional.conv2d(x, weight, stride=stride, padding=1), x, slope)
    y, added = torch.randn(2, BATCH, SIDE, SIDE, channels)
    statistics = torch.rand(4, channels)
    mean, inverse, scale, shift = statistics
    for more, residual in ((None, False), (added, True), (added, False)):
        out = bordered(x) if residual else torch.full_like(bordered(x), torch.nan)  # which need not be read
        below = fused.Layer(weight, 1, x, y, out, statistics, residual)
        positive = pixels_first(x) > 0 if residual else y * scale + shift > 0
        expected = torch.where(positive, pixels_first(dx) + (0 if more is None else more), 0)
        dz, partial = fused.convolution_transposed(bordered(slope), weight.detach(), stride, more, below)
        torch.testing.assert_close(dz, expected, atol=1e-4, rtol=1e-5)
        sums = torch.stack([expected.sum((0, 1, 2)), (expected * (y - mean) * inverse).sum((0, 1, 2))])
        torch.testing.assert_close(partial.sum(0), sums, atol=1e-2, rtol=1e-5)


# Of blocks of 8 groups these layers have whole numbers, of 64 they do not.
@pytest.mark.parametrize(
    ("pair", "columns", "rows", "block"), [(1, 1, 1, 64), (1, 4, 1, 8), (1, 4, 3, 64), (2, 4, 1, 64), (2, 4, 3, 8)]
)
def test_other_ways_to_divide_the_work_give_the_same(
    pair: int, columns: int, rows: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for table in (fused.CONVOLUTION, fused.TRANSPOSED, fused.WEIGHT):
        for channels, tiling in table.items():
            one = table is not fused.WEIGHT and pair == 1  # a convolution of four columns has pairs
            changed = replace(tiling, block=block, pair=pair, columns=1 if one else columns, rows=rows, tiles=2)
            monkeypatch.setitem(table, channels, changed)
    for channels, to, stride in (*LAYERS[:6], LAYERS[-1]):
        test_convolution_is_torchs_and_sums_its_result(channels, to, stride)
        test_the_gradients_of_a_layer_are_torchs(channels, to, stride)
        if channels > 3:
            test_the_gradient_of_the_layer_below_is_torchs(channels, to, stride)


def a_network(seed: int, width: int = 1) -> tuple[ResNetCifar, torch.Tensor]:
    """A network in which batch normalization does something, and images for it."""
    torch.manual_seed(seed)
    model = ResNetCifar(nn.Linear(FEATURES * width, 10), blocks=3 - width, width=width)
    model = model.to(memory_format=torch.channels_last)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
    return model, torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)


def nearest_to_zero(model: ResNetCifar, images: torch.Tensor) -> float:
    """The least |x| of all x that a ReLU of the network is given."""
    given: list[torch.Tensor] = []
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(functional, "relu", lambda x: given.append(x.abs().min()) or x.clamp(min=0))
        copy.deepcopy(model).features(normalise(images))  # of a copy: running statistics move
    return float(torch.stack(given).min())


@pytest.mark.parametrize("width", [1, 2])
def test_a_whole_network_has_torchs_features_gradients_and_running_statistics(width: int) -> None:
    # The first network in which no ReLU is given less than 80 roundings of 1: a gradient that one order of summing
    # switches off and another does not would differ by far more than roundings do.
    networks = (a_network(seed, width) for seed in range(1000))
    model, images = next(one for one in networks if nearest_to_zero(*one) > 1e-5)
    twin = copy.deepcopy(model)
    found, expected = fused.fused_features(model, images), twin.features(normalise(images))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    slope = torch.randn_like(expected)
    gradients = [
        torch.autograd.grad(
            features, [p for name, p in network.named_parameters() if not name.startswith("head")], slope
        )
        for features, network in ((found, model), (expected, twin))
    ]
    for ours, theirs in zip(*gradients, strict=True):
        assert float((ours - theirs).abs().max()) < 1e-4 * max(float(theirs.abs().max()), 1.0)
    for (name, ours), theirs in zip(model.named_buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


def test_a_weight_in_another_layout_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(16, 16, 3, 3\) is not channels_last"):
        fused.convolution(torch.zeros(1, 10, 10, 16), torch.zeros(16, 16, 3, 3), 1)


@pytest.mark.parametrize(("number", "height", "width"), [(2, 16, 18), (2, 18, 16), (1, 4, 4)])
def test_images_that_cannot_be_halved_twice_are_refused(number: int, height: int, width: int) -> None:
    model, _ = a_network(0)
    with pytest.raises(ValueError, match=f"{number} images of {height} × {width} pixels: .* halved twice"):
        fused.fused_features(model, torch.zeros(number, 3, height, width, dtype=torch.uint8))


def test_divisions_of_the_work_that_would_read_or_write_elsewhere_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, slope = layer(16, 16, 1)
    with pytest.raises(ValueError, match="8 × 7 pixels cannot be divided into groups of 2"):
        fused.convolution(bordered(x[..., :7]), weight.detach(), 1)
    wrong = fused.Tiling(16, 1, 4, columns=4)
    monkeypatch.setitem(fused.CONVOLUTION, 16, wrong)
    with pytest.raises(ValueError, match="4 columns at a time for groups of 1"):
        fused.convolution(bordered(x), weight.detach(), 1)
    monkeypatch.setitem(fused.WEIGHT, 16, replace(wrong, columns=2))
    given = fused.Layer(weight, 1, bordered(x), pixels_first(x), bordered(x), torch.ones(4, 16), residual=True)
    with pytest.raises(ValueError, match=r"columns=2, rows=1\): expected 4 columns at a time"):
        fused.weight_gradient(pixels_first(slope), torch.ones(1, 2, 16), given, bordered(slope))


def test_channels_without_kernels_are_refused_by_number() -> None:
    model, images = a_network(0, width=3)
    with pytest.raises(ValueError, match=r"no fused kernels for 48 channels, only for 16, 32, 64, 128"):
        fused.fused_features(model, images)


@pytest.mark.parametrize("width", [1, 2])
def test_what_a_trained_network_answers_is_torchs(width: int) -> None:
    model, images = a_network(0, width)
    model.features(normalise(images))  # running statistics that are not those of the start
    model.eval()
    found = fused.fused_answers(model, images)
    torch.testing.assert_close(found, model.features(normalise(images)).detach(), atol=1e-5, rtol=1e-4)
    assert not found.requires_grad


PLAIN = Recipe(BalancedSoftmaxLoss, blocks=1, batch_size=2, iterations=1, warmup=0, weight_decay=1e-3, nesterov=True)


def a_set() -> CifarSet:
    labels = np.array([0, 0, 0, 1, 1, 2])
    images = np.random.default_rng(0).integers(0, 256, (len(labels), 3, 32, 32)).astype(np.uint8)
    return CifarSet.of(images, labels, Prior.from_labels(labels), torch.device("cpu"))


@pytest.mark.parametrize("mixing", [{"cutmix": 1.0}, {"mixup": 1.0}])
def test_a_step_on_mixed_images_has_torchs_loss(mixing: dict[str, float]) -> None:
    recipe, data = replace(PLAIN, **mixing), a_set()  # type: ignore[arg-type]
    runs = [Training(recipe, data, 2, **kernels) for kernels in ({"features": fused.fused_features}, {})]
    for run in runs:
        run.model.to(memory_format=torch.channels_last)
        run.advance()
    ours, theirs = (run.losses for run in runs)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)  # features differ by 1e-5, as in a whole network
    plain = Training(PLAIN, data, 2)
    plain.advance()
    assert abs(float(plain.losses - theirs)) > 0.01


def test_a_student_of_fused_kernels_is_taught_what_torchs_is() -> None:
    data, plain = a_set(), PLAIN
    recipe = replace(plain, teacher="plain", teachers=1, views=1)
    model = build_model(plain, 3, 1).to(memory_format=torch.channels_last).eval().requires_grad_(False)
    kernels = ({"features": fused.fused_features, "asked": fused.fused_answers}, {})
    runs = [Training(recipe, data, 0, teachers=[Teacher("plain", model)], **one) for one in kernels]
    for run in runs:
        run.model.to(memory_format=torch.channels_last)
        run.advance()
    ours, theirs = runs
    # Probabilities may round to neighbours in half precision, 2**-11 apart; the loss moves by w T² = 3.2 times that
    # for each of 3 classes, times |log(p / q)|, which is below 2.
    torch.testing.assert_close(ours._taught, theirs._taught, atol=2**-11, rtol=0)
    torch.testing.assert_close(ours.losses, theirs.losses, atol=1e-2, rtol=0)
    assert float(ours._taught.float().std()) > 0.01
