"""`equipoise adapt`: predictions in a file, moved from the prior they mean to the prior of their use."""

from __future__ import annotations

import json
import warnings
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from equipoise.prior import FloatArray, IntArray, Prior

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from equipoise.serving.estimate import PriorEstimate

SHOWN = 12  # classes in the table


@dataclass(frozen=True)
class Predictions:
    """What a file of predictions holds: `logits` [N, K], in the end of `kind` "logits" or "probabilities"."""

    path: Path
    kind: str
    logits: Tensor
    labels: IntArray | None
    class_names: tuple[str, ...] | None
    others: dict[str, NDArray[Any]]

    @property
    def num_classes(self) -> int:
        return self.logits.shape[1]


def adapt(
    predictions: Annotated[
        Path, typer.Argument(help="An .npz file with `logits` or `probabilities` [N, K]; also `labels`, `class_names`.")
    ],
    source: Annotated[
        str,
        typer.Option(help="The prior that the predictions mean: a JSON file, or uniform (after a balanced loss)."),
    ],
    target: Annotated[
        str, typer.Option(help="The prior of their use: uniform, estimate (from the predictions), or a JSON file.")
    ],
    out: Annotated[Path, typer.Option(help="Where the adapted predictions go: all that was there, and both priors.")],
    method: Annotated[str, typer.Option(help="How to estimate: em, or bbse, which needs --validation.")] = "em",
    validation: Annotated[
        Path | None, typer.Option(help="An .npz file of labelled predictions of the same model, to estimate with.")
    ] = None,
) -> None:
    """Make predictions right for another class prior, and say what changed.

    A prior in JSON is a list of counts, an object of counts by class name, or what Prior.to_json wrote.

    Where names are known on both sides, classes are matched by name.

        equipoise adapt predictions.npz --source counts.json --target uniform --out adapted.npz
    """
    import numpy as np
    import torch

    from equipoise.prior import softmax_shift

    if target != "estimate" and (validation is not None or method != "em"):
        raise typer.BadParameter(f"--method and --validation are for --target estimate, but --target is {target}")
    if out.suffix != ".npz":
        raise typer.BadParameter(f"--out {out}: expected a name that ends in .npz")
    found = read_predictions(predictions, "PREDICTIONS")
    if out.is_dir() or (out.exists() and out.samefile(predictions)):
        raise typer.BadParameter(
            f"--out {out} is {'a folder' if out.is_dir() else 'the file that is read'}: name another"
        )
    meant = prior_of(source, found, "--source")
    estimate = _estimate(found, meant, method, validation) if target == "estimate" else None
    wanted = prior_of(target, found, "--target") if estimate is None else estimate.prior
    _check_columns(meant.class_names, wanted.class_names, "--source", "--target")

    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        adapted = found.logits - softmax_shift(meant, wanted).to(found.logits)
    nowhere = (adapted == -torch.inf).all(1)
    if nowhere.any():
        raise typer.BadParameter(
            f"row {int(nowhere.nonzero()[0])} of {predictions} is possible only for classes that --target rules out"
        )
    _write(out, found, adapted, meant, wanted)
    console = Console()
    for shown in tables(found, adapted, meant, wanted, estimate):
        console.print(shown)
    for note in notes:  # a class that was counted 0 times
        console.print(str(note.message), soft_wrap=True, markup=False)
    if estimate is not None:
        _print_doubts(console, estimate)
    if np.allclose(meant.probabilities, wanted.probabilities, rtol=1e-6, atol=0):
        console.print("--source and --target are the same prior: nothing changed.")
    changed = int((adapted.argmax(1) != found.logits.argmax(1)).sum())
    console.print(f"{changed:,} of {len(adapted):,} predictions changed. Written: {out}", soft_wrap=True, markup=False)


def _write(out: Path, found: Predictions, adapted: Tensor, meant: Prior, wanted: Prior) -> None:
    """All that was in the file, its predictions adapted, and both priors."""
    import numpy as np

    values = adapted if found.kind == "logits" else adapted.softmax(1)
    names = {} if found.class_names is None else {"class_names": np.array(found.class_names)}
    labels = {} if found.labels is None else {"labels": found.labels}
    priors = {"source": meant.probabilities, "target": wanted.probabilities}
    arrays = found.others | {found.kind: values.numpy()} | labels | names | priors
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        np.savez(out, **arrays)  # type: ignore[arg-type]
    except OSError as error:
        raise typer.BadParameter(f"--out {out} cannot be written ({error}): name another") from None


def _print_doubts(console: Console, estimate: PriorEstimate) -> None:
    for doubt in estimate.doubts:
        console.print(f"[bold]The estimate is not to be trusted:[/bold] {escape(doubt)}", soft_wrap=True)
    if estimate.trusted and estimate.method == "em" and not estimate.calibration_checked:
        console.print("Calibration was not checked: --validation does.", soft_wrap=True)


