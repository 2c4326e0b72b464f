"""What is known of single networks on CIFAR-LT, and the names of cells and methods. Nothing here needs torch."""

from __future__ import annotations

NAME, TEACHERS, TRIES = "record", "record-teachers", "choices/record"  # folders of results/
METHOD = "distilled"
DATA_SETS = {"cifar100-lt": "CIFAR-100-LT", "cifar10-lt": "CIFAR-10-LT"}
IMBALANCES = (200, 100, 50, 10)
COLUMNS = tuple((data_set, imbalance) for data_set in DATA_SETS for imbalance in IMBALANCES)
CHOICES_CELL = ("cifar100-lt", 100)
