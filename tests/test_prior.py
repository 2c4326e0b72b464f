"""The prior: what it counts, what it says, what it refuses."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import equipoise as eq
from equipoise import Prior


@pytest.mark.parametrize(
    "labels",
    [
        [0, 2, 2, 0, 0],
        (0, 2, 2, 0, 0),
        np.array([0, 2, 2, 0, 0], dtype=np.uint8),
        torch.tensor([0, 2, 2, 0, 0]),
        torch.tensor([0, 2, 2, 0, 0], dtype=torch.int16),
    ],
    ids=lambda labels: type(labels).__name__,
)
def test_labels_of_any_kind_are_counted(labels: object) -> None:
    prior = Prior.from_labels(labels)  # type: ignore[arg-type]
    assert prior.counts.tolist() == [3, 0, 2]
    assert prior.counts.dtype == np.int64
    assert prior.total == 5
    assert prior.probabilities.tolist() == [0.6, 0.0, 0.4]


def test_num_classes_may_exceed_the_largest_label() -> None:
    assert Prior.from_labels([0, 1], num_classes=4).counts.tolist() == [1, 1, 0, 0]
    assert Prior.from_labels([0, 1], class_names=["a", "b", "c"]).counts.tolist() == [1, 1, 0]


def test_ignored_labels_are_left_out() -> None:
    assert Prior.from_labels([0, -100, 1, 1], ignore_index=-100).counts.tolist() == [1, 2]
    assert Prior.from_labels([0, 255, 1, 1], 2, ignore_index=255).total == 3


def test_chunks_count_as_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.random.default_rng(0).integers(0, 7, 1000)
    multi_hot = np.random.default_rng(1).integers(0, 2, (50, 3))
    monkeypatch.setattr("equipoise.data.counting.CHUNK", 64)
    assert Prior.from_labels(labels).counts.tolist() == np.bincount(labels).tolist()
    late = np.append(np.zeros(100, int), 9)  # the largest label comes in the last chunk
    assert Prior.from_labels(late).counts.tolist() == [100, *[0] * 8, 1]
    assert Prior.from_multilabel(multi_hot).counts.tolist() == multi_hot.sum(0).tolist()
    with pytest.raises(ValueError, match=r"multi_hot\[40, 2\] is 3"):
        Prior.from_multilabel(np.where(np.arange(150).reshape(50, 3) == 122, 3, multi_hot))


def test_counts_come_as_numbers_or_by_name() -> None:
    assert Prior.from_counts([5.0, 3.0]).counts.tolist() == [5, 3]
    assert Prior.from_counts(torch.tensor([5, 3])).total == 8
    named = Prior.from_counts({"cat": 5, "owl": 3})
    assert named.class_names == ("cat", "owl")
    assert Prior.from_counts([5, 3], total=20).probabilities.tolist() == [0.25, 0.15]


def test_counters_and_value_counts_are_read_by_class_index() -> None:
    labels = [2] * 5 + [0] * 100 + [1] * 20
    expected = Prior.from_labels(labels)
    assert Prior.from_counts(Counter(labels)) == expected
    assert Prior.from_counts(pd.Series(labels).value_counts()) == expected
    assert Prior.from_counts(pd.Series(labels).value_counts().to_dict()) == expected
    assert Prior.from_counts(Counter([3, 1, 1])).counts.tolist() == [0, 2, 0, 1]
    assert Prior.from_labels(pd.Series(labels)) == expected
    named = Prior.from_counts([100, 20], class_names={1: "owl", 0: "cat"})
    assert named.class_names == ("cat", "owl")


def test_counts_by_name_are_in_the_order_of_the_class_names() -> None:
    found = Prior.from_counts(Counter(["owl", "cat", "owl"]), class_names=["ant", "cat", "owl"])
    assert (found.counts.tolist(), found.class_names) == ([0, 1, 2], ("ant", "cat", "owl"))
    stated = Prior.from_probabilities({"owl": 0.8, "cat": 0.2}, class_names=["cat", "owl"])
    assert stated.probabilities.tolist() == [0.2, 0.8]
    renamed = Prior.from_counts({"n01": 5, "n02": 3}, class_names=["cat", "owl"])
    assert (renamed.counts.tolist(), renamed.class_names) == ([5, 3], ("cat", "owl"))


def test_a_counted_array_can_neither_be_written_nor_reach_back() -> None:
    given = np.array([5, 3])
    prior = Prior.from_counts(given)
    given[0] = 99
    assert prior.counts.tolist() == [5, 3]
    for array in (prior.counts, prior.probabilities, pickle.loads(pickle.dumps(prior)).counts):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        prior.class_names = ("a", "b")  # type: ignore[misc]


def test_masks_are_counted_by_pixel() -> None:
    masks = [np.array([[0, 1], [1, 255]]), torch.tensor([[1, 1, 0]])]
    assert Prior.from_masks(masks, 3, ignore_index=255).counts.tolist() == [2, 4, 0]
    assert Prior.from_masks((m for m in masks), 3, 255).total == 6
    assert Prior.from_masks(torch.zeros(2, 4, 4, dtype=torch.long), 2).total == 32
    assert Prior.from_masks(torch.zeros(2, 1, 4, 4, dtype=torch.long), 2).total == 32  # with a channel, as MONAI's


def test_multilabel_counts_positives_out_of_all_items() -> None:
    prior = Prior.from_multilabel(torch.tensor([[1, 0], [1, 1], [0, 0]]))
    assert prior.counts.tolist() == [2, 1]
    assert prior.total == 3
    assert Prior.from_multilabel(np.array([[True, False]])).counts.tolist() == [1, 0]


@pytest.mark.parametrize(
    "prior",
    [
        Prior.from_counts([10, 3, 1]),
        Prior.from_counts([10, 3, 1], total=99, class_names=["a", 'ü,"x', "c"], class_ids=[3, 5, 90]),
        Prior.from_probabilities([0.7, 0.2, 0.1]),
        Prior.from_probabilities(np.random.default_rng(0).dirichlet(np.ones(50))),
        Prior.uniform(49),
    ],
    ids=repr,
)
def test_a_prior_survives_json_pickle_and_copies_exactly(prior: Prior) -> None:
    for other in (Prior.from_json(prior.to_json()), pickle.loads(pickle.dumps(prior)), copy.deepcopy(prior)):
        assert other == prior
        assert hash(other) == hash(prior)
        assert torch.equal(other.log(), prior.log())
    assert len({prior, copy.copy(prior)}) == 1


def test_priors_differ_where_anything_differs() -> None:
    base = Prior.from_counts([6, 4])
    others = [
        Prior.from_counts([4, 6]),
        Prior.from_counts([6, 4], total=11),
        Prior.from_counts([6, 4], class_names=["a", "b"]),
        Prior.from_counts([6, 4], class_ids=[1, 2]),
        Prior.from_probabilities([0.6, 0.4]),
        "Prior",
    ]
    assert all(base != other for other in others)
    assert base == Prior.from_counts([6, 4])


def test_shards_add_up_to_the_whole() -> None:
    labels = np.random.default_rng(0).integers(0, 5, 300)
    parts = [Prior.from_labels(part, 5) for part in np.array_split(labels, 7)]
    assert sum(parts) == Prior.from_labels(labels, 5)
    images = Prior.from_counts([3, 1], total=10) + Prior.from_counts([1, 1], total=4)
    assert (images.counts.tolist(), images.total) == ([4, 2], 14)


def test_only_like_priors_add() -> None:
    with pytest.raises(ValueError, match="2 and 3 classes do not add"):
        Prior.from_counts([1, 1]) + Prior.from_counts([1, 1, 1])
    with pytest.raises(ValueError, match="different class_names"):
        Prior.from_counts({"a": 1, "b": 1}) + Prior.from_counts({"b": 1, "a": 1})
    with pytest.raises(ValueError, match="different class_ids"):
        Prior.from_counts([1, 1], class_ids=[1, 2]) + Prior.from_counts([1, 1], class_ids=[1, 3])
    with pytest.raises(ValueError, match="not counted"):
        Prior.uniform(2) + Prior.uniform(2)
    with pytest.raises(TypeError):
        Prior.from_counts([1, 1]) + 3  # type: ignore[operator]


def test_groups_are_those_of_the_literature_and_never_empty() -> None:
    assert Prior.from_counts([101, 100, 20, 19]).groups() == {"many": [0], "medium": [1, 2], "few": [3]}
    assert Prior.from_counts([5, 4]).groups() == {"few": [0, 1]}
    assert list(Prior.from_counts([5, 500]).groups()) == ["many", "few"]
    assert Prior.from_counts([11, 10, 0]).groups(many=100, few=11) == {"medium": [0], "few": [1, 2]}
    with pytest.raises(ValueError, match="overlap"):
        Prior.from_counts([5, 4]).groups(many=10, few=12)
    with pytest.raises(ValueError, match="not counted"):
        Prior.uniform(3).groups()


def test_imbalance_is_over_the_classes_that_occur() -> None:
    assert Prior.from_counts([500, 0, 5]).imbalance == 100
    assert Prior.from_probabilities([0.6, 0.4]).imbalance == pytest.approx(1.5)
    assert Prior.uniform(7).imbalance == 1


def test_repr_says_what_one_wants_to_know() -> None:
    assert repr(Prior.from_counts([500, 20, 0, 5])) == (
        "Prior(4 classes, 1 absent, total 525, imbalance 100, head 0: 500, tail 3: 5)"
    )
    assert repr(Prior.from_counts({"cat": 1_270_141, "owl": 3})) == (
        "Prior(2 classes, total 1,270,144, imbalance 423,380, head 'cat': 1,270,141, tail 'owl': 3)"
    )


def test_log_and_logit_are_fp32_and_finite() -> None:
    prior = Prior.from_counts([70_000, 30_000], total=100_000)
    torch.testing.assert_close(prior.log(), torch.tensor([0.7, 0.3]).log())
    torch.testing.assert_close(prior.logit(), torch.tensor([0.7, 0.3]).logit())
    assert prior.log().dtype == prior.logit().dtype == torch.float32
    with pytest.warns(UserWarning, match=r"2 of 3 classes have no item \('b', 'c'\): each is treated as if it had one"):
        log = Prior.from_counts({"a": 10, "b": 0, "c": 0}).log()
    torch.testing.assert_close(log, torch.tensor([1.0, 0.1, 0.1]).log())
    with pytest.warns(UserWarning, match="no item"):
        logit = Prior.from_counts([10, 0]).logit()
    torch.testing.assert_close(logit, torch.tensor([10.0, 1 / 10]).log())
    with pytest.warns(UserWarning, match="1 of 3 classes have no item"):
        stated = Prior.from_probabilities([0.9, 0.1, 0.0]).log()
    torch.testing.assert_close(stated, torch.tensor([0.9, 0.1, 0.1]).log())
    assert Prior.uniform(1).logit().isfinite().all()


def test_a_shift_is_finite_whatever_the_counts() -> None:
    with pytest.warns(UserWarning, match="no item"):
        shift = eq.softmax_shift(Prior.from_counts([8, 0]))
    torch.testing.assert_close(shift.exp(), torch.tensor([2.0, 0.25]))
    with pytest.warns(UserWarning, match="as rare as the rarest"):
        assert eq.softmax_shift(Prior.from_probabilities([1.0, 0.0])).isfinite().all()
    everywhere = Prior.from_counts([10, 10], total=10)
    assert torch.equal(eq.sigmoid_shift(everywhere), torch.zeros(2))
    assert eq.sigmoid_shift(everywhere, 0.5).isfinite().all()


def test_a_stated_prior_has_no_counts() -> None:
    prior = Prior.from_probabilities([0.5, 0.5])
    assert not prior.counted
    for ask in (lambda: prior.counts, lambda: prior.total, prior.groups):
        with pytest.raises(ValueError, match="not counted"):
            ask()


REFUSED = {
    "negative count": (lambda: Prior.from_counts([5, -1]), "the count of class 1 is -1"),
    "fractional count": (lambda: Prior.from_counts([5, 0.5]), r"class 1 is 0\.5.*Prior\.from_probabilities"),
    "NaN count": (lambda: Prior.from_counts([float("nan"), 1]), "class 0 is nan"),
    "infinite count": (lambda: Prior.from_counts([float("inf"), 1]), "class 0 is inf"),
    "all zero": (lambda: Prior.from_counts([0, 0, 0]), "all 3 counts are zero"),
    "too large a sum": (lambda: Prior.from_counts([2**62, 2**62]), "more than 64 bits hold"),
    "other names": (lambda: Prior.from_counts({"a": 1, "b": 2}, class_names=["a", "c"]), "the key 'b' is not one"),
    "a class without a probability": (
        lambda: Prior.from_probabilities({"a": 1.0}, class_names=["a", "b"]),
        "1 probabilities for the classes 0 to 1",
    ),
    "mixed keys": (lambda: Prior.from_counts({0: 1, "a": 2}), "expected class names, or class indices"),
    "wrong name keys": (lambda: Prior.from_counts([1, 2], class_names={1: "a", 2: "b"}), "expected 0 to 1"),
    "a generator": (lambda: Prior.from_labels(i for i in [0, 1]), "labels are a generator"),  # type: ignore[arg-type]
    "a missing label": (lambda: Prior.from_labels([0, None]), "label 1 is None"),  # type: ignore[list-item]
    "a NaN label": (lambda: Prior.from_labels([0, float("nan")]), "labels hold NaN"),
    "ragged labels": (lambda: Prior.from_labels(np.array([[0], [0, 1]], object)), "use Prior.from_multilabel"),
    "an id as a label": (lambda: Prior.from_labels([0, 10**12]), "would make 1000000000001 classes"),
    "a label of 64 bits": (
        lambda: Prior.from_labels(np.array([2**63 + 5], np.uint64)),
        "would make 9223372036854775814",
    ),
    "ignored, with classes": (lambda: Prior.from_labels([9], 3, ignore_index=9), "every label is ignore_index=9"),
    "no number of classes": (lambda: Prior.from_labels([0], num_classes=-1), "num_classes is -1"),
    "class ids that are none": (lambda: Prior.from_counts([1, 2], class_ids=[1, 2.5]), "class_ids hold 2.5"),  # type: ignore[list-item]
    "an id for an index": (lambda: Prior.from_counts({0: 5, 10_000_000: 3}), "10000000 is not below 10,000,000"),
    "half an item in total": (lambda: Prior.from_counts([1], total=1.5), "total is 1.5"),  # type: ignore[arg-type]
    "a total that is none": (lambda: Prior.from_counts([1], total=float("nan")), "total is nan"),  # type: ignore[arg-type]
    "tau that is none": (lambda: eq.BalancedSoftmaxLoss(Prior.uniform(2), tau=float("inf")), "tau is inf"),
    "a negative margin": (lambda: eq.LDAMLoss(Prior.from_counts([1, 2]), -0.1), "max_margin is -0.1"),
    "margins of no counts": (lambda: eq.LDAMLoss(Prior.uniform(2)), "not counted"),
    "numbers of no counts": (lambda: eq.effective_number_weights(Prior.uniform(2), 0.9), "stated as probabilities"),
    "a prior as a rate": (
        lambda: eq.adjust_sigmoid_logits(torch.zeros(2), source=0.1, target_rate=Prior.uniform(2)),  # type: ignore[arg-type]
        r"target_rate=prior\.probabilities",
    ),
    "no classes": (lambda: Prior.from_counts([]), r"shape \(0,\)"),
    "matrix of counts": (lambda: Prior.from_counts([[1, 2]]), r"shape \(1, 2\)"),
    "words as counts": (lambda: Prior.from_counts(["a", "b"]), "give whole numbers"),
    "total too small": (lambda: Prior.from_counts([5, 3], total=4), "largest class alone counts 5"),
    "names too few": (lambda: Prior.from_counts([5, 3], class_names=["a"]), "1 class_names for 2 classes"),
    "label too large": (lambda: Prior.from_labels([0, 7], 5), "label 7 is out of range for num_classes=5"),
    "label one too large": (lambda: Prior.from_labels([0, 5], 5), "label 5 is out of range for num_classes=5"),
    "negative label": (lambda: Prior.from_labels([0, -1]), "label -1 is negative: pass ignore_index=-1"),
    "label maps": (lambda: Prior.from_labels(np.zeros((2, 2), int)), r"Prior\.from_masks.*Prior\.from_multilabel"),
    "no labels": (lambda: Prior.from_labels([]), "empty"),
    "nothing but ignored": (lambda: Prior.from_labels([9, 9], ignore_index=9), "every label is ignore_index=9"),
    "float labels": (lambda: Prior.from_labels([0.0, 1.0]), r"expected integers.*astype\(int\)"),
    "names as labels": (lambda: Prior.from_labels(["cat", "owl"]), "np.unique"),
    "flat multi-hot": (lambda: Prior.from_multilabel([0, 1]), r"\[N, K\]"),
    "multi-hot of twos": (lambda: Prior.from_multilabel([[0, 2]]), r"multi_hot\[0, 1\] is 2"),
    "ragged multi-hot": (lambda: Prior.from_multilabel([[0], [0, 2]]), "multi_hot is ragged"),
    "flat mask": (lambda: Prior.from_masks([[0, 1]], 2), r"mask 0 has shape \(2,\)"),
    "mask out of range": (lambda: Prior.from_masks([[[0]], [[9]]], 2), "mask 1, pixel 9 is out of range"),
    "no masks": (lambda: Prior.from_masks([], 2), "no masks"),
    "counts as probabilities": (lambda: Prior.from_probabilities([90, 10]), r"sum to 100, not 1.*from_counts"),
    "negative probability": (lambda: Prior.from_probabilities([1.5, -0.5]), "probability of class 1 is -0.5"),
    "no class at all": (lambda: Prior.uniform(0), "at least one class"),
    "other JSON": (lambda: Prior.from_json('{"a": 1}'), "not a prior"),
    "two sizes": (lambda: eq.softmax_shift(Prior.uniform(2), Prior.uniform(3)), "source has 2 classes, target has 3"),
    "nothing named": (lambda: eq.adjust_logits(torch.zeros(3)), "both None"),
    "the constructor": (lambda: Prior([1, 2]), r"Prior\.from_labels"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_gets_one_clear_error(case: str) -> None:
    make, message = REFUSED[case]
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_logits_of_another_size_are_refused_wherever_a_prior_meets_them() -> None:
    prior, logits = Prior.from_counts([1] * 100), torch.zeros(2, 10)
    for call in (
        lambda: eq.balanced_softmax(logits, prior),
        lambda: eq.balanced_sigmoid(logits, prior),
        lambda: eq.adjust_logits(logits, source=prior),
        lambda: eq.adjust_sigmoid_logits(logits, source=prior, target_rate=0.5),
        lambda: eq.BalancedSoftmaxLoss(prior)(logits, torch.tensor([0, 1])),
        lambda: eq.BalancedSigmoidLoss(prior)(logits, torch.tensor([0, 1])),
        lambda: eq.evaluate(logits, torch.tensor([0, 1]), prior),
    ):
        with pytest.raises(ValueError, match=r"prior has 100 classes, logits .*have 10"):
            call()


def test_stated_probabilities_are_read_by_index_or_name_where_they_have_one() -> None:
    shares = pd.Series([1, 1, 1, 0, 2, 2]).value_counts(normalize=True)  # the most frequent class first
    np.testing.assert_allclose(Prior.from_probabilities(shares).probabilities, [1 / 6, 3 / 6, 2 / 6])
    np.testing.assert_allclose(Prior.from_probabilities({1: 0.75, 0: 0.25}).probabilities, [0.25, 0.75])
    assert Prior.from_probabilities({"cat": 0.75, "owl": 0.25}).class_names == ("cat", "owl")
    with pytest.raises(ValueError, match="2 probabilities for the classes 0 to 2: give one per class"):
        Prior.from_probabilities({0: 0.5, 2: 0.5})
    with pytest.raises(TypeError, match="probabilities are 'uniform': expected numbers"):
        Prior.from_probabilities("uniform")


@pytest.mark.parametrize("first", ["torch", "equipoise"])
def test_a_prior_among_saved_hyper_parameters_loads_without_unsafe_pickle(first: str, tmp_path: Path) -> None:
    """In a process of its own, which has done nothing with priors yet; each package may be imported first."""
    priors = [Prior.from_counts({"cat": 2**52, "owl": 1}, 2**53), Prior.from_probabilities([1 / 3, 2 / 3])]
    torch.save({"hyper_parameters": {"priors": priors}}, tmp_path / "a.ckpt")
    use = "import torch, equipoise" if first == "torch" else "import equipoise, torch; equipoise.evaluate"
    code = f"{use}; print([p.to_json() for p in torch.load(r'{tmp_path / 'a.ckpt'}')['hyper_parameters']['priors']])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.strip() == str([prior.to_json() for prior in priors]), done.stderr


def test_a_prior_of_several_labels_per_item_is_warned_of_where_a_softmax_expects_one() -> None:
    rates = Prior.from_multilabel([[1, 1], [1, 0], [0, 1]])
    for use in (
        lambda: eq.adjust_logits(torch.zeros(1, 2), source=rates),
        lambda: eq.adjust_logits(torch.zeros(1, 2), target=Prior.from_multilabel([[1, 1], [1, 0]])),
        lambda: eq.BalancedSoftmaxLoss(Prior.from_counts([60, 30], total=100)),
    ):
        with pytest.warns(UserWarning, match=r"sum to \S+: they are rates of items .* BalancedSigmoidLoss") as caught:
            use()
        assert caught[0].filename == __file__
    eq.BalancedSoftmaxLoss(Prior.from_multilabel([[1, 0], [0, 1]]))  # one class per item: no warning, an error here
    eq.BalancedSigmoidLoss(rates, target_rate=0.5)
