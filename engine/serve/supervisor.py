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
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import zmq
import zmq.asyncio

from engine.api import (
    BlockFate,
    ChainPage,
    EngineError,
    EngineInfo,
    EngineRequest,
    EngineStats,
    EngineUnavailable,
    FinishReason,
    Roll,
    TokenDelta,
)
from engine.replicas import FleetFigures
from engine.serve.answers import Answers
from engine.serve.entrance import TRIAL_SECONDS, Entrance
from engine.serve.messages import (
    Abort,
    AskChains,
    AskFates,
    AskRoll,
    AskWall,
    ChainsReply,
    Deltas,
    Down,
    Failed,
    FatesReply,
    ForgetOthers,
    ForgetTenant,
    FromEngine,
    KeepUnder,
    Loading,
    Probe,
    ProbeReply,
    Ready,
    RollReply,
    ServedElsewhere,
    Shutdown,
    Submit,
    ToEngine,
    Unpin,
    Unwatch,
    WallReply,
    decode_from_engine,
    encode,
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


class RemoteEngine:
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
        self._numbers = itertools.count()
        self._socket: zmq.asyncio.Socket | None = None
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
        self._num_heard = 0
        """Messages from all engines."""
        self._probes = Answers[EngineStats]()
        self._fates = Answers[list[BlockFate]]()
        self._chains = Answers[ChainPage]()
        self._frames = Answers[bytes]()
        self._rolls = Answers[Roll]()
        self._supervisor: asyncio.Task[None] | None = None

    @property
    def info(self) -> EngineInfo:
        """See `EngineClient.info`."""
        if self._info is None:
            raise EngineUnavailable("the engine is not running")
        return self._info

    @property
    def trouble(self) -> str | None:
        """See `EngineClient.trouble`."""
        return None

    @property
    def fleet(self) -> FleetFigures | None:
        """See `EngineClient.fleet`."""
        return None

    async def start(self) -> None:
        """See `EngineClient.start`."""
        await self._open()
        self._supervisor = asyncio.create_task(self._supervise())

    async def close(self) -> None:
        """See `EngineClient.close`."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        self._disconnect()
        self._expected = None
        self._end_streams("aborted")
        if self._engine is not None and self._socket is not None:
            self._send(Shutdown())
            try:
                await asyncio.wait_for(self._engine.wait(), _SHUTDOWN_SECONDS)
            except TimeoutError:
                self._engine.kill()
                await self._engine.wait()
        self._close_socket()
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
            self._send(Abort(request_id, index))

    async def unpin(self, pin: str) -> None:
        """See `EngineClient.unpin`."""
        self._send_if_running(Unpin(pin))

    async def forget_tenant(self, tenant: str) -> None:
        """See `EngineClient.forget_tenant`."""
        self._send_if_running(ForgetTenant(tenant))

    async def served_elsewhere(self, tenants: Mapping[str, float]) -> None:
        """Other engines have served tenants so much, as `TenantStats.served` counts it."""
        self._send_if_running(ServedElsewhere(dict(tenants)))

    async def forget_others(self, tenants: Mapping[str, str]) -> None:
        """See `EngineClient.forget_others`."""
        self._send_if_running(ForgetOthers(dict(tenants)))

    async def keep_under(self, tenant: str, secret: str) -> None:
        """See `EngineClient.keep_under`."""
        self._send_if_running(KeepUnder(tenant, secret))

    async def stats(self) -> EngineStats:
        """See `EngineClient.stats`."""
        if self._info is None:
            raise EngineUnavailable("the engine is not running")
        number = next(self._numbers)
        return await self._probes.ask(number, lambda: self._send(Probe(number)))

    async def block_fates(self, hashes: Sequence[bytes]) -> list[BlockFate]:
        """See `EngineClient.block_fates`."""
        most = self.info.max_context_tokens // self.info.block_size
        if len(hashes) > most:
            raise ValueError(f"hashes: there may be {most}, not {len(hashes)}")
        number = next(self._numbers)
        return await self._fates.ask(number, lambda: self._send(AskFates(number, list(hashes))))

    async def chains(self, tenant: str, before: int | None = None) -> ChainPage:
        """See `EngineClient.chains`."""
        if self._info is None:
            raise EngineUnavailable("the engine is not running")
        number = next(self._numbers)
        question = AskChains(number, tenant, before)
        return await self._chains.ask(number, lambda: self._send(question))

    async def wall(self, watcher: str, replica: int = 0) -> bytes:
        """See `EngineClient.wall`."""
        self._expect_running(replica)
        number = next(self._numbers)
        return await self._frames.ask(number, lambda: self._send(AskWall(number, watcher)))

    async def roll(self, replica: int = 0, cell: int | None = None) -> Roll:
        """See `EngineClient.roll`."""
        self._expect_running(replica)
        number = next(self._numbers)
        return await self._rolls.ask(number, lambda: self._send(AskRoll(number, cell)))

    async def unwatch(self, watcher: str) -> None:
        """See `EngineClient.unwatch`."""
        self._send_if_running(Unwatch(watcher))

    def _expect_running(self, replica: int) -> None:
        """Raises `EngineError` for any engine but this one, and `EngineUnavailable` without it."""
        if replica:
            raise EngineError(f"replica: there is no number {replica}, but one engine")
        if self._info is None:
            raise EngineUnavailable("the engine is not running")

    def requests_inside(self) -> Down:
        """What is lost if the engine is."""
        inside, alone = self._entrance.inside(self._streams.values())
        return Down([stream.request_id for stream in inside], alone)

    async def _open(self) -> None:
        """Launch an engine and wait until it is ready."""
        address = f"ipc://{self._folder}/engine-{next(self._numbers)}"
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.set_hwm(0)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(address)
        try:
            self._engine = await self._launch(address)
        except OSError as error:
            self._close_socket()
            raise EngineError(f"the engine could not be launched: {error}") from error
        first = asyncio.ensure_future(self._first_words())
        gone = asyncio.ensure_future(self._engine.wait())
        try:
            await asyncio.wait({first, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not first.done():
                self._close_socket()
                raise EngineError(_end_while_starting(gone.result()))
            message = first.result()
        except TimeoutError:
            await self._put_down(self._engine)
            self._close_socket()
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

    async def _first_words(self) -> FromEngine:
        """What comes of a start. Raises `TimeoutError` where nothing moves any more."""
        assert self._socket is not None
        while True:
            async with asyncio.timeout(self._loading_seconds):
                message: FromEngine = decode_from_engine(await self._socket.recv())
            if not isinstance(message, Loading):
                return message
            _log.debug("the engine starts: %s", message.what)

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
            self._close_socket()
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
        patience = self._silence_seconds
        while True:
            num_heard = self._num_heard
            self._send(Probe(next(self._numbers)))
            for _ in range(_LOOKS):
                await asyncio.sleep(patience / _LOOKS)
                self._deliver()  # it may be this loop that was held up
                if self._num_heard != num_heard:
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
            self._send(Submit(stream.resumption()))
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
        assert self._socket is not None
        while True:
            await self._socket.poll()
            self._deliver()

    def _deliver(self) -> None:
        """Pass on what has arrived. Never suspends, so a cancelled reader loses no message.

        Nor does it ask for more than there is: an exception for that would go round in a circle
        with the frames that it came through, and keep each step's deltas for the garbage collector.
        """
        assert self._socket is not None
        inbox: zmq.SyncSocket = zmq.Socket.shadow(self._socket)
        while inbox.poll(0):
            message = decode_from_engine(inbox.recv(zmq.NOBLOCK))
            self._num_heard += 1
            if isinstance(message, Deltas):
                for delta in message.deltas:
                    stream = self._streams.get(delta.request_id)
                    if stream is not None:
                        stream.push(delta)
                    else:
                        self._entrance.heard_of(delta.request_id)
                self._let_in()
            elif isinstance(message, ProbeReply):
                self._probes.take(message.probe_id, message.stats)
            elif isinstance(message, FatesReply):
                self._fates.take(message.ask_id, message.fates)
            elif isinstance(message, ChainsReply):
                self._chains.take(message.ask_id, message.page)
            elif isinstance(message, WallReply):
                self._frames.take(message.ask_id, message.frame)
            elif isinstance(message, RollReply):
                self._rolls.take(message.ask_id, message.roll)

    def _send(self, message: ToEngine) -> None:
        # Without a high-water mark a PAIR socket takes the message at once; nothing to await.
        assert self._socket is not None
        self._socket.send(encode(message))

    def _send_if_running(self, message: ToEngine) -> None:
        """Send what does not matter to an engine that has lost everything anyway."""
        if self._info is not None:
            self._send(message)

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
        self._probes.fail("the engine died")
        self._fates.fail("the engine died")
        self._chains.fail("the engine died")
        self._frames.fail("the engine died")
        self._rolls.fail("the engine died")

    def _close_socket(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(zmq.ZMQError):
                self._socket.close()
            self._socket = None
