"""`equipoise adapt`: move predictions in a file from the prior they mean to the prior in use."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from equipoise.cli.adapted_files import SHOWN, Whole, read_whole, write_adapted
from equipoise.cli.adapted_rates import AdaptedRates, Sides, adapt_rates, nearer_to_source, several_labels
from equipoise.cli.report import Label
from equipoise.cli.shared import given, print_json, refusing
from equipoise.data.reading import visible
from equipoise.metrics.evaluation import percent
from equipoise.prior import FloatArray, Prior
from equipoise.report.tables import Table

if TYPE_CHECKING:
    from torch import Tensor

    from equipoise.data.predictions import Predictions
    from equipoise.serving.estimate import PriorEstimate

SCORES = {
    "accuracy": "accuracy, %",
    "balanced_accuracy": "balanced accuracy, %",
    "log_loss": "log-loss",
    "brier": "Brier",
    "ece": "ECE",
}
PRIOR = "uniform, or counts, probabilities or labels in any file that `equipoise inspect` reads"


NOT_TRUSTED = 3  # the exit status if an estimate cannot be trusted: everything is written, but look at it first

PredictionFile = Annotated[
    Path,
    typer.Argument(
        help="An .npz file with `logits` or `probabilities` [N, K], optionally `labels`, `class_names`; or a .parquet, "
        ".csv or .tsv file with one column per class and optional labels. - is stdin. Several labels per item: "
        "`targets` [N, K] of 0 and 1, lists of labels (cat;owl), or columns target_CLASS."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the changes as JSON instead of tables.")]


@refusing()
def adapt(
    predictions: PredictionFile,
    source: Annotated[str, typer.Option(help=f"The prior that the predictions are for: {PRIOR}.")],
    target: Annotated[str, typer.Option(help=f"The prior in use: estimate (from the predictions), {PRIOR}.")],
    out: Annotated[Path, typer.Option(help="The file to write: everything from the input, adapted, and both priors.")],
    method: Annotated[str, typer.Option(help="How to estimate: em, or bbse, which needs --validation.")] = "em",
    validation: Annotated[
        Path | None, typer.Option(help="A file of labelled predictions by the same model, for the estimate.")
    ] = None,
    label: Label = None,
    column: Annotated[
        str | None, typer.Option(help="The label column of --source and --target, if they are tables.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Adapt predictions to another class prior, and show what changed.

    A prior is a file of counts, probabilities (JSON) or labels, or a folder of images, as for `equipoise inspect`.

    With several labels per item (as for `equipoise evaluate`) it is the rate of each class, from 0 to 1: one number
    for all, a JSON file ({"cat": 0.3}), counts with their total, or labels; --target uniform is the mean rate.

    If both sides have class names, classes are matched by name.

    Exit status 3 means that the estimate cannot be trusted. The file is still written.

    \bequipoise adapt predictions.npz --source counts.json --target uniform --out adapted.npz
    equipoise adapt predictions.csv --source photos/train --target camera/labels.csv --out adapted.npz
    equipoise adapt predictions.npz --source counts.json --target estimate --out adapted.npz --json
    """
    from equipoise.data.multilabel_predictions import open_either

    if target != "estimate" and (validation is not None or method != "em"):
        raise ValueError(f"--method and --validation are for --target estimate, but --target is {target}")
    _check_out(out, predictions)
    with given([predictions, Path(source), Path(target)]) as (path, source_path, target_path):
        opened = open_either(path, label=label, labelled=False)
        sides = [(source, source_path), (target, target_path)]
        told: Adapted | AdaptedRates
        if several_labels(opened, sides, column):
            told = adapt_rates(open_either(path, label=label, labelled=False, several=True), sides, column)
        else:
            told = _adapt_classes(read_whole(opened), sides, column, (method, validation, label))
        write_adapted(out, told.found, told.adapted, told.priors)
    if as_json:
        print_json(told.to_dict() | {"written": str(out)})
    else:
        _print(told, out)
    if isinstance(told, Adapted) and told.estimate is not None and not told.estimate.trusted:
        raise typer.Exit(NOT_TRUSTED)


