"""What is known of replicas, each by itself, where several engines serve as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from engine.api import EngineStats

RoutedBy = Literal["residency", "load", "random"]
ROUTED_BY: Final[tuple[RoutedBy, ...]] = ("residency", "load", "random")
"""Why a request went to its replica: the beginning of its prompt is there, or its conversation was;
it has least to wait there; nothing was known of any replica."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaFigures:
    """One that takes calls, or should."""

    name: str
    """Its own for as long as it lives, and the same at every door."""
    stats: EngineStats | None
    """What it has last said; `None`: it does not compute, or has said nothing yet."""
    is_up: bool
    """Whether it computes."""
    engine_restarts: int
    """Of its engine, since this door has heard of it."""
    index_lag_seconds: float
    """How old what it has last told of its blocks was when it came here, by both clocks."""
    events_lost: int
    """How often what it told of its blocks was lost on the way, and asked for again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetFigures:
    """All replicas, and what this door does with them; counts are those since its start."""

    replicas: Sequence[ReplicaFigures]
    num_wanted: int
    """How many there are to be, at least."""
    routed: Mapping[RoutedBy, int]
    """Requests by what chose their replica."""
    index_blocks: int
    """Blocks that it knows the place of."""
    streams_moved: int
    """Taken from a replica that was lost or left, to go on at another one."""
