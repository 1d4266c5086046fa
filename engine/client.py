"""The asyncio face of the engine: `async for` over token deltas, `abort`, questions, figures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from engine.api import EngineError, EngineInfo, EngineRequest, EngineStats, TokenDelta
from engine.questions import AnswerT, Question, Questions, Said, SaidT

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


Source = Callable[[bytes], AsyncIterator[bytes]]
"""Brings what requests name, in pieces: of an adapter its configuration, then its weights, of a
picture its header, then its arrays. Raises `EngineError` for what there is not, and
`EngineUnavailable` where it was lost on its way, and is to be asked for again."""


async def bring_nothing(_: bytes) -> AsyncIterator[bytes]:
    """Has none."""
    raise EngineError("there is none of that name")
    yield b""


class EngineClient(Questions, ABC):
    """What the service needs of an engine, wherever it runs."""

    source: Source = staticmethod(bring_nothing)
    """What the engine is brought by what requests name."""

    @property
    @abstractmethod
    def info(self) -> EngineInfo:
        """The running engine's constants. Raises `EngineUnavailable` while it is down."""

    @property
    def trouble(self) -> str | None:
        """Why requests had better go to another service, though this one may serve them yet."""
        return None

    @property
    def fleet(self) -> FleetFigures | None:
        """What is known of each replica; `None` where one engine serves alone."""
        return None

    @abstractmethod
    async def start(self) -> None:
        """Load the model; returns when requests are served. Raises `EngineError`."""

    @abstractmethod
    async def close(self) -> None:
        """Stop the engine. Running requests end with `finish_reason="aborted"`."""

    @abstractmethod
    async def wait_started(self, starts: int) -> int:
        """Wait until the engine has become ready more than `starts` times; returns the count.

        An engine that comes back after a crash has an empty cache: this is when to warm it.
        """

    @abstractmethod
    def generate(self, request: EngineRequest) -> AsyncIterator[TokenDelta]:
        """Serve one request; the last delta of each of its sequences carries `finish_reason`.

        Leaving the iteration early (`aclose`, cancellation) aborts the request, and its blocks are
        free within one step. Raises `RequestRefused` for a request that can never fit and
        `EngineUnavailable` when the engine is down. An engine that dies while the request runs is
        started again and goes on where it was: the reader sees a pause. Only if it does not come
        back in time, or keeps dying of what it runs, the request ends with
        `finish_reason="error"`.
        """

    @abstractmethod
    async def abort(self, request_id: str, index: int | None = None) -> None:
        """End a request, or one sequence of it, with `finish_reason="aborted"`.

        What is unknown or has ended is left alone.
        """

    @abstractmethod
    async def ask(self, question: Question[..., SaidT, AnswerT], argument: SaidT) -> AnswerT:
        """The answer to a question of `engine.questions`, by a round trip through the engine loop.

        Raises `EngineUnavailable` without an answer, and what `argument` does when it is checked.
        """

    @abstractmethod
    async def tell(self, order: Said) -> None:
        """Have the engine do it, if it runs: one that does not has lost what this is about."""
