"""Estimating an unknown prior from predictions."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq

SOURCE = np.array([0.6, 0.3, 0.1])
TARGET = np.array([0.1, 0.3, 0.6])


def world(prior: Any, n: int = 2000, separation: float = 1.5, seed: int = 0, source: Any = SOURCE) -> tuple[Any, Any]:
    """Items of classes drawn from `prior` and exact posteriors under `source`: unit normals around K corners."""
    generator, prior, source = np.random.default_rng(seed), np.asarray(prior), np.asarray(source)
    labels = generator.choice(len(prior), n, p=prior)
    x = generator.normal(size=(n, len(prior)))
    x[np.arange(n), labels] += separation
    return torch.tensor(separation * x + np.log(source)).softmax(1).numpy(), labels


@pytest.fixture(scope="module")
def quapy() -> Any:
    from matplotlib import rc_context

    with rc_context():  # importing it makes the fonts of every later figure larger
        import quapy.method.aggregative as methods
    return methods


@pytest.mark.parametrize("separation", [0.7, 1.5, 4.0])
def test_em_finds_what_quapy_finds(separation: float, quapy: Any) -> None:
    p, _ = world(TARGET, separation=separation)
    expected, _ = quapy.EMQ.EM(SOURCE, p, epsilon=1e-12)
    got = eq.estimate_prior(p, SOURCE, resamples=0).probabilities
    np.testing.assert_allclose(got, expected, atol=1e-6)


def test_bbse_finds_what_quapy_finds(quapy: Any) -> None:
    BBSEhard = quapy.BBSEhard
    p, _ = world(TARGET)
    held_out, labels = world(SOURCE, seed=1)
    joint = BBSEhard.getConfusionJointProb(np.arange(3), labels, held_out.argmax(1))
    predicted = np.bincount(p.argmax(1), minlength=3) / len(p)
    weights = BBSEhard.solve_importance_weights(joint, predicted, "exact-raise")
    expected = weights * np.bincount(labels) / len(labels)
    got = eq.estimate_prior(p, SOURCE, method="bbse", validation=(held_out, labels), resamples=0)
    np.testing.assert_allclose(got.probabilities, expected, atol=1e-9)


def test_no_prior_explains_the_predictions_better_than_the_one_em_finds() -> None:
    p, _ = world(TARGET, n=300, separation=0.5)

    def likelihood(pi: Any) -> float:
        return float(np.log(p / SOURCE @ pi).mean())

    best = likelihood(eq.estimate_prior(p, SOURCE, resamples=0).prior.probabilities)
    others = np.random.default_rng(0).dirichlet(np.ones(3), size=3000)
    assert max(likelihood(pi) for pi in others) <= best + 1e-5


@pytest.mark.parametrize("method", ["em", "bbse"])
@pytest.mark.parametrize("source", [SOURCE, np.full(3, 1 / 3)])
def test_the_prior_of_shifted_items_is_recovered_whatever_prior_validation_has(method: str, source: Any) -> None:
    p, _ = world(TARGET, n=4000, separation=3, source=source)
    for prior in ([0.8, 0.1, 0.1], [0.2, 0.2, 0.6]):
        validation = world(prior, n=4000, separation=3, seed=1, source=source)
        estimate = eq.estimate_prior(p, source, method=method, validation=validation)
        assert estimate.trusted
        # over 96 draws 0.009 ± 0.005, 0.021 at most; numpy's draws are the same on every machine
        assert np.abs(estimate.probabilities - TARGET).sum() / 2 < 0.03


@pytest.mark.parametrize("method", ["em", "bbse"])
def test_intervals_cover_about_as_often_as_they_say(method: str) -> None:
    covered, widths, found = [], [], []
    for seed in range(60):
        p, _ = world(TARGET, n=400, separation=2, seed=seed)
        validation = world(SOURCE, n=400, separation=2, seed=1000 + seed)
        estimate = eq.estimate_prior(p, SOURCE, method=method, validation=validation, resamples=100, seed=seed)
        covered.append((estimate.low <= TARGET) & (estimate.high >= TARGET))
        widths.append(estimate.high - estimate.low)
        found.append(estimate.probabilities)
    assert 0.88 <= np.mean(covered) <= 0.99
    ideal = 2 * 1.96 * np.std(found, axis=0, ddof=1)  # of sixty draws: itself uncertain by 9 %
    assert np.mean(widths) == pytest.approx(ideal.mean(), rel=0.25)


def test_the_estimate_is_a_prior_to_adjust_with() -> None:
    source = eq.Prior.from_counts({"cat": 60, "owl": 30, "yak": 10})
    p, labels = world(TARGET)
    estimate = eq.estimate_prior(torch.tensor(p), source)
    assert isinstance(estimate.prior, eq.Prior)
    assert estimate.prior.class_names == ("cat", "owl", "yak")
    assert estimate.probabilities is estimate.prior.probabilities
    adjusted = eq.adjust_logits(torch.tensor(p).log(), source=source, target=estimate.prior)
    before, after = (float((torch.as_tensor(s).argmax(1).numpy() == labels).mean()) for s in (p, adjusted))
    assert after > before + 0.1


def test_none_is_uniform_and_half_precision_is_read() -> None:
    p, _ = world(TARGET, source=np.full(3, 1 / 3))
    expected = eq.estimate_prior(p, [1 / 3] * 3)
    np.testing.assert_array_equal(eq.estimate_prior(p, None).probabilities, expected.probabilities)
    half = eq.estimate_prior(torch.tensor(p).half(), None)
    np.testing.assert_allclose(half.probabilities, expected.probabilities, atol=1e-3)


def test_the_seed_fixes_the_intervals_and_resamples_zero_leaves_them_out() -> None:
    p, _ = world(TARGET, n=300)
    one, same, other = (eq.estimate_prior(p, SOURCE, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.low, same.low)
    assert (one.low != other.low).any()
    none = eq.estimate_prior(p, SOURCE, resamples=0)
    assert np.isnan(none.low).all()
    np.testing.assert_array_equal(none.probabilities, one.probabilities)


def test_resampling_in_parts_is_resampling(monkeypatch: pytest.MonkeyPatch) -> None:
    p, _ = world(TARGET, n=300)
    whole = eq.estimate_prior(p, SOURCE, resamples=20)
    monkeypatch.setattr("equipoise.serving.estimate.ELEMENTS_AT_ONCE", 300 * 7)
    parts = eq.estimate_prior(p, SOURCE, resamples=20)
    np.testing.assert_allclose(parts.high, whole.high, atol=1e-4)


def test_resampling_a_part_of_very_many_items_gives_the_intervals_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    p, _ = world(TARGET, n=20000)
    whole = eq.estimate_prior(p, SOURCE)
    monkeypatch.setattr("equipoise.serving.estimate.MOST_RESAMPLED_ITEMS", 2000)
    part = eq.estimate_prior(p, SOURCE)
    np.testing.assert_array_equal(part.probabilities, whole.probabilities)
    # a width of 200 resamples has a standard deviation of 6 %, a ratio of two one of 9 %; numpy's draws are the same
    # on every machine
    np.testing.assert_allclose(part.high - part.low, whole.high - whole.low, rtol=0.25)
    assert (part.low < part.probabilities).all()
    assert (part.high > part.probabilities).all()


@pytest.mark.parametrize("method", ["em", "bbse"])
def test_no_class_is_ruled_out_by_an_estimate(method: str) -> None:
    p, _ = world([0.5, 0.5, 0.0], separation=5)
    estimate = eq.estimate_prior(p, SOURCE, method=method, validation=world(SOURCE, separation=5, seed=1))
    assert estimate.probabilities[2] == pytest.approx(0.5 / (2000 + 0.5))  # half an item, and then they sum to 1
    assert eq.adjust_logits(torch.zeros(1, 3), source=SOURCE, target=estimate.prior).isfinite().all()


def test_a_class_that_was_never_counted_gives_a_finite_estimate() -> None:
    p, _ = world(TARGET)
    with pytest.warns(UserWarning, match="no item"):
        estimate = eq.estimate_prior(p, eq.Prior.from_counts([60, 30, 0]))
    assert np.isfinite(estimate.probabilities).all()


# -------------------------------------------------------------------- when it cannot be trusted


def test_few_items_are_said_to_be_few() -> None:
    p, _ = world(TARGET, n=12)
    with pytest.warns(UserWarning, match="cannot be trusted: 12 items are few for 3 classes: use 30 or more"):
        estimate = eq.estimate_prior(p, SOURCE)
    assert not estimate.trusted


def test_a_model_that_cannot_tell_the_classes_apart_is_found_out() -> None:
    p, _ = world(TARGET, n=200, separation=0.1)
    with pytest.warns(UserWarning, match="resampling the items moves the estimate by"):
        assert eq.estimate_prior(p, SOURCE).spread > 0.1
    with pytest.warns(UserWarning, match=r"ill-conditioned.*2 classes are never predicted.*method='em'"):
        eq.estimate_prior(p, SOURCE, method="bbse", validation=world(SOURCE, separation=0.1, seed=1))


@pytest.mark.parametrize("resamples", [0, 200])
def test_classes_that_are_always_predicted_in_proportion_are_found_out(resamples: int) -> None:
    """Every split of their shares is as likely, which resampling cannot show: it always comes back to the same one."""
    p, _ = world([0.2, 0.8], source=[0.6, 0.4])
    merged = np.stack([p[:, 0], 0.75 * p[:, 1], 0.25 * p[:, 1]], 1)
    source = eq.Prior.from_counts({"cat": 60, "owl": 30, "yak": 10})
    with pytest.warns(UserWarning, match="classes (yak and owl|owl and yak) apart.*are a guess: merge them"):
        assert not eq.estimate_prior(merged, source, resamples=resamples).trusted
    with pytest.warns(UserWarning, match="apart, so their shares are a guess"):
        eq.estimate_prior(np.tile(SOURCE, (500, 1)), SOURCE, resamples=resamples)  # a model that knows nothing


@pytest.mark.parametrize(("temperature", "word"), [(0.4, "over-confident"), (2.0, "under-confident")])
def test_uncalibrated_probabilities_are_found_out_with_labels(temperature: float, word: str) -> None:
    def sharpened(p: Any) -> Any:
        return torch.tensor(np.log(p) / temperature).softmax(1).numpy()

    p, _ = world(TARGET)
    held_out, labels = world(SOURCE, seed=1)
    with pytest.warns(UserWarning, match=rf"{word}: the validation set asks for temperature .*fit_temperature"):
        estimate = eq.estimate_prior(sharpened(p), SOURCE, validation=(sharpened(held_out), labels))
    assert "not trusted: the probabilities are" in str(estimate)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert eq.estimate_prior(p, SOURCE, validation=(held_out, labels)).trusted
        bbse = eq.estimate_prior(sharpened(p), SOURCE, method="bbse", validation=(sharpened(held_out), labels))
    assert bbse.trusted  # it looks at what is predicted only


def test_a_class_predicted_too_often_throughout_is_found_out_and_calibration_mends_it() -> None:
    def biased(p: Any) -> Any:
        return torch.tensor(np.log(p) + np.array([0.0, 0.0, -1.2])).softmax(1).numpy()

    p, _ = world(TARGET)
    held_out, labels = world([1 / 3] * 3, seed=1)
    with pytest.warns(
        UserWarning, match=r"classes are off: on the validation set those of class 2 sum to \d+\.\d, but"
    ):
        before = eq.estimate_prior(biased(p), SOURCE, validation=(biased(held_out), labels))
    calibration = eq.fit_temperature(torch.tensor(np.log(biased(held_out))), labels, source=SOURCE, bias=True)
    mended, checked = (calibration(torch.tensor(np.log(biased(rows)))).softmax(1) for rows in (p, held_out))
    after = eq.estimate_prior(mended, SOURCE, validation=(checked, labels))
    assert after.trusted
    distances = [np.abs(estimate.probabilities - TARGET).sum() / 2 for estimate in (before, after)]
    assert distances[1] < 0.05 < 0.1 < distances[0]


def test_decisions_are_no_probabilities() -> None:
    p, _ = world(TARGET)
    with pytest.warns(UserWarning, match="100 % of the rows are exactly 0 or 1"):
        eq.estimate_prior(np.eye(3)[p.argmax(1)], SOURCE)


def test_a_validation_set_with_few_items_of_a_class_is_named() -> None:
    p, _ = world(TARGET)
    held_out, labels = world(SOURCE, seed=1)
    kept = np.concatenate([np.flatnonzero(labels < 2), np.flatnonzero(labels == 2)[:5]])
    with pytest.warns(UserWarning, match="only 5 items of class yak"):
        eq.estimate_prior(
            p,
            eq.Prior.from_counts({"cat": 6, "owl": 3, "yak": 1}),
            method="bbse",
            validation=(held_out[kept], labels[kept]),
        )


def test_the_table_has_a_row_a_class_and_says_what_was_not_checked() -> None:
    p, _ = world(TARGET)
    estimate = eq.estimate_prior(p, eq.Prior.from_counts({"cat": 6, "owl": 3, "yak": 1}))
    lines = str(estimate).splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["yak", "owl", "cat"]
    assert lines[-1] == "calibration was not checked: pass validation=(probabilities, labels)"
    assert repr(estimate).startswith("PriorEstimate(em, 2,000 items, trusted, Prior(3 classes")


# -------------------------------------------------------------------- what is refused


P, LABELS = world(TARGET, n=50)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "bbse"}, r"pass validation=\(probabilities, labels\).*method='em'"),
        ({"method": "bsse"}, "method is 'bsse': expected 'em' or 'bbse'"),
        ({"probabilities": np.log(P)}, r"row 0 .* is not a distribution .*logits\.softmax\(1\)"),
        ({"probabilities": np.full((2, 3), np.nan)}, "row 0 .* is not a distribution"),
        ({"probabilities": P[0]}, r"shape \(3,\), expected \[N, K\]"),
        ({"probabilities": P[:0]}, "no row"),
        ({"source": [0.5, 0.5]}, "source has 2 classes, probabilities have 3"),
        ({"source": eq.Prior.from_counts([5, 5, 5], total=6)}, "sum to 2.5.*exactly one class"),
        (
            {"validation": (P[:, :2] / P[:, :2].sum(1, keepdims=True), LABELS)},
            "validation probabilities have 2 classes",
        ),
        ({"validation": (P, LABELS[:3])}, r"labels have shape \(3,\).* 50 rows"),
        ({"validation": (P, LABELS + 1)}, "expected a class from 0 to 2"),
        ({"method": "bbse", "validation": (P[LABELS > 0], LABELS[LABELS > 0])}, r"no item of 1 classes \(0\)"),
        ({"validation": (P[:0], LABELS[:0])}, "validation set is empty"),
        ({"resamples": -1}, "resamples is -1"),
    ],
)
def test_what_cannot_work_is_refused_with_a_way_out(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        eq.estimate_prior(**{"probabilities": P, "source": SOURCE} | arguments)


def test_a_validation_set_without_labels_is_refused() -> None:
    with pytest.raises(TypeError, match=r"expected a pair \(probabilities, labels\)"):
        eq.estimate_prior(P, SOURCE, validation=P)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"labels are float64: expected class indices"):
        eq.estimate_prior(P, SOURCE, validation=(P, LABELS + 0.5))


def test_the_quantile_of_the_calibration_check_is_that_of_scipy() -> None:
    from scipy.stats import chi2

    from equipoise.serving.estimate import _chi_squared

    for degrees in (1, 2, 9, 99):
        # Wilson and Hilferty's approximation: 0.7 % off at one degree of freedom, less above
        assert _chi_squared(degrees) == pytest.approx(chi2.ppf(0.99, degrees), rel=0.01)


def test_calibrated_probabilities_are_rarely_doubted() -> None:
    from equipoise.serving.estimate import _calibration_doubts

    prior = eq.Prior.from_probabilities(SOURCE)
    doubted = 0
    for seed in range(300):
        held_out, labels = world([1 / 3] * 3, n=60, seed=seed)
        doubted += bool(_calibration_doubts(torch.tensor(held_out), labels, prior))
    assert doubted <= 9
