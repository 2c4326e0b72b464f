"""An exported model has the correction inside: the same probabilities, in torch and in onnxruntime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import equipoise as eq
from equipoise.data.digits import Digits, load_digits_lt
from equipoise.experiments.demo import digits_cnn

TARGET = eq.Prior.from_probabilities([0.0, 0.05, 0.05, 0.1, 0.1, 0.1, 0.1, 0.1, 0.2, 0.2])


@pytest.fixture(scope="module")
def digits() -> Digits:
    return load_digits_lt()


@pytest.fixture(scope="module")
def trained(digits: Digits) -> nn.Sequential:
    torch.manual_seed(0)
    model = digits_cnn()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(20):
        optimizer.zero_grad()
        F.cross_entropy(model(digits.train_images), digits.train_labels).backward()
        optimizer.step()
    return model.eval()


class Cosine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = eq.NormalizedLinear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(images.flatten(1))


class TwoInputs(nn.Module):
    """Two tensors in, and a head that is used once."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.classifier = nn.Linear(64, 10, bias=bias)

    def forward(self, images: Tensor, mask: Tensor) -> Tensor:
        return self.classifier((images * mask).flatten(1))


class UsedTwice(nn.Module):
    """The layer that gives the logits is also used inside: a shift in its bias would be seen there."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(10, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.layer(self.layer(images.flatten(1)[:, :10]).relu())


class SharedBias(nn.Module):
    """The bias of the head also belongs to a layer that plays no part here."""

    def __init__(self) -> None:
        super().__init__()
        self.auxiliary, self.head = nn.Linear(64, 10), nn.Linear(64, 10)
        self.auxiliary.bias = self.head.bias

    def forward(self, images: Tensor) -> Tensor:
        return self.head(images.flatten(1))


def flat(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), *layers)


FOLDED = {
    "a linear head": lambda: flat(nn.Linear(64, 10)),
    "a linear head without bias": lambda: flat(nn.Linear(64, 10, bias=False)),
    "a head before dropout": lambda: flat(nn.Linear(64, 10), nn.Dropout(0.5)),
    "a network": digits_cnn,
    "a head that fold_prior trained": lambda: eq.fold_prior(flat(nn.Linear(64, 10)), [0.91, *[0.01] * 9]),
}
ADDED = {
    "a layer after the head": lambda: flat(nn.Linear(64, 10), nn.ReLU()),
    "a convolution": lambda: nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten()),
    "a head that is used twice": UsedTwice,
    "a shared bias": SharedBias,
    "weights that are computed": lambda: flat(nn.utils.parametrizations.weight_norm(nn.Linear(64, 10, bias=False))),
}


def linear_layers(model: nn.Module) -> list[str]:
    return [type(module).__name__ for module in model.modules()]


@pytest.mark.parametrize("name", FOLDED)
def test_the_shift_goes_into_the_bias_of(name, digits):
    torch.manual_seed(0)
    model = FOLDED[name]().eval()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    served = eq.Rebalanced(model, target=TARGET, scale=1)
    folded = eq.fold_correction(served, digits.test_images[:1])
    assert type(folded) is type(model)
    assert linear_layers(folded) == [name.replace("BalancedLinear", "Linear") for name in linear_layers(model)]
    torch.testing.assert_close(folded(digits.test_images), served(digits.test_images), atol=1e-5, rtol=1e-5)
    changed = [
        key for key, value in folded.state_dict().items() if key not in state or not torch.equal(value, state[key])
    ]
    assert [key.rpartition(".")[2] for key in changed] == ["bias"]
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())  # ours was a copy


@pytest.mark.parametrize("name", ADDED)
def test_the_shift_is_subtracted_after(name, digits):
    torch.manual_seed(0)
    served = eq.Rebalanced(ADDED[name]().eval(), target=TARGET, scale=1)
    folded = eq.fold_correction(served, digits.test_images[:1])
    assert isinstance(folded, eq.Rebalanced)
    assert folded is not served
    torch.testing.assert_close(folded(digits.test_images), served(digits.test_images), atol=0, rtol=0)


def test_half_precision_scales_and_dense_outputs_keep_the_subtraction(digits):
    x = digits.test_images[:2]
    half = eq.Rebalanced(flat(nn.Linear(64, 10)), target=TARGET).to(torch.bfloat16)
    scaled = eq.Rebalanced(flat(nn.Linear(64, 10)), target=TARGET, scale=2)
    first = eq.Rebalanced(flat(nn.Linear(64, 10), nn.Unflatten(0, (1, -1))), target=TARGET, scale=1)
    rows = eq.Rebalanced(nn.Linear(8, 8), source=[0.3, *[0.1] * 7], scale=1, dim=-2)
    for served, inputs in ((half, x.bfloat16()), (scaled, x), (first, x), (rows, x)):
        folded = eq.fold_correction(served, inputs)
        assert isinstance(folded, eq.Rebalanced)
        assert torch.equal(folded(inputs), served(inputs))


def session(path: Path) -> Any:
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def check_everywhere(served: Any, inputs: tuple[Tensor, ...], path: Path, batches: list[tuple[Tensor, ...]]) -> Any:
    """The same probabilities from the module, from `torch.export` and from onnxruntime, to 1e-5."""
    activation = (lambda z: z.softmax(served.dim)) if isinstance(served, eq.Rebalanced) else torch.sigmoid
    eq.export_onnx(served, inputs, path, probabilities=True)
    onnx.checker.check_model(str(path))
    running, program = session(path), eq.export_program(served, inputs, probabilities=True).module()
    for batch in batches:
        with torch.no_grad():
            expected = activation(served(*batch))
            torch.testing.assert_close(program(*batch), expected, atol=1e-5, rtol=0)
        names = [value.name for value in running.get_inputs()]
        (found,) = running.run(["probabilities"], dict(zip(names, [x.numpy() for x in batch], strict=True)))
        np.testing.assert_allclose(found, expected.numpy(), atol=1e-5, rtol=0)
    return running


def test_a_trained_network_gives_the_same_probabilities_everywhere_whatever_the_batch(digits, trained, tmp_path):
    served = eq.Rebalanced(trained, source=digits.prior, target=TARGET)
    x = digits.test_images
    running = check_everywhere(served, (x[:1],), tmp_path / "model.onnx", [(x,), (x[:1],), (x[:7],)])
    (found,) = running.run(None, {"input": x.numpy()})
    assert (found[:, 0] == 0).all()
    assert abs(trained(x).softmax(1)[:, 1:].detach().numpy() - found[:, 1:]).max() > 0.1  # it was no small correction


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (lambda: flat(nn.Linear(64, 10), nn.ReLU()), {"scale": 1}),
        (Cosine, {"scale": 30}),
        (lambda: nn.Conv2d(1, 10, 3), {"scale": 1, "dim": 1}),
    ],
    ids=["a layer after the head", "cosines", "dense"],
)
def test_where_the_shift_is_subtracted_the_probabilities_are_the_same_too(model, options, digits, tmp_path):
    torch.manual_seed(0)
    served = eq.Rebalanced(model().eval(), source=digits.prior, target=TARGET, **options)
    x = digits.test_images[:9]
    check_everywhere(served, (x[:3],), tmp_path / "model.onnx", [(x,)])


def test_several_inputs_keep_their_names(digits, tmp_path):
    torch.manual_seed(0)
    served = eq.Rebalanced(TwoInputs(), source=digits.prior, scale=1)
    x, mask = digits.test_images[:6], torch.ones(6, 1, 8, 8)
    running = check_everywhere(served, (x[:2], mask[:2]), tmp_path / "model.onnx", [(x, mask)])
    assert [value.name for value in running.get_inputs()] == ["images", "mask"]


def test_the_sigmoid_twin_is_exported_too(digits, tmp_path):
    torch.manual_seed(0)
    served = eq.RebalancedSigmoid(flat(nn.Linear(64, 3)), source=[0.3, 0.2, 0.01], target_rate=0.2, scale=1)
    check_everywhere(served, (digits.test_images[:3],), tmp_path / "model.onnx", [(digits.test_images,)])
    assert type(eq.fold_correction(served, digits.test_images[:1])) is nn.Sequential
    binary = eq.RebalancedSigmoid(flat(nn.Linear(64, 1)), source=0.1, target_rate=0.5, scale=1)
    check_everywhere(binary, (digits.test_images[:3],), tmp_path / "binary.onnx", [(digits.test_images,)])
    assert type(eq.fold_correction(binary, digits.test_images[:1])) is nn.Sequential


def test_logits_are_the_default_and_the_file_knows_its_priors_and_names(digits, trained, tmp_path):
    served = eq.Rebalanced(trained, source=digits.prior, target=TARGET)
    eq.export_onnx(served, digits.test_images[:2], tmp_path / "model.onnx", metadata={"preprocessing": "divide by 16"})
    running = session(tmp_path / "model.onnx")
    (found,) = running.run(["logits"], {"input": digits.test_images.numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(found, served(digits.test_images).numpy(), atol=1e-4, rtol=1e-4)
    metadata = running.get_modelmeta().custom_metadata_map
    assert eq.Prior.from_json(metadata["source"]) == digits.prior
    assert eq.Prior.from_json(metadata["target"]) == TARGET
    assert json.loads(metadata["class_names"]) == list("0123456789")
    assert metadata["preprocessing"] == "divide by 16"
    assert running.get_inputs()[0].shape == ["batch", 1, 8, 8]
    assert running.get_outputs()[0].shape == ["batch", 10]


def test_a_folded_file_has_the_operations_of_the_plain_model(digits, trained, tmp_path):
    served = eq.Rebalanced(trained, source=digits.prior)
    eq.export_onnx(served, digits.test_images[:2], tmp_path / "served.onnx", dynamic_batch=False)
    torch.onnx.export(trained, (digits.test_images[:2],), tmp_path / "plain.onnx", dynamo=True, verbose=False)
    operations = [
        sorted(node.op_type for node in onnx.load(tmp_path / name).graph.node) for name in ("served.onnx", "plain.onnx")
    ]
    assert operations[0] == operations[1]


def test_an_exported_program_can_be_saved_with_its_priors(digits, trained, tmp_path):
    served = eq.Rebalanced(trained, source=digits.prior)
    program = eq.export_program(served, digits.test_images[:2])
    torch.export.save(program, tmp_path / "model.pt2", extra_files=served.metadata)
    files = dict.fromkeys(served.metadata, "")
    again = torch.export.load(tmp_path / "model.pt2", extra_files=files)
    with torch.no_grad():
        torch.testing.assert_close(again.module()(digits.test_images), served(digits.test_images), atol=1e-5, rtol=1e-5)
    assert files == served.metadata


def test_a_fixed_batch_can_be_asked_for(digits, trained, tmp_path):
    served = eq.Rebalanced(trained, source=digits.prior)
    eq.export_onnx(served, digits.test_images[:1], tmp_path / "model.onnx", dynamic_batch=False)
    assert session(tmp_path / "model.onnx").get_inputs()[0].shape == [1, 1, 8, 8]


def test_exported_logits_move_on_to_another_prior(digits, trained):
    """The exported model's logits mean its target: that is the source of the next correction."""
    x = digits.test_images[:5]
    wanted = [0.19, *[0.09] * 9]
    served = eq.Rebalanced(trained, source=digits.prior)
    logits = eq.export_program(served, x).module()(x)
    moved = eq.adjust_logits(logits, source=served.target, target=wanted)
    expected = eq.adjust_logits(trained(x), source=digits.prior, target=wanted)
    torch.testing.assert_close(moved.softmax(1), expected.softmax(1), atol=1e-6, rtol=0)


