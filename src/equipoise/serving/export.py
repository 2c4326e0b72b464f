"""Export a served model with the correction inside: a plain module, `torch.export` or ONNX.

    (W x + b) − shift  =  W x + (b − shift)

If the logits come straight out of an `nn.Linear`, the shift goes into its bias, and the exported model has exactly the
operations of the plain one. Whether they do is read from the traced graph, not guessed from names. Otherwise the shift
is subtracted at the end. Either way the exported logits mean `served.target`; to move them to another prior later, pass
them to `adjust_logits(logits, source=that target, target=...)`.
"""

from __future__ import annotations

import copy
import inspect
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from equipoise.files import written_whole
from equipoise.losses.shared import along
from equipoise.models.balanced_head import unfold_prior
from equipoise.serving.rebalanced import Rebalanced, RebalancedSigmoid, Served

if TYPE_CHECKING:
    from torch.export import ExportedProgram

Inputs = Tensor | tuple[Any, ...]


def fold_correction(served: Served, inputs: Inputs) -> nn.Module:
    """A copy of the model, in evaluation mode, that returns the corrected logits itself. `inputs` is an example.

    If its logits are the outputs of an `nn.Linear`, the copy is the plain model with another bias. Otherwise (a
    convolution, a layer after the head, cosines with a scale, half precision) it is a copy of `served`.

    >>> served = eq.Rebalanced(torch.nn.Linear(4, 2), source=[0.9, 0.1])
    >>> folded = fold_correction(served, torch.randn(3, 4))
    >>> folded
    Linear(in_features=4, out_features=2, bias=True)
    >>> x = torch.randn(5, 4)
    >>> torch.allclose(folded(x), served(x), atol=1e-6)
    True
    """
    if not isinstance(served, Served):
        raise TypeError(
            f"served is a {type(served).__name__}: wrap the model first, e.g. Rebalanced(model, source=prior)"
        )
    whole = copy.deepcopy(served).eval()
    name = _head_of_logits(whole, _as_tuple(inputs))
    if name is None:
        return whole
    head = whole.model.get_submodule(name)
    assert isinstance(head, nn.Linear)
    with torch.no_grad():
        bias = torch.zeros_like(head.weight[:, 0]) if head.bias is None else head.bias
        head.bias = nn.Parameter(bias - whole.shift, requires_grad=bias.requires_grad)
    return whole.model


def export_program(
    served: Served,
    inputs: Inputs,
    *,
    probabilities: bool = False,
    decisions: bool = False,
    dynamic_batch: bool = True,
) -> ExportedProgram:
    """`torch.export` of the corrected model. `inputs` is an example: a tensor, or a tuple of arguments.

    Its output is logits, or with `probabilities=True` their softmax (for a `RebalancedSigmoid`, their sigmoid). With
    `decisions=True` a `RebalancedSigmoid` has a second output, the result of `decide`. With `dynamic_batch` the first
    dimension of every input tensor may have any size afterwards.

    To keep the priors with the program: `torch.export.save(program, path, extra_files=served.metadata)`.

    decisions       True for a second output, the result of `decide`
    dynamic_batch   True for a first dimension of any size

    >>> served = eq.Rebalanced(torch.nn.Linear(4, 2), source=[0.9, 0.1])
    >>> program = export_program(served, torch.randn(3, 4))
    >>> x = torch.randn(7, 4)
    >>> torch.allclose(program.module()(x), served(x), atol=1e-6)
    True
    """
    arguments = _as_tuple(inputs)
    if decisions and not isinstance(served, RebalancedSigmoid):
        raise TypeError(f"decisions need thresholds, and a {type(served).__name__} has none: take the argmax")
    model = fold_correction(served, arguments)
    activation: nn.Module = nn.Identity()
    if probabilities:
        activation = nn.Softmax(served.dim) if isinstance(served, Rebalanced) else nn.Sigmoid()
    if isinstance(served, RebalancedSigmoid) and decisions:
        model = _Deciding(model, activation, served.limit, served.dim)
    elif probabilities:
        model = _Activated(model, activation)
    shapes = None
    if dynamic_batch:
        arguments = tuple(_two_rows(value) for value in arguments)
        shapes = torch.export.ShapesCollection()  # type: ignore[no-untyped-call]
        for value in arguments:
            if _has_rows(value):
                shapes[value] = {0: torch.export.Dim.DYNAMIC}
    with torch.no_grad():
        return torch.export.export(model, arguments, dynamic_shapes=shapes)


