"""Table 1 as it was published, and the names of its rows and columns. Nothing here needs torch.

The paper: "Balanced Activation for Long-tailed Visual Recognition". The companion: Ren et al., "Balanced Meta-Softmax
for Long-Tailed Visual Recognition", 2020, arXiv 2007.10740.
"""

from __future__ import annotations

NAME = "table1"
DATA_SETS = {"cifar10-lt": "CIFAR-10-LT", "cifar100-lt": "CIFAR-100-LT"}
IMBALANCES = (200, 100, 10)
COLUMNS = tuple((data_set, imbalance) for data_set in DATA_SETS for imbalance in IMBALANCES)

# Titles of the rows, by the name in paths and commands.
METHODS = {
    "softmax": "Softmax",
    "cbw": "CBW",
    "cbs": "CBS",
    "focal": "Focal",
    "class_balanced": "Class-Balanced",
    "ldam": "LDAM",
    "eql": "EQL",
    "balanced_softmax": "Balanced Softmax",
}
# Under the rule line, on CIFAR-100-LT at 100 only.
BELOW = {
    "balanced_softmax_tau_0.25": "Balanced Softmax, τ = 0.25",
    "balanced_softmax_tau_0.5": "Balanced Softmax, τ = 0.5",
    "balanced_softmax_tau_1.5": "Balanced Softmax, τ = 1.5",
    "softmax_adjusted": "Softmax, adjusted after training",
    "sigmoid": "Sigmoid",
    "balanced_sigmoid": "Balanced Sigmoid",
    "crt": "Softmax, then cRT",
    "lws": "Softmax, then LWS",
    "decoupled_balanced_softmax": "Softmax, then Balanced Softmax",
}
BELOW_CELL = ("cifar100-lt", 100)
# Later papers also report this imbalance, which the paper does not have: none of this counts among its 48 cells.
LATER, LATER_METHODS = 50, ("softmax", "balanced_softmax")
LATER_COLUMNS = tuple((data_set, LATER) for data_set in DATA_SETS)
# What was compared before a hyper-parameter was chosen, beside the rows of the table.
CHOICES = {
    "softmax_nesterov": "Softmax",
    "balanced_softmax_nesterov": "Balanced Softmax",
    **{f"eql_threshold_{threshold}": f"EQL, λ = {threshold}" for threshold in (0.01, 0.02, 0.05, 0.1)},
}

# Mean and standard error over three runs, as printed, at imbalance 200, 100, 10. First the paper, then the companion's
# version of the two rows in which it differs.
PAPER: dict[tuple[str, str], tuple[tuple[float, float], ...]] = {
    ("softmax", "cifar10-lt"): ((71.2, 0.3), (77.4, 0.8), (90.0, 0.2)),
    ("softmax", "cifar100-lt"): ((41.0, 0.3), (45.3, 0.3), (61.9, 0.1)),
    ("cbw", "cifar10-lt"): ((72.5, 0.2), (78.6, 0.6), (90.1, 0.2)),
    ("cbw", "cifar100-lt"): ((36.7, 0.2), (42.3, 0.8), (61.4, 0.3)),
    ("cbs", "cifar10-lt"): ((68.3, 0.3), (77.8, 2.2), (90.2, 0.2)),
    ("cbs", "cifar100-lt"): ((37.8, 0.1), (42.6, 0.4), (61.2, 0.3)),
    ("focal", "cifar10-lt"): ((71.8, 2.1), (77.1, 0.2), (90.3, 0.2)),
    ("focal", "cifar100-lt"): ((40.2, 0.5), (43.8, 0.1), (60.0, 0.6)),
    ("class_balanced", "cifar10-lt"): ((72.6, 1.8), (78.2, 1.1), (89.9, 0.3)),
    ("class_balanced", "cifar100-lt"): ((39.9, 0.1), (44.6, 0.4), (59.8, 1.1)),
    ("ldam", "cifar10-lt"): ((71.2, 0.3), (77.2, 0.2), (90.2, 0.3)),
    ("ldam", "cifar100-lt"): ((41.0, 0.3), (45.4, 0.1), (62.0, 0.3)),
    ("eql", "cifar10-lt"): ((72.8, 0.2), (76.7, 0.1), (89.9, 0.3)),
    ("eql", "cifar100-lt"): ((43.3, 0.1), (47.3, 0.1), (59.7, 0.3)),
    ("balanced_softmax", "cifar10-lt"): ((79.0, 0.8), (83.1, 0.4), (90.9, 0.4)),
    ("balanced_softmax", "cifar100-lt"): ((45.9, 0.3), (50.3, 0.3), (63.1, 0.2)),
}
COMPANION: dict[tuple[str, str], tuple[tuple[float, float], ...]] = {
    ("ldam", "cifar10-lt"): ((73.6, 0.1), (78.9, 0.9), (90.3, 0.1)),
    ("ldam", "cifar100-lt"): ((41.3, 0.4), (46.1, 0.1), (62.1, 0.3)),
    ("eql", "cifar10-lt"): ((74.6, 0.1), (78.5, 0.1), (90.2, 0.2)),
    ("eql", "cifar100-lt"): ((43.3, 0.1), (47.4, 0.2), (60.5, 0.6)),
}
# The companion's figures for the further rows, CIFAR-100-LT at 100.
COMPANION_BELOW: dict[str, tuple[float, float]] = {
    "balanced_softmax_tau_0.25": (46.4, 0.7),
    "crt": (50.0, 0.2),
    "lws": (50.5, 0.1),
    "decoupled_balanced_softmax": (50.4, 0.0),
}


def title_of(method: str) -> str:
    """The name of a row."""
    return (METHODS | BELOW | CHOICES).get(method, method)
