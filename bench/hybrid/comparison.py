"""All rules on one trace: at some sizes of the pool, and where Marconi finds half of what it could.

Marconi stands for the better of itself with the alpha that it tunes, and with alpha 0: what it
tunes in its first requests is not always good for the later ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bench.hybrid.replay import Outcome, replay
from bench.hybrid.rules.cache import Policy
from bench.hybrid.rules.own import Own
from bench.hybrid.rules.policies import FUTURE, MARCONI, MARCONI_BY_RECENCY, OURS, POLICIES
from bench.hybrid.shapes import Shape
from bench.hybrid.traces.requests import Tree

POOLS: Final = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
"""Of what a trace touches: keys of all, and a state of each request."""
_BISECTIONS: Final = 3
_SMALLEST: Final = 1 / 4096
_MOST_BLOCKS: Final = 500_000
"""Of a trace that the engine itself serves: block by block, some minutes for each million."""


@dataclass(frozen=True)
class Halfway:
    """What rules do where Marconi finds half of what can be found."""

    pool: float
    """Of what the trace touches."""
    ours: Outcome
    marconi: Outcome
    """That found more."""
    marconi_p95: float
    """Of the one whose first tokens came sooner."""
    future: Outcome
    engine: Outcome | None
    """Where the trace has no more blocks than `_MOST_BLOCKS`."""

    @property
    def engine_ratio(self) -> float | None:
        """Tokens that the engine finds, over Marconi's."""
        return None if self.engine is None else self.engine.found / max(1, self.marconi.found)

    @property
    def found_ratio(self) -> float:
        """Tokens that ours finds, over Marconi's."""
        return self.ours.found / max(1, self.marconi.found)

    @property
    def future_ratio(self) -> float:
        """Those of the rule that knows the future, over Marconi's."""
        return self.future.found / max(1, self.marconi.found)

    @property
    def p95_ratio(self) -> float:
        """Of the time of the first token."""
        return self.ours.p95 / self.marconi_p95


@dataclass(frozen=True)
class Comparison:
    """Of one trace, with one model's bytes and operations."""

    tree: Tree
    shape: Shape
    outcomes: dict[tuple[str, float], Outcome]
    """By rule and pool."""
    halfway: Halfway


class _Runs:
    """Each rule once for each size."""

    def __init__(self, tree: Tree, shape: Shape) -> None:
        self._tree = tree
        self._shape = shape
        self.known: dict[tuple[str, float], Outcome] = {}

    def of(self, policy: str, pool: float) -> Outcome:
        if (policy, pool) not in self.known:
            self.known[policy, pool] = self._replay(POLICIES[policy], pool)
        return self.known[policy, pool]

    def engine(self, pool: float) -> Outcome | None:
        return self._replay(Own, pool) if self._tree.num_blocks <= _MOST_BLOCKS else None

    def marconi(self, pool: float) -> Outcome:
        both = (self.of(policy, pool) for policy in (MARCONI, MARCONI_BY_RECENCY))
        return max(both, key=lambda one: one.found)

    def _replay(self, make: Callable[[Tree, Shape, int], Policy], pool: float) -> Outcome:
        capacity = int(pool * self._tree.touched_bytes(self._shape))
        return replay(self._tree, self._shape, make(self._tree, self._shape, capacity))


def compare(tree: Tree, shape: Shape) -> Comparison:
    """Run all of it, in about a minute a thousand requests of many thousand tokens."""
    runs = _Runs(tree, shape)
    outcomes = {(policy, pool): runs.of(policy, pool) for policy in POLICIES for pool in POOLS}
    pool = _halfway(lambda pool: 2 * runs.marconi(pool).found >= tree.findable)
    halfway = Halfway(
        pool,
        runs.of(OURS, pool),
        runs.marconi(pool),
        min(runs.of(policy, pool).p95 for policy in (MARCONI, MARCONI_BY_RECENCY)),
        runs.of(FUTURE, pool),
        runs.engine(pool),
    )
    return Comparison(tree, shape, outcomes, halfway)


def _halfway(enough: Callable[[float], bool]) -> float:
    """The smallest pool, to 9 %, that is enough; all of it where none is."""
    large = 1.0
    if not enough(large):
        return large
    while large > _SMALLEST and enough(large / 2):
        large /= 2
    small = large / 2
    for _ in range(_BISECTIONS):
        middle = (small * large) ** 0.5
        small, large = (small, middle) if enough(middle) else (middle, large)
    return large
