"""Runs of image classifiers for the queue: where their data is, and how they are prepared, trained and evaluated."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from equipoise.data.cifar import (
    SUPERSET_IMBALANCE,
    Cifar,
    LongTailedCifar,
    held_out,
    load_cifar,
    long_tailed_cifar,
    source_of,
    without_held_out,
)
from equipoise.metrics.evaluation import evaluate
from equipoise.prior import IntArray, Prior
from equipoise.training.classification import Features, Training, build_model, features, thinned, train
from equipoise.training.distillation import (
    Pool,
    Teacher,
    distilled,
    mean_probabilities,
    number_of_views,
    shown_alike,
)
from equipoise.training.kinds import Context, Kind, Settings
from equipoise.training.methods import logits_mean
from equipoise.training.progress import Status, in_words
from equipoise.training.recipe import Cell, Recipe
from equipoise.training.records import Record, hardware, versions
from equipoise.training.sets import CifarSet, TrainingSet
from equipoise.training.weights import weights_digest

FIRST_GUESS = {"cuda": 0.006, "fused": 0.003}  # seconds per iteration before one was measured
TIMED = 2  # iterations that a CPU is timed with before a long run
LONG = 100  # iterations of a long run


class Store:
    """The data sets, read once, and the long-tailed draws of them that are on the device; with `validate`, without the
    images on which choices are evaluated."""

    def __init__(self, root: Path, device: torch.device, *, download: bool = False, validate: bool = False) -> None:
        self.root, self.device, self.download, self.validate = root, device, download, validate
        self._cifar: dict[str, Cifar] = {}
        self._sets: dict[tuple[str, int], tuple[LongTailedCifar, CifarSet]] = {}

    def read(self, data_set: str) -> Cifar:
        """The whole data set; downloaded first if it is missing and downloads are allowed."""
        name, _ = source_of(data_set)
        if name not in self._cifar:
            self._cifar[name] = load_cifar(self.root, name, download=self.download)
        return self._cifar[name]

    def drawn(self, data_set: str, imbalance: int) -> LongTailedCifar:
        """The draw that is trained on."""
        drawn = long_tailed_cifar(self.read(data_set), imbalance, draw=source_of(data_set)[1])
        return without_held_out(drawn) if self.validate else drawn

    def get(self, data_set: str, imbalance: int) -> tuple[LongTailedCifar, CifarSet]:
        """The draw, and the same on the device."""
        if (data_set, imbalance) not in self._sets:
            drawn = self.drawn(data_set, imbalance)
            on_device = CifarSet.of(drawn.images, drawn.labels, drawn.prior, self.device)
            self._sets[data_set, imbalance] = drawn, on_device
        return self._sets[data_set, imbalance]


@dataclass(frozen=True)
class Kernels:
    """The functions that compute a network's features in a training step; their results are the same up to rounding.

    `trained` may be kernels that compute gradients of all weights; a frozen backbone uses `frozen`, teachers `asked`.
    """

    trained: Features = features
    frozen: Features = features
    asked: Features = features
    compiled: bool = False  # noted in records, as the others are
    fused: int = 0  # the version of kernels of our own; 0 if they are torch's
    deterministic: bool = True


class Classification(Kind[Cell, Training]):
    """The kind of runs that `recipe_of` describes; `backbones` names methods that others build on or learn from.

    `own_table` returns the table of a run's record if it is not `table`; weights of such runs are shared by runs that
    are evaluated on the test set and on held-out images. `mark` is part of the names of the other runs' files.
    `recorded_weights` are the digests of teachers that have a record: others are refused. `deliver` receives every run
    that was evaluated.
    """

    def __init__(
        self,
        table: str,
        recipe_of: Callable[[Cell], Recipe],
        store: Store,
        settings: Settings,
        *,
        kernels: Kernels | None = None,
        backbones: Collection[str] = (),
        own_table: Callable[[Cell], str | None] = lambda cell: None,
        mark: str = "",
        recorded_weights: Mapping[Cell, str] = MappingProxyType({}),
        deliver: Callable[[Training, Record], None] = lambda run, record: None,
    ) -> None:
        self.table, self.store, self.settings = table, store, settings
        self.kernels = kernels or Kernels()
        self._recipe_of, self._backbones, self._own_table = recipe_of, backbones, own_table
        self._mark, self._recorded_weights, self._deliver = mark, recorded_weights, deliver
        self._pools: WeakValueDictionary[tuple[Any, ...], Pool] = WeakValueDictionary()  # of runs in progress
        torch.backends.cudnn.deterministic = self.kernels.deterministic
        torch.backends.cudnn.benchmark = not self.kernels.deterministic

    def recipe(self, cell: Cell) -> Recipe:
        """The cell's recipe, shortened for a smoke test."""
        recipe = self._recipe_of(cell)
        return recipe if self.settings.iterations is None else recipe.shortened(self.settings.iterations)

    def iterations(self, cell: Cell) -> int:
        return self.recipe(cell).iterations

    def cost(self, cell: Cell) -> float:
        """In multiplications, relative to ResNet-32 with batches of 512."""
        recipe = self._recipe_of(cell)
        return recipe.passes * relative_size(recipe) * recipe.batch_size / Recipe.batch_size

    def _pool_key(self, cell: Cell) -> tuple[Any, ...]:
        """Equal for students that share a pool if they are trained together."""
        return cell.data_set, cell.imbalance, cell.seed, shown_alike(self.recipe(cell))

    def _labelling(self, cell: Cell) -> float:
        """What labelling a student's views costs its teachers, in iterations of cost 1. Evaluating a network takes a
        third of the multiplications of training it."""
        _, data = self.store.get(cell.data_set, cell.imbalance)
        views = number_of_views(self.recipe(cell), len(data.labels))
        return sum(relative_size(self.recipe(one)) for one in self.teachers(cell)) * views / Recipe.batch_size / 3

    def starts_from(self, cell: Cell) -> Cell | None:
        """The run whose backbone the cell keeps: same data, same seed."""
        method = self._recipe_of(cell).backbone
        return None if method is None else Cell(cell.data_set, cell.imbalance, method, cell.seed)

    def teachers(self, cell: Cell) -> Sequence[Cell]:
        return self._recipe_of(cell).teacher_cells(cell)

    def keeps(self, cell: Cell) -> bool:
        return cell.method in self._backbones

    def name(self, cell: Cell) -> str:
        teaches = self._own_table(cell) is not None
        shared = teaches and cell.imbalance != SUPERSET_IMBALANCE  # trained on fewer images
        judged = "-validate" if self.settings.validate and not shared else ""
        return f"{super().name(cell)}{'' if teaches else self._mark}{judged}{self.settings.mark}"

    def made_from(self, cell: Cell) -> dict[str, Any]:
        drawn, _ = self.store.get(cell.data_set, cell.imbalance)
        data = {"draw": drawn.digest, "pixels": drawn.pixel_digest}
        return self.recipe(cell).as_dict() | {"seed": cell.seed} | data

    def engine(self, run: Training | None = None) -> dict[str, Any]:
        on_gpu = self.settings.device.type == "cuda"
        return {
            "precision": "bf16 autocast, head and loss fp32" if on_gpu else "fp32",
            "cuda_graph": on_gpu,
            "compiled": self.kernels.compiled,
            "fused": self.kernels.fused,
            "deterministic": self.kernels.deterministic,
        }

    def prepare(self, cell: Cell, start: Mapping[str, Tensor] | None) -> Training:
        recipe = self.recipe(cell)
        _, data = self.store.get(cell.data_set, cell.imbalance)
        chosen = self.kernels.trained if recipe.backbone is None else self.kernels.frozen
        return Training(recipe, data, cell.seed, backbone=start, features=chosen)

    def check(self, cell: Cell) -> None:
        student, (drawn, data) = self.recipe(cell), self.store.get(cell.data_set, cell.imbalance)
        try:
            data.check(student)
        except ValueError as error:
            raise ValueError(f"{cell}: {error}") from None
        for teacher in self.teachers(cell):
            recipe = self.recipe(teacher)
            if recipe.backbone is not None:
                raise ValueError(
                    f"{cell}: its teacher {teacher} keeps the backbone of {recipe.backbone}: expected a teacher that "
                    "trains its whole network"
                )
            if recipe.adjusted:
                raise ValueError(
                    f"{cell}: its teacher {teacher} is adjusted when it predicts, but teaches by the logits of its "
                    "network: expected a loss that balances them, or the same recipe without adjusted=True"
                )
            if logits_mean(recipe) != logits_mean(student):
                raise ValueError(
                    f"{cell}: the logits of its teacher {teacher} mean other class frequencies ({logits_mean(recipe)}) "
                    f"than its own ({logits_mean(student)}): teach it by a method whose logits mean the same"
                )
            for one, its in ((cell, student), (teacher, recipe)):
                if not means_softmax(its, drawn.prior):
                    raise ValueError(
                        f"{cell}: students learn from softmax probabilities, and {its.loss.__name__} of {one} reads "
                        "the logits in another way: expected a loss after which their softmax is what they mean"
                    )
            self.check(teacher)
        if (first := self.starts_from(cell)) is not None:
            self.check(first)

    def refuses(self, cell: Cell, weights: Mapping[str, Tensor]) -> str:
        known = self._recorded_weights.get(cell)
        if known is None or (digest := weights_digest(weights)) == known:
            return ""
        return (
            f"its weights are {digest}, but its record names {known}, which another version or device trained: with "
            "other --results and --out it gets a record of its own"
        )

    def prepare_taught(self, cell: Cell, teachers: Sequence[Mapping[str, Tensor]]) -> Training:
        recipe = self.recipe(cell)
        _, data = self.store.get(cell.data_set, cell.imbalance)
        models = [self._teacher(cell, *one) for one in zip(recipe.teacher_cells(cell), teachers, strict=True)]
        kernels, key = self.kernels, self._pool_key(cell)
        began = time.monotonic()

        def labelled(done: int, of: int) -> None:
            seconds = time.monotonic() - began
            self.settings.report(Status.at(done, of, 1, seconds, what="views labelled by teachers"))
            if done == of:
                self.settings.log(f"{cell}: its teachers labelled {of:,} views in {in_words(seconds)}")

        run = Training(
            recipe,
            data,
            cell.seed,
            teachers=models,
            features=kernels.trained,
            asked=kernels.asked,
            pool=self._pools.get(key),
            labelled=labelled,
        )
        if run.pool is not None:
            self._pools[key] = run.pool
        return run

    def _teacher(self, cell: Cell, teacher: Cell, weights: Mapping[str, Tensor]) -> Teacher:
        """A teacher with its weights."""
        _, data = self.store.get(cell.data_set, cell.imbalance)
        model = build_model(self.recipe(teacher), data.prior.num_classes, teacher.seed)
        try:
            model.load_state_dict(dict(weights))
        except RuntimeError as error:
            why = str(error).splitlines()[-1].strip()
            raise ValueError(f"{cell}: the weights of its teacher {teacher} are for another network ({why})") from None
        placed = model.to(data.device).eval().requires_grad_(False)
        return Teacher(
            str(teacher), placed.to(memory_format=torch.channels_last) if data.device.type == "cuda" else placed
        )

    def train(self, runs: Sequence[Training], after_chunk: Callable[[], bool], over: Callable[[], bool]) -> None:
        train(runs, after_chunk)

    def seconds_an_iteration(self, cells: Sequence[Cell]) -> float:
        """Of a run with cost 1: an assumption for a GPU. A CPU is timed with a few iterations before long runs, and the
        total time is logged."""
        if self.settings.device.type != "cpu":
            return FIRST_GUESS["fused" if self.kernels.fused else "cuda"]
        recipes = [self.recipe(cell) for cell in cells]
        long = [i for i, recipe in enumerate(recipes) if recipe.iterations >= LONG and recipe.backbone is None]
        if not long:
            return 0.0
        cell, recipe = cells[long[0]], recipes[long[0]]
        _, data = self.store.get(cell.data_set, cell.imbalance)
        each = timed(replace(recipe, teacher=None, sampler="instance"), data)  # a student's teachers do not exist yet
        training = sum(self.cost(other) * one.iterations for other, one in zip(cells, recipes, strict=True))
        pools = {self._pool_key(other): other for other in cells if self.teachers(other)}
        total = each / self.cost(cell) * (training + sum(map(self._labelling, pools.values())))
        self.settings.log(
            f"On this CPU an iteration takes {each:.2g} s: {in_words(each * recipe.iterations)} for a run of "
            f"{recipe.iterations:,}, about {in_words(total)} for all runs. A GPU needs a minute or two per "
            "run; --iterations 50 is a smoke test"
        )
        return each / self.cost(cell)

    @torch.no_grad()
    def judge(self, cell: Cell, run: Training, context: Context) -> Record:
        drawn, data = self.store.get(cell.data_set, cell.imbalance)
        images, labels = drawn.cifar.test_images, drawn.cifar.test_labels
        if self.settings.validate:
            left = held_out(drawn)
            images, labels = drawn.cifar.train_images[left], drawn.cifar.train_labels[left]
        shown = torch.from_numpy(images).to(data.device)
        logits = run.predict(shown).cpu().double()
        result = evaluate(logits, labels, drawn.prior)
        record = Record(
            table=self._own_table(cell) or self.table,
            data_set=cell.data_set,
            imbalance=cell.imbalance,
            method=cell.method,
            seed=cell.seed,
            top1=round(100 * result.top1, 4),
            balanced_accuracy=round(100 * result.balanced_accuracy, 4),
            evaluated_on="held_out" if self.settings.validate else "test",
            iterations=run.iteration,
            complete=self.settings.iterations is None,
            recipe=run.recipe.as_dict(),
            draw=drawn.digest,
            pixels=drawn.pixel_digest,
            counts=drawn.prior.counts.tolist(),
            correct=result.correct.tolist(),
            total=result.items.tolist(),
            marginal=[float(f"{value:.6g}") for value in probabilities(run.loss, logits).mean(0).tolist()],
            loss_curve=thinned(run.losses.tolist()),
            weights=weights_digest(run.model),
            seconds=round(context.seconds, 1),
            together=context.together,
            engine=self.engine(),
            commit=self.settings.commit,
            versions=versions(),
            hardware=hardware(self.settings.device),
            backbone_weights=context.started_from,
            teachers=dict(context.teachers) or None,
            **beside_teachers(run, shown, labels, logits),
        )
        self._deliver(run, record)
        return record

    def in_words(self, record: Record) -> str:
        return f"top-1 {record.top1:.2f} on {record.evaluated_on}, {record.seconds:.0f} s"


