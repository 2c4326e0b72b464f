"""Serve a model that was trained under one class prior where another one applies.

    softmax:   logits for the target  =  scale · model(x) − (tau · log π_source − log π_target)
    sigmoid:   logits for the rate t  =  scale · model(x) − (logit π_source − logit t)

`Rebalanced` and `RebalancedSigmoid` wrap a classifier that returns logits. Its weights do not change, and the target
can be changed at any time. Both priors and the class names travel with the model: `save` writes the model's own tensors
to a safetensors file and the rest into its metadata, and `load` restores everything; a `state_dict` carries it too.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from equipoise.arrays import outside
from equipoise.files import written_whole
from equipoise.losses.shared import PriorModule, along, full_precision, is_traced
from equipoise.models.balanced_head import is_folded
from equipoise.models.heads import NormalizedLinear
from equipoise.prior import Prior, PriorLike, as_prior
from equipoise.serving.correction import SigmoidCorrection, SoftmaxCorrection, as_rates, check_names

# This many values must all lie in [−1, 1] before they are taken for cosines.
ENOUGH = 256
# A number in JSON, such as -2.2250738585072014e-308, and a comma; metadata take whole pages in a state dict.
LONGEST, PAGE = 26, 4096

Output = str | int | Callable[[Any], Tensor]  # where the logits are in what a model returns


# -------------------------------------------------------------------- the wrappers


class Served(PriorModule):
    """What both wrappers share: the corrected forward, the checks, saving and loading."""

    model: nn.Module
    shift: Tensor
    _correction: SoftmaxCorrection | SigmoidCorrection

    def __init__(
        self, model: nn.Module, correction: SoftmaxCorrection | SigmoidCorrection, output: Output | None = None
    ) -> None:
        super().__init__()
        if not isinstance(model, nn.Module):
            raise TypeError(
                f"model is a {type(model).__name__}: expected an nn.Module that returns logits "
                "(if you already have logits, use adjust_logits or adjust_sigmoid_logits)"
            )
        if isinstance(model, Served):
            raise TypeError(f"model is already a {type(model).__name__}: change its target, do not correct it twice")
        shift = correction.shift()
        _check_head(model, len(shift) if shift.ndim else None, correction.scale)
        self.model = model if output is None else LogitsOf(model, output)
        self._values_to_see = ENOUGH if correction.scale is None else 0
        self.register_buffer("shift", shift.to(_device(model)), persistent=False)
        self._use(correction, shift)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.corrected(self.model(*args, **kwargs))

    def corrected(self, logits: Tensor) -> Tensor:
        """Logits of the wrapped model, corrected for the target."""
        if not isinstance(logits, Tensor):
            raise TypeError(
                f"the model returned a {type(logits).__name__}, not a tensor of logits: say where they are, e.g. "
                "output='logits', or wrap a module whose forward is `return self.model(x).logits`"
            )
        if not is_traced() and self._values_to_see > 0:  # in this order: a compiler guards what it reads
            self._look_for_cosines(logits)
        self.check_values()
        scaled = full_precision(logits) if self._correction.scale is None else full_precision(logits) * self.scale
        return scaled - along(self.shift, logits, self.dim, "the prior")

    @property
    def scale(self) -> float:
        """The factor by which the logits are multiplied before they are corrected."""
        return 1.0 if self._correction.scale is None else self._correction.scale

    @property
    def dim(self) -> int:
        """The dimension of the logits that holds the classes."""
        return self._correction.dim

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """The names of the classes in column order, if a prior has them."""
        return self._correction.class_names

    @property
    def metadata(self) -> dict[str, str]:
        """Priors, class names and options as text, for a checkpoint or an exported model.

        >>> served = Rebalanced(torch.nn.Linear(3, 2), source=eq.Prior.from_counts({"cat": 90, "owl": 10}))
        >>> served.metadata["class_names"], served.metadata["target"]
        ('["cat", "owl"]', '{"probabilities": [0.5, 0.5], "class_names": ["cat", "owl"]}')
        """
        return {"equipoise": type(self).__name__, **self._correction.to_metadata()}

    def extra_repr(self) -> str:
        fields = vars(self._correction).items()
        return "\n".join(f"{name}={value!r}," for name, value in fields if value is not None)

    # ---------------------------------------------------------------- into a file and back

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file: the model's own tensors under its own names, everything else as metadata.

        Anything that reads safetensors can load the weights into the plain model. The file is either complete or
        absent. Needs `equipoise[serve]`.
        """
        with written_whole(path) as scratch:
            content = {"format": "pt", **self.metadata}
            try:
                _safetensors().torch.save_model(_plain(self.model), os.fspath(scratch), content)
            except _safetensors().SafetensorError as error:  # a full disk, say
                raise OSError(f"{os.fspath(path)} could not be written ({error})") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: nn.Module, *, output: Output | None = None) -> Self:
        """Load what `save` wrote: the weights go into `model`, which is returned wrapped, with the priors of the file.

        >>> import tempfile
        >>> served = Rebalanced(torch.nn.Linear(3, 2), source=[0.9, 0.1], target=[0.3, 0.7])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     served.save(f"{folder}/model.safetensors")
        ...     again = Rebalanced.load(f"{folder}/model.safetensors", torch.nn.Linear(3, 2))
        >>> again.target.probabilities.tolist()
        [0.3, 0.7]
        """
        try:
            with _safetensors().safe_open(os.fspath(path), framework="pt") as file:
                content = file.metadata() or {}
        except _safetensors().SafetensorError as error:
            raise ValueError(
                f"{os.fspath(path)} is not a safetensors file ({error}), as `save` writes; load a file from torch.save "
                "with load_state_dict"
            ) from error
        correction = _read(content, cls, os.fspath(path))
        if any(tensor.is_meta for tensor in model.state_dict().values()):
            raise ValueError(
                "the model is on the meta device and cannot take weights: call model.to_empty(device='cpu') first"
            )
        served = cls(model, output=output, **vars(correction))
        try:
            _safetensors().torch.load_model(_plain(model), os.fspath(path))
        except (RuntimeError, _safetensors().SafetensorError) as error:
            raise ValueError(f"the weights of {os.fspath(path)} do not fit this model: {error}") from error
        return served

    def get_extra_state(self) -> Tensor:
        """The metadata as bytes: a `state_dict` carries them, and stays loadable with `weights_only=True`.

        Blanks at the end make room for any other numbers for the same classes: torch.distributed.checkpoint loads into
        the existing tensor, which must have the same length as the saved one.
        """
        text = json.dumps(self.metadata).encode()
        priors = [value for value in vars(self._correction).values() if isinstance(value, Prior)]
        ids = next((prior.class_ids for prior in priors if prior.class_ids), None)
        names = 3 * len(json.dumps(json.dumps(self.class_names))) + 2 * len(json.dumps(ids))
        room = max(len(text), names + 2 * LONGEST * max(self.shift.numel(), 1))
        return torch.frombuffer(bytearray(text.ljust(-(-room // PAGE) * PAGE)), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        try:
            content = json.loads(state.cpu().numpy().tobytes())
        except ValueError as error:
            raise ValueError(f"the priors in the state dict cannot be read ({error}): was it cut short?") from error
        correction = _read(content, type(self), "the state dict")
        check_names(correction.class_names, self.class_names, "class_names", "the state dict", "this model")
        self._use(correction, correction.shift())

    # ---------------------------------------------------------------- inside

    def _use(self, correction: Any, shift: Tensor) -> None:
        if hasattr(self, "_correction") and shift.ndim and self.shift.ndim and len(shift) != len(self.shift):
            raise ValueError(
                f"the new prior has {len(shift)} classes, the model's has {len(self.shift)}: give one entry per class"
            )
        if not correction.changes(shift):
            warnings.warn("source and target are the same, so the model's outputs do not change", stacklevel=outside())
        self._correction = correction
        self._lost = ()
        if shift.shape == self.shift.shape and not self.shift.is_inference():
            with torch.no_grad():
                self.shift.copy_(shift)  # in place: a captured CUDA graph keeps reading this memory
        else:
            self.shift = shift.to(self.shift.device)

    def _look_for_cosines(self, logits: Tensor) -> None:
        """Look at the first values that the model returns, until one lies outside [−1, 1] or enough were seen."""
        if type(logits) is not Tensor or logits.is_meta or logits.numel() == 0:
            return
        low, high = (float(value) for value in logits.detach().aminmax())
        if not (low >= -1.001 and high <= 1.001):  # a cosine in half precision may be a little more than 1
            self._values_to_see = 0
            return
        self._values_to_see -= logits.numel()
        if self._values_to_see <= 0:
            warnings.warn(
                f"the model's logits lie in [{low:.3g}, {high:.3g}], like cosines, and a log prior would swamp them: "
                "if training multiplied them by a number, pass it as scale, e.g. scale=30; "
                "pass scale=1 if they are logits",
                stacklevel=outside(),
            )


class LogitsOf(nn.Module):
    """A model whose output holds the logits among other things; returns only the logits."""

    def __init__(self, model: nn.Module, output: Output) -> None:
        super().__init__()
        self.model, self.output = model, output

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        found = self.model(*args, **kwargs)
        if callable(self.output):
            return self.output(found)
        if isinstance(self.output, str) and not isinstance(found, Mapping):
            return getattr(found, self.output)
        return found[self.output]


class Rebalanced(Served):
    """A classifier whose softmax logits are right for the prior `target`, which can be changed at any time.

    `source` is the prior that the model's logits *mean*: the training prior after a plain loss, uniform (None) after a
    balanced one. `target` is the prior in use; None is uniform. Each is a `Prior` or a vector of probabilities, and at
    least one must be given. A class that `target` *states* as 0 gets probability 0.

    `tau` works as in `adjust_logits`. `scale` multiplies the logits first: the scale of a cosine classifier, or one
    over a temperature. The classes are in dimension `dim` (dim=1 for dense [N, K, H, W]). Returns logits of the same
    shape, in at least fp32. If the model returns more than its logits, `output` says where they are: "logits" for
    Hugging Face's models, an index for a tuple, or a function of what the model returns.

    model    the trained classifier, any `nn.Module`
    scale    by which the logits are multiplied first; None is no scale
    output   where the logits are in what the model returns: "logits", an index, or a function

    >>> prior = eq.Prior.from_counts([900, 100])
    >>> model = torch.nn.Linear(4, 2)                  # trained with the plain loss, on data of this prior
    >>> served = Rebalanced(model, source=prior)       # used where both classes are equally likely
    >>> x = torch.randn(3, 4)
    >>> torch.equal(served(x), eq.adjust_logits(model(x), source=prior))
    True
    >>> served.target = [0.2, 0.8]                     # the world changes, the weights do not
    >>> torch.equal(served(x), eq.adjust_logits(model(x), source=prior, target=[0.2, 0.8]))
    True
    """

    _correction: SoftmaxCorrection

    def __init__(
        self,
        model: nn.Module,
        *,
        source: PriorLike | None = None,
        target: PriorLike | None = None,
        tau: float = 1.0,
        scale: float | None = None,
        dim: int = -1,
        output: Output | None = None,
    ) -> None:
        trained, wanted = _prior(source, "source"), _prior(target, "target")
        known = trained or wanted
        if known is None:
            raise ValueError(
                "source and target are both None (uniform), so nothing would change: pass at least one; source is "
                "what the logits mean, the training prior after a plain loss and None after a balanced one"
            )
        correction = SoftmaxCorrection(trained or _uniform_like(known), wanted or _uniform_like(known), tau, scale, dim)
        super().__init__(model, correction, output)
        if is_folded(model) and trained is not None and trained.imbalance > 1:
            warnings.warn(
                f"the model's head was trained with fold_prior, so its logits mean a uniform prior, not {trained!r}: "
                "pass source=None, or unfold_prior(model) if that is not so",
                stacklevel=outside(),
            )

    @property
    def source(self) -> Prior:
        """The prior that the wrapped model's logits mean."""
        return self._correction.source

    @property
    def tau(self) -> float:
        """How much of the source is removed."""
        return self._correction.tau

    @property
    def target(self) -> Prior:
        """The prior that this module's logits mean. Assign another one (None: uniform) to change it."""
        return self._correction.target

    @target.setter
    def target(self, target: PriorLike | None) -> None:
        wanted = _prior(target, "target") or _uniform_like(self.source)
        correction = replace(self._correction, target=wanted)
        self._use(correction, correction.shift())


class RebalancedSigmoid(Served):
    """The counterpart of `Rebalanced` for sigmoid logits: binary and multi-label classifiers, detectors' class scores.

    `source` holds the rates that the logits mean, a `Prior` (e.g. from `Prior.from_multilabel`) or rates; `target_rate`
    is the rate in use, one for all classes or one per class. `scale`, `dim` and `output` work as in `Rebalanced`.
    `threshold` is the probability, one for all classes or one per class (e.g. from `f1_thresholds`), from which
    `decide` predicts a class; it is saved and exported with the model.

    model       the trained classifier, any `nn.Module`
    scale       by which the logits are multiplied first; None is no scale
    output      where the logits are in what the model returns: "logits", an index, or a function
    threshold   probability from which `decide` predicts a class: one number, or one per class

    >>> model = torch.nn.Linear(4, 1)                                    # one logit: fraud or not, 2 % in training
    >>> served = RebalancedSigmoid(model, source=0.02, target_rate=0.001)
    >>> x = torch.randn(3, 4)
    >>> torch.equal(served(x), eq.adjust_sigmoid_logits(model(x), source=0.02, target_rate=0.001))
    True
    >>> served.target_rate = 0.01
    >>> served.threshold = 0.2
    >>> torch.equal(served.decide(x), served(x).sigmoid() >= 0.2)
    True
    """

    _correction: SigmoidCorrection
    limit: Tensor

    def __init__(
        self,
        model: nn.Module,
        *,
        source: PriorLike | float,
        target_rate: float | Sequence[float] | Tensor,
        scale: float | None = None,
        dim: int = -1,
        output: Output | None = None,
        threshold: float | Sequence[float] | Tensor = 0.5,
    ) -> None:
        rates = source if isinstance(source, Prior) else as_rates(source)
        super().__init__(
            model, SigmoidCorrection(rates, as_rates(target_rate), scale, dim, as_rates(threshold)), output
        )

    def decide(self, *args: Any, **kwargs: Any) -> Tensor:
        """Which classes the items have: True if the probability reaches the threshold. Shape as the logits."""
        return self.decisions(self(*args, **kwargs))

    def decisions(self, logits: Tensor) -> Tensor:
        """`decide` for logits that this module returned."""
        return logits >= along(self.limit, logits, self.dim, "threshold")

    @property
    def source(self) -> Prior | float | tuple[float, ...]:
        """The rates that the wrapped model's logits mean."""
        return self._correction.source

    @property
    def target_rate(self) -> float | tuple[float, ...]:
        """The rates that this module's logits mean. Assign others to change them."""
        return self._correction.target_rate

    @target_rate.setter
    def target_rate(self, rate: float | Sequence[float] | Tensor) -> None:
        correction = replace(self._correction, target_rate=as_rates(rate))
        if isinstance(self.threshold, tuple) and correction.target_rate != self.target_rate:
            warnings.warn(
                "the thresholds were chosen for the previous rates: unless they follow from costs, choose them again "
                "and assign `threshold`",
                stacklevel=outside(),
            )
        self._use(correction, correction.shift())

    @property
    def threshold(self) -> float | tuple[float, ...]:
        """The probability from which a class is predicted, one for all classes or one per class. Assign to change
        it."""
        return self._correction.threshold

    @threshold.setter
    def threshold(self, threshold: float | Sequence[float] | Tensor) -> None:
        self._correction = replace(self._correction, threshold=as_rates(threshold))
        self._use_limit(self._correction.limit())

    def _use(self, correction: Any, shift: Tensor) -> None:
        super()._use(correction, shift)
        self._use_limit(correction.limit())

    def _use_limit(self, limit: Tensor) -> None:
        now = self._buffers.get("limit")
        if now is not None and now.shape == limit.shape and not now.is_inference():
            with torch.no_grad():
                now.copy_(limit)  # in place, like the shift
        else:
            self.register_buffer("limit", limit.to(self.shift.device), persistent=False)


# -------------------------------------------------------------------- checks and conversions


def _prior(value: PriorLike | None, what: str) -> Prior | None:
    if isinstance(value, str):
        raise TypeError(f"{what} is {value!r}: expected a Prior, probabilities, or None for uniform")
    return None if value is None else as_prior(value)


def _uniform_like(prior: Prior) -> Prior:
    return Prior.uniform(prior.num_classes, class_names=prior.class_names)


def _check_head(model: nn.Module, num_classes: int | None, scale: float | None) -> None:
    """Check what is known before the first batch: the size of the last layer, and whether the head returns cosines."""
    last = _plain(model)
    while isinstance(last, nn.Sequential) and len(last) > 0:
        last = last[-1]
    if num_classes is not None and isinstance(last, nn.Linear | NormalizedLinear) and last.out_features != num_classes:
        found = f"{last.out_features} outputs: build the prior with the model's num_classes"
        if last.out_features == 1:
            found = "one output: a single logit belongs to a sigmoid, so use RebalancedSigmoid with one rate, e.g. 0.1"
        raise ValueError(f"the prior has {num_classes} classes, the model's last layer has {found}")
    if scale is None and any(isinstance(module, NormalizedLinear) for module in model.modules()):
        raise ValueError(
            "the model has a NormalizedLinear, whose outputs are cosines in [−1, 1], and a log prior would swamp them: "
            "pass the scale that training multiplied them by, e.g. scale=30 (the default of LDAMLoss), "
            "or scale=1 if the model multiplies them itself"
        )


def _plain(model: nn.Module) -> nn.Module:
    """The model inside the wrappers of torch.compile and data parallelism; its tensors have their own names."""
    while True:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        elif isinstance(model, LogitsOf):
            model = model.model
        elif isinstance(getattr(model, "_orig_mod", None), nn.Module):  # torch's OptimizedModule
            model = model._orig_mod  # type: ignore[assignment]
        else:
            return model


def _device(model: nn.Module) -> torch.device:
    tensors = (*model.parameters(), *model.buffers())
    return tensors[0].device if tensors and not tensors[0].is_meta else torch.device("cpu")


# -------------------------------------------------------------------- metadata


def _read(content: Mapping[str, str], kind: type[Served], where: str) -> SoftmaxCorrection | SigmoidCorrection:
    found = content.get("equipoise")
    if found is None:
        raise ValueError(
            f"{where} holds weights but no priors: load the weights into the model, then wrap it with "
            f"{kind.__name__}(model, source=...)"
        )
    if found != kind.__name__:
        raise ValueError(f"{where} holds a {found}, not a {kind.__name__}: load it as one")
    correction = SoftmaxCorrection if kind is Rebalanced else SigmoidCorrection
    try:
        return correction.from_metadata(content)
    except KeyError as error:
        raise ValueError(f"the metadata of {where} lack {error}: was it written by another version?") from error
    except (TypeError, ValueError) as error:
        raise ValueError(f"the metadata of {where} cannot be read ({error}): was it changed, or cut short?") from error


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError("checkpoints need safetensors: pip install 'equipoise[serve]'") from error
    return safetensors
