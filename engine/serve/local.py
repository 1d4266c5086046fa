"""The engine in a thread of this process: for tests and notebooks, where no child is wanted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable

import zmq

from engine.api import EngineBroken
from engine.serve.core import EngineCore
from engine.serve.kv_events import KVEventPublisher, make_publisher
from engine.serve.loop import serve
from engine.serve.supervisor import RemoteEngine, RunningEngine

_log = logging.getLogger(__name__)


class LocalEngine(RemoteEngine):
    """Runs the core that `build` makes in a daemon thread, behind the same socket as a child."""

    def __init__(self, build: Callable[[], EngineCore], **seconds: float) -> None:
        """See `RemoteEngine` for `seconds`."""
        super().__init__(self._spawn, **seconds)
        self._build = build

    async def _spawn(self, address: str) -> RunningEngine:
        return _Thread(self._build, address)


class _Thread:
    def __init__(self, build: Callable[[], EngineCore], address: str) -> None:
        self._build = build
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        threading.Thread(target=self._run, daemon=True).start()

    async def wait(self) -> int:
        await self._ended.wait()
        return 0

    def kill(self) -> None:
        """A thread cannot be killed; it ends with its process."""

    def _run(self) -> None:
        socket: zmq.SyncSocket = zmq.Context.instance().socket(zmq.PAIR)
        socket.set_hwm(0)
        socket.connect(self._address)
        publisher: KVEventPublisher | None = None
        try:
            core = self._build()
            publisher = make_publisher(core.config, core.scheduler.tiers)
            serve(core, socket, publisher)
        except EngineBroken:
            _log.exception("the engine gives up; its thread ends")
        finally:
            socket.close(linger=0)
            if publisher is not None:
                publisher.close()
            with contextlib.suppress(RuntimeError):  # the event loop may be gone before us
                self._loop.call_soon_threadsafe(self._ended.set)