def test_a_model_in_training_mode_is_exported_in_evaluation_mode_and_left_as_it_is(digits):
    torch.manual_seed(0)
    model = flat(nn.Dropout(0.5), nn.Linear(64, 10)).train()
    served = eq.Rebalanced(model, source=digits.prior)
    program = eq.export_program(served, digits.test_images[:3])
    assert model.training
    assert model[1].training
    with torch.no_grad():
        expected = served.eval()(digits.test_images[:5])
        torch.testing.assert_close(program.module()(digits.test_images[:5]), expected, atol=1e-5, rtol=1e-5)


def test_a_plain_model_is_refused_and_a_missing_extra_is_named(digits, trained, tmp_path, monkeypatch):
    with pytest.raises(TypeError, match=r"served is a Sequential: wrap the model first, e\.g\. Rebalanced\("):
        eq.export_program(trained, digits.test_images[:1])
    monkeypatch.setitem(__import__("sys").modules, "onnxscript", None)
    with pytest.raises(ImportError, match=r"pip install 'equipoise\[serve\]'"):
        eq.export_onnx(eq.Rebalanced(trained, source=digits.prior), digits.test_images[:1], tmp_path / "a.onnx")


class Answer(nn.Module):
    """A model that hands its logits out in a container."""

    def __init__(self, container) -> None:
        super().__init__()
        self.head, self.container = nn.Linear(4, 2), container

    def forward(self, x):
        return self.container(self.head(x))


