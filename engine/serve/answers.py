"""Questions to the engine's loop that wait for their answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from engine.api import EngineUnavailable

_PATIENCE_SECONDS = 10.0
_Answer = TypeVar("_Answer")


class Answers(Generic[_Answer]):
    """Those of one kind, by the numbers that their questions have been given."""

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[_Answer]] = {}

    async def ask(self, number: int, send: Callable[[], None]) -> _Answer:
        """The answer to what `send` asks. Raises `EngineUnavailable` if there is none in time."""
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            send()
            return await asyncio.wait_for(answer, _PATIENCE_SECONDS)
        except TimeoutError:
            raise EngineUnavailable("the engine loop does not answer") from None
        finally:
            del self._waiting[number]

    def take(self, number: int, answer: _Answer) -> None:
        """This is the answer to a question, if anybody still waits for it."""
        waiting = self._waiting.get(number)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def fail(self, message: str) -> None:
        """Nobody who waits now gets an answer."""
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(EngineUnavailable(message))
