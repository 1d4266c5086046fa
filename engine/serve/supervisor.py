"""An engine at the other end of a socket: started, kept alive, and rebuilt when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import logging
import shutil
import signal
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Protocol

import zmq.asyncio

from engine.api import (
    EngineError,
    EngineInfo,
    EngineRequest,
    EngineUnavailable,
    FinishReason,
    TokenDelta,
)
from engine.client import EngineClient
from engine.questions import AnswerT, Question, Said, SaidT, for_one_of
from engine.serve.connection import Connection
from engine.serve.entrance import TRIAL_SECONDS, Entrance
from engine.serve.messages import (
    Abort,
    Down,
    Failed,
    Piece,
    Ready,
    Shutdown,
    Submit,
    ToEngine,
    Want,
)
from engine.serve.running_stream import RunningStream
from engine.validation import check_request

_log = logging.getLogger(__name__)
_SHUTDOWN_SECONDS = 5.0
_LOOKS = 10
"""At an engine that has been asked, before it is taken for dead."""
_RESTART_DELAYS_SECONDS = (0.1, 1.0, 5.0, 15.0, 30.0)


class RunningEngine(Protocol):
    """A launched engine, as its supervisor sees it."""

    async def wait(self) -> int:
        """Return when the engine is gone, with its exit status."""
        ...

    def kill(self) -> None:
        """End it the hard way."""
        ...


def _end_while_starting(status: int) -> str:
    """In words: nobody but the system kills an engine that starts."""
    if status == -signal.SIGKILL:
        return (
            "the engine was killed while starting, as the system does where memory runs out; "
            "choose a smaller model, lower kv_memory, or have more memory"
        )
    return f"the engine exited with status {status} while starting"


class RemoteEngine(EngineClient):
    """An engine behind a private Unix socket, started by `launch(address)` and kept alive.

    An engine that dies is started again, with growing delays while it does not come up, and gets
    its running requests back with what they have generated. They end with
    `finish_reason="error"` if it stays away for `rebuild_seconds`.

    A request that kills the next engine, too, ends alone (`engine.serve.entrance`). An engine that
    has been asked and says nothing for `silence_seconds` is killed, and so is one that gets no
    further for `loading_seconds` while it starts.
    """

    def __init__(
        self,
        launch: Callable[[str], Awaitable[RunningEngine]],
        rebuild_seconds: float = 60.0,
        silence_seconds: float = 120.0,
        loading_seconds: float = 900.0,
        cadence_seconds: float = 0.0,
    ) -> None:
        self._launch = launch
        self._rebuild_seconds = rebuild_seconds
        self._silence_seconds = silence_seconds
        self._loading_seconds = loading_seconds
        self._cadence_seconds = cadence_seconds
        self._context = zmq.asyncio.Context()
        self._folder = Path(tempfile.mkdtemp(prefix="partywall-"))
        # Held as long as this process lives: who sweeps up behind killed ones sees that it does.
        self._lock = (self._folder / "lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._launches = itertools.count()
        self._connection: Connection | None = None
        self._engine: RunningEngine | None = None
        self._info: EngineInfo | None = None
        self._first_info: EngineInfo | None = None
        """What the first engine was: the next ones are to be like it."""
        self._expected: EngineInfo | None = None
        """The engine that is there, or that is not away for too long: requests wait for it."""
        self._starts = 0
        self._started = asyncio.Condition()
        self._streams: dict[str, RunningStream] = {}
        self._entrance = Entrance()
        self.on_down: Callable[[Down], None] = lambda _: None
        """Told of an engine's death, before its streams wait for the next one."""
        self._supervisor: asyncio.Task[None] | None = None
        self._bringing: dict[bytes, asyncio.Task[None]] = {}
        """Adapters and pictures on their way to the engine."""

    @property
    def info(self) -> EngineInfo:
        """See `EngineClient.info`."""
        if self._info is None:
            raise EngineUnavailable("the engine is not running")
        return self._info

    async def start(self) -> None:
        """See `EngineClient.start`."""
        await self._open()
        self._supervisor = asyncio.create_task(self._supervise())

    async def close(self) -> None:
        """See `EngineClient.close`."""
        tasks = [one for one in (*self._bringing.values(), self._supervisor) if one is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._disconnect()
        self._expected = None
        self._end_streams("aborted")
        if self._engine is not None and self._connection is not None:
            self._connection.send(Shutdown())
            try:
                await asyncio.wait_for(self._engine.wait(), _SHUTDOWN_SECONDS)
            except TimeoutError:
                self._engine.kill()
                await self._engine.wait()
        self._hang_up()
        self._context.destroy(linger=0)
        shutil.rmtree(self._folder, ignore_errors=True)
        self._lock.close()

    async def wait_started(self, starts: int) -> int:
        """See `EngineClient.wait_started`."""
        async with self._started:
            await self._started.wait_for(lambda: self._starts > starts)
            return self._starts

    async def generate(self, request: EngineRequest) -> AsyncGenerator[TokenDelta]:
        """See `EngineClient.generate`."""
        if self._expected is None:
            raise EngineUnavailable("the engine is not running")
        check_request(request, self._expected)
        if request.request_id in self._streams:
            raise EngineError(f"request id {request.request_id!r} is in use")
        stream = RunningStream(request, self._cadence_seconds)
        self._streams[request.request_id] = stream
        self._entrance.queue(stream)
        try:
            self._let_in()
            while not stream.is_read:
                yield await stream.next()
        finally:
            del self._streams[request.request_id]
            if not (stream.has_ended or stream in self._entrance):
                self._send_if_running(Abort(request.request_id))
            self._entrance.leave(stream)
            self._let_in()

    async def abort(self, request_id: str, index: int | None = None) -> None:
        """See `EngineClient.abort`."""
        stream = self._streams.get(request_id)
        if stream is not None and (self._info is None or stream in self._entrance):
            stream.end("aborted", index=index)
        elif stream is not None:
            stream.abort(index)
            self._send_if_running(Abort(request_id, index))

    async def ask(self, question: Question[..., SaidT, AnswerT], argument: SaidT) -> AnswerT:
        """See `EngineClient.ask`."""
        for_one_of([self], argument)
        argument.check(self.info)
        assert self._connection is not None, "an engine runs"
        return await self._connection.ask(question, argument)

    async def tell(self, order: Said) -> None:
        """See `EngineClient.tell`."""
        self._send_if_running(order)

    def requests_inside(self) -> Down:
        """What is lost if the engine is."""
        inside, alone = self._entrance.inside(self._streams.values())
        return Down([stream.request_id for stream in inside], alone)

    async def _open(self) -> None:
        """Launch an engine and wait until it is ready."""
        address = f"ipc://{self._folder}/engine-{next(self._launches)}"
        connection = self._connection = Connection(self._context, address)
        try:
            self._engine = await self._launch(address)
        except OSError as error:
            self._hang_up()
            raise EngineError(f"the engine could not be launched: {error}") from error
        first = asyncio.ensure_future(connection.first_words(self._loading_seconds))
        gone = asyncio.ensure_future(self._engine.wait())
        try:
            await asyncio.wait({first, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not first.done():
                self._hang_up()
                raise EngineError(_end_while_starting(gone.result()))
            message = first.result()
        except TimeoutError:
            await self._put_down(self._engine)
            self._hang_up()
            seconds = f"{self._loading_seconds:g} seconds"
            raise EngineError(f"the engine got no further for {seconds} while starting") from None
        except asyncio.CancelledError:
            self._engine.kill()
            raise
        finally:
            first.cancel()
            gone.cancel()
        if isinstance(message, Failed):
            raise EngineError(message.message)
        assert isinstance(message, Ready)
        self._info = self._expected = message.info
        self._first_info = self._first_info or message.info
        self._let_in()
        async with self._started:
            self._starts += 1
            self._started.notify_all()

    async def _supervise(self) -> None:
        """Deliver what the engine says; start it again whenever it dies."""
        while True:
            assert self._engine is not None
            reader = asyncio.create_task(self._read())
            try:
                reason = await self._death(self._engine)
            finally:
                reader.cancel()
            self._deliver()
            _log.error("the engine %s; starting it again", reason)
            self._disconnect()
            self._hang_up()
            self.on_down(self.requests_inside())
            self._entrance.queue_again(self._streams.values())
            await self._reopen()

    async def _death(self, engine: RunningEngine) -> str:
        """Wait for the engine's end, and bring it about if it hangs. Returns what happened."""
        gone = asyncio.ensure_future(engine.wait())
        silent = asyncio.ensure_future(self._silence())
        try:
            await asyncio.wait({gone, silent}, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                return f"died with status {gone.result()}"
            await self._put_down(engine)
            return f"said nothing for {self._silence_seconds:g} seconds"
        finally:
            gone.cancel()
            silent.cancel()

    async def _put_down(self, engine: RunningEngine) -> None:
        """Kill an engine that hangs, and give it a while to be gone."""
        engine.kill()
        # What hangs in a driver may take its time to die; nobody has to wait for that.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(engine.wait(), _SHUTDOWN_SECONDS)

    async def _silence(self) -> None:
        """Return when the engine has been asked and has said nothing at all for too long.

        That is counted in looks at it: while the whole machine or container stood still there were
        none, and the engine could not answer either.
        """
        patience, connection = self._silence_seconds, self._connection
        assert connection is not None, "an engine runs"
        while True:
            num_heard = connection.num_heard
            connection.probe()
            for _ in range(_LOOKS):
                await asyncio.sleep(patience / _LOOKS)
                self._deliver()  # it may be this loop that was held up
                if connection.num_heard != num_heard:
                    break
            else:
                return
            await asyncio.sleep(patience / 4)

    def _let_in(self) -> None:
        """Give the engine the streams that it may have by now, the oldest first."""
        if self._info is None:
            return
        loop = asyncio.get_running_loop()
        for stream in self._entrance.let_in(loop.time()):
            self._send_if_running(Submit(stream.resumption()))
            if self._entrance.is_careful:
                loop.call_later(TRIAL_SECONDS, self._let_in)

    async def _reopen(self) -> None:
        """Start an engine in place of a dead one, however often it takes."""
        deadline = asyncio.get_running_loop().call_later(self._rebuild_seconds, self._give_up)
        delays = itertools.chain(
            _RESTART_DELAYS_SECONDS, itertools.repeat(_RESTART_DELAYS_SECONDS[-1])
        )
        try:
            for delay in delays:
                await asyncio.sleep(delay)
                try:
                    return await self._open()
                except EngineError as error:
                    _log.error("the engine did not come back: %s", error)
        finally:
            deadline.cancel()

    async def _read(self) -> None:
        assert self._connection is not None, "an engine runs"
        while True:
            await self._connection.has_news()
            self._deliver()

    def _deliver(self) -> None:
        assert self._connection is not None, "an engine runs, or has just died"
        for message in self._connection.receive():
            if isinstance(message, Want):
                self._bring(message.names)
                continue
            for delta in message.deltas:
                stream = self._streams.get(delta.request_id)
                if stream is not None:
                    stream.push(delta)
                else:
                    self._entrance.heard_of(delta.request_id)
            self._let_in()

    def _bring(self, names: list[bytes]) -> None:
        """Have the engine brought what it wants, each beside everything else."""
        for name in names:
            if name in self._bringing:
                self._bringing[name].cancel()  # nobody waits for its pieces any more
            self._bringing[name] = asyncio.create_task(self._bring_one(name))

    async def _bring_one(self, name: bytes) -> None:
        connection, is_first = self._connection, True
        try:
            async for piece in self.source(name):
                if self._connection is not connection:
                    return  # the next engine asks anew
                self._send_if_running(Piece(name, piece, is_first=is_first))
                is_first = False
            self._send_if_running(Piece(name, b"", is_last=True))
        except EngineUnavailable:
            self._bring([name])  # from its beginning
        except EngineError as error:
            self._send_if_running(Piece(name, b"", error=str(error)))
        except Exception:  # noqa: BLE001 - whatever a store raises
            _log.exception("what a request names cannot be read")
            self._send_if_running(Piece(name, b"", error="it cannot be read"))
        finally:
            if self._bringing.get(name) is asyncio.current_task():
                del self._bringing[name]

    def _send_if_running(self, message: ToEngine) -> None:
        """What does not matter to an engine that has lost everything anyway."""
        if self._info is not None and self._connection is not None:
            self._connection.send(message)

    def _end_streams(self, reason: FinishReason, error: str | None = None) -> None:
        for stream in self._streams.values():
            stream.end(reason, error)

    def _give_up(self) -> None:
        """It is away for too long: nobody waits for it any more."""
        self._expected = None
        self._end_streams("error", "the engine did not come back")

    def _disconnect(self) -> None:
        """There is no engine any more; whoever has asked it something gets no answer."""
        self._info = None
        if self._connection is not None:
            self._connection.fail("the engine died")

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
