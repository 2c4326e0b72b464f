"""scikit-learn classifiers on imbalanced sets, judged where every class is equally likely: several ways to get there.

    python benchmarks/sklearn_imbalanced.py                 digits, breast cancer and wine, twenty seeds: two minutes
    python benchmarks/sklearn_imbalanced.py --quick         two seeds
    python benchmarks/sklearn_imbalanced.py --fetch ecoli satimage    also sets of imbalanced-learn, from the internet
    python benchmarks/sklearn_imbalanced.py --out r.json    every number of every seed, with machine and versions
    python benchmarks/sklearn_imbalanced.py --table r.json  what such a file holds, as a table in Markdown

Each seed halves a set at random, stratified. Sets that come balanced are made long-tailed: the training half is thinned
by `equipoise.long_tailed_indices`, with the seed of the split; the test half stays as it is. Balanced accuracy and
log-loss count every class of the test half equally. Fit times are CPU time of this process and include scaling and
resampling.

Nothing is tuned: classifiers have scikit-learn's defaults (logistic regression on standardised features, up to 5,000
iterations).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import imblearn
import numpy as np
import sklearn
from imblearn.datasets import fetch_datasets
from imblearn.over_sampling import RandomOverSampler
from imblearn.pipeline import make_pipeline
from imblearn.under_sampling import RandomUnderSampler
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score, log_loss
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from sklearn.utils.class_weight import compute_sample_weight

import equipoise as eq

Result = dict[str, Any]
Array = NDArray[Any]


@dataclass(frozen=True)
class ImbalancedSet:
    """Features and class indices; `imbalance` is what the training half is thinned to, None where it stays as it is."""

    name: str
    X: Array
    y: Array
    imbalance: float | None

    def halves(self, seed: int) -> tuple[Array, Array, Array, Array]:
        """X and y for training, X and y for the test."""
        X, X_test, y, y_test = train_test_split(self.X, self.y, test_size=0.5, stratify=self.y, random_state=seed)
        if self.imbalance is not None:
            kept = eq.long_tailed_indices(y, self.imbalance, seed=seed)
            X, y = X[kept], y[kept]
        return X, y, X_test, y_test


def shipped_sets() -> list[ImbalancedSet]:
    """What scikit-learn brings along. Of the tumours the malignant ones are made rare."""
    digits, cancer, wine = (load(return_X_y=True) for load in (load_digits, load_breast_cancer, load_wine))
    return [
        ImbalancedSet("digits, imbalance 50", *digits, 50),
        ImbalancedSet("breast cancer, imbalance 20", cancer[0], 1 - cancer[1], 20),
        ImbalancedSet("wine, imbalance 10", *wine, 10),
    ]


def fetched_sets(names: list[str]) -> list[ImbalancedSet]:
    """Sets of imbalanced-learn, as they are."""
    if not names:
        return []
    try:
        found = fetch_datasets(filter_data=tuple(names))
    except OSError as error:
        sys.exit(f"--fetch {' '.join(names)}: the sets come from the internet, which did not answer ({error})")
    except ValueError as error:
        sys.exit(f"--fetch {' '.join(names)}: {error}")
    return [ImbalancedSet(name, part.data, (part.target == 1).astype(int), None) for name, part in found.items()]


# -------------------------------------------------------------------- the ways


def logistic(**options: Any) -> LogisticRegression:
    return LogisticRegression(max_iter=5000, **options)


def forest(seed: int, **options: Any) -> RandomForestClassifier:
    return RandomForestClassifier(random_state=seed, **options)


FOLDS = 3  # of the calibration, which takes as many items of each class; sets with fewer go without

WAYS: dict[str, dict[str, Callable[[int], Any]]] = {
    "logistic regression": {
        "plain": lambda seed: make_pipeline(StandardScaler(), logistic()),
        'class_weight="balanced"': lambda seed: make_pipeline(StandardScaler(), logistic(class_weight="balanced")),
        "random over-sampling": lambda seed: make_pipeline(
            StandardScaler(), RandomOverSampler(random_state=seed), logistic()
        ),
        "random under-sampling": lambda seed: make_pipeline(
            StandardScaler(), RandomUnderSampler(random_state=seed), logistic()
        ),
        "BalancedLogisticRegression": lambda seed: make_pipeline(
            StandardScaler(), eq.sklearn.BalancedLogisticRegression(max_iter=5000)
        ),
    },
    "random forest": {
        "plain": forest,
        'class_weight="balanced"': lambda seed: forest(seed, class_weight="balanced"),
        "random over-sampling": lambda seed: make_pipeline(RandomOverSampler(random_state=seed), forest(seed)),
        "random under-sampling": lambda seed: make_pipeline(RandomUnderSampler(random_state=seed), forest(seed)),
        "PriorShiftClassifier": lambda seed: eq.sklearn.PriorShiftClassifier(forest(seed)),
        "PriorShiftClassifier, calibrated": lambda seed: eq.sklearn.PriorShiftClassifier(
            CalibratedClassifierCV(forest(seed), cv=FOLDS)
        ),
    },
}


# -------------------------------------------------------------------- measuring


MEASURES = ("balanced_accuracy", "log_loss", "fit_s")


def judge(model: Any, X: Array, y: Array, X_test: Array, y_test: Array) -> tuple[float, float, float]:
    """Fit and score one model, every class of the test half counting equally: what `MEASURES` names."""
    start = time.process_time()
    model.fit(X, y)
    seconds = time.process_time() - start
    p = model.predict_proba(X_test)
    accuracy = balanced_accuracy_score(y_test, model.classes_[p.argmax(1)])
    equally = compute_sample_weight("balanced", y_test)
    return float(accuracy), float(log_loss(y_test, p, sample_weight=equally, labels=model.classes_)), seconds


def compare(data: ImbalancedSet, seeds: int) -> Result:
    """Every way of every classifier on one set: lists of one value per seed."""
    values: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    counts: list[int] = []
    for seed in track(range(seeds), data.name, console=Console(stderr=True)):
        halves = data.halves(seed)
        counts = np.bincount(halves[1]).tolist()
        for classifier, ways in WAYS.items():
            for way, make in ways.items():
                if way.endswith("calibrated") and min(counts) < FOLDS:
                    continue
                values.setdefault((classifier, way), []).append(judge(make(seed), *halves))
    results = [
        {"classifier": classifier, "way": way, **dict(zip(MEASURES, zip(*rows, strict=True), strict=True))}
        for (classifier, way), rows in values.items()
    ]
    return {"set": data.name, "train_counts": counts, "results": results}


# -------------------------------------------------------------------- showing


def table(path: Path) -> str:
    """What a file of results holds, as Markdown."""
    return render(json.loads(path.read_text()))


def render(content: Result) -> str:
    """Means and standard deviations over the seeds."""
    lines = [
        f"{content['versions']}; mean ± standard deviation over {content['seeds']} random halves:",
        "",
        "| judged where every class is equally likely | balanced accuracy, % | log-loss | fit, CPU ms |",
        "|:---|---:|---:|---:|",
    ]
    for data in content["sets"]:
        sizes = data["train_counts"]
        shown = " + ".join(map(str, sizes)) if len(sizes) < 4 else f"{sizes[0]} … {sizes[-1]}"
        for classifier in WAYS:
            lines.append(f"| **{data['set']}** ({shown}), {classifier} | | | |")
            for result in (r for r in data["results"] if r["classifier"] == classifier):
                cells = (
                    spread([100 * value for value in result["balanced_accuracy"]], 1),
                    spread(result["log_loss"], 3),
                    spread([1000 * value for value in result["fit_s"]], 1),
                )
                lines.append(f"| {result['way']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def spread(values: list[float], digits: int) -> str:
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{deviation}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two seeds")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--fetch", nargs="+", default=[], metavar="NAME", help="more sets, by imbalanced-learn's names")
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    parser.add_argument("--table", type=Path, metavar="JSON", help="only print what this file holds, as Markdown")
    options = parser.parse_args()
    if options.table:
        print(table(options.table))
        return
    seeds = 2 if options.quick else options.seeds
    content = {
        "machine": {"cpu": platform.processor() or platform.machine(), "python": platform.python_version()},
        "versions": f"scikit-learn {sklearn.__version__}, imbalanced-learn {imblearn.__version__}",
        "seeds": seeds,
        "sets": [compare(data, seeds) for data in [*shipped_sets(), *fetched_sets(options.fetch)]],
    }
    print(render(content))
    if options.out:
        options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
