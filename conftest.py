"""Names that every docstring example may use, and a Ctrl-C that tests can press."""

import signal
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq


@pytest.fixture(autouse=True)
def _names_of_examples(doctest_namespace: dict[str, Any]) -> None:
    doctest_namespace.update(eq=eq, np=np, torch=torch)


def pytest_configure() -> None:
    """In the background of a script Ctrl-C is ignored, which tests that press it inherit."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
