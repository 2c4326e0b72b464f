"""The class prior: how often each class occurs, counted once and used everywhere.

A classifier learns p(y|x) under the prior of its training set. Two vectors turn that into p(y|x) under another prior:

    softmax shift(source, target)  =  log π_source − log π_target          target None: uniform (Theorem 1 of the paper)
    sigmoid shift(source, t)       =  logit π_source − logit t             t None: the mean rate Σ_j π_j / K, which is
                                                                           1/K when every item has one label
    train:      loss(logits + shift, y)          predict:   activation(logits)
    post-hoc:   logits − shift, for a model trained with the plain loss

Both are computed in float64 from whole counts and stored as fp32, so that a uniform prior gives exactly 0. A class that
was never counted is treated as if it had been seen once (max(n, 1)), so that a zero count never makes a shift infinite.

Reference: Ren, Yu, Cai, Zhao, "Balanced Activation for Long-tailed Visual Recognition", 2020, arXiv 2008.11037.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.arrays import (
    as_array,
    as_ids,
    as_names,
    by_column,
    exact_zeros,
    fp32,
    is_whole,
    outside,
    rate_logits,
    stated_probabilities,
    whole_counts,
)
from equipoise.compiling import constant, refuse_priors, refuse_vector

if TYPE_CHECKING:
    from torch import Tensor

IntArray: TypeAlias = NDArray[np.int64]
FloatArray: TypeAlias = NDArray[np.float64]
PriorLike: TypeAlias = "Prior | Sequence[float] | FloatArray | Tensor"

# The value of 1 − π for a class whose probability is stated as 1: the smallest normal fp32 number.
TINY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, eq=False, repr=False)
class Prior:
    """How often each class occurs. Build it with one of the `from_*` constructors.

    A prior is frozen, hashable and comparable, survives JSON and pickle exactly, and adds up over shards with `+`.

    >>> prior = Prior.from_labels([0, 0, 0, 1], class_names=["cat", "owl"])
    >>> prior
    Prior(2 classes, total 4, imbalance 3, head 'cat': 3, tail 'owl': 1)
    >>> prior.probabilities.tolist(), prior.imbalance
    ([0.75, 0.25], 3.0)
    >>> prior == Prior.from_json(prior.to_json())
    True
    """

    _probabilities: FloatArray
    _counts: IntArray | None = None
    _total: int | None = None
    class_names: tuple[str, ...] | None = None  # one per class, in column order
    class_ids: tuple[int, ...] | None = None  # one per class: ids of a COCO or LVIS file

    def __post_init__(self) -> None:
        if not isinstance(self._probabilities, np.ndarray):
            raise TypeError("build a prior with Prior.from_labels, .from_counts, .from_dataset, ... not Prior(...)")
        for array in (self._probabilities, self._counts):
            if array is not None:
                array.flags.writeable = False
        for name in ("class_names", "class_ids"):
            given = getattr(self, name)
            if given is not None and len(given) != self.num_classes:
                raise ValueError(
                    f"{len(given)} {name} for {self.num_classes} classes: give one per class, in column order"
                )

    # ---------------------------------------------------------------- constructors

    @classmethod
    def from_labels(
        cls,
        labels: ArrayLike | Tensor,
        num_classes: int | None = None,
        *,
        ignore_index: int | None = None,
        class_names: Sequence[str] | None = None,
    ) -> Prior:
        """Count class indices `labels` [N]: a list, array or tensor of ints, one per item.

        `num_classes` may exceed the largest label (the other classes count 0); it defaults to the number of
        `class_names`, or without names to the largest label + 1.

        >>> Prior.from_labels([0, 2, 2], num_classes=4).counts.tolist()
        [1, 0, 2, 0]
        """
        from equipoise.data.counting import count_labels

        if num_classes is None and class_names is not None:
            num_classes = len(class_names)
        return cls.from_counts(count_labels(labels, num_classes, ignore_index=ignore_index), class_names=class_names)

    @classmethod
    def from_counts(
        cls,
        counts: ArrayLike | Tensor | Mapping[str, int],
        total: int | None = None,
        *,
        class_names: Sequence[str] | None = None,
        class_ids: Sequence[int] | None = None,
    ) -> Prior:
        """Whole numbers `counts` [K], or a mapping: from class name to number, or from class index to number.

        A `collections.Counter` of class indices, or the `value_counts()` of a pandas column of them, is read by index,
        whatever its order; one of class names, in the order of `class_names`, if they are given. `total` is the number
        of items that were counted: the sum of the counts if each item has one class (the default), the number of items
        if an item can have several classes or none. `class_ids` are ids in an annotation file.

        >>> Prior.from_counts({"cat": 90, "owl": 10}).class_names
        ('cat', 'owl')
        """
        columns, names = by_column(counts, class_names)
        whole = whole_counts(columns)
        if total is None:
            total = int(whole.sum())
        elif not is_whole(total) or total < whole.max():
            raise ValueError(
                f"total is {total}, but the largest class alone counts {whole.max()}: "
                "total is the whole number of items that were counted over"
            )
        return cls(whole / int(total), whole, int(total), names, as_ids(class_ids))

    @classmethod
    def from_multilabel(cls, multi_hot: ArrayLike | Tensor, *, class_names: Sequence[str] | None = None) -> Prior:
        """Count a matrix `multi_hot` [N, K] of zeros and ones: positives per class, out of N items.

        >>> Prior.from_multilabel([[1, 1], [1, 0], [0, 0]])
        Prior(2 classes, total 3, imbalance 2, head 0: 2, tail 1: 1)
        """
        from equipoise.data.counting import count_multilabel

        counts, total = count_multilabel(multi_hot)
        return cls.from_counts(counts, total, class_names=class_names)

    @classmethod
    def from_masks(
        cls,
        masks: Iterable[ArrayLike | Tensor] | str | os.PathLike[str],
        num_classes: int,
        ignore_index: int | None = None,
        *,
        class_names: Sequence[str] | None = None,
    ) -> Prior:
        """Count the pixels of label maps [H, W], one map at a time: `masks` is a folder of images of class indices, or
        any iterable of arrays, tensors or Pillow images.

        >>> Prior.from_masks([[[0, 0], [1, 255]]], num_classes=2, ignore_index=255).counts.tolist()
        [2, 1]
        """
        from equipoise.data.annotations import mask_files
        from equipoise.data.counting import count_masks

        if isinstance(masks, str | os.PathLike):
            masks = mask_files(masks)
        return cls.from_counts(count_masks(masks, num_classes, ignore_index), class_names=class_names)

    @classmethod
    def from_dataset(
        cls,
        dataset: Any,
        *,
        label: str | Sequence[str] = "label",
        num_classes: int | None = None,
        ignore_index: int | None = None,
        kind: Literal["labels", "multilabel", "tokens", "masks"] = "labels",
    ) -> Prior:
        """Count the labels of a dataset without decoding its images.

        Reads `.targets`, `.labels`, a `TensorDataset`, torchvision's folders, nested `Subset`, `ConcatDataset` and
        `random_split`, and the column `label` of a Hugging Face dataset. Anything else is read item by item, with a
        warning, as `dataset[i][1]` (or `dataset[i][label]` if items are dictionaries).

        `kind` is what a label holds: one class ("labels"); lists of classes, a multi-hot vector, or several columns of
        0 and 1 ("multilabel"); one class per token, where −100 is padding ("tokens"); a label map [H, W] ("masks").
        """
        from equipoise.data.annotations import count_kind
        from equipoise.data.counting import dataset_labels

        if kind != "labels":
            counts, total, names = count_kind(dataset, kind, label, num_classes, ignore_index)
            return cls.from_counts(counts, total, class_names=names)
        if not isinstance(label, str):
            raise TypeError(f"label is {label!r}: several columns go with kind='multilabel'")

        found = dataset_labels(dataset, label=label)
        names = found.class_names
        if num_classes is not None and names is not None and len(names) != num_classes:
            names = None
        return cls.from_labels(found.labels, num_classes, ignore_index=ignore_index, class_names=names)

    @classmethod
    def from_yolo(
        cls, path: str | os.PathLike[str], by: Literal["images", "instances"] = "images", *, split: str = "train"
    ) -> Prior:
        """Count the labels of a YOLO data set from its `data.yaml`; `by` as in `from_coco`. Needs PyYAML."""
        from equipoise.data.yolo import count_yolo

        return count_yolo(path, by, split)

    @classmethod
    def from_coco(cls, path: str | os.PathLike[str], by: Literal["images", "instances"] = "images") -> Prior:
        """Count a COCO or LVIS annotation file; classes in the order of their category ids, kept with their names.

        `by="images"` counts images that contain the class, out of the images with at least one annotation (as Balanced
        Sigmoid needs). `by="instances"` counts annotations of the class, out of all. Annotations that training cannot
        use are not counted: crowds, and boxes or polygons without area.
        """
        from equipoise.data.coco import count_coco

        return count_coco(path, by)

    @classmethod
    def from_parquet(
        cls,
        path: str | os.PathLike[str],
        column: str = "label",
        num_classes: int | None = None,
        *,
        class_names: Sequence[str] | None = None,
    ) -> Prior:
        """Count a column of class indices in a Parquet file, or in all files of a folder, in batches."""
        from equipoise.data.parquet import count_parquet

        if num_classes is None and class_names is not None:
            num_classes = len(class_names)
        return cls.from_counts(count_parquet(path, column, num_classes), class_names=class_names)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], *, column: str | None = None) -> Prior:
        """Count the training set in a file or folder, as `equipoise inspect` does.

        `path` is a folder with one folder of images per class, CIFAR's folder, a saved Hugging Face data set, labels
        (.npy, .txt, .csv, .parquet; `column` names the label column of a table), counts (.json) or COCO or LVIS
        annotations (.json).
        """
        from equipoise.data.sources import read_source

        return read_source(path, column=column).prior

    @classmethod
    def from_probabilities(cls, p: ArrayLike | Tensor, *, class_names: Sequence[str] | None = None) -> Prior:
        """A stated prior: probabilities `p` [K] that sum to 1. It was not counted, so `.counts` and `.groups()` raise.

        A mapping, or a pandas Series such as `value_counts(normalize=True)`, is read by class name or index, as in
        `from_counts`.

        >>> Prior.from_probabilities([0.5, 0.3, 0.2])
        Prior(3 classes, not counted, imbalance 2.5, head 0: 0.5, tail 2: 0.2)
        """
        if isinstance(getattr(p, "prior", None), Prior):
            raise TypeError(f"probabilities are a {type(p).__name__}: pass its .prior")
        columns, names = by_column(p, class_names)
        if hasattr(p, "keys") and len(columns) > len(p.keys()):
            given, last = len(p.keys()), len(columns) - 1
            raise ValueError(f"{given} probabilities for the classes 0 to {last}: give one per class")
        probabilities = stated_probabilities(columns)
        return cls(probabilities / probabilities.sum(), class_names=names)

    @classmethod
    def uniform(cls, num_classes: int, *, class_names: Sequence[str] | None = None) -> Prior:
        """Every class equally likely.

        >>> Prior.uniform(4).probabilities.tolist()
        [0.25, 0.25, 0.25, 0.25]
        """
        if not is_whole(num_classes) or num_classes < 1:
            raise ValueError(f"num_classes is {num_classes}: a prior has at least one class")
        return cls(np.full(num_classes, 1 / num_classes), class_names=as_names(class_names))

    @classmethod
    def from_json(cls, text: str) -> Prior:
        """The prior that `to_json` wrote to `text`."""
        content = json.loads(text)
        if not isinstance(content, dict) or not {"counts", "probabilities"} & content.keys():
            raise ValueError(f"not a prior: expected an object with 'counts' or 'probabilities', got {text[:60]!r}")
        names, ids = content.get("class_names"), content.get("class_ids")
        if "counts" in content:
            counts = content["counts"]
            if isinstance(counts, dict) and all(key.isdecimal() for key in counts):  # JSON has no whole numbers as keys
                counts = {int(key): number for key, number in counts.items()}
            return cls.from_counts(counts, content.get("total"), class_names=names, class_ids=ids)
        exact = stated_probabilities(content["probabilities"])  # as written: not divided by their sum a second time
        return cls(exact, class_names=as_names(names), class_ids=as_ids(ids))

    def to_json(self) -> str:
        """Everything the prior holds, as one JSON object.

        >>> Prior.from_counts([3, 1]).to_json()
        '{"counts": [3, 1], "total": 4}'
        """
        content: dict[str, Any] = {"class_names": self.class_names, "class_ids": self.class_ids}
        if self._counts is None:
            content = {"probabilities": self._probabilities.tolist(), **content}
        else:
            content = {"counts": self._counts.tolist(), "total": self._total, **content}
        return json.dumps({name: value for name, value in content.items() if value is not None}, ensure_ascii=False)

    # ---------------------------------------------------------------- what it holds

    @property
    def num_classes(self) -> int:
        """How many classes there are, including those that never occur."""
        return len(self._probabilities)

    @property
    def counted(self) -> bool:
        """Whether the prior was counted (otherwise it was stated as probabilities)."""
        return self._counts is not None

    @property
    def counts(self) -> IntArray:
        """Items per class: int64 [K], read-only."""
        if self._counts is None:
            raise ValueError("this prior was stated as probabilities, not counted: it has no counts")
        return self._counts

    @property
    def total(self) -> int:
        """How many items were counted."""
        if self._total is None:
            raise ValueError("this prior was stated as probabilities, not counted: it has no total")
        return self._total

    @property
    def probabilities(self) -> FloatArray:
        """π = counts / total: float64 [K], read-only. Sums to 1 when every item has exactly one class."""
        return self._probabilities

    @property
    def imbalance(self) -> float:
        """The largest class over the smallest, among the classes that occur: 1 is balanced."""
        occurring = self._weights[self._weights > 0]
        return float(occurring.max() / occurring.min())

    def log(self) -> Tensor:
        """log π: fp32 [K], finite (a count of 0 is taken as 1, a stated 0 as the rarest of the others).

        >>> Prior.from_counts([3, 1]).log()
        tensor([-0.2877, -1.3863])
        """
        return fp32(np.log(self.without_zeros()) - np.log(self._total or 1))

    def logit(self) -> Tensor:
        """log π − log(1 − π): fp32 [K], finite (0 and `total` are taken as 1 and `total` − 1).

        >>> Prior.from_counts([3, 1]).logit()
        tensor([ 1.0986, -1.0986])
        """
        return fp32(self._logit())

    def without_zeros(self) -> FloatArray:
        """Counts or probabilities without zeros: a class that was never counted counts 1, and one that was stated as 0
        is as rare as the rarest of the others. One warning names these classes."""
        weights = self._weights
        absent = np.flatnonzero(weights == 0)
        if len(absent):
            shown = ", ".join(self._label(int(j)) for j in absent[:10]) + (", ..." if len(absent) > 10 else "")
            how = "as if it had one" if self.counted else "as if it were as rare as the rarest that has"
            warnings.warn(
                f"{len(absent)} of {self.num_classes} classes have no item ({shown}): each is treated {how}",
                stacklevel=outside(),
            )
        least = 1 if self.counted else weights[weights > 0].min()
        return np.where(weights > 0, weights, least).astype(np.float64)

    def groups(self, many: int = 100, few: int = 20) -> dict[str, list[int]]:
        """The classes with more than `many` items, with fewer than `few`, and in between; only groups that have a
        class.

        >>> Prior.from_counts([500, 101, 20, 19, 0]).groups()
        {'many': [0, 1], 'medium': [2], 'few': [3, 4]}
        >>> Prior.from_counts([500, 400]).groups()
        {'many': [0, 1]}
        """
        if few > many + 1:
            raise ValueError(f"few={few} and many={many} overlap: few must be at most many + 1")
        counts = self.counts
        masks = {"many": counts > many, "medium": (counts <= many) & (counts >= few), "few": counts < few}
        return {name: np.flatnonzero(mask).tolist() for name, mask in masks.items() if mask.any()}

    def name(self, index: int) -> str:
        """The name of class `index`, or the index if there are no names."""
        return str(index) if self.class_names is None else self.class_names[index]

    # ---------------------------------------------------------------- protocol

    def __add__(self, other: Prior) -> Prior:
        """The prior of both sets together: shards of a data set, ranks of a job, batches of a stream."""
        if not isinstance(other, Prior):
            return NotImplemented
        if self.num_classes != other.num_classes:
            raise ValueError(
                f"priors of {self.num_classes} and {other.num_classes} classes do not add: "
                "build both with the same num_classes"
            )
        for what in ("class_names", "class_ids"):
            if getattr(self, what) != getattr(other, what):
                raise ValueError(
                    f"the two priors have different {what}, so their columns may mean different classes: give both "
                    "the same, in the same order"
                )
        return Prior.from_counts(
            self.counts + other.counts, self.total + other.total, class_names=self.class_names, class_ids=self.class_ids
        )

    def __radd__(self, other: int) -> Prior:
        """Lets `sum(priors)` work."""
        return self if other == 0 else NotImplemented

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Prior) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __reduce__(self) -> tuple[Any, ...]:
        # As text: NumPy forgets the read-only flag in a pickle, and torch.load(weights_only=True) refuses its arrays.
        return restored_prior, (self.to_json(),)

    def __repr__(self) -> str:
        values = self._weights
        occurring = np.flatnonzero(values)
        head, tail = int(values.argmax()), int(occurring[values[occurring].argmin()])
        absent = f", {self.num_classes - len(occurring)} absent" if len(occurring) < self.num_classes else ""
        size, rounded = "," if self.counted else ".4g", ",.0f" if self.imbalance >= 1000 else ".4g"
        return (
            f"Prior({self.num_classes:,} class{'es' if self.num_classes > 1 else ''}{absent}, "
            f"{f'total {self._total:,}' if self.counted else 'not counted'}, imbalance {self.imbalance:{rounded}}, "
            f"head {self._label(head)}: {values[head]:{size}}, tail {self._label(tail)}: {values[tail]:{size}})"
        )

    # ---------------------------------------------------------------- inside

    @property
    def _weights(self) -> IntArray | FloatArray:
        return self._probabilities if self._counts is None else self._counts

    def _label(self, index: int) -> str:
        return str(index) if self.class_names is None else repr(self.class_names[index])

    def _key(self) -> tuple[Any, ...]:
        return (self._weights.tobytes(), self._total, self.class_names, self.class_ids)

    def _centred_log(self, ruled_out: float | None = None) -> FloatArray:
        """log(π_j · K) for π that sums to 1: exactly 0 where the prior is uniform.

        `ruled_out` is the value for a class whose probability is stated as 0, if that has a meaning.
        """
        if ruled_out is None or self.counted:
            return exact_zeros(np.log(self.without_zeros() * self.num_classes / self._weights.sum()))
        possible = self._probabilities > 0
        logs = np.log(np.where(possible, self._probabilities, 1) * self.num_classes)
        return np.where(possible, exact_zeros(logs), ruled_out)

    def _logit(self) -> FloatArray:
        if self._counts is None:
            return np.asarray(np.log(self.without_zeros()) - np.log(np.maximum(1 - self._probabilities, TINY)))
        return np.asarray(np.log(self.without_zeros()) - np.log(np.maximum(self.total - self.counts, 1)))

    def _mean_logit(self) -> FloatArray:
        """logit of the mean rate Σ_j π_j / K, in the same arithmetic as `_logit`."""
        if self._counts is None:
            mean, rest = float(self._probabilities.mean()), 1 - float(self._probabilities.mean())
        else:
            mean = float(self._counts.sum()) / self.num_classes
            rest = self.total - mean or 1.0  # every class in every item: the same max(·, 1) as for a single class
        return np.asarray(np.log(mean) - np.log(rest))


def restored_prior(text: str) -> Prior:
    """The prior in a pickle: the one function that `equipoise` allows `torch.load(weights_only=True)` to call."""
    return Prior.from_json(text)


# -------------------------------------------------------------------- the two shifts


def softmax_shift(source: PriorLike | None = None, target: PriorLike | None = None, *, tau: float = 1.0) -> Tensor:
    """tau · log π_source − log π_target: fp32 [K], up to a constant that does not affect a softmax. None means uniform.

    A *stated* probability of 0 in `target` gives +inf, so that `logits − shift` gives the class probability 0; a
    *count* of 0 is taken as 1. Under `torch.compile` the shift is a constant of the graph (torch 2.12 or newer).

    source   the prior that the logits mean; None is uniform
    target   the prior in use; None is uniform
    tau      strength of the correction for `source`

    >>> softmax_shift(Prior.from_counts([3, 1])).exp()
    tensor([1.5000, 0.5000])
    >>> softmax_shift(Prior.from_counts([7, 7, 7]))
    tensor([0., 0., 0.])
    """
    refuse_priors()
    trained = None if source is None else as_prior(source)
    wanted = None if target is None else as_prior(target)
    return _softmax_shift(trained, wanted, tau)


@constant
def _softmax_shift(source: Prior | None, target: Prior | None, tau: float) -> Tensor:
    if not math.isfinite(tau):
        raise ValueError(f"tau is {tau}: expected a finite number, 1 for the shift of Bayes' rule")
    if source is None and target is None:
        raise ValueError("source and target are both None (uniform), so nothing would change: name at least one")
    if source is not None and target is not None and source.num_classes != target.num_classes:
        raise ValueError(
            f"source has {source.num_classes} classes, target has {target.num_classes}: build both with the model's "
            "num_classes"
        )
    _warn_of_rates(source, target)
    return fp32(log_ratio(source, target, tau=tau))


def _warn_of_rates(*priors: Prior | None) -> None:
    """Warn of a prior that was counted over items with several classes or none, where a softmax expects one."""
    for prior in priors:
        total = 1.0 if prior is None else float(prior.probabilities.sum())
        if abs(total - 1) > 1e-4:
            warnings.warn(
                f"the probabilities of the prior sum to {total:.4g}: they are rates of items with several classes or "
                "none, but a softmax is for items of one class each. For several labels per item there are "
                "BalancedSigmoidLoss, adjust_sigmoid_logits and RebalancedSigmoid",
                stacklevel=outside(),
            )


def log_ratio(source: Prior | None, target: Prior | None = None, *, tau: float = 1.0) -> FloatArray:
    """`softmax_shift` in float64, before it is rounded: tau · log(π_source · K) − log(π_target · K), [K]."""
    from_source = np.zeros(1) if source is None else source._centred_log()
    from_target = np.zeros(1) if target is None else target._centred_log(ruled_out=-np.inf)
    return exact_zeros(tau * from_source - from_target)


def sigmoid_shift(source: PriorLike | float, target_rate: float | Sequence[float] | Tensor | None = None) -> Tensor:
    """logit π_source − logit t: fp32 [K] ([] for a single rate). `target_rate` None means the mean rate of `source`.

    source        the rates that the logits mean: a `Prior`, rates [K], or one rate
    target_rate   the rates in use; None is the mean rate of `source`

    >>> sigmoid_shift(Prior.from_counts([3, 1]), 0.5)
    tensor([ 1.0986, -1.0986])
    >>> sigmoid_shift(Prior.from_counts([5, 5, 5]))
    tensor([0., 0., 0.])
    """
    refuse_priors()
    for value in (source, target_rate):
        if not isinstance(value, Prior | float | int | None):
            refuse_vector(value)
    return _sigmoid_shift(source, target_rate)


@constant
def _sigmoid_shift(source: PriorLike | float, target_rate: float | Sequence[float] | Tensor | None) -> Tensor:
    if isinstance(target_rate, Prior):
        raise TypeError("target_rate is a Prior: pass a rate, or one per class, e.g. target_rate=prior.probabilities")
    if isinstance(source, Prior):
        from_logit, mean_logit = source._logit(), source._mean_logit
    else:
        rates = as_array(source)
        from_logit, mean_logit = rate_logits(rates, "source"), lambda: rate_logits(rates.mean(), "source")
    if target_rate is None and from_logit.size == 1:
        raise ValueError(
            "with one class the mean rate is the class's own, so the shift would be 0: name target_rate, e.g. 0.5"
        )
    to_logit = mean_logit() if target_rate is None else rate_logits(target_rate, "target_rate")
    if from_logit.ndim == to_logit.ndim == 1 and from_logit.shape != to_logit.shape:
        raise ValueError(
            f"source has {from_logit.size} classes, target_rate has {to_logit.size}: give one rate for all, or one per "
            "class"
        )
    return fp32(exact_zeros(from_logit - to_logit))


def as_prior(value: PriorLike) -> Prior:
    """A `Prior` as it is; a vector as stated probabilities."""
    if isinstance(value, Prior):
        return value
    refuse_vector(value)
    return Prior.from_probabilities(value)
