"""Names that every docstring example may use, random numbers that stay the same, and a Ctrl-C that tests can press."""

import os
import signal
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq

# Ultralytics is AGPL and no dependency: the adapter is tested where it happens to be installed
collect_ignore = [] if find_spec("ultralytics") else ["src/equipoise/integrations/ultralytics.py"]


@pytest.fixture(autouse=True)
def _names_of_examples(doctest_namespace: dict[str, Any]) -> None:
    doctest_namespace.update(eq=eq, np=np, torch=torch)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """The same random numbers for every test, whichever ran before it; also in its fixtures."""
    torch.manual_seed(0)
    np.random.seed(0)


def pytest_configure() -> None:
    """In the background of a script Ctrl-C is ignored, which tests that press it inherit. Processes of tests side by
    side have one thread each, and so do those that they start: waiting threads spin and slow others down."""
    if "PYTEST_XDIST_WORKER" in os.environ and "OMP_NUM_THREADS" not in os.environ:
        os.environ["OMP_NUM_THREADS"] = "1"
        torch.set_num_threads(1)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
