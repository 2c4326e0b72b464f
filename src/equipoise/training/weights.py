"""Files of tensors that training writes: complete or absent, read without running code, identified by their digest."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.files import written_whole


def weights_digest(weights: nn.Module | Mapping[str, Tensor]) -> str:
    """Identifies a model's weights: the start of the SHA-256 of its state, for comparing two runs."""
    sha = hashlib.sha256()
    for name, value in (weights.state_dict() if isinstance(weights, nn.Module) else weights).items():
        sha.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return sha.hexdigest()[:16]


def all_finite(weights: Mapping[str, Tensor]) -> bool:
    """Whether every value is a number.

    >>> all_finite({"bias": torch.zeros(2)}), all_finite({"bias": torch.tensor([0.0, torch.nan])})
    (True, False)
    """
    return all(bool(torch.isfinite(value).all()) for value in weights.values())


def is_weights(content: Any) -> bool:
    """Whether what a file holds are named tensors.

    >>> is_weights({"bias": torch.zeros(2)}), is_weights([1, 2]), is_weights({"bias": 1})
    (True, False, False)
    """
    return isinstance(content, dict) and all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in content.items()
    )


def write_tensors(path: Path, content: Any) -> None:
    """Write tensors and plain data as a torch file: completely, or OSError and the file as it was."""
    try:
        with written_whole(path) as scratch:
            torch.save(content, scratch)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        raise OSError(f"{path} could not be written ({error})") from error


def read_tensors(path: Path) -> Any:
    """What `write_tensors` wrote, on the CPU; a ValueError names a file that is damaged or something else."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as error:  # torch raises many kinds for a damaged file; EOFError would end the program
        raise ValueError(f"{path} cannot be read ({type(error).__name__})") from error
