"""Whether a replica's engine lives, as its doors are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from engine.api import EngineStats, EngineUnavailable
from engine.serve.messages import Down, Ready

if TYPE_CHECKING:
    from engine.assembly.process import ProcessEngine

BEAT_SECONDS: Final = 0.5
"""Between two messages that say how busy the replica is."""


class Pulse:
    """Asks an engine how it is, and tells when it is lost and when there is one again.

    It is lost when it dies, is halted by a signal, or does not answer for as long as a step may
    take; the first two show at once. One that was halted or slow may come back.
    """

    def __init__(self, engine: ProcessEngine, tell: Callable[[Down | Ready], None]) -> None:
        self.stats: EngineStats | None = None
        """What it has last said; `None`: it is lost, or has not said anything yet."""
        self.is_up = True
        self._engine = engine
        self._tell = tell
        engine.on_down = self._lose

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            try:
                stats = await self._said()
            except EngineUnavailable:
                self._lose(self._engine.requests_inside())
            else:
                self._find(stats)
            await asyncio.sleep(BEAT_SECONDS)

    async def _said(self) -> EngineStats:
        """What the engine says. Raises `EngineUnavailable` where it does not, or cannot."""
        asked = asyncio.ensure_future(self._engine.stats())
        try:
            while not (await asyncio.wait({asked}, timeout=BEAT_SECONDS))[0]:
                if self._engine.is_halted:  # which no request has done
                    self._lose(Down([], alone=False))
                    raise EngineUnavailable("the engine is halted")
            return asked.result()
        finally:
            asked.cancel()

    def _lose(self, down: Down) -> None:
        self.stats = None
        if self.is_up:
            self.is_up = False
            self._tell(down)

    def _find(self, stats: EngineStats) -> None:
        self.stats = stats
        if not self.is_up:
            self.is_up = True
            self._tell(Ready(self._engine.info))
