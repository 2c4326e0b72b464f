"""Train image classifiers: a plain loop, several runs at a time on one GPU.

A run draws everything random on the host from its seed and the current chunk of iterations, so its result does not
depend on what else runs, and it can be resumed after any chunk. A chunk is up to 20 batches, augmented together on the
device. On a GPU the step (forward, loss, backward, SGD) is captured once as a CUDA graph and replayed, every run on its
own stream; the backbone runs in bf16 autocast, head and loss in fp32. On a CPU the same step runs directly, in fp32.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from equipoise.models.classifiers import Classifier, freeze_stages, make_backbone
from equipoise.models.heads import NormalizedLinear, ScaledHead
from equipoise.models.processes import world
from equipoise.models.resnet_cifar import FEATURES, ResNetCifar
from equipoise.prior import IntArray
from equipoise.samplers.class_balanced import ClassBalancedSampler
from equipoise.serving.adjust import adjust_logits, adjust_sigmoid_logits
from equipoise.training.augmentation.autoaugment import upload
from equipoise.training.augmentation.cifar import MEAN, STD, normalise
from equipoise.training.distillation import Labelled, Pool, Teacher, distilled, make_pool
from equipoise.training.kinds import Run
from equipoise.training.mixing import Mixing
from equipoise.training.optimizers import Optimizer, climb_, clipped
from equipoise.training.recipe import Recipe
from equipoise.training.sets import (
    CHUNK_BYTES,
    INITIALISATION,
    LAYERS,
    LOSS,
    ORDER,
    TrainingSet,
    own_rows,
    stream_of,
)

Network = Classifier | ResNetCifar
LOOK_EVERY = 25  # chunks between checks of the losses

# -------------------------------------------------------------------- what a run is made of


def build_model(
    recipe: Recipe,
    num_classes: int,
    seed: int,
    backbone: Mapping[str, Tensor] | None = None,
    start: Mapping[str, Tensor] | None = None,
) -> Network:
    """The recipe's network, initialised from the seed alone. With the weights of another run as `backbone`, these are
    used, frozen; with those of a weights file as `start`, the backbone starts from them."""
    head_seed = int(stream_of(seed, INITIALISATION).integers(2**62))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(head_seed)
        model = _network(recipe, num_classes)
    if start is not None:
        model.load_state_dict(dict(start), strict=False)
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
        trained_head = nn.Linear(backbone["head.weight"].shape[1], num_classes)
        trained_head.load_state_dict({name: backbone[f"head.{name}"] for name in ("weight", "bias")})
        model.head = ScaledHead(trained_head) if recipe.head == "scaled" else trained_head
    else:
        model.head.requires_grad_(True)
    return model


def _network(recipe: Recipe, num_classes: int) -> Network:
    if recipe.model == "resnet32":
        return ResNetCifar(_head(recipe, FEATURES * recipe.width, num_classes), recipe.blocks, recipe.width)
    if recipe.model.startswith("features-"):  # a head for precomputed features
        return Classifier(nn.Identity(), _head(recipe, int(recipe.model.removeprefix("features-")), num_classes))
    options: dict[str, Any] = {"stride": recipe.stride, "full_stem": recipe.full_stem}
    if recipe.neck:
        options |= {"neck": recipe.neck, "dropout": recipe.dropout}
    backbone, width = make_backbone(recipe.model, recipe.size, **options)
    return Classifier(backbone, _head(recipe, width, num_classes))


def _head(recipe: Recipe, width: int, num_classes: int) -> nn.Module:
    if recipe.head == "normalized":
        return NormalizedLinear(width, num_classes)
    head = nn.Linear(width, num_classes)
    if recipe.neck:
        nn.init.normal_(head.weight, std=0.01)
        nn.init.zeros_(head.bias)
    if recipe.rare_bias:
        nn.init.constant_(head.bias, -float(np.log(num_classes - 1)))
    return head


def sample_order(recipe: Recipe, labels: IntArray, seed: int) -> NDArray[np.int32]:
    """The training images of all iterations, [iterations · batch_size]; fewer iterations are a prefix of more.

    "instance": one permutation after another; batches continue across epochs, so that no image is ever left out.
    """
    number = recipe.iterations * recipe.batch_size
    if recipe.sampler != "instance":
        classes: dict[str, Any] = {"labels" if labels.ndim == 1 else "classes_per_item": labels}
        classes["strength"] = {"class_balanced": 1.0, "square_root": 0.5}[recipe.sampler]
        sampler = ClassBalancedSampler(**classes, num_samples=max(number, 1), seed=seed, num_replicas=1, rank=0)
        return np.fromiter(sampler, np.int32, max(number, 1))[:number]
    random = stream_of(seed, ORDER)
    epochs = -(-number // len(labels))
    orders = [np.zeros(0, np.int64)] + [random.permutation(len(labels)) for _ in range(epochs)]
    return np.concatenate(orders)[:number].astype(np.int32)


# -------------------------------------------------------------------- a run


Features = Callable[[Any, Tensor], Tensor]
"""Computes a model's features [N, F] of items as a training set holds them (uint8 images), in a training step."""


