"""What the service brings in pieces, from when it was asked for it until all of it is here."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final

_PATIENCE_SECONDS: Final = 60.0
"""For the service to bring something, or to go on with it."""


@dataclass(slots=True)
class Delivery:
    """Of one thing, which may be asked for again."""

    heard_at: float | None = None
    """When the service was asked for it, or has brought some of it, while it is on its way."""
    _pieces: list[bytes] = field(default_factory=list)

    @property
    def is_coming(self) -> bool:
        """Whether it is on its way."""
        return self.heard_at is not None

    @property
    def is_late(self) -> bool:
        """Whether nothing was heard of it for too long."""
        return self.heard_at is not None and time.monotonic() - self.heard_at > _PATIENCE_SECONDS

    def ask(self) -> float:
        """The service is asked for it now: returns when, by the monotonic clock."""
        self._pieces, self.heard_at = [], time.monotonic()
        return self.heard_at

    def take(self, data: bytes, *, is_first: bool, is_last: bool) -> list[bytes] | None:
        """Take over a piece; returns all of them with the last one. What nobody waits for any more,
        or is the rest of what came before, is left.
        """
        if self.heard_at is None or not (is_first or self._pieces):
            return None
        if is_first:
            self._pieces = []
        self._pieces.append(data)
        self.heard_at = time.monotonic()
        if not is_last:
            return None
        pieces = self._pieces
        self.stop()
        return pieces

    def stop(self) -> None:
        """It is here, or is not to come."""
        self._pieces, self.heard_at = [], None
