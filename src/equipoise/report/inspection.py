"""Look at a training set before training: how long its tail is, and what to do about it, in plain words.

`look` turns a `Source` into an `Inspection`: plain data with advice. `chart` is the terminal's bar chart, on a
logarithmic scale, so that a class of five is visible beside one of five thousand.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from equipoise.data.reading import counted
from equipoise.data.sources import Source
from equipoise.prior import Prior
from equipoise.report.groups import GROUPS

NEARLY_BALANCED = 1.5  # below this ratio of the largest class to the smallest there is nothing to gain
LVIS_THRESHOLD = 0.001  # for repeat factors: the share of items below which a class counts as rare
ROWS = 30  # rows of a chart; more classes share rows
EIGHTHS = " ▏▎▍▌▋▊▉"


@dataclass(frozen=True)
class Group:
    """Classes with many, medium or few items, and how much of the data they hold."""

    classes: int
    items: int
    share: float


@dataclass(frozen=True)
class Advice:
    """One thing to do: what and why, and the line of code for it (empty if there is none)."""

    title: str
    words: str
    code: str = ""


@dataclass(frozen=True)
class Inspection:
    """What `equipoise inspect` shows. `half` is how many of the largest classes hold half of the data."""

    source: str
    unit: str
    multilabel: bool
    prior: Prior
    groups: dict[str, Group]
    absent: list[str]
    half: int
    advice: list[Advice]

    @property
    def unit_in_groups(self) -> str:
        """What the classes of a group are counted in: an item with several labels counts once per label."""
        return "labels" if self.multilabel else self.unit

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        prior = self.prior
        occurring = np.flatnonzero(prior.counts)
        head, tail = int(prior.counts.argmax()), int(occurring[prior.counts[occurring].argmin()])
        return {
            "source": self.source,
            "unit": self.unit,
            "multilabel": self.multilabel,
            "num_classes": prior.num_classes,
            "total": prior.total,
            "imbalance": prior.imbalance,
            "head": {"class": prior.name(head), "count": int(prior.counts[head])},
            "tail": {"class": prior.name(tail), "count": int(prior.counts[tail])},
            "groups": {name: asdict(group) for name, group in self.groups.items()},
            "absent": self.absent,
            "classes_with_half_of_the_data": self.half,
            "counts": prior.counts.tolist(),
            "class_names": None if prior.class_names is None else list(prior.class_names),
            "advice": [asdict(advice) for advice in self.advice],
        }


def look(source: Source) -> Inspection:
    """Count groups, absent classes and the classes that hold half of the data, and add advice.

    >>> from pathlib import Path
    >>> seen = look(Source(Path("labels.npy"), Prior.from_counts([900, 60, 40, 0])))
    >>> seen.half, seen.absent, seen.groups["few"], seen.advice[0].code
    (1, ['3'], Group(classes=1, items=0, share=0.0), "prior = eq.Prior.from_file('labels.npy')")
    """
    prior = source.prior
    counts, members = prior.counts, prior.groups()
    occurrences = int(counts.sum())
    groups = {}
    for name in GROUPS:
        items = int(counts[members.get(name, [])].sum())
        groups[name] = Group(len(members.get(name, [])), items, items / occurrences)
    below_half = np.cumsum(np.sort(counts)[::-1]) < occurrences / 2
    absent = [prior.name(int(index)) for index in np.flatnonzero(counts == 0)]
    return Inspection(
        source=str(source.path),
        unit=source.unit,
        multilabel=source.multilabel,
        prior=prior,
        groups=groups,
        absent=absent,
        half=int(below_half.sum()) + 1,
        advice=_advice(source, groups, absent),
    )


# -------------------------------------------------------------------- what to do


def _advice(source: Source, groups: dict[str, Group], absent: list[str]) -> list[Advice]:
    equal, several = source.prior.imbalance < NEARLY_BALANCED, source.multilabel
    column = "" if source.column is None else f", column={source.column!r}"
    file = "FILE" if str(source.path) == "-" else str(source.path)  # stdin cannot be read again
    code = f"prior = eq.Prior.from_file({file!r}{column})"
    advice = [Advice("Prior", "The same counts in Python.", code)]
    if equal and not absent:
        words = "The classes are nearly equal in size, so the plain loss is right and no sampler is needed."
        plain = "BCEWithLogitsLoss" if several else "CrossEntropyLoss"
        advice.append(Advice("Loss", words, f"loss = torch.nn.{plain}()"))
    else:
        advice += _for_several_labels(source.prior) if several else _for_one_label()
    advice.append(_judge(several))
    if few := groups["few"].classes - len(absent):
        advice.append(_expected(few, equal, several))
    if absent:
        them = "it" if len(absent) == 1 else "them"
        words = (
            f"{absent_in_words(absent)}. No loss can learn {them}; collect items, or remove {them} from the model. "
            "Losses treat a class without items as if it had one."
        )
        advice.append(Advice("Absent", words))
    return advice


def _judge(several: bool) -> Advice:
    if several:
        words = (
            "Average precision ranks the items of one class at a time and does not compare classes. Report it by "
            "group and with intervals, together with micro-AP and F1, which do. Choose one threshold per class on a "
            "validation set with eq.f1_thresholds(logits, target)."
        )
        return Advice("Judge", words, "print(eq.evaluate_multilabel(logits, target, prior))")
    words = (
        "Overall accuracy hides the tail. Use a test set with the same number of items per class, and report accuracy "
        f"by group, with intervals. With 100 test items, a class's accuracy is known to about ± {_half_width(100)} "
        f"points; with 10, to about ± {_half_width(10)}."
    )
    return Advice("Judge", words, "print(eq.evaluate(logits, target, prior))")


def _for_one_label() -> list[Advice]:
    return [
        Advice(
            "Loss",
            "Balanced Softmax knows how often each class occurs, so that the model predicts as if all classes were "
            "equally likely. It replaces nn.CrossEntropyLoss and takes the same arguments.",
            "loss = eq.BalancedSoftmaxLoss(prior)",
        ),
        Advice(
            "Sampler",
            "Shuffle as usual. Balanced Softmax expects the prior of the sampled data; with class-balanced sampling on "
            "top, it would balance twice, and the model would memorise the few rare items.",
            "loader = torch.utils.data.DataLoader(dataset, batch_size=128, shuffle=True)",
        ),
        Advice(
            "Afterwards",
            "A model already trained with the plain loss needs only one subtraction to predict for equally frequent "
            "classes.",
            "logits = eq.adjust_logits(logits, source=prior)",
        ),
    ]


def _for_several_labels(prior: Prior) -> list[Advice]:
    threshold = float(f"{max(LVIS_THRESHOLD, min(0.1, 20 / prior.total)):.2g}")  # LVIS's, or 20 items of a smaller set
    rates = prior.counts[prior.counts > 0] / prior.total
    rare = int((rates < threshold).sum())
    return [
        Advice(
            "Loss",
            "An item may have several classes, so each class has its own frequency. Balanced Sigmoid takes these "
            "frequencies into account.",
            "loss = eq.BalancedSigmoidLoss(prior)",
        ),
        Advice(
            "Sampler",
            "Shuffling as usual works with this loss. Repeat factors, common for LVIS, show items with a rare class "
            f"more often, by the square root of its rarity; {counted(rare, 'class')} "
            f"{'is' if rare == 1 else 'are'} below this threshold. If you use them, give the loss the prior of the "
            "sampled data, or it balances twice. The sampler's preview shows what it will draw.",
            f"sampler = eq.RepeatFactorSampler(classes_per_item, threshold={threshold}, "
            "num_classes=prior.num_classes); loss = eq.BalancedSigmoidLoss(sampler.prior)",
        )
        if rare
        else Advice("Sampler", "Shuffle as usual; no class is so rare that its items should be repeated."),
    ]


def _expected(few: int, equal: bool, multilabel: bool) -> Advice:
    have = f"{counted(few, 'class')} {'has' if few == 1 else 'have'} fewer than 20 items."
    if equal:
        return Advice("Expect", f"{have} No loss makes up for so few; start from a pretrained model, or collect more.")
    world = "If classes are as long-tailed in use as in training, pass the prior when serving, or "
    otherwise = "rare classes are predicted too often." if multilabel else "top-1 accuracy drops."
    return Advice(
        "Expect",
        f"{have} The plain loss predicts such classes too rarely. A balanced loss predicts them more often, at the "
        f"cost of a few points on the largest classes. {world}{otherwise}",
        f"logits = {'logits + eq.sigmoid_shift(prior)' if multilabel else 'eq.adjust_logits(logits, target=prior)'}",
    )


def _half_width(items: int) -> int:
    from equipoise.metrics.intervals import wilson_interval

    low, high = wilson_interval(items // 2, items)
    return round(50 * (high - low))


def absent_in_words(absent: list[str]) -> str:
    """How many classes never occur."""
    return f"{counted(len(absent), 'class')} never occur{'s' if len(absent) == 1 else ''}"


def how_unequal(prior: Prior) -> str:
    """The largest class beside the smallest, in words.

    >>> how_unequal(Prior.from_counts([140, 100])), how_unequal(Prior.from_counts([5, 5]))
    ('the largest is 1.4 times the smallest', 'all of the same size')
    """
    if prior.imbalance == 1:
        return "all of the same size" if int((prior.counts > 0).sum()) > 1 else "only one occurs"
    ratio = f"{prior.imbalance:,.0f}" if prior.imbalance >= 10 else f"{prior.imbalance:.2g}"
    return f"the largest is {ratio} times the smallest"


# -------------------------------------------------------------------- the terminal


@dataclass(frozen=True)
class Bar:
    """A row of the chart: one class with its name and count, or several adjacent ones with the range of their
    counts."""

    label: str
    count: str
    group: str
    text: str


def chart(prior: Prior, width: int, rows: int = ROWS) -> list[Bar]:
    """Bars of class counts, largest first, on a logarithmic scale of `width` characters: log(1 + n)/log(1 + n_max).

    If there are more classes than rows, adjacent classes of a group share a row, whose bar is that of their median; the
    largest and the smallest class keep rows of their own.

    >>> [bar.text for bar in chart(Prior.from_counts({"cat": 999, "owl": 9}), width=6)]
    ['██████', '██']
    """
    group = {index: name for name, members in prior.groups().items() for index in members}
    bars = []
    for part in _shared_rows(prior, rows):
        middle, counts = part[len(part) // 2], prior.counts[part]
        label = prior.name(middle) if len(part) == 1 else f"{len(part):,} classes"
        low, high = f"{counts.min():,}", f"{counts.max():,}"
        count = high if len(part) == 1 else f"{high} each" if low == high else f"{low} to {high}"
        length = math.log1p(int(prior.counts[middle])) / math.log1p(int(prior.counts.max())) * width
        eighths = round(length * 8)
        blocks = ("█" * (eighths // 8) + EIGHTHS[eighths % 8]).rstrip()
        bars.append(Bar(" ".join(label.split()), count, group[middle], blocks))
    return bars


def _shared_rows(prior: Prior, rows: int) -> list[list[int]]:
    """The classes of each row, largest first."""
    order = [int(index) for index in np.argsort(-prior.counts, kind="stable")]
    if len(order) <= rows:
        return [[index] for index in order]
    inner, members = order[1:-1], prior.groups()
    found = [[order[0]]]
    for name in GROUPS:
        kept = set(members.get(name, []))
        part = [index for index in inner if index in kept]
        if part:
            shared = max(1, min(len(part), round((rows - 2) * len(part) / len(inner))))
            found += [[int(index) for index in row] for row in np.array_split(part, shared)]
    return [*found, [order[-1]]]


def scale(prior: Prior, width: int) -> str:
    """The axis below the chart: the powers of ten that are on the scale."""
    most = int(prior.counts.max())
    line = [" "] * (width + 8)
    for power in range(len(str(most))):
        mark = f"{10**power:,}"
        place = round(math.log1p(10**power) / math.log1p(most) * width)
        start = max(place - len(mark), 0)
        if 10**power <= most and not "".join(line[max(start - 1, 0) : place + 1]).strip():
            line[start : start + len(mark)] = mark
    return "".join(line).rstrip()
