"""How an adapter came to the engine, and how it was used."""

from __future__ import annotations

import time
from dataclasses import dataclass

from engine.api import AdapterState


@dataclass(slots=True)
class AdapterFigures:
    """One adapter's, see `AdapterState`."""

    num_bytes: int = 0
    uses: int = 0
    used_at: float | None = None
    fetch_seconds: float | None = None
    load_seconds: float | None = None
    asked_at: float = 0.0
    """When the service was asked for it, by `time.monotonic`."""

    @property
    def seconds(self) -> float:
        """That its coming took, all the way, when it was last fetched and loaded."""
        return (self.fetch_seconds or 0.0) + (self.load_seconds or 0.0)

    def fetched(self, num_bytes: int) -> None:
        """It is here, and takes so many bytes."""
        self.num_bytes = num_bytes
        self.fetch_seconds = time.monotonic() - self.asked_at

    def use(self) -> None:
        """A request begins with it."""
        self.uses += 1
        self.used_at = time.monotonic()

    def state(self, *, on_device: bool, in_host: bool) -> AdapterState:
        """What is told of it."""
        return AdapterState(
            on_device=on_device,
            in_host=in_host,
            num_bytes=self.num_bytes,
            uses=self.uses,
            idle_seconds=None if self.used_at is None else time.monotonic() - self.used_at,
            fetch_seconds=self.fetch_seconds,
            load_seconds=self.load_seconds,
        )