def _adapt_classes(found: Whole, sides: Sides, column: str | None, how: tuple[str, Path | None, str | None]) -> Adapted:
    """Adapt predictions for items of one class each; `how` is how to estimate: the method, and labelled predictions."""
    import numpy as np

    from equipoise.serving.correction import check_names

    (source, source_path), (target, target_path) = sides
    meant = _prior(source, source_path, found.file, "--source", column)
    estimate = _estimate(found, meant, *how) if target == "estimate" else None
    wanted = estimate.prior if estimate else _prior(target, target_path, found.file, "--target", column)
    check_names(meant.class_names, wanted.class_names, "class names", "--source", "--target")
    adapted, notes = _shifted(found, meant, wanted)
    doubts = [] if estimate is None else _doubts(estimate)
    if found.labels is not None:
        shares = np.bincount(found.labels, minlength=meant.num_classes) / max(len(found.labels), 1)
        notes += nearer_to_source(shares, meant.probabilities, wanted.probabilities)
    return Adapted(found, adapted, meant, wanted, estimate, [*notes, *doubts])


@dataclass(frozen=True)
class Adapted:
    """What was done: the file, its adapted logits, both priors, the estimate if there is one, and notes."""

    found: Whole
    adapted: Tensor
    meant: Prior
    wanted: Prior
    estimate: PriorEstimate | None
    notes: list[str]

    @property
    def changed(self) -> int:
        """How many predictions changed."""
        return int((self.adapted.argmax(1) != self.found.logits.argmax(1)).sum())

    @property
    def summary(self) -> str:
        return f"{self.changed:,} of {len(self.adapted):,} predictions changed."

    @property
    def priors(self) -> dict[str, FloatArray]:
        return {"source": self.meant.probabilities, "target": self.wanted.probabilities}

    def name(self, index: int) -> str:
        return self.found.file.columns[index] if self.found.file.columns else self.meant.name(index)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: the share of every class from 0 to 1, and the scores if there are labels."""
        before, after = (_shares(logits).tolist() for logits in (self.found.logits, self.adapted))
        priors = self.meant.probabilities.tolist(), self.wanted.probabilities.tolist()
        classes = [
            {
                "class": self.name(j),
                "source": priors[0][j],
                "target": priors[1][j],
                "before": before[j],
                "after": after[j],
            }
            | ({} if self.estimate is None else {"low": self.estimate.low[j], "high": self.estimate.high[j]})
            for j in range(len(before))
        ]
        return {
            "items": len(self.adapted),
            "changed": self.changed,
            "classes": classes,
            "scores": None if self.found.labels is None else _scores(self.found, self.adapted),
            "trusted": None if self.estimate is None else self.estimate.trusted,
            "doubts": [] if self.estimate is None else list(self.estimate.doubts),
            "notes": self.notes,
        }


def _check_out(out: Path, predictions: Path) -> None:
    if out.suffix != ".npz":
        raise ValueError(f"--out {out}: expected a name ending in .npz")
    if out.is_dir() or (out.exists() and predictions.exists() and out.samefile(predictions)):
        raise ValueError(f"--out {out} is {'a folder' if out.is_dir() else 'the file that is read'}: name another")


def _print(told: Adapted | AdaptedRates, out: Path) -> None:
    console = Console()
    for table in tables(told) if isinstance(told, Adapted) else told.tables():
        table.print(console)
    for note in told.notes:
        console.print(Text(visible(note)), soft_wrap=True)
    console.print(Text(f"{told.summary} Written: {visible(out)}"), soft_wrap=True)


def _shifted(found: Whole, meant: Prior, wanted: Prior) -> tuple[Tensor, list[str]]:
    """The adapted logits, and notes: classes that were counted 0 times, priors that are the same."""
    import numpy as np
    import torch

    from equipoise.serving.adjust import adjust_logits

    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        adapted = adjust_logits(found.logits, source=meant, target=wanted)
    nowhere = (adapted == -torch.inf).all(1)
    if nowhere.any():
        row = int(nowhere.nonzero()[0])
        raise ValueError(f"row {row} of {found.file.path} is possible only for classes that --target excludes")
    same = np.allclose(meant.probabilities, wanted.probabilities, rtol=1e-6, atol=0)
    more = ["--source and --target are the same prior: nothing changed."] if same else []
    return adapted, [str(note.message) for note in notes] + more


def _doubts(estimate: PriorEstimate) -> list[str]:
    found = [f"The estimate cannot be trusted: {doubt}" for doubt in estimate.doubts]
    if estimate.trusted and estimate.method == "em" and not estimate.calibration_checked:
        found.append("Calibration was not checked: pass --validation to check it.")
    return found


def _estimate(found: Whole, meant: Prior, method: str, validation: Path | None, label: str | None) -> PriorEstimate:
    from equipoise.data.predictions import open_predictions
    from equipoise.serving.correction import check_names
    from equipoise.serving.estimate import estimate_prior

    held_out = None
    if method == "bbse" and validation is None:
        raise ValueError("--method bbse needs the model's confusions: pass --validation, or use --method em")
    if validation is not None:
        other = read_whole(open_predictions(validation, label=label))
        ours = found.file.columns or meant.class_names
        check_names(ours, other.file.columns, "class names", "PREDICTIONS", "--validation")
        assert other.labels is not None
        held_out = (other.logits.softmax(1), other.labels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # doubts are printed below the table
        return estimate_prior(found.logits.softmax(1), meant, method=method, validation=held_out)


# -------------------------------------------------------------------- what is shown


def tables(told: Adapted) -> list[Table]:
    """The classes whose prior changed most and, if there are labels, how good the predictions are."""
    import numpy as np

    meant, wanted, estimate = told.meant, told.wanted, told.estimate
    before, after = (_shares(logits) for logits in (told.found.logits, told.adapted))
    factor = np.abs(np.log(np.maximum(wanted.probabilities, 1e-9) / np.maximum(meant.probabilities, 1e-9)))
    order = np.sort(np.argsort(-factor, kind="stable")[:SHOWN])
    classes = told.found.file.num_classes
    which = "most changed" if factor.max() > 1e-9 else "the first"
    title = "Share of each class, %" + (f" ({SHOWN} of {classes}, {which})" if classes > SHOWN else "")
    rows = []
    for j in order:
        interval = "" if estimate is None else f" ({percent(estimate.low[j])} to {percent(estimate.high[j])})"
        shares = (meant.probabilities[j], wanted.probabilities[j], before[j], after[j])
        texts = [percent(share) for share in shares]
        rows.append((told.name(int(j)), texts[0], texts[1] + interval, *texts[2:]))
    table = Table(("class", "source", "target", "predicted before", "after"), rows, title=title)
    return [table] if told.found.labels is None else [table, _judged(told.found, told.adapted)]


def _shares(logits: Tensor) -> FloatArray:
    import numpy as np

    return np.bincount(logits.argmax(1).numpy(), minlength=logits.shape[1]) / max(len(logits), 1)


def _judged(found: Whole, adapted: Tensor) -> Table:
    scores = _scores(found, adapted)
    rows = []
    for key, title in SCORES.items():
        share = key in ("accuracy", "balanced_accuracy")
        numbers = [scores[when][key] for when in ("before", "after")]
        rows.append((title, *(percent(number) if share else f"{number:.3f}" for number in numbers)))
    return Table(("", "before", "after"), rows, title=f"Scores on the {len(adapted):,} labels")


def _scores(found: Whole, adapted: Tensor) -> dict[str, dict[str, float]]:
    """How good the predictions are before and after, against the labels of the file."""
    import torch

    from equipoise.metrics.calibration import softmax_scores
    from equipoise.metrics.evaluation import evaluate

    labels = torch.from_numpy(found.labels)
    made = {}
    for when, logits in (("before", found.logits), ("after", adapted)):
        judged = evaluate(logits, labels, Prior.uniform(found.file.num_classes))
        scores = softmax_scores(logits.double(), labels, torch.ones(len(labels)))
        numbers = (judged.top1, judged.balanced_accuracy, scores.log_loss, scores.brier, scores.ece)
        made[when] = dict(zip(SCORES, numbers, strict=True))
    return made


# -------------------------------------------------------------------- what is read


def _prior(text: str, path: Path, file: Predictions, option: str, column: str | None) -> Prior:
    """The prior that an option names, read from `path`, with its classes in the order of the columns."""
    from equipoise.data.prediction_priors import prior_of_columns

    if text == "uniform":
        return Prior.uniform(file.num_classes, class_names=file.columns)
    if not path.exists():
        more = "" if option == "--source" else "estimate, "
        raise ValueError(f"{option} {text} does not exist: expected {more}{PRIOR}")
    prior = prior_of_columns(path, file, column=column)
    total = float(prior.probabilities.sum())
    if abs(total - 1) > 1e-4:
        raise ValueError(f"{option} {text}: its probabilities sum to {total:.4g}, but every item has one class")
    return prior