@pytest.mark.parametrize("container", [lambda z: {"logits": z}, lambda z: (z,), lambda z: [z, z]])
@pytest.mark.parametrize("act", [eq.fold_correction, eq.export_program])
def test_logits_in_a_container_are_refused_as_they_are_when_served(container, act):
    served = eq.Rebalanced(Answer(container), source=[0.9, 0.1])
    with pytest.raises(TypeError, match="not a tensor of logits: say where they are"):
        act(served, torch.randn(3, 4))


def test_an_example_that_is_none_is_refused(digits, trained):
    served = eq.Rebalanced(trained, source=digits.prior)
    with pytest.raises(TypeError, match="inputs is a ndarray: expected an example"):
        eq.export_program(served, digits.test_images[:2].numpy())
    with pytest.raises(TypeError, match=r"inputs is a list: .* a tuple of arguments"):
        eq.export_program(served, [digits.test_images[:2]])
    with pytest.raises(ValueError, match="no row"):
        eq.export_program(served, digits.test_images[:0])


def test_a_model_from_logits_to_logits_has_two_names_for_them(tmp_path):
    served = eq.Rebalanced(eq.Calibration(2.0), source=[0.9, 0.1])
    logits = torch.randn(5, 2)
    eq.export_onnx(served, logits, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (found,) = session.run(["logits"], {"logits_in": logits.numpy()})
    np.testing.assert_allclose(found, served(logits), atol=1e-6)


def test_weights_too_large_for_one_file_lie_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.onnx._internal.exporter._onnx_program._LARGE_MODEL_THRESHOLD", 0)
    served, path, x = eq.Rebalanced(nn.Linear(300, 2), source=[0.9, 0.1]), tmp_path / "model.onnx", torch.randn(3, 300)
    for _ in range(2):  # the second time both files are replaced
        eq.export_onnx(served, x, path)
        assert sorted(file.name for file in tmp_path.iterdir()) == ["model.onnx", "model.onnx.data"]
        session = onnxruntime.InferenceSession(path)
        (logits,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        torch.testing.assert_close(torch.from_numpy(logits), served(x).detach(), atol=1e-5, rtol=1e-5)


def test_an_export_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"old")

    def fill_the_disk(self, destination):
        Path(destination).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("torch.onnx.ONNXProgram.save", fill_the_disk)
    with pytest.raises(OSError, match="No space left"):
        eq.export_onnx(eq.Rebalanced(nn.Linear(4, 2), source=[0.9, 0.1]), torch.randn(3, 4), path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
