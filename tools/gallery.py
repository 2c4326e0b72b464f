"""Draw every figure of both reports, and list them in docs/gallery.md: python tools/gallery.py, half a minute.

One class per item: the demonstration's network on long-tailed digits, seed 0. Several labels per item: pairs of these
digits, a linear model. Figures of single models are those of the plain loss. Run it again when a figure changes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.data.digits import Digits, load_digits_lt
from equipoise.experiments.demo import Settings, fitted
from equipoise.experiments.documents.marks import fill
from equipoise.files import write_text
from equipoise.report.figures import save

DOCS = Path(__file__).resolve().parents[1] / "docs"
NUMBERED = re.compile(r"^\d+-")
Figures = dict[str, dict[str, Any]]


def chosen(figures: Figures) -> Figures:
    """The figures of all models, and those of the first one, by names without its number."""
    return {
        NUMBERED.sub("", name): spec for name, spec in figures.items() if name[:2] == "1-" or not NUMBERED.match(name)
    }


def one_class(digits: Digits) -> eq.Report:
    """Cross-entropy and Balanced Softmax, judged on the balanced test split."""
    losses: dict[str, nn.Module] = {
        "Softmax": nn.CrossEntropyLoss(),
        "Balanced Softmax": eq.BalancedSoftmaxLoss(digits.prior),
    }
    with torch.no_grad():
        logits = {name: _fitted(loss, digits)(digits.test_images) for name, loss in losses.items()}
    means = {"Softmax": "train", "Balanced Softmax": "uniform"}
    return eq.Report.from_predictions(logits, digits.test_labels, digits.prior, logits_mean=means)  # type: ignore[arg-type]


def _fitted(loss: nn.Module, digits: Digits) -> nn.Module:
    with torch.enable_grad():
        return fitted(loss, digits, Settings(), seed=0)


def several_labels(digits: Digits) -> eq.MultilabelReport:
    """Binary cross-entropy and Balanced Sigmoid on pairs of digits, judged on pairs from the balanced test split."""
    random = torch.Generator().manual_seed(0)
    images, target = _pairs(digits.train_images, digits.train_labels, 2000, random)
    tests, answers = _pairs(digits.test_images, digits.test_labels, 2000, random)
    prior = eq.Prior.from_multilabel(target, class_names=[f"digit {digit}" for digit in range(10)])
    losses = {"BCE": nn.BCEWithLogitsLoss(), "Balanced Sigmoid": eq.BalancedSigmoidLoss(prior)}
    judged = {}
    for name, loss in losses.items():
        model = nn.Linear(images.shape[1], 10)
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        for _ in range(200):
            optimizer.zero_grad()
            loss(model(images), target.float()).backward()
            optimizer.step()
        judged[name] = eq.judge_multilabel(model(tests).detach(), answers, prior)
    return eq.MultilabelReport(judged)


def _pairs(images: Tensor, labels: Tensor, number: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two images side by side, flat, and which digits they show, [number, 10]."""
    drawn = torch.randint(len(labels), (number, 2), generator=random)
    target = torch.zeros(number, 10, dtype=torch.int64).scatter(1, labels[drawn], 1)
    return images[drawn].flatten(1), target


def listed(figures: Figures, folder: str) -> str:
    """Every figure under its name, with what it shows."""
    parts = []
    for name, spec in figures.items():
        words = spec["description"]
        parts.append(f"### {name}\n\n{words}.\n\n![{words}](images/{folder}/{name}.png)")
    return "\n\n".join(parts)


def main() -> None:
    digits = load_digits_lt(50)
    text = (DOCS / "gallery.md").read_text(encoding="utf-8")
    for folder, report in (("gallery", one_class(digits)), ("gallery-multilabel", several_labels(digits))):
        figures = chosen(report.figures())
        for old in (DOCS / "images" / folder).glob("*.png"):
            old.unlink()
        for name, spec in figures.items():
            save(spec, DOCS / "images" / folder / f"{name}.png")
        text = fill(text, folder, listed(figures, folder))
    write_text(DOCS / "gallery.md", text)


if __name__ == "__main__":
    main()
