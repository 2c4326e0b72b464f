"""When a balanced loss takes its kernels, and what a compiler makes of them. What they compute: loss_kernels.py."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.losses import shared

PRIOR = eq.Prior.from_counts([90, 9, 1])
SHIFT = eq.softmax_shift(PRIOR)
LOGITS, INDICES = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, -100, 1])
ANSWERS = torch.rand(6, 3, generator=torch.Generator().manual_seed(1))
ROOT = Path(__file__).resolve().parents[2]


def test_the_kernels_compute_the_losses() -> None:
    pytest.importorskip("triton", "3.7")  # comes with torch on Linux; the interpreter of 3.6 fails with new NumPy
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "tests/losses/loss_kernels.py"],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "208 passed" in done.stdout


def test_the_library_comes_without_its_kernels() -> None:
    code = "import sys, equipoise; assert not {'triton', 'equipoise.losses.kernels'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


# -------------------------------------------------------------------- when


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The kernels' module as if the losses were compiled and this were a GPU; its losses give their own names."""
    pytest.importorskip("triton")
    from equipoise.losses import kernels

    monkeypatch.setattr(shared, "KERNEL_DEVICE", "cpu")
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    monkeypatch.setattr(kernels, "softmax_loss", lambda *_: "softmax kernels")
    monkeypatch.setattr(kernels, "sigmoid_loss", lambda *_: "sigmoid kernels")
    return kernels


def softmax(logits: Any = LOGITS, target: Tensor = INDICES, shift: Tensor = SHIFT, **options: Any) -> Any:
    return eq.balanced_softmax_loss(logits, target, shift, **options)


def sigmoid(logits: Any = LOGITS, target: Tensor = ANSWERS, shift: Tensor = SHIFT, **options: Any) -> Any:
    return eq.balanced_sigmoid_loss(logits, target, shift, **options)


def grad(tensor: Tensor) -> Tensor:
    return tensor.clone().requires_grad_()


@pytest.mark.parametrize(
    "loss",
    [
        softmax,
        lambda: softmax(LOGITS.half()),
        lambda: softmax(LOGITS.bfloat16(), INDICES.int()),
        lambda: softmax(grad(LOGITS)),
        lambda: softmax(LOGITS[:0], INDICES[:0]),
        lambda: softmax(LOGITS.t().contiguous().t(), reduction="none"),
        lambda: softmax(reduction="sum", ignore_index=2),
        sigmoid,
        lambda: sigmoid(LOGITS, INDICES, reduction="sum"),
        lambda: sigmoid(LOGITS, ANSWERS > 0.5, reduction="batchmean"),
        lambda: eq.BalancedSoftmaxLoss(PRIOR)(LOGITS, INDICES),
        lambda: eq.BalancedSigmoidLoss(PRIOR)(LOGITS, ANSWERS),
    ],
)
def test_a_compiled_loss_on_a_gpu_takes_the_kernels(kernels: Any, loss: Callable[[], Any]) -> None:
    assert loss() in ("softmax kernels", "sigmoid kernels")


@pytest.mark.parametrize(
    "loss",
    [
        lambda: softmax(LOGITS.double()),
        lambda: softmax(shift=SHIFT.double()),
        lambda: softmax(LOGITS[0], INDICES[0]),
        lambda: softmax(LOGITS[:, :, None], INDICES[:, None]),
        lambda: softmax(shift=torch.tensor(0.5)),
        lambda: softmax(target=ANSWERS.softmax(1)),
        lambda: softmax(shift=grad(SHIFT)),
        lambda: softmax(weight=torch.ones(3)),
        lambda: softmax(label_smoothing=0.1),
        lambda: softmax(nn.Parameter(LOGITS)),  # a subclass, as those of torch.distributed are
        lambda: sigmoid(target=grad(ANSWERS)),
        lambda: sigmoid(shift=grad(SHIFT)),
        lambda: sigmoid(weight=torch.ones(3)),
        lambda: sigmoid(pos_weight=torch.ones(3)),
        lambda: sigmoid(foreground=INDICES > 0),
        lambda: sigmoid(reduction="none"),
        lambda: sigmoid(target=ANSWERS > 0.5, ignore_index=1),
        lambda: torch.vmap(softmax)(LOGITS[None], INDICES.clamp(min=0)[None]),
        lambda: torch.func.grad(softmax)(LOGITS),
    ],
)
def test_what_the_kernels_do_not_know_stays_as_it_was(kernels: Any, loss: Callable[[], Any]) -> None:
    found = loss()
    assert isinstance(found, Tensor)
    assert found.isfinite().all()


