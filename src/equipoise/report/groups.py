"""Which classes have many, medium and few training items on a page; the cut-offs can be chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from equipoise.prior import Prior

GROUPS = ["many", "medium", "few"]


@dataclass(frozen=True)
class Cuts:
    """More than `many` training items are many, fewer than `few` are few."""

    many: int = 100
    few: int = 20

    def groups(self, prior: Prior) -> dict[str, list[int]]:
        """The classes of each group that has any."""
        return prior.groups(self.many, self.few)

    @property
    def words(self) -> dict[str, str]:
        """The name of each group.

        >>> Cuts().words, Cuts(many=9, few=10).words["medium"]
        ({'many': 'many, > 100', 'medium': 'medium, 20 to 100', 'few': 'few, < 20'}, 'medium, none')
        """
        between = f"{self.few:,} to {self.many:,}" if self.few <= self.many else "none"
        return {"many": f"many, > {self.many:,}", "medium": f"medium, {between}", "few": f"few, < {self.few:,}"}


USUAL = Cuts()
