"""Train image classifiers: a plain loop, several runs at a time on one GPU.

A run draws everything random on the host from (its seed, the chunk of iterations it is at), so its result does not
depend on what else runs, and it can be taken up again after any chunk. A chunk is 20 batches, augmented at once on the
device. On a GPU the step (forward, loss, backward, SGD) is captured once as a CUDA graph and replayed, every run on its
own stream; the backbone runs in bf16 autocast, head and loss in fp32. On a CPU the same step runs as it is, in fp32.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from equipoise.models.decoupled import ScaledHead
from equipoise.models.heads import NormalizedLinear
from equipoise.models.resnet_cifar import FEATURES, ResNetCifar
from equipoise.prior import IntArray, Prior
from equipoise.samplers.class_balanced import ClassBalancedSampler
from equipoise.serving.adjust import adjust_logits
from equipoise.training.augmentation import TrainingAugmentation, draw, normalise
from equipoise.training.augmentation.autoaugment import upload
from equipoise.training.recipe import Recipe

CHUNK = 20  # iterations that are augmented, and can be checkpointed, together
INITIALISATION, ORDER, AUGMENTATION, LOSS = range(4)  # the streams of random numbers of a run


@dataclass(frozen=True)
class TrainingSet:
    """Training images on a device, ready to be augmented; runs share it."""

    labels: IntArray  # on the host
    device_labels: Tensor
    prior: Prior
    augmentation: TrainingAugmentation

    @property
    def device(self) -> torch.device:
        return self.device_labels.device

    @classmethod
    def of(cls, images: NDArray[np.uint8], labels: IntArray, prior: Prior, device: torch.device) -> TrainingSet:
        """From images [N, 3, 32, 32] uint8 and class indices [N] on the host."""
        augmentation = TrainingAugmentation(torch.from_numpy(images).to(device))
        return cls(labels, torch.from_numpy(labels).to(device), prior, augmentation)


# -------------------------------------------------------------------- what a run is made of


def stream_of(seed: int, *path: int) -> np.random.Generator:
    """An independent stream of random numbers for each (seed, path)."""
    return np.random.default_rng([seed, *path])


def build_model(
    recipe: Recipe, num_classes: int, seed: int, backbone: Mapping[str, Tensor] | None = None
) -> ResNetCifar:
    """The recipe's network, initialised from the seed alone; with a `backbone`, its weights, frozen."""
    head_seed = int(stream_of(seed, INITIALISATION).integers(2**62))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(head_seed)
        head = _head(recipe, num_classes)
        model = ResNetCifar(head, recipe.blocks)
    if recipe.backbone is None:
        return model
    if backbone is None:
        raise ValueError(f"this recipe keeps the backbone of {recipe.backbone!r}: pass its weights")
    trained = {name: value for name, value in backbone.items() if not name.startswith("head.")}
    missing = model.load_state_dict(trained, strict=False)
    if missing.unexpected_keys or any(not name.startswith("head.") for name in missing.missing_keys):
        raise ValueError(f"the weights of {recipe.backbone!r} do not fit this network: {missing}")
    model.requires_grad_(False)
    if recipe.head in ("scaled", "kept"):
        trained_head = nn.Linear(FEATURES, num_classes)
        trained_head.load_state_dict({name: backbone[f"head.{name}"] for name in ("weight", "bias")})
        model.head = ScaledHead(trained_head) if recipe.head == "scaled" else trained_head
    else:
        model.head.requires_grad_(True)
    return model


def _head(recipe: Recipe, num_classes: int) -> nn.Module:
    if recipe.head == "normalized":
        return NormalizedLinear(FEATURES, num_classes)
    head = nn.Linear(FEATURES, num_classes)
    if recipe.rare_bias:
        nn.init.constant_(head.bias, -float(np.log(num_classes - 1)))
    return head


