"""The asyncio face of the engine: `async for` over token deltas, `abort`, `stats`."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

import zmq
import zmq.asyncio

from engine.admission import check_request
from engine.errors import EngineError, EngineUnavailable, RequestRefused
from engine.messages import (
    Abort,
    Deltas,
    Failed,
    Probe,
    ProbeReply,
    Ready,
    Shutdown,
    Submit,
    ToEngine,
    decode_from_engine,
    encode,
)
from engine.request import EngineInfo, EngineRequest, EngineStats, FinishReason, TokenDelta

__all__ = [
    "EngineClient",
    "EngineError",
    "EngineUnavailable",
    "RemoteEngine",
    "RequestRefused",
    "RunningEngine",
]

_log = logging.getLogger(__name__)
_STATS_TIMEOUT_SECONDS = 10.0
_SHUTDOWN_SECONDS = 5.0
_RESTART_DELAYS_SECONDS = (0.1, 1.0, 5.0, 15.0, 30.0)


class EngineClient(Protocol):
    """What the service needs of an engine, wherever it runs."""

    @property
    def info(self) -> EngineInfo:
        """The running engine's constants. Raises `EngineUnavailable` while it is down."""
        ...

    async def start(self) -> None:
        """Load the model; returns when requests are served. Raises `EngineError`."""
        ...

    async def close(self) -> None:
        """Stop the engine. Running requests end with `finish_reason="aborted"`."""
        ...

    async def wait_started(self, starts: int) -> int:
        """Wait until the engine has become ready more than `starts` times; returns the count.

        An engine that comes back after a crash has an empty cache: this is when to warm it.
        """
        ...

    def generate(self, request: EngineRequest) -> AsyncIterator[TokenDelta]:
        """Serve one request; the last delta carries `finish_reason`.

        Leaving the iteration early (`aclose`, cancellation) aborts the request, and its blocks are
        free within one step. Raises `RequestRefused` for a request that can never fit and
        `EngineUnavailable` when the engine is down. An engine that dies while the request runs
        ends it with `finish_reason="error"`.
        """
        ...

    async def abort(self, request_id: str) -> None:
        """End a request with `finish_reason="aborted"`. Unknown ids are ignored."""
        ...

    async def stats(self) -> EngineStats:
        """A round trip through the engine loop. Raises `EngineUnavailable` without an answer."""
        ...


class RunningEngine(Protocol):
    """A launched engine, as its supervisor sees it."""

    async def wait(self) -> int:
        """Return when the engine is gone, with its exit status."""
        ...

    def kill(self) -> None:
        """End it the hard way."""
        ...


