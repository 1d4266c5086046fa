"""Time that passes when a test says so."""

from __future__ import annotations


class Clock:
    """Gives `now`, in seconds, until somebody moves it."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
