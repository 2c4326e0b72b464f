"""What `equipoise adapt` reads and writes, with one class per item or with several labels."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise.files import written_whole
from equipoise.prior import IntArray

if TYPE_CHECKING:
    from torch import Tensor

    from equipoise.data.predictions import Predictions

SHOWN = 12  # classes in the table


@dataclass(frozen=True)
class Whole:
    """A file of predictions read whole: `logits` [N, K], which for probabilities are their logarithms, or log odds if
    an item may have several labels; `labels` [N] or [N, K]."""

    file: Predictions
    logits: Tensor
    labels: IntArray | None


def read_whole(file: Predictions) -> Whole:
    """All rows of an opened file."""
    import numpy as np
    import torch

    from equipoise.arrays import log_odds

    batches = list(file.batches())
    outputs = np.concatenate([batch.outputs for batch in batches])
    logits = torch.from_numpy(outputs.astype(np.float64 if outputs.dtype == np.float64 else np.float32))
    if file.probabilities:
        chances = outputs.astype(np.float64)
        odds = torch.from_numpy(log_odds(chances)) if file.multilabel else None
        logs = torch.from_numpy(chances / chances.sum(1, keepdims=True)).log() if odds is None else odds
        logits = logs.to(logits.dtype)
    return Whole(file, logits, np.concatenate([batch.labels for batch in batches]) if file.labelled else None)


def write_adapted(out: Path, found: Whole, adapted: Tensor, priors: dict[str, Any]) -> None:
    """Write everything from the file, with adapted predictions, and both priors."""
    import numpy as np

    chances = adapted.sigmoid() if found.file.multilabel else adapted.softmax(1)
    values = chances if found.file.probabilities else adapted
    truth = "targets" if found.file.multilabel else "labels"
    own = {} if found.labels is None else {truth: found.labels}
    names = {} if found.file.columns is None else {"class_names": np.array(found.file.columns)}
    arrays = {"probabilities" if found.file.probabilities else "logits": values.numpy()} | priors
    try:
        with written_whole(out) as scratch, zipfile.ZipFile(scratch, "w") as archive:
            copied = found.file.copy_others(archive, arrays)
            if "labels" in copied:
                own = {}
            for name, array in (own | names | arrays).items():
                if name not in copied:
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                        np.lib.format.write_array(stream, np.asarray(array), allow_pickle=False)
    except OSError as error:
        raise ValueError(f"--out {out} cannot be written ({error}): name another") from None