def export_onnx(
    served: Served,
    inputs: Inputs,
    path: str | os.PathLike[str],
    *,
    probabilities: bool = False,
    decisions: bool = False,
    dynamic_batch: bool = True,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write the corrected model as an ONNX file; arguments as in `export_program`. Needs `equipoise[serve]`.

    Inputs have the names of the model's own arguments; the output is `logits` or `probabilities` (an input of that name
    gets the suffix `_in`) and, with `decisions=True`, also `decisions`. A dynamic first dimension is called `batch`.
    Priors, class names and thresholds are in the file's metadata, with the texts that `metadata` adds:
    `onnxruntime.InferenceSession(path).get_modelmeta().custom_metadata_map`. Weights of more than 1.5 GB are stored
    beside it, in `path` with the suffix `.data`.

    path            the file to write
    decisions       True for a second output, the result of `decide`
    dynamic_batch   True for a first dimension of any size
    metadata        more texts for the file's metadata, such as how images are prepared

    >>> served = eq.Rebalanced(torch.nn.Linear(4, 2), source=[0.9, 0.1])
    >>> from tempfile import mkdtemp
    >>> path = f"{mkdtemp()}/served.onnx"
    >>> export_onnx(served, torch.randn(3, 4), path, probabilities=True)
    >>> os.path.exists(path)
    True
    """
    try:
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError("ONNX needs onnx and onnxscript: pip install 'equipoise[serve]'") from error
    options = {"probabilities": probabilities, "decisions": decisions, "dynamic_batch": dynamic_batch}
    program = export_program(served, inputs, **options)
    output = "probabilities" if probabilities else "logits"
    onnx = torch.onnx.export(
        program,
        input_names=_input_names(served.model, len(_as_tuple(inputs)), output),
        output_names=[output, "decisions"] if decisions else [output],
        dynamo=True,
        verbose=False,
    )
    assert onnx is not None
    onnx.model.metadata_props.update({**(metadata or {}), **served.metadata})
    _name_batch(onnx)
    with written_whole(path) as scratch, tempfile.TemporaryDirectory(dir=scratch.parent) as folder:
        whole = Path(folder) / Path(path).name
        onnx.save(whole)
        weights = Path(f"{whole}.data")
        if weights.exists():  # for a model that is too large for one ONNX file
            with written_whole(f"{os.fspath(path)}.data") as beside:
                weights.replace(beside)
        shutil.copyfile(whole, scratch)


def _name_batch(onnx: Any) -> None:
    """Call the first dimension of the inputs `batch` instead of torch's symbol, if all of them have the same one."""
    dimensions = [value.shape[0] for value in onnx.model.graph.inputs if value.shape]
    first = {dimension.value for dimension in dimensions if not isinstance(dimension, int)}
    if len(first) == 1 and hasattr(onnx, "rename_axes"):  # a torch without it keeps its symbol
        onnx.rename_axes({first.pop(): "batch"})


class _Activated(nn.Module):
    """A model followed by the function that turns its logits into probabilities."""

    def __init__(self, model: nn.Module, activation: nn.Module) -> None:
        super().__init__()
        self.model, self.activation = model, activation

    def forward(self, *args: Any) -> Any:
        return self.activation(self.model(*args))


class _Deciding(nn.Module):
    """A model that returns its logits or probabilities, and which classes reach their thresholds."""

    limit: Tensor

    def __init__(self, model: nn.Module, activation: nn.Module, limit: Tensor, dim: int) -> None:
        super().__init__()
        self.model, self.activation, self.dim = model, activation, dim
        self.register_buffer("limit", limit.clone())

    def forward(self, *args: Any) -> tuple[Any, Tensor]:
        logits = self.model(*args)
        return self.activation(logits), logits >= along(self.limit, logits, self.dim, "threshold")


def _head_of_logits(served: Served, inputs: tuple[Any, ...]) -> str | None:
    """The name of the `nn.Linear` whose outputs are the model's logits, if the shift may go into its bias.

    A head that `fold_prior` changed is made plain again, as it is in evaluation mode.
    """
    unfold_prior(served.model)
    with torch.no_grad():
        program = torch.export.export(served.model, inputs)
    if not program.call_spec.out_spec.is_leaf():
        served.corrected(served.model(*inputs))  # raises if the output is not a single tensor
    (output,) = (node for node in program.graph.nodes if node.op == "output")
    logits = output.args[0][0]
    while getattr(logits, "target", None) is torch.ops.aten.dropout.default:  # does nothing in evaluation mode
        logits = logits.args[0]
    if getattr(logits, "target", None) is not torch.ops.aten.linear.default:
        return None
    values = logits.meta["val"]
    classes_last = served.dim % values.ndim == values.ndim - 1
    if served.scale != 1 or not classes_last or values.dtype not in (torch.float32, torch.float64):
        return None
    _, weight, *bias = logits.args
    parameter = next((node for node in bias if node is not None), weight)
    name = program.graph_signature.inputs_to_parameters.get(parameter.name)
    if name is None or len(parameter.users) > 1 or _is_shared(served.model, name):
        return None  # computed, or also used elsewhere, where no shift belongs
    owner = name.rpartition(".")[0]
    return owner if type(served.model.get_submodule(owner)) is nn.Linear else None


def _is_shared(model: nn.Module, name: str) -> bool:
    found = model.get_parameter(name)
    return sum(value is found for _, value in model.named_parameters(remove_duplicate=False)) > 1


def _input_names(model: nn.Module, count: int, taken: str) -> list[str] | None:
    """The names of the model's arguments, made unique in the file: a model may turn logits into logits."""
    names = list(inspect.signature(model.forward).parameters)[:count]
    names = [f"{name}_in" if name == taken else name for name in names]
    return names if len(names) == count and not {"args", "kwargs"} & set(names) else None


def _as_tuple(inputs: Inputs) -> tuple[Any, ...]:
    if not isinstance(inputs, Tensor | tuple):
        raise TypeError(
            f"inputs is a {type(inputs).__name__}: expected an example for the model, a tensor, or a tuple of arguments"
        )
    found = inputs if isinstance(inputs, tuple) else (inputs,)
    if any(_has_rows(value) and len(value) == 0 for value in found):
        raise ValueError("inputs have no rows: give an example with at least one")
    return found


def _has_rows(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0


def _two_rows(value: Any) -> Any:
    """The tracer takes a batch size of one for a constant: show it two rows."""
    return torch.cat([value, value]) if _has_rows(value) and len(value) == 1 else value
