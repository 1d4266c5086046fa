"""What a front door keeps of its replicas, for operators to see."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from app.cluster.messages import Blocks
from app.cluster.routing.router import Why
from engine.api import EngineStats
from engine.client import ReplicaFigures, RoutedBy

ROUTED_AS: Final[Mapping[Why, RoutedBy]] = {
    "cached": "residency",
    "sticky": "residency",
    "spread": "load",
    "two_choices": "random",
}
"""What operators are shown of a choice."""
_LAG_SECONDS: Final = 15.0
"""A replica that has told of no blocks for so long has nothing to tell, and is not behind."""


@dataclass(slots=True)
class Heard:
    """What one replica has said of itself."""

    engine_restarts: int = 0
    _stats: EngineStats | None = None
    _lag_seconds: float = 0.0
    _lag_at: float = 0.0
    """When that was found, in seconds since 1970."""
    _lost: int = 0
    """Messages of blocks, since it was attended to last."""
    _lost_before: int = 0

    def state(self, stats: EngineStats) -> None:
        """How its engine is. Another one than before has taken a dead one's place."""
        if self._stats is not None and self._stats.engine != stats.engine:
            self.engine_restarts += 1
        self._stats = stats

    def blocks(self, told: Blocks) -> None:
        """What it holds, and when and how it has told so."""
        if told.at:
            self._lag_at = time.time()
            self._lag_seconds = max(0.0, self._lag_at - told.at)
        if told.lost < self._lost:  # the door attends to it anew
            self._lost_before += self._lost
        self._lost = told.lost

    def figures(self, name: str, *, is_up: bool) -> ReplicaFigures:
        """All of it; of an engine that is lost no more than that."""
        is_telling = time.time() - self._lag_at < _LAG_SECONDS
        return ReplicaFigures(
            name=name,
            stats=self._stats if is_up else None,
            is_up=is_up,
            engine_restarts=self.engine_restarts,
            index_lag_seconds=self._lag_seconds if is_telling else 0.0,
            events_lost=self._lost_before + self._lost,
        )
