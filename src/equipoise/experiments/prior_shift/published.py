"""The names of the prior-shift experiment's losses and test sets. Nothing of it was published. No torch here."""

from __future__ import annotations

NAME = "prior-shift"
TITLES = {"softmax": "Softmax", "balanced_softmax": "Balanced Softmax"}  # of the losses
SHIFTS = {  # how the class frequencies of a test set are made, and what they are called
    "forward-50": "forward, 50",
    "forward-10": "forward, 10",
    "uniform": "balanced",
    "backward-10": "backward, 10",
    "backward-50": "backward, 50",
    "dirichlet": "Dirichlet",
}
