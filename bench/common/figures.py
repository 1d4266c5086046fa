"""Statistics over what was measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from rich.table import Table


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` % of all values do not exceed; 0 of nothing."""
    if not values:
        return 0.0
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def median_ratio(values: Iterable[float], others: Iterable[float]) -> float:
    """Of the rounds' ratios: the two values of one round see the machine at one speed."""
    return median(
        one / other if other else math.inf for one, other in zip(values, others, strict=True)
    )


@dataclass
class InTurns:
    """What two ways have yielded in each round, the second compared with the first."""

    plain_rates: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)

    @property
    def plain(self) -> float:
        """The median of the first way."""
        return median(self.plain_rates)

    @property
    def rate(self) -> float:
        """That of the second."""
        return median(self.rates)

    @property
    def ratio(self) -> float:
        """The second over the first."""
        return median_ratio(self.rates, self.plain_rates)


def listed(figures: Mapping[str, float], meanings: Mapping[str, str]) -> Table:
    """Each with what it means."""
    table = Table("figure", "value", "meaning")
    for name, value in figures.items():
        table.add_row(
            name, f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}", meanings.get(name, "")
        )
    return table


def numbers_table(title: str, head: str, *columns: str) -> Table:
    """A table whose `columns` are numbers, behind a first one of names."""
    table = Table(head, title=title)
    for column in columns:
        table.add_column(column, justify="right")
    return table
