"""The rules that are compared, by the names that tables and pictures have for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bench.hybrid.rules.cache import Policy
from bench.hybrid.rules.declared import Ours
from bench.hybrid.rules.future import Future
from bench.hybrid.rules.intervals import EachInterval, LastOnly
from bench.hybrid.rules.marconi import Marconi
from bench.hybrid.shapes import Shape
from bench.hybrid.traces.requests import Tree

MARCONI: Final = "Marconi"
MARCONI_BY_RECENCY: Final = "Marconi, alpha 0"
OURS: Final = "ours"
FUTURE: Final = "the future"


def _each(interval: int) -> Callable[[Tree, Shape, int], Policy]:
    return lambda _, shape, capacity: EachInterval(shape, capacity, interval)


POLICIES: Final[dict[str, Callable[[Tree, Shape, int], Policy]]] = {
    "every block": _each(1),
    "every 8 blocks": _each(8),
    "blocks of 528": _each(33),
    "last block only": LastOnly,
    MARCONI_BY_RECENCY: lambda tree, shape, capacity: Marconi(tree, shape, capacity, alpha=0.0),
    MARCONI: Marconi,
    OURS: Ours,
    FUTURE: Future,
}