@pytest.mark.parametrize(
    ("loss", "error"),
    [
        (lambda: softmax(target=ANSWERS[:, 0]), "class indices are integers"),
        (lambda: sigmoid(target=INDICES > 0), "class indices are integers"),
        (lambda: softmax(target=INDICES[:4]), "does not fit logits"),
        (lambda: sigmoid(target=ANSWERS[:4]), "does not fit logits"),
        (lambda: softmax(LOGITS[:, :2]), "3 classes"),
        (lambda: sigmoid(LOGITS[:, :2], ANSWERS[:, :2]), "3 classes"),
        (lambda: softmax(LOGITS.long()), "expected floating point"),
        (lambda: softmax(target=INDICES.to("meta")), "meta"),
        (lambda: softmax(label_smoothing=0.1, reduction="all"), "reduction='all'"),
        (lambda: sigmoid(reduction="all"), "reduction='all'"),
    ],
)
def test_errors_are_those_of_a_loss_that_is_not_compiled(kernels: Any, loss: Callable[[], Any], error: str) -> None:
    with pytest.raises((TypeError, ValueError, RuntimeError, NotImplementedError), match=error):
        loss()


def test_kernels_are_for_compiled_losses(kernels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: False)
    assert isinstance(softmax(), Tensor)


def test_kernels_are_for_gpus(kernels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "KERNEL_DEVICE", "cuda")
    assert isinstance(softmax(), Tensor)