class RemoteEngine:
    """An engine behind a private Unix socket, started by `launch(address)` and kept alive.

    An engine that dies ends its running requests with `finish_reason="error"` and is started
    again, with growing delays while it keeps dying.
    """

    def __init__(self, launch: Callable[[str], Awaitable[RunningEngine]]) -> None:
        self._launch = launch
        self._context = zmq.asyncio.Context()
        self._folder = tempfile.mkdtemp(prefix="partywall-")
        self._numbers = itertools.count()
        self._socket: zmq.asyncio.Socket | None = None
        self._engine: RunningEngine | None = None
        self._info: EngineInfo | None = None
        self._starts = 0
        self._started = asyncio.Condition()
        self._streams: dict[str, asyncio.Queue[TokenDelta]] = {}
        self._probes: dict[int, asyncio.Future[EngineStats]] = {}
        self._supervisor: asyncio.Task[None] | None = None

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
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        self._disconnect("aborted")
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

    async def wait_started(self, starts: int) -> int:
        """See `EngineClient.wait_started`."""
        async with self._started:
            await self._started.wait_for(lambda: self._starts > starts)
            return self._starts

    async def generate(self, request: EngineRequest) -> AsyncIterator[TokenDelta]:
        """See `EngineClient.generate`."""
        check_request(request, self.info)
        if request.request_id in self._streams:
            raise EngineError(f"request id {request.request_id!r} is in use")
        queue: asyncio.Queue[TokenDelta] = asyncio.Queue()
        self._streams[request.request_id] = queue
        finished = False
        try:
            self._send(Submit(request))
            while not finished:
                delta = await queue.get()
                finished = delta.finish_reason is not None
                yield delta
        finally:
            del self._streams[request.request_id]
            if not finished and self._info is not None:
                self._send(Abort(request.request_id))

    async def abort(self, request_id: str) -> None:
        """See `EngineClient.abort`."""
        if self._info is not None:
            self._send(Abort(request_id))

    async def stats(self) -> EngineStats:
        """See `EngineClient.stats`."""
        if self._info is None:
            raise EngineUnavailable("the engine is not running")
        probe_id = next(self._numbers)
        reply: asyncio.Future[EngineStats] = asyncio.get_running_loop().create_future()
        self._probes[probe_id] = reply
        try:
            self._send(Probe(probe_id))
            return await asyncio.wait_for(reply, _STATS_TIMEOUT_SECONDS)
        except TimeoutError:
            raise EngineUnavailable("the engine loop does not answer") from None
        finally:
            del self._probes[probe_id]

    async def _open(self) -> None:
        """Launch an engine and wait until it is ready."""
        address = f"ipc://{self._folder}/engine-{next(self._numbers)}"
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.set_hwm(0)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(address)
        self._engine = await self._launch(address)
        first = asyncio.ensure_future(self._socket.recv())
        gone = asyncio.ensure_future(self._engine.wait())
        try:
            await asyncio.wait({first, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not first.done():
                self._close_socket()
                raise EngineError(f"the engine exited with status {gone.result()} while starting")
            message = decode_from_engine(first.result())
        except asyncio.CancelledError:
            self._engine.kill()
            raise
        finally:
            first.cancel()
            gone.cancel()
        if isinstance(message, Failed):
            raise EngineError(message.message)
        assert isinstance(message, Ready)
        self._info = message.info
        async with self._started:
            self._starts += 1
            self._started.notify_all()

    async def _supervise(self) -> None:
        """Deliver what the engine says; start it again whenever it dies."""
        while True:
            assert self._engine is not None
            reader = asyncio.create_task(self._read())
            try:
                status = await self._engine.wait()
            finally:
                reader.cancel()
            _log.error("the engine died with status %s; starting it again", status)
            self._disconnect("error", "the engine died")
            self._close_socket()
            for delay in itertools.chain(
                _RESTART_DELAYS_SECONDS, itertools.repeat(_RESTART_DELAYS_SECONDS[-1])
            ):
                await asyncio.sleep(delay)
                try:
                    await self._open()
                    break
                except EngineError as error:
                    _log.error("the engine did not come back: %s", error)

    async def _read(self) -> None:
        assert self._socket is not None
        while True:
            message = decode_from_engine(await self._socket.recv())
            if isinstance(message, Deltas):
                for delta in message.deltas:
                    queue = self._streams.get(delta.request_id)
                    if queue is not None:
                        queue.put_nowait(delta)
            elif isinstance(message, ProbeReply):
                reply = self._probes.get(message.probe_id)
                if reply is not None and not reply.done():
                    reply.set_result(message.stats)

    def _send(self, message: ToEngine) -> None:
        # Without a high-water mark a PAIR socket takes the message at once; nothing to await.
        assert self._socket is not None
        self._socket.send(encode(message))

    def _disconnect(self, reason: FinishReason, error: str | None = None) -> None:
        """End whatever waits for the engine."""
        self._info = None
        for request_id, queue in self._streams.items():
            queue.put_nowait(TokenDelta(request_id=request_id, finish_reason=reason, error=error))
        for reply in self._probes.values():
            if not reply.done():
                reply.set_exception(EngineUnavailable("the engine died"))

    def _close_socket(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(zmq.ZMQError):
                self._socket.close()
            self._socket = None
