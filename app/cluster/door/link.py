"""A front door's connection with one replica: one stream of what it says, and calls in order."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from app.cluster.messages import Brought, ToDoor, decode_to_door
from app.cluster.node.replica import BEAT_SECONDS, SILENCE_SECONDS
from engine.api import EngineUnavailable
from engine.questions import AnswerT, Question, SaidT
from engine.serve.messages import ToEngine, encode

LOST: Final = (RayError, RayServeException, TimeoutError)
"""What a call ends with that its replica does not answer."""
_KEEPING_SECONDS: Final = 4 * BEAT_SECONDS
"""Between two words to a replica that there is nothing to say to."""
_RETRY_SECONDS: Final = 0.5
_LOOKS: Final = 6
"""In the time of as many beats of which none comes a replica is lost."""

_log = logging.getLogger(__name__)


class Link:
    """Attends one replica, anew if it has to, until it is closed."""

    def __init__(
        self,
        handle: Any,
        replica: str,
        number: int,
        on_message: Callable[[Link, ToDoor], None],
        on_lost: Callable[[Link], None],
    ) -> None:
        """`number` is the replica's for the index and the router.

        `on_lost` is told that nothing comes any more of what was sent, before it is tried anew.
        """
        self.number = number
        self.has_died = False
        """Whether it was the replica's end that was last seen, and no silence."""
        self._handle = handle
        self._replica = replica
        self._on_message = on_message
        self._on_lost = on_lost
        self._outbox: deque[bytes] = deque()
        self._has_more = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    def send(self, message: ToEngine) -> None:
        """Behind all that was sent before; if the link is lost, nobody hears it."""
        self._outbox.append(encode(message))
        self._has_more.set()

    async def ask(self, question: Question[..., SaidT, AnswerT], argument: SaidT) -> AnswerT:
        """What the replica answers. Raises `EngineUnavailable`."""
        try:
            call = self._handle.ask.remote(encode(argument), replica=self._replica)
            async with asyncio.timeout(SILENCE_SECONDS):
                return question.decode(await call)
        except LOST as error:
            raise EngineUnavailable("a replica does not answer") from error

    async def bring(self, piece: Brought) -> bool:
        """Have a piece of what was wanted taken over; returns when the next one may come, or
        `False`: no more of it is wanted. Raises `EngineUnavailable`.
        """
        try:
            call = self._handle.bring.remote(encode(piece), replica=self._replica)
            async with asyncio.timeout(SILENCE_SECONDS):
                wanted: bool = await call
                return wanted
        except LOST as error:
            raise EngineUnavailable("a replica does not take what it wanted") from error

    async def close(self) -> None:
        """Leave; the replica aborts what is left of this door's requests."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            door = secrets.token_hex(8)
            self.has_died = False
            self._outbox.clear()
            sending = asyncio.create_task(self._send_on(door))
            try:
                await self._attend(door, sending)
            finally:
                sending.cancel()
                self._on_lost(self)
            await asyncio.sleep(_RETRY_SECONDS)

    async def _attend(self, door: str, sending: asyncio.Task[None]) -> None:
        """Pass on what the replica says, until it says no more or does not hear."""
        responses = self._handle.options(stream=True).attend.remote(door, replica=self._replica)
        try:
            while not sending.done():
                message = await _next(responses)
                if message is None:
                    return
                self._on_message(self, decode_to_door(message))
        except LOST as error:
            self.has_died = isinstance(error, RayError)
            _log.warning("replica %s is lost: %s", self._replica, type(error).__name__)
        finally:
            responses.cancel()

    async def _send_on(self, door: str) -> None:
        """Send what there is, one call behind the other, and a word now and then anyway."""
        with suppress(*LOST):
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_KEEPING_SECONDS):
                        await self._has_more.wait()
                self._has_more.clear()
                messages = list(self._outbox)
                self._outbox.clear()
                async with asyncio.timeout(SILENCE_SECONDS):
                    await self._handle.tell.remote(door, messages, replica=self._replica)


async def _next(responses: Any) -> bytes | None:
    """What the replica says next, `None` at its end. Raises `TimeoutError` if it is silent.

    That is counted in looks: while this process itself stood still it took none.
    """
    coming = asyncio.ensure_future(anext(responses, None))
    try:
        for _ in range(_LOOKS):
            if (await asyncio.wait({coming}, timeout=BEAT_SECONDS))[0]:
                message: bytes | None = coming.result()
                return message
        raise TimeoutError
    finally:
        coming.cancel()
        coming.add_done_callback(lambda one: one.cancelled() or one.exception())