def test_a_loss_that_is_exported_keeps_to_torchs_operations(kernels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    assert isinstance(softmax(), Tensor)


def test_the_environment_switches_the_kernels_off(kernels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUIPOISE_KERNELS", "1")
    assert softmax() == "softmax kernels"
    monkeypatch.setenv("EQUIPOISE_KERNELS", "0")
    assert isinstance(softmax(), Tensor)
    assert isinstance(sigmoid(), Tensor)


def test_derivatives_that_the_kernels_lack_are_left_to_torch(kernels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.autograd.forward_ad.dual_level():
        assert isinstance(softmax(), Tensor)
    assert softmax() == "softmax kernels"
    monkeypatch.setitem(sys.modules, "torch._dynamo.config", SimpleNamespace(trace_autograd_ops=True))
    assert isinstance(sigmoid(), Tensor)


def test_without_triton_a_compiled_loss_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "KERNEL_DEVICE", "cpu")
    monkeypatch.setitem(sys.modules, "equipoise.losses.kernels", None)  # an import that finds this fails
    torch.compiler.reset()
    found = torch.compile(softmax, fullgraph=True, backend="aot_eager")()
    torch.testing.assert_close(found, softmax())
    torch.compiler.reset()


# -------------------------------------------------------------------- what a compiler makes of them


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of the kernels in each graph that `torch.compile` makes here as if for a GPU."""
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget

    class Driver:
        def get_current_target(self) -> Any:
            return GPUTarget("cuda", 90, 32)

    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # Triton 3.9 warns where it is not said
    monkeypatch.setattr(shared, "KERNEL_DEVICE", "cpu")
    monkeypatch.setattr(triton.runtime.driver, "_active", Driver())
    torch.compiler.reset()
    Formulas.kernels = []
    yield Formulas.kernels
    torch.compiler.reset()


class Formulas(torch.fx.Interpreter):
    """Runs a graph with formulas in the place of the kernels, of which it keeps the names."""

    kernels: list[str]

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if str(target) != "triton_kernel_wrapper_functional":
            assert "equipoise" not in str(target)  # an operation of ours that the compiler did not look into
            return super().call_function(target, args, kwargs)
        name, given = kernel_of(kwargs["kernel_idx"]), kwargs["kwargs"]
        assert (given["R"], given["C"], given["K"]) == (8, 16, 3)
        assert kwargs["grid"] == [(given["number"] // 8 + 1, 1, 1)]
        found = FORMULAS[name](given)
        assert kwargs["tensors_to_clone"] == list(found)  # a kernel writes these and no other
        return found


def kernel_of(index: int) -> str:
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    kernel = kernel_side_table.get_kernel(index)
    return getattr(kernel, "fn", kernel).__name__


def softmax_forward(a: dict[str, Any]) -> dict[str, Tensor]:
    z = a["logits"].float() + a["shift"]
    most = z.amax(1)
    total = (z - most[:, None]).exp().sum(1)
    valid = a["target"] != a["ignore"]
    chosen = z.gather(1, torch.where(valid, a["target"], 0)[:, None])[:, 0]
    return {"loss": torch.where(valid, most + total.log() - chosen, 0.0), "most": most, "total": total}


def softmax_backward(a: dict[str, Any]) -> dict[str, Tensor]:
    hot = torch.arange(a["K"]) == a["target"][:, None]
    slope = torch.where(a["target"] == a["ignore"], 0.0, a["slope"])[:, None]
    p = (a["logits"].float() + a["shift"] - a["most"][:, None]).exp() / a["total"][:, None]
    return {"gradient": (slope * (p - hot.float())).to(a["gradient"].dtype)}


def rows_and_answers(a: dict[str, Any]) -> tuple[Tensor, Tensor]:
    if not a["INDICES"]:
        return torch.ones(a["number"]), a["target"].float()
    return (a["target"] != a["ignore"]).float(), (torch.arange(a["K"]) == a["target"][:, None]).float()


def sigmoid_forward(a: dict[str, Any]) -> dict[str, Tensor]:
    rows, y = rows_and_answers(a)
    z = a["logits"].float() + a["shift"]
    loss = rows * nn.functional.binary_cross_entropy_with_logits(z, y, reduction="none").sum(1)
    return {"loss": loss, "counted": (rows * a["K"]).int()}


def sigmoid_backward(a: dict[str, Any]) -> dict[str, Tensor]:
    rows, y = rows_and_answers(a)
    p = (a["logits"].float() + a["shift"]).sigmoid()
    return {"gradient": ((rows * a["slope"])[:, None] * (p - y)).to(a["gradient"].dtype)}


FORMULAS = {f.__name__: f for f in (softmax_forward, softmax_backward, sigmoid_forward, sigmoid_backward)}


def by_formulas(module: torch.fx.GraphModule, _: Any) -> Any:
    """A compiler for the backend of torch.compile: what it gets is what Inductor would."""
    from functorch.compile import make_boxed_func

    names = [kernel_of(n.kwargs["kernel_idx"]) for n in module.graph.nodes if "kernel_idx" in n.kwargs]
    Formulas.kernels.append(" ".join(names))
    return make_boxed_func(Formulas(module).run)


def compiled(function: Callable[..., Tensor], **options: Any) -> Callable[..., Tensor]:
    from torch._dynamo.backends.common import aot_autograd

    return torch.compile(function, fullgraph=True, backend=aot_autograd(fw_compiler=by_formulas), **options)


LOSSES = {
    "softmax": (eq.BalancedSoftmaxLoss, INDICES),
    "sigmoid": (eq.BalancedSigmoidLoss, ANSWERS),
    "sigmoid of indices": (eq.BalancedSigmoidLoss, INDICES),
}


def check_equal(
    fast: Callable[..., Tensor], loss: Callable[..., Tensor], logits: Tensor, target: Tensor, *more: Any
) -> None:
    """Values and gradients of a compiled loss are those of the loss itself, to the dtype."""
    ours, theirs = grad(logits), grad(logits)
    found, expected = fast(ours, target, *more), loss(theirs, target, *more)
    torch.testing.assert_close(found, expected)
    slope = torch.linspace(1, 2, found.numel()).reshape(found.shape)
    found.backward(slope)
    expected.backward(slope)
    torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", LOSSES)
def test_a_compiler_launches_one_kernel_each_way(traced: list[str], name: str, dtype: torch.dtype) -> None:
    make, target = LOSSES[name]
    kind = name.split()[0]
    for reduction in ("mean", "sum", "none" if kind == "softmax" else "batchmean"):
        loss = make(PRIOR, reduction=reduction)
        check_equal(compiled(loss), loss, LOGITS.to(dtype), target)
        assert traced == [f"{kind}_forward", f"{kind}_backward"]
        traced.clear()


@pytest.mark.parametrize("name", LOSSES)
def test_the_batch_may_change_its_size(traced: list[str], name: str) -> None:
    make, target = LOSSES[name]
    loss = make(PRIOR)
    fast = compiled(loss)
    for times in (1, 2, 3, 5):
        check_equal(fast, loss, LOGITS.repeat(times, 1), target.repeat(times, *[1] * (target.ndim - 1)))
    assert len(traced) == 4  # one graph each way for the first size, one for all others
    check_equal(fast, loss, LOGITS[:0], target[:0])


@pytest.mark.parametrize("name", LOSSES)
def test_logits_may_be_the_output_of_a_model_in_any_layout(traced: list[str], name: str) -> None:
    make, target = LOSSES[name]
    head, loss = nn.Linear(3, 3), make(PRIOR)

    def step(x: Tensor, y: Tensor) -> Tensor:
        return loss(head(x).t().contiguous().t(), y)

    check_equal(compiled(step), step, LOGITS, target)
    assert "forward" in traced[0]


def test_rows_may_be_chosen_within_the_graph(traced: list[str]) -> None:
    def step(logits: Tensor, target: Tensor, rows: Tensor) -> Tensor:
        return softmax(logits[rows], target[rows])

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        check_equal(compiled(step), step, LOGITS, INDICES, INDICES != 1)
    assert "softmax_forward" in traced[0]


def test_shift_and_ignored_index_may_be_arguments(traced: list[str]) -> None:
    def step(logits: Tensor, target: Tensor, shift: Tensor, ignore: int) -> Tensor:
        return softmax(logits, target, shift, ignore_index=ignore)

    fast = compiled(step, dynamic=True)
    for ignore in (-100, 1):
        check_equal(fast, step, LOGITS, INDICES.clamp(min=0), SHIFT, ignore)
    assert "softmax_forward" in traced[0]


def test_a_vectorised_loss_compiles_as_it_was(traced: list[str]) -> None:
    many = torch.vmap(lambda logits, target: softmax(logits, target))
    logits, target = LOGITS.repeat(2, 1, 1), INDICES.clamp(min=0).repeat(2, 1)
    torch.testing.assert_close(
        torch.compile(many, fullgraph=True, backend="aot_eager")(logits, target), many(logits, target)
    )
    assert traced == []
