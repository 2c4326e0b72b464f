"""Names that every docstring example may use."""

from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq


@pytest.fixture(autouse=True)
def _names_of_examples(doctest_namespace: dict[str, Any]) -> None:
    doctest_namespace.update(eq=eq, np=np, torch=torch)