def beside_teachers(run: Training, images: Tensor, labels: IntArray, logits: Tensor) -> dict[str, float]:
    """For the record of a student with these logits: how good its teachers are together, and how far it is from
    them."""
    if not run.teachers:
        return {}
    temperature = run.recipe.temperature
    plain, taught = mean_probabilities(run.teachers, images, run.logits, 1.0, temperature)
    found = plain.argmax(1).cpu().numpy()
    divergence = distilled(logits.new_zeros(()), logits, taught.cpu(), temperature=temperature, weight=1.0)
    return {
        "teachers_top1": round(100 * float((found == labels).mean()), 4),
        "teachers_divergence": round(float(divergence), 5),
    }


def relative_size(recipe: Recipe) -> float:
    """The multiplications of the recipe's network for one image, relative to ResNet-32.

    >>> relative_size(Recipe()), relative_size(Recipe(width=2))
    (1.0, 4.0)
    """
    return recipe.blocks / Recipe.blocks * recipe.width**2


def timed(recipe: Recipe, data: TrainingSet, start: Mapping[str, Tensor] | None = None) -> float:
    """Seconds per iteration, from a few of them."""
    each = 0.0
    for _ in range(2):  # the first is slower
        run = Training(recipe.shortened(TIMED), data, seed=0, start=start)
        began = time.monotonic()
        train([run])
        each = (time.monotonic() - began) / TIMED
    return each


def means_softmax(recipe: Recipe, prior: Prior) -> bool:
    """Whether the softmax of the logits is what they mean after training with the recipe's loss."""
    logits = torch.linspace(-2, 2, prior.num_classes).expand(2, -1)
    return torch.allclose(probabilities(recipe.make_loss(prior), logits), logits.softmax(1))


def probabilities(loss: torch.nn.Module, logits: Tensor) -> Tensor:
    """The probabilities that logits [N, K] mean after training with `loss`: what it declares, or a softmax."""
    declared: Callable[[Tensor], Tensor] | None = getattr(loss, "probabilities", None)
    return logits.softmax(1) if declared is None else declared(logits)
