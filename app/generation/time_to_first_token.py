"""Time to first token, and between later ones; and where a generation had to wait."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import Literal

from app.observe.traffic import TenantSeries
from engine.api import TokenDelta

_MAX_PAUSES = 100


@dataclass(frozen=True, kw_only=True)
class Pause:
    """A time without tokens: until it was restored after a preemption, or rebuilt after a death."""

    kind: Literal["restore", "rebuild"]
    began: float
    ended: float


@dataclass(kw_only=True)
class Timeline:
    """Of one generation, all its lines together, which the `series` of its tenant hear of.

    Times are those of `perf_counter`, in seconds.
    """

    series: TenantSeries
    asked: float = 0.0
    """When a request for it began to be looked at."""
    started: float = field(default_factory=perf_counter)
    """When it was handed to the engine."""
    queue_seconds: float | None = None
    """How long the engine let it wait from then on; `None` before that is known."""
    first_token: float | None = None
    pauses: list[Pause] = field(default_factory=list)
    """The first ones."""
    _gap_seconds: float = 0.0
    _gap_tokens: int = 0
    _latest: dict[int, float] = field(default_factory=dict)
    """When each line has had its newest token."""

    @property
    def time_to_first_token(self) -> float | None:
        """From its start; `None` before there is one."""
        return None if self.first_token is None else self.first_token - self.started

    @property
    def inter_token_latency(self) -> float | None:
        """Of one line, on average; `None` before any line has had a second token."""
        return self._gap_seconds / self._gap_tokens if self._gap_tokens else None

    def note_tokens(self, delta: TokenDelta) -> None:
        """These tokens of a line are here now."""
        now, before = perf_counter(), self._latest.get(delta.index)
        if self.first_token is None:
            self.first_token = now
            self.series.time_to_first_token.observe(now - self.started)
            if self.queue_seconds is not None:
                self.series.queue_time.observe(self.queue_seconds)
        if before is not None:
            tokens = len(delta.token_ids)
            self.series.inter_token_latency.observe((now - before) / tokens, tokens)
            self._gap_seconds += now - before
            self._gap_tokens += tokens
        self._latest[delta.index] = now

    def note_waiting(self, delta: TokenDelta) -> None:
        """Keep what a delta says of times without tokens."""
        if delta.rebuilt_seconds:  # waiting at the new engine is a part of it
            self._add_pause("rebuild", delta.rebuilt_seconds)
            if delta.finish_reason not in ("error", "aborted"):
                self.series.move_time.observe(delta.rebuilt_seconds)
        elif delta.waited_seconds and self.queue_seconds is None:
            self.queue_seconds = delta.waited_seconds
        elif delta.waited_seconds:
            self._add_pause("restore", delta.waited_seconds)

    def _add_pause(self, kind: Literal["restore", "rebuild"], seconds: float) -> None:
        if len(self.pauses) < _MAX_PAUSES:
            now = perf_counter()
            self.pauses.append(Pause(kind=kind, began=now - seconds, ended=now))
