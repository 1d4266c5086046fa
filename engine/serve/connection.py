"""The private socket between a supervisor and one engine, and the questions under way on it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Iterator

import msgspec
import zmq
import zmq.asyncio

from engine.api import EngineUnavailable
from engine.questions import AnswerT, AskStats, Question, SaidT
from engine.serve.messages import (
    Answer,
    Ask,
    Deltas,
    FromEngine,
    Loading,
    ToEngine,
    Want,
    decode_from_engine,
    encode,
)

_log = logging.getLogger(__name__)
_PATIENCE_SECONDS = 10.0
"""For the answer to a question."""


class Connection:
    """Listens at an address to which the engine is to connect."""

    def __init__(self, context: zmq.asyncio.Context, address: str) -> None:
        self.num_heard = 0
        """Messages so far."""
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self._socket: zmq.asyncio.Socket = context.socket(zmq.PAIR)
        self._socket.set_hwm(0)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(address)

    async def first_words(self, loading_seconds: float) -> FromEngine:
        """What comes of a start. Raises `TimeoutError` where nothing moves for so long."""
        while True:
            async with asyncio.timeout(loading_seconds):
                message: FromEngine = decode_from_engine(await self._socket.recv())
            if not isinstance(message, Loading):
                return message
            _log.debug("the engine starts: %s", message.what)

    def send(self, message: ToEngine) -> None:
        """Without a high-water mark a PAIR socket takes it at once; nothing to await."""
        self._socket.send(encode(message))

    def probe(self) -> None:
        """Have the engine say something."""
        self.send(Ask(next(self._numbers), AskStats()))

    async def ask(self, question: Question[..., SaidT, AnswerT], argument: SaidT) -> AnswerT:
        """See `EngineClient.ask`."""
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self.send(Ask(number, argument))
            return question.decode(await asyncio.wait_for(answer, _PATIENCE_SECONDS))
        except TimeoutError:
            raise EngineUnavailable("the engine loop does not answer") from None
        finally:
            del self._waiting[number]

    async def has_news(self) -> None:
        """Return when there is something to be received."""
        await self._socket.poll()

    def receive(self) -> Iterator[Deltas | Want]:
        """What has arrived; answers go to who has asked. Never suspends, so that nobody who is
        cancelled loses any.

        Nor does it ask for more than there is: an exception for that would go round in a circle
        with the frames that it came through, and keep each step's deltas for the garbage collector.
        """
        inbox: zmq.SyncSocket = zmq.Socket.shadow(self._socket)
        while inbox.poll(0):
            message = decode_from_engine(inbox.recv(zmq.NOBLOCK))
            self.num_heard += 1
            if isinstance(message, Deltas | Want):
                yield message
            elif isinstance(message, Answer):
                waiting = self._waiting.get(message.number)
                if waiting is not None and not waiting.done():
                    waiting.set_result(message.answer)

    def fail(self, message: str) -> None:
        """Nobody who waits now gets an answer."""
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(EngineUnavailable(message))

    def close(self) -> None:
        """Whatever is on its way is lost."""
        with contextlib.suppress(zmq.ZMQError):
            self._socket.close()
