"""What serving for the right prior is worth: long-tailed digits, three worlds to serve, before and after.

    python benchmarks/serving.py --out r.json               trains, a few minutes on one core
    python benchmarks/serving.py --quick                    the same with little training, seconds
    python benchmarks/serving.py --table r.json reversed    what such a file says of one world, as a table in Markdown

The same small network is trained with the plain and with the balanced loss on digits with about fifty times more zeros
than nines. Three worlds are served: `equal` (every digit equally likely), `training` (as in training) and `reversed`
(nines as frequent as zeros were). The test split has equally many images of each digit; accuracy and log-loss under a
prior are the means over the images of each digit, weighted by the prior.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch import Tensor, nn

import equipoise as eq
from equipoise.data.digits import Digits, load_digits_lt
from equipoise.experiments.demo import Settings, fitted

LOSSES = {"plain": lambda prior: nn.CrossEntropyLoss(), "balanced": eq.BalancedSoftmaxLoss}
ROWS = {
    ("plain", False): "plain loss, as it is",
    ("plain", True): "plain loss, `Rebalanced`",
    ("balanced", False): "balanced loss, as it is",
    ("balanced", True): "balanced loss, `Rebalanced`",
}


def worlds(prior: eq.Prior) -> dict[str, eq.Prior]:
    """The priors to serve."""
    names = prior.class_names
    return {
        "equal": eq.Prior.uniform(prior.num_classes, class_names=names),
        "training": prior,
        "reversed": eq.Prior.from_counts(prior.counts[::-1].copy(), class_names=names),
    }


def judged(logits: Tensor, labels: Tensor, world: eq.Prior) -> dict[str, float]:
    """Accuracy and log-loss where the classes are as likely as `world` says."""
    weight = torch.tensor(world.probabilities)[labels] / torch.bincount(labels).double()[labels]
    log_loss = nn.functional.cross_entropy(logits.double(), labels, reduction="none")
    right = (logits.argmax(1) == labels).double()
    return {"accuracy": float((weight * right).sum()), "log_loss": float((weight * log_loss).sum())}


def run(seed: int, digits: Digits, settings: Settings) -> list[dict[str, Any]]:
    """Both losses with one seed, in every world, as they are and served for it."""
    results = []
    for name, make_loss in LOSSES.items():
        model = fitted(make_loss(digits.prior), digits, settings, seed)
        means = digits.prior if name == "plain" else worlds(digits.prior)["equal"]  # what the logits mean
        for world, prior in worlds(digits.prior).items():
            for served in (False, True):
                if served and prior == means:
                    continue
                with torch.inference_mode():
                    logits = (eq.Rebalanced(model, source=means, target=prior) if served else model)(digits.test_images)
                    found = judged(logits, digits.test_labels, prior)
                results.append({"loss": name, "world": world, "served": served, "seed": seed} | found)
    return results


def table(path: Path, world: str) -> str:
    """The rows of one world, mean ± standard deviation over the seeds."""
    runs = [run for run in json.loads(path.read_text())["runs"] if run["world"] == world]
    if not runs:
        raise SystemExit(f"{path} has no world {world!r}")
    seeds = len({run["seed"] for run in runs})
    lines = [f"| model (mean ± standard deviation of {seeds} seeds) | accuracy, % | log-loss |", "|:---|---:|---:|"]
    for (loss, served), name in ROWS.items():
        rows = [run for run in runs if (run["loss"], run["served"]) == (loss, served)]
        if rows:
            accuracy = spread([100 * run["accuracy"] for run in rows], 1)
            lines.append(f"| {name} | {accuracy} | {spread([run['log_loss'] for run in rows], 3)} |")
    return "\n".join(lines)


def spread(values: list[float], digits: int) -> str:
    return f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="20 steps, 2 seeds")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write every number here, as JSON")
    parser.add_argument("--table", nargs=2, metavar=("FILE", "WORLD"), help="print a table from such a file")
    options = parser.parse_args()
    if options.table:
        print(table(Path(options.table[0]), options.table[1]))
        return
    settings = Settings(seeds=2, iterations=20) if options.quick else Settings(seeds=options.seeds)
    digits = load_digits_lt(settings.imbalance)
    runs = [row for seed in track(range(settings.seeds), "training") for row in run(seed, digits, settings)]
    record = {
        "command": "python benchmarks/serving.py",
        "settings": vars(settings),
        "source": json.loads(digits.prior.to_json()),
        "versions": {"equipoise": eq.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "runs": runs,
    }
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    for row in runs:
        print(row)


if __name__ == "__main__":
    main()