def features(model: Any, images: Tensor, mean: Sequence[float] = MEAN, std: Sequence[float] = STD) -> Tensor:
    """Features by torch's kernels; a function, so that one compiled version serves every model of the same shape."""
    with _autocast(images.device):
        return model.features(_layout(normalise(images, mean, std) if mean else images))  # type: ignore[no-any-return]


plain_features = features


@functools.cache
def compiled_features() -> Features:
    return torch.compile(features)


class Training(Run):
    """One run in progress: call `advance` until `done`, then `model` holds the last iterate.

    A loss that draws something in every step has a method `draw(rows, random)`, bool [rows, K], and receives the draw
    as its third argument. `teachers` are those of the recipe; `asked` computes the features of their backbones. `pool`
    is that of another run that is shown the same (`shown_alike`); while a pool is made, `labelled` is called.
    """

    whole = True  # not within a chunk

    def __init__(
        self,
        recipe: Recipe,
        data: TrainingSet,
        seed: int,
        *,
        backbone: Mapping[str, Tensor] | None = None,
        start: Mapping[str, Tensor] | None = None,
        features: Features | None = None,
        teachers: Sequence[Teacher] = (),
        asked: Features | None = None,
        pool: Pool | None = None,
        labelled: Labelled = lambda done, of: None,
        graphed: bool = True,
    ) -> None:
        device = data.device
        num_classes = data.prior.num_classes
        number, _ = world()
        if recipe.batch_size % (number * recipe.accumulate):
            parts = f"{number} processes" + (f" in {recipe.accumulate} parts" if recipe.accumulate > 1 else "")
            raise ValueError(f"a batch of {recipe.batch_size} images cannot be split among {parts}")
        self.recipe, self.data, self.seed = recipe, data, seed
        self.iterations, self.batch_size = recipe.iterations, recipe.batch_size
        self.model = build_model(recipe, num_classes, seed, backbone, start).to(device)
        if device.type == "cuda":  # before anything is created in the shape of a parameter
            self.model = self.model.to(memory_format=torch.channels_last)
        self._frozen: list[nn.Module] = []
        if recipe.frozen_stages:
            self._frozen = freeze_stages(self.model.get_submodule("backbone"), recipe.frozen_stages)
        self.loss = recipe.make_loss(data.prior).to(device)
        self.order = sample_order(recipe, data.labels, seed).reshape(-1, recipe.batch_size)
        self.losses = torch.zeros(recipe.iterations, device=device)
        self.parameters: list[Tensor] = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = Optimizer(self.parameters, recipe)
        self._average = self._averaged() if recipe.ema else []
        self._features = features or partial(plain_features, mean=data.mean, std=data.std)
        self.teachers, self.pool = tuple(teachers), pool
        if recipe.teacher is not None and pool is None:
            asked = asked or partial(plain_features, mean=data.mean, std=data.std)
            self.pool = make_pool(data, self.order, recipe, seed, self.teachers, asked, labelled)
        self._fill_items = data.filler(self.order, recipe, seed)
        self._make_buffers(num_classes)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._stream: torch.cuda.Stream | None = None
        self._finished: list[torch.cuda.Event] = []
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            if graphed and recipe.iterations and number == 1:
                self._capture()

    def _make_buffers(self, num_classes: int) -> None:
        """The buffers that a step reads: its batch, in row _slot, which the step advances. Nothing else changes from
        step to step, so that one captured graph serves all of them."""
        recipe, data, device = self.recipe, self.data, self.data.device
        rows = own_rows(recipe.batch_size)
        own = rows.stop - rows.start
        per_batch = own * math.prod(data.shape) * data.dtype.itemsize
        self.chunk = chunk = max(1, min(data.chunk, CHUNK_BYTES // max(per_batch, 1)))
        self._slot = torch.zeros(1, dtype=torch.int64, device=device)
        self._images = torch.zeros(chunk, own, *data.shape, dtype=data.dtype, device=device)
        targets = data.device_labels
        self._labels = torch.zeros(chunk, own, *targets.shape[1:], dtype=targets.dtype, device=device)
        self._rates = torch.zeros(chunk, device=device)
        self._step_losses = torch.zeros(chunk, device=device)
        self._draw: Callable[[int, np.random.Generator], NDArray[np.bool_]] | None = getattr(self.loss, "draw", None)
        self._drawn = torch.zeros((chunk, own, num_classes) if self._draw else (0,), dtype=torch.bool, device=device)
        mixes = (recipe.mixup or recipe.cutmix) and self.pool is None  # a pool's images are mixed already
        self._mixing = Mixing(recipe, chunk, num_classes, device) if mixes else None
        self._taught = torch.zeros(chunk if self.pool else 0, own, num_classes, dtype=torch.float16, device=device)

    def advance(self) -> None:
        """A chunk of iterations; on a GPU they are queued on the run's own stream, at most two chunks ahead."""
        if len(self._finished) == 2:
            self._finished.pop(0).synchronize()
        steps = min(self.chunk, self.iterations - self.iteration)
        self.whole = False
        self._training_mode()
        with self._on_stream():
            self._fill()
            with self._seeded():
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
        if self.done and self._average:
            self._use_average()
        self.whole = True

    def _training_mode(self) -> None:
        """What is frozen stays in evaluation mode."""
        self.model.train(self.recipe.backbone is None)
        for module in self._frozen:
            module.eval()

    @contextlib.contextmanager
    def _seeded(self) -> Iterator[None]:
        """On a CPU, make what layers draw themselves (dropout) depend only on the seed and the iteration, too."""
        if self._stream is not None:
            yield
            return
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(stream_of(self.seed, LAYERS, self.iteration).integers(2**62)))
            yield

    def wait(self) -> None:
        """Wait until everything queued is done."""
        if self._stream is not None:
            self._stream.synchronize()

    @torch.no_grad()
    def predict(self, images: Tensor) -> Tensor:
        """Logits [N, K] of items, in fp32, with running statistics; minus the prior if the recipe says so."""
        self.model.eval()
        if self._stream is not None:  # `images` may still be in transfer, on the stream of the caller
            self._stream.wait_stream(torch.cuda.current_stream(images.device))
        with self._on_stream():
            logits = torch.cat([self.logits(self.model, part) for part in torch.split(images, 1000)]).float()
            if self.recipe.adjusted and self.data.labels.ndim == 2:
                prior = self.data.prior
                logits = adjust_sigmoid_logits(logits, source=prior, target_rate=float(prior.probabilities.mean()))
            elif self.recipe.adjusted:
                logits = adjust_logits(logits, source=self.data.prior, target=None)
        self.wait()
        return logits

    def logits(self, model: Any, items: Tensor) -> Tensor:
        """A model's logits for items as the training set holds them, in fp32."""
        mean, std = self.data.mean, self.data.std
        return model(_layout(normalise(items, mean, std) if mean else items))  # type: ignore[no-any-return]

    def state_dict(self) -> dict[str, Any]:
        """Everything that is needed to resume the run, as plain tensors and numbers, on the host."""
        self.wait()
        return {
            "iteration": self.iteration,
            "seed": self.seed,
            "model": {name: value.cpu() for name, value in self.model.state_dict().items()},
            "velocity": [value.cpu() for value in self.optimizer.state],
            "average": [value.cpu() for value in self._average],
            "losses": self.losses.cpu(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved or finished run. The recipe and the data must be the same; the caller checks this."""
        seed, number = state.get("seed", self.seed), len(state["losses"])
        if seed != self.seed or number != len(self.losses):
            raise ValueError(
                f"the checkpoint has seed {seed} and {number} iterations, "
                f"this run seed {self.seed} and {len(self.losses)}: delete it, or run what it was made for"
            )
        with torch.no_grad():
            for own, name in ((self.optimizer.state, "velocity"), (self._average, "average")):
                for value, saved in zip(own, state.get(name, own), strict=True):
                    value.copy_(saved)
            self.losses.copy_(torch.as_tensor(state["losses"]))
            self.model.load_state_dict(state["model"])
        self.iteration = int(state.get("iteration", self.iterations))
        if self._stream is not None:
            torch.cuda.synchronize(self.data.device)

    def note(self) -> dict[str, Any]:
        return {"losses": self.losses.tolist()}

    # ---------------------------------------------------------------- the step

    def _step(self) -> None:
        """One iteration on the batch at _slot. It reads and creates no host value, so it can be captured in a CUDA
        graph."""
        images, labels = self._images.index_select(0, self._slot)[0], self._labels.index_select(0, self._slot)[0]
        if self._mixing is not None:
            images, labels = self._mixing(images, labels, self._slot)
        drawn = () if self._draw is None else (self._drawn.index_select(0, self._slot)[0],)
        taught = () if self.pool is None else (self._taught.index_select(0, self._slot)[0],)
        batch = (images, labels, *drawn, *taught)
        loss, gradients = self._gradients(*batch)
        if self.recipe.sam:
            gradients = self._gradients_uphill(gradients, *batch)
        if self.recipe.clip:
            gradients = clipped(gradients, self.recipe.clip)
        self.optimizer.step(gradients, self._rates.index_select(0, self._slot))
        if self._average:
            torch._foreach_lerp_(self._average, self._averaged(copied=False), 1 - self.recipe.ema)
        self._step_losses.index_copy_(0, self._slot, loss.view(1))
        self._slot += 1

    def _gradients(self, *batch: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The loss and its gradients, over the parts of a batch and over all processes."""
        parts, number = self.recipe.accumulate, world()[0]
        total, sums = torch.zeros((), device=self.data.device), None
        for images, labels, *more in zip(*(value.chunk(parts) for value in batch), strict=True):
            logits = self.model.head(self._features(self.model, images).float())
            loss = self._loss_of(logits, labels, *more)
            found = torch.autograd.grad(loss, self.parameters)
            sums = found if sums is None else tuple(torch._foreach_add(sums, found))
            total = loss.detach().float() if parts == 1 else total + loss.detach().float() / parts
        assert sums is not None
        if parts * number > 1:
            sums = tuple(torch._foreach_div(sums, parts * number))
        if number > 1:
            flat = torch.cat([value.reshape(-1) for value in (*sums, total / number)])
            torch.distributed.all_reduce(flat)
            *shared, total = torch.split(flat, [value.numel() for value in (*sums, total)])
            sums = tuple(value.view_as(own) for value, own in zip(shared, sums, strict=True))
        return total, sums

    def _gradients_uphill(self, gradients: tuple[Tensor, ...], *batch: Tensor) -> tuple[Tensor, ...]:
        """The gradients at the weights plus a step along `gradients`; the weights stay the same, and the running
        statistics, though not the number of batches that went into them."""
        kept = [*self.parameters, *(value for value in self.model.buffers() if value.is_floating_point())]
        before = [value.detach().clone() for value in kept]
        climb_(self.parameters, gradients, self.recipe.sam)
        _, found = self._gradients(*batch)
        with torch.no_grad():
            torch._foreach_copy_(kept, before)
        return found

    def _loss_of(self, logits: Tensor, labels: Tensor, *more: Tensor) -> Tensor:
        """The loss; for a student, with its teachers' probabilities, which come last."""
        if self.pool is None:
            return self.loss(logits, labels, *more)  # type: ignore[no-any-return]
        *drawn, taught = more
        own, recipe = self.loss(logits, labels, *drawn), self.recipe
        return distilled(own, logits, taught, temperature=recipe.temperature, weight=recipe.distillation)

    def _fill(self) -> None:
        """The next chunk: augmented images, labels, learning rates, and what the loss draws."""
        recipe, size, rows = self.recipe, self.recipe.batch_size, own_rows(self.recipe.batch_size)
        chunk = self.iteration // self.chunk
        steps = min(self.chunk, recipe.iterations - self.iteration)
        fill = self._fill_items if self.pool is None else partial(self.pool.fill, taught=self._taught[:steps])
        fill(self._images[:steps], self.iteration)
        index = self.order[self.iteration : self.iteration + steps, rows].astype(np.int64)
        self._labels[:steps].copy_(self.data.device_labels[upload(index, self.data.device)])
        rates = np.array([recipe.learning_rate(self.iteration + step) for step in range(self.chunk)], np.float32)
        self._rates.copy_(upload(rates, self.data.device))
        if self._draw is not None:
            drawn = self._draw(self.chunk * size, stream_of(self.seed, LOSS, chunk))
            drawn = drawn.reshape(self.chunk, size, -1)[:, rows]
            self._drawn.copy_(upload(np.ascontiguousarray(drawn), self.data.device))
        if self._mixing is not None:
            self._mixing.fill(self.seed, self.iteration, self.data.shape[-1])
        self._slot.zero_()

    # ---------------------------------------------------------------- the average of the weights

    def _averaged(self, *, copied: bool = True) -> list[Tensor]:
        """What is averaged: every parameter and every running statistic."""
        values = [value for value in self.model.state_dict().values() if value.is_floating_point()]
        return [value.detach().clone() for value in values] if copied else values

    @torch.no_grad()
    def _use_average(self) -> None:
        """Replace the last iterate by the average."""
        with self._on_stream():
            for value, average in zip(self._averaged(copied=False), self._average, strict=True):
                value.copy_(average)

    def _capture(self) -> None:
        """Record the step as a CUDA graph, after three real steps that let cuDNN and the allocator settle."""
        assert self._stream is not None
        self._training_mode()
        state = [*self.optimizer.state, *self._average, self._slot, self._step_losses]
        changed = [*self.model.state_dict().values(), *state]
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


def _autocast(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    if device.type != "cuda":
        return contextlib.nullcontext()
    # every weight is used once per step: the cache would only keep copies alive across a graph's capture
    return torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False)


def _layout(images: Tensor) -> Tensor:
    return images.contiguous(memory_format=torch.channels_last) if images.device.type == "cuda" else images


# -------------------------------------------------------------------- several runs


def train(runs: Sequence[Training], after_chunk: Callable[[], bool] = lambda: False) -> bool:
    """Advance `runs` together, chunk by chunk, until all are done (True) or `after_chunk()` asks to stop (False)."""
    chunks, left = 0, [run for run in runs if not run.done]
    while left:
        for run in left:
            run.advance()
        chunks += 1
        if after_chunk():
            break
        if chunks % LOOK_EVERY == 0:  # a diverged run is not trained to the end
            left = [run for run in left if run.finite]
        left = [run for run in left if not run.done]
    for run in runs:
        run.wait()
    return all(run.done for run in runs)


def thinned(losses: Iterable[float], points: int = 130) -> list[float]:
    """The curve as at most `points` means over equal stretches, to five digits.

    >>> thinned([1.0, 3.0, 5.0, 7.0], points=2)
    [2.0, 6.0]
    """
    values = np.asarray(list(losses), np.float64)
    stretch = max(1, -(-len(values) // points))
    return [float(f"{values[i : i + stretch].mean():.5g}") for i in range(0, len(values), stretch)]
