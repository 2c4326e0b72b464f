"""What the pages that compare models have in common: the file, the figures, the numbers, the frame of their text."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from equipoise.data.reading import counted
from equipoise.files import write_text
from equipoise.prior import Prior
from equipoise.report import sections
from equipoise.report.changes import unrounded
from equipoise.report.figures import save
from equipoise.report.inspection import how_unequal
from equipoise.report.sections import Section, foot, text, top
from equipoise.report.specs import Spec


class Comparison(ABC):
    """Models on a test set, first to last: before → after."""

    title: str
    models: list[Any]
    prior: Prior
    _changes: ClassVar[Any]  # the module with `changes` and `conclusion` for such models, and `alone` for one

    @abstractmethod
    def to_html(self) -> str:
        """The whole page as text."""

    @abstractmethod
    def figures(self) -> dict[str, Spec]:
        """Every figure of the page by file name: Vega-Lite specifications with their data."""

    @abstractmethod
    def _items(self) -> int:
        """The number of test items."""

    @abstractmethod
    def _numbers(self, model: Any) -> dict[str, Any]:
        """One model's numbers as plain data."""

    @abstractmethod
    def _groups(self) -> dict[str, int]:
        """The number of classes in each group that has any."""

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page, whole or not at all; folders are made.

        path   the file to write
        """
        write_text(path, self.to_html())
        return Path(path)

    def save_figures(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write every figure as PNG and SVG into a folder.

        folder   the folder to write into
        """
        figures = self.figures().items()
        return [save(figure, Path(folder) / f"{name}.{end}") for name, figure in figures for end in ("png", "svg")]

    def conclusion(self) -> str:
        """What changed from the first model to the last, for whom, and whether it is more than chance."""
        first, last = self.models[0], self.models[-1]
        if len(self.models) == 1:
            return str(self._changes.alone(first))
        return str(self._changes.conclusion(first, last, self._changes.changes(first, last, [])))

    def to_dict(self) -> dict[str, Any]:
        """The numbers as plain data, shares from 0 to 1: of every model, and what changed from first to last."""
        models = [self._numbers(model) for model in self.models]
        found: dict[str, Any] = {"conclusion": self.conclusion()}
        if len(models) > 1:
            first, last = self.models[0], self.models[-1]
            moved = self._changes.changes(first, last, [])
            found["change"] = unrounded(moved, models)
            found |= {"from": first.name, "to": last.name, "paired": moved.paired}
        found["groups"] = self._groups()
        found["models"] = models
        return found

    def _repr_html_(self) -> str:
        """The page in a frame of its own, for notebooks."""
        return sections.frame(self.to_html(), self.title)

    def __repr__(self) -> str:
        names = ", ".join(model.name for model in self.models)
        sizes = f"{counted(self.prior.num_classes, 'class')}, {counted(self._items(), 'test item')}"
        return f"{type(self).__name__}({counted(len(self.models), 'model')}: {names}; {sizes})"

    def _body(
        self, headline: Section, notes: Sequence[str], others: Sequence[Section], *, tested: str = "", below: str
    ) -> str:
        """The text of the page: `tested` says more of the test items, `below` where intervals come from."""
        prior, several = self.prior, len(self.models) > 1
        lead = (
            f"{counted(prior.num_classes, 'class')}, {counted(prior.total, 'training item')}; {how_unequal(prior)}. "
            f"Evaluated on {counted(self._items(), 'test item')}{tested}."
        )
        conclusion = sections.conclusion_section(self.conclusion())
        parts = [
            top(self.title, lead),
            sections.picker() if several else "",
            f'<main class="{"" if several else "single"}">',
            conclusion.html,
            sections.contents([headline, *others]),
            headline.html,
            *(f'<p class="note">{text(note)}</p>' for note in notes),
            *(part.html for part in others),
            "</main>",
            foot(below),
        ]
        return "\n".join(parts)
