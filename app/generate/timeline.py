"""When a generation's tokens came."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter


@dataclass(kw_only=True)
class Timeline:
    """Of one generation, all its lines together. Times are those of `perf_counter`, in seconds."""

    started: float = field(default_factory=perf_counter)
    """When it was handed to the engine."""
    first_token: float | None = None
    _gap_seconds: float = 0.0
    _gap_tokens: int = 0

    @property
    def time_to_first_token(self) -> float | None:
        """From its start; `None` before there is one."""
        return None if self.first_token is None else self.first_token - self.started

    @property
    def inter_token_latency(self) -> float | None:
        """Of one line, on average; `None` before any line has had a second token."""
        return self._gap_seconds / self._gap_tokens if self._gap_tokens else None

    def add_gap(self, seconds: float, tokens: int) -> None:
        """So many tokens have come behind others of their line after this time."""
        self._gap_seconds += seconds
        self._gap_tokens += tokens
