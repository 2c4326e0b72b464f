"""What was published for CIFAR-LT, and the names of cells and methods. Nothing here needs torch.

SINGLE has the standard ResNet-32 with 16, 32 and 64 channels, trained from random weights, one network at test time;
OTHERS has what is often listed beside it: wider networks, other architectures, and several experts. If an author
reports the best epoch on the test set, that is the number; we report last iterates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NAME, TEACHERS = "record", "record-teachers"  # folders of results/, and of results/next/
TRIES, TRIED_TEACHERS = "choices/record", "choices/record-teachers"
METHOD = "distilled"
FIRST = "choices/record-first"  # an earlier recipe, on the test set; its teachers: choices/record-first-teachers
DATA_SETS = {"cifar100-lt": "CIFAR-100-LT", "cifar10-lt": "CIFAR-10-LT"}
IMBALANCES = (200, 100, 50, 10)
COLUMNS = tuple((data_set, imbalance) for data_set in DATA_SETS for imbalance in IMBALANCES)


@dataclass(frozen=True)
class Version:
    """A recipe of the record: what its students have that those of others have not, by data set, and where its runs are
    below results/."""

    students: Mapping[str, Mapping[str, Any]]
    folder: str = "."


# The second recipe, and the third, which is to be the record's once it has been trained in all cells.
RECORD = Version(
    {name: {"teacher": "teacher_ema", "teachers": 6, "mix_probability": 1.0, "lr": 0.1} for name in DATA_SETS}
)
NEXT = Version(
    {
        "cifar10-lt": {"teacher": "teacher_cutmix", "teachers": 5, "mix_probability": 1.0, "lr": 0.2},
        "cifar100-lt": {"teacher": "teacher_ema", "teachers": 5, "mix_probability": 0.5, "lr": 0.2},
    },
    "next",
)

# What was compared before the recipe was fixed; each row adds or changes one thing of the row it names.
CHOICES = {
    "balanced_softmax": "Balanced Softmax as in Table 1",
    "weight_decay": "+ weight decay 1e-3",
    "nesterov": "+ Nesterov's momentum (the first recipe's teachers)",
    "ema": "+ average of the weights, 0.999 (the second recipe's teachers)",
    "distilled_13000": "six teachers without averaging",
    "distilled_18500": "six teachers without averaging, 18,500 iterations (the first recipe's student)",
    "distilled_alone": "from the teachers alone",
    "distilled_root": "from the teachers alone, square-root sampling",
    "distilled_balanced": "from the teachers alone, class-balanced sampling",
    "distilled_mixup": "from the teachers alone, mixup",
    "distilled_cutmix": "from the teachers alone, CutMix",
    "distilled_views_32": "18,500 iterations, 32 views per image",
    "distilled_t4": "32 views, temperature 4",
    "distilled_decay": "32 views, weight decay 5e-4 of the student",
    "distilled_ema": "32 views, teachers are averages of weights, 0.999",
    "distilled_wide": "32 views, three averaged teachers of twice the width",
    "distilled_deep": "32 views, four averaged teachers, ResNet-56",
    "distilled_twelve": "32 views, twelve teachers",
    "combined": "class-balanced sampling, teachers are averages of weights",
    "combined_t4": "class-balanced, averaged teachers, temperature 4",
    "combined_cutmix": "class-balanced, averaged teachers, CutMix (the second recipe's student)",
    "combined_decay": "class-balanced, averaged teachers, weight decay 2e-3 of the student",
    "combined_views_512": "class-balanced, averaged teachers, 512 views",
    "combined_cutmix_37000": "class-balanced, averaged teachers, CutMix, 37,000 iterations",
    "combined_cutmix_views_512": "class-balanced, averaged teachers, CutMix, 512 views",
}
CHOICES_CELL = ("cifar100-lt", 100)


@dataclass(frozen=True)
class Factors:
    """A student of three teachers: the kind of its teachers, the share of its batches with CutMix, its highest learning
    rate, how long it is trained, and its augmentation besides CutMix."""

    teachers: str  # the teachers' method, without "teacher_"
    mixed: float
    lr: float
    iterations: int = 18_500
    augmentation: str = "paper"

    @property
    def name(self) -> str:
        """In paths and commands.

        >>> Factors("cutmix", 1.0, 0.2).name, Factors("ema", 0.5, 0.2, 37_000).name
        ('three_cutmix_100_lr_0.2', 'three_ema_50_lr_0.2_37000')
        >>> Factors("sam", 1.0, 0.2, augmentation="crop").name
        'three_sam_100_lr_0.2_crop'
        """
        longer = "" if self.iterations == Factors.iterations else f"_{self.iterations}"
        shown = "" if self.augmentation == Factors.augmentation else f"_{self.augmentation}"
        return f"three_{self.teachers}_{100 * self.mixed:.0f}_lr_{self.lr:g}{longer}{shown}"


# What was varied afterwards, in three cells.
FACTORS = {
    ("cifar10-lt", 200): (
        *(Factors(kind, *one) for kind in ("ema", "cutmix") for one in ((1.0, 0.1), (1.0, 0.2), (0.5, 0.2))),
        *(Factors(kind, 1.0, 0.2, augmentation="crop") for kind in ("cutmix", "sam")),
    ),
    ("cifar100-lt", 10): (
        *(Factors("ema", mixed, lr) for lr in (0.1, 0.2) for mixed in (1.0, 0.5, 0.0)),
        Factors("ema", 0.5, 0.2, 37_000),
        Factors("cutmix", 1.0, 0.2),
        Factors("cutmix", 0.5, 0.2),
        *(Factors("sam", mixed, 0.2) for mixed in (1.0, 0.5)),
        *(Factors(kind, 1.0, 0.2, augmentation="crop") for kind in ("sam", "ema")),
    ),
    ("cifar100-lt", 100): (
        Factors("ema", 1.0, 0.1),
        Factors("ema", 1.0, 0.2),
        Factors("ema", 0.5, 0.2),
        Factors("cutmix", 1.0, 0.2),
        Factors("cutmix", 0.5, 0.2),
        *(Factors(kind, 1.0, 0.2, augmentation="crop") for kind in ("ema", "sam")),
    ),
}

Four = tuple[float | None, float | None, float | None, float | None]
NONE: Four = (None, None, None, None)


@dataclass(frozen=True)
class Published:
    """Top-1 in percent at imbalance 200, 100, 50 and 10, and how it was trained."""

    title: str
    cifar100: Four
    cifar10: Four
    length: str  # epochs, or iterations × batch size
    views: str  # of an image in a step; "–" where we do not know
    network: str
    source: str
    address: str = ""  # of the source

    @property
    def numbers(self) -> tuple[float | None, ...]:
        """In the order of COLUMNS."""
        return (*self.cifar100, *self.cifar10)

    def number(self, data_set: str, imbalance: int) -> float | None:
        return self.numbers[COLUMNS.index((data_set, imbalance))]


STANDARD = "16-32-64"
ITERATIONS = "13,000 × 512"
PAPER, COMPANION = "https://arxiv.org/abs/2008.11037", "https://arxiv.org/abs/2007.10740"
WEIGHT_BALANCING = "https://arxiv.org/abs/2203.14197"
PROCO = "https://github.com/LeapLabTHU/ProCo"
# The two methods in the recipe of most papers (crops and flips, batch 128), by the name in paths and commands.
USUAL = {
    "softmax": Published(
        "Softmax, usual recipe",
        (None, 38.3, 43.9, 55.7),
        (None, 70.4, 74.8, 86.4),
        "200 epochs",
        "1",
        STANDARD,
        "Weight Balancing, Table 2",
        WEIGHT_BALANCING,
    ),
    "balanced_softmax": Published(
        "Balanced Softmax in Bag of Tricks",
        (None, 43.0, 46.6, None),
        (None, 77.5, 81.1, None),
        "200 epochs",
        "1",
        STANDARD,
        "Bag of Tricks",
        "https://github.com/zhangyongshun/BagofTricks-LT",
    ),
}
SINGLE = (
    *USUAL.values(),
    Published(
        "Softmax",
        (41.0, 45.3, None, 61.9),
        (71.2, 77.4, None, 90.0),
        ITERATIONS,
        "1",
        STANDARD,
        "the paper, Table 1",
        PAPER,
    ),
    Published(
        "Balanced Softmax",
        (45.9, 50.3, None, 63.1),
        (79.0, 83.1, None, 90.9),
        ITERATIONS,
        "1",
        STANDARD,
        "the paper, Table 1",
        PAPER,
    ),
    Published(
        "BALMS",
        (45.5, 50.8, None, 63.0),
        (81.5, 84.9, None, 91.3),
        f"{ITERATIONS}, then a second stage",
        "1",
        STANDARD,
        "the companion",
        COMPANION,
    ),
    Published("BCL", (None, 51.9, 56.6, 64.9), NONE, "200 epochs", "–", STANDARD, "a third party's summary"),
    Published(
        "PaCo",
        (None, 52.0, 56.0, 64.2),
        NONE,
        "400 epochs",
        "–",
        STANDARD,
        "Weight Balancing, Table 2",
        WEIGHT_BALANCING,
    ),
    Published(
        "GALA",
        (48.5, 52.3, 56.5, 64.2),
        NONE,
        "200 epochs, batch 64",
        "–",
        STANDARD,
        "GALA's README",
        "https://github.com/lt-project-repository/lt-project",
    ),
    Published(
        "ProCo",
        (None, 52.8, 57.1, 65.5),
        (None, 85.9, 88.2, 91.9),
        "200 epochs",
        "–",
        STANDARD,
        "ProCo's README",
        PROCO,
    ),
    Published("ProCo, longer", (None, 54.2, None, None), NONE, "400 epochs", "–", STANDARD, "ProCo's README", PROCO),
    Published(
        "GML, with a ResNet-56 as teacher",
        (None, 54.0, 58.1, 67.0),
        NONE,
        "400 epochs",
        "–",
        STANDARD,
        "Papers with Code",
        "https://paperswithcode.com/paper/long-tailed-recognition-by-mutual-information",
    ),
)
OTHERS = (
    Published(
        "Logit adjustment",
        (None, 43.9, None, None),
        (None, 77.7, None, None),
        "1,241 to 1,419 epochs",
        "1",
        "bottlenecks",
        "its Table 3",
        "https://arxiv.org/abs/2007.07314",
    ),
    Published(
        "LADE",
        (None, 45.4, 50.5, 61.7),
        NONE,
        "200 epochs",
        "1",
        "128 features, two last blocks",
        "its Table 2",
        "https://arxiv.org/abs/2012.00321",
    ),
    Published(
        "RIDE",
        (None, 49.4, None, None),
        NONE,
        "200 epochs",
        "–",
        "4 experts",
        "its model zoo",
        "https://github.com/frank-xwang/RIDE-LongTailRecognition",
    ),
    Published(
        "SADE",
        (None, 49.8, None, None),
        (None, 83.8, None, 90.8),
        "200 epochs",
        "–",
        "3 experts",
        "its README",
        "https://github.com/Vanint/SADE-AgnosticLT",
    ),
    Published(
        "Weight Balancing",
        (None, 53.35, 57.71, 68.67),
        NONE,
        "320 epochs",
        "1",
        "ResNet-34",
        "its Table 2",
        WEIGHT_BALANCING,
    ),
    Published("BalPoE", (None, 55.9, None, None), NONE, "–", "–", "experts", "collected, page not noted"),
    Published("SHIKE", (None, 56.3, None, None), NONE, "–", "–", "3 experts", "a third party's summary"),
    Published(
        "GLMC",
        (None, 58.0, 63.8, 73.4),
        (None, 88.5, 91.0, 94.9),
        "–",
        "–",
        "64-128-256, 7.4 M weights",
        "its README",
        "https://github.com/ynu-yangpeng/GLMC",
    ),
    Published("TCL", (None, 58.7, None, None), NONE, "–", "–", "experts", "a third party's summary"),
    Published(
        "BCE3S",
        (None, 59.5, 65.2, 76.1),
        (None, 90.1, None, None),
        "–",
        "–",
        "wider",
        "a third party's summary",
    ),
)


def best() -> dict[tuple[str, int], tuple[float, str]]:
    """The highest published number for each cell, and its method."""
    found = {}
    for place, column in enumerate(COLUMNS):
        known = [(number, row.title) for row in SINGLE if (number := row.numbers[place]) is not None]
        found[column] = max(known)
    return found