def _estimate(found: Predictions, meant: Prior, method: str, validation: Path | None) -> PriorEstimate:
    from equipoise.serving.estimate import estimate_prior

    held_out = None
    if method == "bbse" and validation is None:
        raise typer.BadParameter("--method bbse measures the model's confusions: pass --validation, or use --method em")
    if validation is not None:
        other = read_predictions(validation, "--validation")
        if other.labels is None:
            raise typer.BadParameter(f"--validation {validation} has no array `labels` [N] of class indices")
        _check_columns(found.class_names or meant.class_names, other.class_names, "PREDICTIONS", "--validation")
        held_out = (other.logits.softmax(1), other.labels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # doubts are printed below the table
        try:
            return estimate_prior(found.logits.softmax(1), meant, method=method, validation=held_out)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None


# -------------------------------------------------------------------- what is shown


def tables(
    found: Predictions, adapted: Tensor, meant: Prior, wanted: Prior, estimate: PriorEstimate | None
) -> list[Table]:
    """The classes whose prior changed most, and, where there are labels, how good the predictions are."""
    import numpy as np

    before, after = (_shares(logits) for logits in (found.logits, adapted))
    factor = np.abs(np.log(np.maximum(wanted.probabilities, 1e-9) / np.maximum(meant.probabilities, 1e-9)))
    order = np.sort(np.argsort(-factor, kind="stable")[:SHOWN])
    left_out = found.num_classes - len(order)
    title = "Share of each class, %" + (f" ({len(order)} of {found.num_classes}, most changed)" if left_out else "")
    classes = Table(title=title)
    classes.add_column("class")
    for name in ("source", "target", "predicted before", "after"):
        classes.add_column(name, justify="right")
    for j in order:
        interval = ""
        if estimate is not None:
            interval = f" ({100 * estimate.low[j]:.1f} to {100 * estimate.high[j]:.1f})"
        name = found.class_names[j] if found.class_names else meant.name(int(j))
        shares = (meant.probabilities[j], wanted.probabilities[j], before[j], after[j])
        texts = [f"{100 * share:.1f}" for share in shares]
        classes.add_row(escape(name), texts[0], texts[1] + interval, *texts[2:])
    return [classes] if found.labels is None else [classes, _judged(found, adapted)]


def _shares(logits: Tensor) -> FloatArray:
    import numpy as np

    return np.bincount(logits.argmax(1).numpy(), minlength=logits.shape[1]) / max(len(logits), 1)


def _judged(found: Predictions, adapted: Tensor) -> Table:
    import torch
    import torch.nn.functional as F

    from equipoise.metrics.calibration import calibration_scores
    from equipoise.metrics.evaluation import evaluate

    labels = torch.from_numpy(found.labels)
    rows: dict[str, list[str]] = {"accuracy, %": [], "balanced accuracy, %": [], "log-loss": [], "Brier": [], "ECE": []}
    for logits in (found.logits, adapted):
        judged, scores = evaluate(logits, labels, Prior.uniform(found.num_classes)), logits.softmax(1)
        calibration, log_loss = calibration_scores(scores, labels), float(F.cross_entropy(logits.double(), labels))
        numbers = (100 * judged.top1, 100 * judged.balanced_accuracy, log_loss, calibration.brier, calibration.ece)
        for row, number, digits in zip(rows.values(), numbers, (1, 1, 3, 3, 3), strict=True):
            row.append(f"{number:.{digits}f}")
    shown = Table("", title=f"Against the {len(labels):,} labels of the file")
    for name in ("before", "after"):
        shown.add_column(name, justify="right")
    for name, texts in rows.items():
        shown.add_row(name, *texts)
    return shown


# -------------------------------------------------------------------- what is read


def read_predictions(path: Path, option: str) -> Predictions:
    """The arrays of an .npz file of predictions; nothing in it is unpickled."""
    import numpy as np
    import torch

    from equipoise.metrics.checks import check_labels, check_probabilities

    if not path.is_file():
        raise typer.BadParameter(f"{option} {path} is not a file")
    try:
        loaded = np.load(path, allow_pickle=False)
        if not hasattr(loaded, "files"):
            raise ValueError("it is a single array")
        with loaded as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise typer.BadParameter(
            f"{option} {path} cannot be read as an .npz file of plain arrays ({error}): write it with "
            "numpy.savez(path, logits=...)"
        ) from None
    kinds = [kind for kind in ("logits", "probabilities") if kind in arrays]
    if len(kinds) != 1:
        held = ", ".join(arrays) or "nothing"
        raise typer.BadParameter(f"{option} {path} holds {held}: expected one array `logits` or `probabilities` [N, K]")
    values = arrays.pop(kinds[0])
    try:
        if values.ndim != 2 or values.dtype.kind not in "fiu" or values.size == 0:
            raise ValueError(f"{kinds[0]} have shape {values.shape} ({values.dtype}), expected numbers [N, K]")
        precise = np.float64 if values.dtype == np.float64 else np.float32
        logits = torch.from_numpy(values.astype(precise))
        if kinds[0] == "probabilities":
            logits = check_probabilities(torch.from_numpy(values)).log().to(logits.dtype)
        elif not logits.isfinite().all():
            row, column = (~logits.isfinite()).nonzero()[0].tolist()
            raise ValueError(f"row {row}, column {column} of the logits is {values[row, column]}")
        labels = arrays.pop("labels", None)
        labels = None if labels is None else check_labels(labels, *logits.shape)
        names = arrays.pop("class_names", None)
        if names is not None and names.shape != (logits.shape[1],):
            raise ValueError(
                f"class_names have shape {names.shape}, expected one for each of {logits.shape[1]} columns"
            )
    except (ValueError, TypeError) as error:
        raise typer.BadParameter(f"{option} {path}: {error}") from None
    kept = {name: array for name, array in arrays.items() if name not in ("source", "target")}
    return Predictions(path, kinds[0], logits, labels, None if names is None else tuple(map(str, names)), kept)


def prior_of(text: str, found: Predictions, option: str) -> Prior:
    """The prior that an option names, its classes in the order of the columns."""
    if text == "uniform":
        return Prior.uniform(found.num_classes, class_names=found.class_names)
    path = Path(text)
    if not path.is_file():
        more = "" if option == "--source" else ", estimate"
        raise typer.BadParameter(f"{option} {text} is not a file: expected uniform{more}, or a JSON file of counts")
    try:
        prior = read_prior(path.read_text(encoding="utf-8-sig"))
    except (ValueError, TypeError) as error:
        raise typer.BadParameter(f"{option} {path}: {error}") from None
    if prior.num_classes != found.num_classes:
        raise typer.BadParameter(
            f"{option} {path} has {prior.num_classes} classes, {found.path} has {found.num_classes} columns"
        )
    total = float(prior.probabilities.sum())
    if abs(total - 1) > 1e-4:
        raise typer.BadParameter(f"{option} {path}: its probabilities sum to {total:.4g}, but every item has one class")
    return prior if found.class_names is None else _by_name(prior, found.class_names, f"{option} {path}", found.path)


def read_prior(text: str) -> Prior:
    """A prior in JSON: as `Prior.to_json` writes it, a list, or an object of class names or indices.

    >>> read_prior('{"cat": 3, "owl": 1}').probabilities.tolist(), read_prior("[0.5, 0.5]").counted
    ([0.75, 0.25], False)
    """
    content = json.loads(text)
    if isinstance(content, dict) and any(isinstance(content.get(key), list) for key in ("counts", "probabilities")):
        return Prior.from_json(text)
    if not isinstance(content, dict | list) or not content:
        raise ValueError(f"not a prior: expected a list of counts, or an object of counts by name, got {text[:60]!r}")
    names = None
    if isinstance(content, dict) and all(key.isdecimal() for key in content):
        if sorted(map(int, content)) != list(range(len(content))):
            raise ValueError(f"the classes are {', '.join(list(content)[:5])}, ...: expected 0 to {len(content) - 1}")
        content = [content[key] for key in sorted(content, key=int)]
    elif isinstance(content, dict):
        names, content = list(content), list(content.values())
    if all(isinstance(value, int) for value in content):
        return Prior.from_counts(content, class_names=names)
    if not all(isinstance(value, int | float) for value in content):
        raise ValueError(f"not a prior: expected numbers, got {content[:3]}")
    return Prior.from_probabilities(content, class_names=names)


def _check_columns(ours: tuple[str, ...] | None, theirs: tuple[str, ...] | None, our: str, their: str) -> None:
    """Refuse columns that two files name differently: one of the orders is not that of the predictions."""
    if ours is not None and theirs is not None and ours != theirs:
        raise typer.BadParameter(
            f"{our} names the classes {', '.join(ours[:5])}, {their} {', '.join(theirs[:5])}: bring both into the "
            "order of the columns; a prior is matched by name where the predictions have an array `class_names`"
        )


def _by_name(prior: Prior, names: tuple[str, ...], where: str, path: Path) -> Prior:
    """`prior` with its classes in the order of `names`."""
    import numpy as np

    if prior.class_names is None or prior.class_names == names:
        return prior
    missing = sorted(set(names) - set(prior.class_names))
    if missing or len(set(names)) < len(names):
        raise typer.BadParameter(
            f"{where} does not name the classes of {path}: it lacks {', '.join(missing[:5]) or 'names that differ'}"
        )
    order = np.array([prior.class_names.index(name) for name in names])
    if prior.counted:
        return Prior.from_counts(prior.counts[order], prior.total, class_names=names)
    return Prior.from_probabilities(prior.probabilities[order], class_names=names)
