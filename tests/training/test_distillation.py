"""Students: the loss, the pool of views, and that a student is a run like any other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from equipoise.losses.balanced_softmax import BalancedSoftmaxLoss
from equipoise.losses.equalization import EqualizationLoss
from equipoise.prior import Prior
from equipoise.training.augmentation.cifar import normalise
from equipoise.training.classification import Training, build_model, plain_features, train
from equipoise.training.classification_runs import beside_teachers
from equipoise.training.distillation import (
    UNSEEN,
    Teacher,
    distilled,
    mean_probabilities,
    number_of_views,
    occurrences,
    shown_alike,
)
from equipoise.training.methods import logits_mean
from equipoise.training.mixing import draw, mixed
from equipoise.training.recipe import Recipe
from equipoise.training.sets import CHUNK, MIXING, CifarSet, stream_of
from equipoise.training.weights import weights_digest

CPU = torch.device("cpu")
PLAIN = Recipe(BalancedSoftmaxLoss, blocks=1, batch_size=4, iterations=2 * CHUNK + 3, warmup=5)
STUDENT = replace(PLAIN, teacher="plain", teachers=2, views=3)


@pytest.fixture(scope="module")
def data() -> CifarSet:
    labels = np.repeat(np.arange(3), [20, 8, 3])
    images = np.random.default_rng(0).integers(0, 256, (len(labels), 3, 32, 32)).astype(np.uint8)
    return CifarSet.of(images, labels, Prior.from_labels(labels), CPU)


@pytest.fixture(scope="module")
def teachers(data: CifarSet) -> list[Teacher]:
    """Two networks whose statistics are those of a few steps."""
    found = []
    for seed in (10, 11):
        run = Training(replace(PLAIN, iterations=8), data, seed)
        train([run])
        found.append(Teacher(f"plain/{seed}", run.model.eval().requires_grad_(False)))
    return found


def student(data: CifarSet, teachers: list[Teacher], recipe: Recipe = STUDENT, seed: int = 0) -> Training:
    return Training(recipe, data, seed, teachers=teachers)


# -------------------------------------------------------------------- the loss


def slow_loss(own: Tensor, logits: Tensor, taught: Tensor, temperature: float, weight: float) -> Tensor:
    """(1 − w) own + w T² mean_i Σ_k p_ik log(p_ik / q_ik), one number at a time."""
    total = torch.zeros((), dtype=logits.dtype)
    for row, p in zip(logits, taught, strict=True):
        exponentials = [torch.exp(value / temperature) for value in row]
        for value, share in zip(exponentials, p, strict=True):
            if share > 0:
                total = total + share * torch.log(share / (value / sum(exponentials)))
    return (1 - weight) * own + weight * temperature**2 * total / len(logits)


@pytest.mark.parametrize(("temperature", "weight"), [(2.0, 0.8), (1.0, 1.0), (4.0, 0.3)])
def test_loss_and_gradient_are_those_of_the_formula(temperature: float, weight: float) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(5, 4, dtype=torch.float64, generator=generator)).requires_grad_()
    taught = torch.rand(5, 4, dtype=torch.float64, generator=generator)
    taught[1, 2] = 0  # a class that no teacher thinks of
    taught /= taught.sum(1, keepdim=True)
    own = logits.square().mean()
    values = [
        distilled(own, logits, taught, temperature=temperature, weight=weight),
        slow_loss(own, logits, taught, temperature, weight),
    ]
    torch.testing.assert_close(*values)
    torch.testing.assert_close(*(torch.autograd.grad(value, logits, retain_graph=True)[0] for value in values))


def test_teachers_speak_with_one_voice_the_mean_of_their_probabilities() -> None:
    teachers = [Teacher("a", torch.nn.Identity()), Teacher("b", torch.nn.Identity())]
    sure = {id(teachers[0].model): 1.0, id(teachers[1].model): 0.0}
    (found,) = mean_probabilities(teachers, torch.tensor([[4.0, 0.0]]), lambda model, x: sure[id(model)] * x, 2.0)
    high = (1 / (1 + np.exp(-2.0)) + 1 / 2) / 2
    torch.testing.assert_close(found, torch.tensor([[high, 1 - high]], dtype=torch.float32))


def test_a_record_has_how_far_a_student_is_from_its_teachers(data: CifarSet, teachers: list[Teacher]) -> None:
    run = student(data, teachers, replace(STUDENT, temperature=3.0, distillation=0.5))
    images = torch.from_numpy(np.random.default_rng(1).integers(0, 256, (6, 3, 32, 32)).astype(np.uint8))
    logits, labels = run.predict(images).double(), np.array([0, 1, 2, 0, 1, 2])
    with torch.no_grad():
        answers = torch.stack([teacher.model(normalise(images)) for teacher in teachers]).double()
    together, softened = answers.softmax(2).mean(0), (answers / 3.0).softmax(2).mean(0)
    assert beside_teachers(run, images, labels, logits) == {
        "teachers_top1": round(100 * float((together.argmax(1).numpy() == labels).mean()), 4),
        "teachers_divergence": pytest.approx(
            float(slow_loss(torch.zeros(()), logits, softened, 3.0, 1.0)), rel=1e-5, abs=1e-5
        ),  # probabilities in fp32; rounded to five digits
    }
    assert beside_teachers(Training(PLAIN, data, 0), images, labels, logits) == {}


# -------------------------------------------------------------------- the pool


def test_a_place_shows_the_view_of_its_turn(data: CifarSet, teachers: list[Teacher]) -> None:
    run = student(data, teachers)
    pool, views = run.pool, STUDENT.views
    assert pool is not None
    turns, rows, flat = occurrences(run.order).reshape(-1), pool.rows.reshape(-1), run.order.reshape(-1)
    assert rows.min() == 0
    assert turns.max() >= views  # some come again
    assert len(set(zip(flat.tolist(), (turns % views).tolist(), strict=True))) == rows.max() + 1
    for place in range(len(flat)):
        same = (flat == flat[place]) & (turns % views == turns[place] % views)
        assert set(rows[same]) == {rows[place]}


def test_how_weights_are_updated_changes_nothing_that_is_shown() -> None:
    changes: dict[str, Any] = {"first_lr": 0.5, "lr": 0.5, "warmup": 6, "steps": (3,), "momentum": 0.5}
    changes |= {"nesterov": True, "weight_decay": 0.0, "ema": 0.9, "sam": 0.1, "clip": 1.0}
    assert set(changes) == set(UNSEEN)
    for name, value in changes.items():
        assert getattr(STUDENT, name) != value
        assert shown_alike(replace(STUDENT, **{name: value})) == shown_alike(STUDENT), name


def test_a_pool_can_serve_a_run_that_updates_its_weights_otherwise(data: CifarSet, teachers: list[Teacher]) -> None:
    run, faster = student(data, teachers), replace(STUDENT, lr=0.5, weight_decay=0.0)
    alone, beside = (Training(faster, data, 0, teachers=teachers, pool=pool) for pool in (None, run.pool))
    assert beside.pool is run.pool is not alone.pool
    train([alone])
    train([run, beside])
    assert weights_digest(alone.model) == weights_digest(beside.model) != weights_digest(run.model)


@pytest.mark.parametrize(
    "change",
    [
        *({"views": 2}, {"temperature": 3.0}, {"batch_size": 2}, {"iterations": 9}, {"sampler": "class_balanced"}),
        *({"mixup": 1.0, "distillation": 1.0}, {"mix_probability": 0.5}, {"teacher": "other"}, {"teachers": 3}),
        {"augmentation": "crop"},
    ],
)
def test_what_changes_the_views_or_the_teachers_is_not_shown_alike(change: dict[str, Any]) -> None:
    assert shown_alike(replace(STUDENT, **change)) != shown_alike(STUDENT)


def test_the_first_views_are_those_of_a_plain_run(data: CifarSet, teachers: list[Teacher]) -> None:
    plain, taught = Training(PLAIN, data, 0), student(data, teachers)
    plain.advance()
    taught.advance()
    epochs = STUDENT.views * len(data.labels) // STUDENT.batch_size
    assert epochs > CHUNK
    assert torch.equal(plain._images, taught._images)
    assert torch.equal(plain._labels, taught._labels)


def test_it_is_told_how_many_views_are_labelled(data: CifarSet, teachers: list[Teacher]) -> None:
    told: list[tuple[int, int]] = []
    Training(STUDENT, data, 0, teachers=teachers, labelled=lambda done, of: told.append((done, of)))
    views = STUDENT.views * len(data.labels)
    assert views == number_of_views(STUDENT, len(data.labels)) < STUDENT.iterations * STUDENT.batch_size
    chunk = CHUNK * STUDENT.batch_size
    assert told == [(done, views) for done in (*range(chunk, views, chunk), views)]


@pytest.mark.parametrize("mixing", [{"mixup": 1.0}, {"cutmix": 1.0}])
def test_the_views_of_a_pool_are_mixed_once(mixing: dict[str, float], data: CifarSet, teachers: list[Teacher]) -> None:
    recipe = replace(STUDENT, **mixing, distillation=1.0)  # type: ignore[arg-type]
    plain, run = student(data, teachers), student(data, teachers, recipe)
    plain.advance()
    run.advance()
    for step in range(CHUNK):
        row = torch.tensor(draw(recipe, 32, stream_of(0, MIXING, step)))
        images, _ = mixed(plain._images[step], plain._labels[step], row, 3)
        assert torch.equal(run._images[step], images.round().to(torch.uint8))
    assert not torch.equal(run._images, plain._images)


@pytest.mark.parametrize("change", [{}, {"mixup": 1.0, "distillation": 1.0}])
def test_teachers_are_asked_about_the_images_that_the_student_sees(
    change: dict[str, float], data: CifarSet, teachers: list[Teacher]
) -> None:
    run = student(data, teachers, replace(STUDENT, **change))  # type: ignore[arg-type]
    while not run.done:
        steps = min(CHUNK, run.iterations - run.iteration)
        run.advance()
        images = run._images[:steps].flatten(0, 1)
        with torch.no_grad():
            answers = [(teacher.model(normalise(images)) / 2.0).softmax(1) for teacher in teachers]
        expected = torch.stack(answers).mean(0).view(steps, -1, 3)
        # half precision: 2**-11 of a value below 1, and what batches of another size round
        torch.testing.assert_close(run._taught[:steps].float(), expected, atol=2**-11, rtol=0)


# -------------------------------------------------------------------- a run


@pytest.mark.parametrize("change", [{}, {"mixup": 1.0, "distillation": 1.0}])
def test_a_student_equals_a_plain_loop_with_the_formula(
    change: dict[str, float], data: CifarSet, teachers: list[Teacher]
) -> None:
    recipe = replace(STUDENT, iterations=5, weight_decay=1e-3, nesterov=True, **change)  # type: ignore[arg-type]
    run = student(data, teachers, recipe, seed=3)
    model, loss_function = build_model(recipe, 3, seed=3), recipe.make_loss(data.prior)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9, weight_decay=1e-3, nesterov=True)
    run.advance()
    losses = []
    for i in range(5):
        optimizer.param_groups[0]["lr"] = recipe.learning_rate(i)
        logits = model(normalise(run._images[i]))
        loss = slow_loss(
            loss_function(logits, run._labels[i]), logits, run._taught[i].float(), 2.0, recipe.distillation
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    torch.testing.assert_close(run.losses, torch.tensor(losses), rtol=1e-4, atol=1e-5)
    for (name, mine), other in zip(run.model.state_dict().items(), model.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-4, msg=name)


def test_a_student_taken_up_again_ends_the_same(data: CifarSet, teachers: list[Teacher]) -> None:
    whole = student(data, teachers)
    train([whole])
    first = student(data, teachers)
    first.advance()
    second = student(data, teachers)
    second.load_state_dict(first.state_dict())
    train([second])
    assert weights_digest(second.model) == weights_digest(whole.model)
    assert torch.equal(second.losses, whole.losses)
    plain = Training(PLAIN, data, 0)
    train([plain])
    assert weights_digest(plain.model) != weights_digest(whole.model)


@pytest.mark.parametrize("sampler", ["square_root", "class_balanced"])
def test_classes_are_shown_to_a_student_as_often_as_its_sampler_says(
    sampler: Any, data: CifarSet, teachers: list[Teacher]
) -> None:
    recipe = replace(STUDENT, sampler=sampler, distillation=1.0, batch_size=32)
    run = student(data, teachers, recipe)
    shown = np.bincount(data.labels[run.order.reshape(-1)]) / run.order.size
    wanted = data.prior.counts ** (0.5 if sampler == "square_root" else 0.0)
    np.testing.assert_allclose(shown, wanted / wanted.sum(), atol=3 / run.order.size)
    assert logits_mean(recipe) == logits_mean(PLAIN) == "uniform"


def test_sampling_does_not_move_the_logits_of_a_student_that_has_no_other_loss() -> None:
    unbalanced = replace(STUDENT, loss=torch.nn.CrossEntropyLoss, sampler="class_balanced")
    assert logits_mean(unbalanced) == "uniform"
    assert logits_mean(replace(unbalanced, distillation=1.0)) == "train"


@pytest.mark.parametrize("own", [{}, {"teacher": "plain", "distillation": 0.9}])
def test_square_root_sampling_beside_a_loss_of_labels_is_refused(own: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"expected a teacher and distillation=1\.0"):
        replace(PLAIN, sampler="square_root", **own)


def test_a_loss_that_draws_can_be_taught(data: CifarSet, teachers: list[Teacher]) -> None:
    recipe = replace(STUDENT, loss=EqualizationLoss, options={"gamma": 0.9, "threshold": 0.3}, iterations=3)
    run = student(data, teachers, recipe)
    train([run])
    assert run.finite


def test_parts_of_a_batch_give_the_whole_batchs_teachers(data: CifarSet, teachers: list[Teacher]) -> None:
    frozen = replace(STUDENT, iterations=1, momentum=0.0, weight_decay=0.0)
    runs = [student(data, teachers, replace(frozen, accumulate=parts)) for parts in (1, 2)]
    asked = []
    for run in runs:
        run.model.bn.eval()
        run._features = lambda model, images: plain_features(model.eval(), images)  # statistics of parts differ
        train([run])
        asked.append([parameter.detach() for parameter in run.parameters])
    for whole, parts in zip(*asked, strict=True):
        torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-6)


# -------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"teachers": 3}, r"has 3 teachers \(plain\), not 2"),
        ({"mixup": 0.2}, "expected distillation=1.0 beside mixup or cutmix, got 0.8"),
        ({"cutmix": 1.0}, "expected distillation=1.0 beside mixup or cutmix, got 0.8"),
        ({"views": 0}, "views is 0: teachers need"),
        ({"teachers": 0}, "teachers is 0: expected 1 to 1000"),
        ({"teachers": 1001}, "teachers is 1001: expected 1 to 1000"),
        ({"temperature": 0.0}, "temperature is 0.0: expected more than 0"),
        ({"distillation": 1.5}, "distillation is 1.5: expected the teachers' share"),
        ({"backbone": "plain"}, "expected a teacher or a backbone, got both"),
    ],
)
def test_a_recipe_that_cannot_be_taught_is_refused(
    data: CifarSet, teachers: list[Teacher], change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        student(data, teachers, replace(STUDENT, **change))  # type: ignore[arg-type]