def sample_order(recipe: Recipe, labels: IntArray, seed: int) -> NDArray[np.int32]:
    """The training images of all iterations, [iterations · batch_size], fewer iterations being a prefix of more.

    "instance": permutation after permutation, batches running on across epochs, so that no image is ever left out.
    """
    number = recipe.iterations * recipe.batch_size
    if recipe.sampler == "class_balanced":
        sampler = ClassBalancedSampler(labels, num_samples=max(number, 1), seed=seed, num_replicas=1, rank=0)
        return np.fromiter(sampler, np.int32, max(number, 1))[:number]
    random = stream_of(seed, ORDER)
    epochs = -(-number // len(labels))
    orders = [np.zeros(0, np.int64)] + [random.permutation(len(labels)) for _ in range(epochs)]
    return np.concatenate(orders)[:number].astype(np.int32)


# -------------------------------------------------------------------- a run


Features = Callable[[ResNetCifar, Tensor], Tensor]
"""The features [N, 64] that a model gives uint8 images, for a training step."""


def features(model: ResNetCifar, images: Tensor) -> Tensor:
    """By torch's kernels; a function, so that one compiled version serves every model of the same shape."""
    with _autocast(images.device):
        return model.features(_layout(normalise(images)))


@functools.cache
def compiled_features() -> Features:
    return torch.compile(features)


class Training:
    """One run in progress: call `advance` until `done`, then `model` holds the last iterate.

    A loss that draws something in every step has a method `draw(rows, random)`, bool [rows, K]; it gets what it drew as
    its third argument.
    """

    def __init__(
        self,
        recipe: Recipe,
        data: TrainingSet,
        seed: int,
        *,
        backbone: Mapping[str, Tensor] | None = None,
        features: Features = features,
        graphed: bool = True,
    ) -> None:
        device = data.device
        num_classes = data.prior.num_classes
        self.recipe, self.data, self.seed = recipe, data, seed
        self.model = build_model(recipe, num_classes, seed, backbone).to(device)
        if device.type == "cuda":  # before anything is made in the shape of a parameter
            self.model = self.model.to(memory_format=torch.channels_last)
        self.loss = recipe.make_loss(data.prior).to(device)
        self.order = sample_order(recipe, data.labels, seed)
        self.iteration = 0
        self.whole = True  # not within a chunk: may be saved
        self.losses = torch.zeros(recipe.iterations, device=device)
        self.parameters: list[Tensor] = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.velocity = [torch.zeros_like(parameter) for parameter in self.parameters]
        self._features = features
        # The step reads its batch from these, at the row that _slot says, and moves _slot on: nothing else changes
        # from step to step, so that one captured graph serves for all of them.
        self._slot = torch.zeros(1, dtype=torch.int64, device=device)
        self._images = torch.zeros(CHUNK, recipe.batch_size, 3, 32, 32, dtype=torch.uint8, device=device)
        self._labels = torch.zeros(CHUNK, recipe.batch_size, dtype=torch.int64, device=device)
        self._rates = torch.zeros(CHUNK, device=device)
        self._step_losses = torch.zeros(CHUNK, device=device)
        self._draw: Callable[[int, np.random.Generator], NDArray[np.bool_]] | None = getattr(self.loss, "draw", None)
        shape = (CHUNK, recipe.batch_size, num_classes) if self._draw else (0,)
        self._drawn = torch.zeros(shape, dtype=torch.bool, device=device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._stream: torch.cuda.Stream | None = None
        self._finished: list[torch.cuda.Event] = []
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            if graphed and recipe.iterations:
                self._capture()

    @property
    def iterations(self) -> int:
        return self.recipe.iterations

    @property
    def batch_size(self) -> int:
        return self.recipe.batch_size

    @property
    def done(self) -> bool:
        return self.iteration >= self.recipe.iterations

    @property
    def finite(self) -> bool:
        """Whether the loss has stayed a number."""
        return bool(torch.isfinite(self.losses).all())

    def advance(self) -> None:
        """Up to 20 iterations; on a GPU they are queued on the run's own stream, at most two chunks ahead."""
        if len(self._finished) == 2:
            self._finished.pop(0).synchronize()
        steps = min(CHUNK, self.recipe.iterations - self.iteration)
        self.whole = False
        self.model.train()
        if self.recipe.backbone is not None:
            self.model.eval()
        with self._on_stream():
            self._fill()
            for _ in range(steps):
                if self._graph is None:
                    self._step()
                else:
                    self._graph.replay()
            self.losses[self.iteration : self.iteration + steps] = self._step_losses[:steps]
            if self._stream is not None:
                event = torch.cuda.Event()  # type: ignore[no-untyped-call]
                event.record(self._stream)
                self._finished.append(event)
        self.iteration += steps
        self.whole = True

    def wait(self) -> None:
        """Until everything queued is done."""
        if self._stream is not None:
            self._stream.synchronize()

    @torch.no_grad()
    def predict(self, images: Tensor) -> Tensor:
        """Logits [N, K] of uint8 images, in fp32, with running statistics; less the prior where the recipe says."""
        self.model.eval()
        if self._stream is not None:  # `images` may still be on their way, on the stream of the caller
            self._stream.wait_stream(torch.cuda.current_stream(images.device))
        with self._on_stream():
            logits = torch.cat([self.model(_layout(normalise(part))) for part in torch.split(images, 1000)]).float()
            if self.recipe.adjusted:
                logits = adjust_logits(logits, source=self.data.prior, target=None)
        self.wait()
        return logits

    def state_dict(self) -> dict[str, Any]:
        """Everything that a run taken up again needs, as plain tensors and numbers, on the host."""
        self.wait()
        return {
            "iteration": self.iteration,
            "seed": self.seed,
            "model": self.weights(),
            "velocity": [value.cpu() for value in self.velocity],
            "losses": self.losses.cpu(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a run that `state_dict` saved. The recipe and the data must be the same: who keeps it, checks it."""
        if state["seed"] != self.seed or len(state["losses"]) != len(self.losses):
            raise ValueError(
                f"the checkpoint is of seed {state['seed']} and {len(state['losses'])} iterations, "
                f"this run of seed {self.seed} and {len(self.losses)}: delete it, or run what it was made for"
            )
        with torch.no_grad():
            for own, saved in zip(self.velocity, state["velocity"], strict=True):
                own.copy_(saved)
            self.losses.copy_(state["losses"])
            self.model.load_state_dict(state["model"])
        self.iteration = int(state["iteration"])
        if self._stream is not None:
            torch.cuda.synchronize(self.data.device)

    def weights(self) -> dict[str, Tensor]:
        """The model's, on the host."""
        self.wait()
        return {name: value.cpu() for name, value in self.model.state_dict().items()}

    def note(self) -> dict[str, Any]:
        """What is kept beside the weights of a finished run."""
        return {"losses": self.losses.tolist()}

    def take_weights(self, weights: Mapping[str, Tensor], note: Mapping[str, Any]) -> None:
        """Become the finished run that gave them."""
        self.model.load_state_dict(weights)
        self.losses.copy_(torch.tensor(note["losses"]))
        self.iteration = self.iterations
        if self._stream is not None:
            torch.cuda.synchronize(self.data.device)

    # ---------------------------------------------------------------- the step

    def _step(self) -> None:
        """One iteration on the batch at _slot. No host value is read or made: it can be captured in a CUDA graph."""
        images, labels = self._images.index_select(0, self._slot)[0], self._labels.index_select(0, self._slot)[0]
        logits = self.model.head(self._features(self.model, images).float())
        drawn = () if self._draw is None else (self._drawn.index_select(0, self._slot)[0],)
        loss = self.loss(logits, labels, *drawn)
        gradients = torch.autograd.grad(loss, self.parameters)
        rate = self._rates.index_select(0, self._slot)
        sgd_(self.parameters, gradients, self.velocity, rate, self.recipe)
        self._step_losses.index_copy_(0, self._slot, loss.detach().float().view(1))
        self._slot += 1

    def _fill(self) -> None:
        """The next chunk: augmented images, labels, learning rates, and what the loss draws."""
        recipe, size = self.recipe, self.recipe.batch_size
        chunk = self.iteration // CHUNK
        steps = min(CHUNK, recipe.iterations - self.iteration)
        # the whole chunk is drawn even where fewer steps are left: what is drawn depends on (seed, chunk) alone
        draws = draw(CHUNK * size, stream_of(self.seed, AUGMENTATION, chunk)).first(steps * size)
        index = self.order[self.iteration * size : (self.iteration + steps) * size].astype(np.int64)
        device_index = upload(index, self.data.device)
        self._images[:steps].flatten(0, 1).copy_(self.data.augmentation(index, draws))
        self._labels[:steps].flatten().copy_(self.data.device_labels[device_index])
        rates = np.array([recipe.learning_rate(self.iteration + step) for step in range(CHUNK)], np.float32)
        self._rates.copy_(upload(rates, self.data.device))
        if self._draw is not None:
            drawn = self._draw(CHUNK * size, stream_of(self.seed, LOSS, chunk))
            self._drawn.flatten(0, 1).copy_(upload(drawn, self.data.device))
        self._slot.zero_()

    def _capture(self) -> None:
        """Record the step as a CUDA graph, after three real ones that let cuDNN and the allocator settle."""
        assert self._stream is not None
        self.model.train(self.recipe.backbone is None)
        changed = [*self.model.state_dict().values(), *self.velocity, self._slot, self._step_losses]
        before = [value.clone() for value in changed]
        torch.cuda.synchronize(self.data.device)
        with torch.cuda.stream(self._stream):
            for _ in range(3):
                self._step()
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream):
            self._step()
        with torch.no_grad():
            for value, original in zip(changed, before, strict=True):
                value.copy_(original)
        torch.cuda.synchronize(self.data.device)
        self._graph = graph

    def _on_stream(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream)


@torch.no_grad()
def sgd_(
    parameters: list[Tensor],
    gradients: tuple[Tensor, ...],
    velocity: list[Tensor],
    rate: Tensor,
    recipe: Recipe,
) -> None:
    """SGD with momentum and weight decay on every parameter, as torch.optim.SGD; the rate is read from the device.

    v ← μ v + g + λ p;   p ← p − rate · v   (with Nesterov: p ← p − rate · (g + λ p + μ v))
    """
    decayed = torch._foreach_add(gradients, parameters, alpha=recipe.weight_decay)
    torch._foreach_mul_(velocity, recipe.momentum)
    torch._foreach_add_(velocity, decayed)
    change = torch._foreach_add(decayed, velocity, alpha=recipe.momentum) if recipe.nesterov else tuple(velocity)
    torch._foreach_add_(parameters, torch._foreach_mul(change, -rate.view(())))


def _autocast(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    if device.type != "cuda":
        return contextlib.nullcontext()
    # every weight is used once a step: the cache would only keep copies alive across a graph's capture
    return torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False)


def _layout(images: Tensor) -> Tensor:
    return images.contiguous(memory_format=torch.channels_last) if images.device.type == "cuda" else images


# -------------------------------------------------------------------- several runs


def train(runs: Sequence[Training], after_chunk: Callable[[], bool] = lambda: False) -> bool:
    """Advance `runs` together, chunk by chunk, until all are done (True) or `after_chunk()` says to stop (False)."""
    while not all(run.done for run in runs):
        for run in runs:
            if not run.done:
                run.advance()
        if after_chunk():
            break
    for run in runs:
        run.wait()
    return all(run.done for run in runs)


def thinned(losses: Iterable[float], points: int = 130) -> list[float]:
    """The curve as at most `points` means of equal stretches, to five digits.

    >>> thinned([1.0, 3.0, 5.0, 7.0], points=2)
    [2.0, 6.0]
    """
    values = np.asarray(list(losses), np.float64)
    stretch = max(1, -(-len(values) // points))
    return [float(f"{values[i : i + stretch].mean():.5g}") for i in range(0, len(values), stretch)]
