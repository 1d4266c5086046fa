"""The server's own behaviours, with a bare ASGI application behind real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.types import Receive, Scope, Send
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from app.assembly.parts import connection_bounds
from app.assembly.server import CannotListen, Listener, Server, bind, local_url
from app.settings import Settings, load_settings
from app.transport.bounds import ConnectionBounds
from app.transport.websocket_protocol import ABORT_EXTENSION, WRITE_EXTENSION


def settings(**given: Any) -> Settings:
    return load_settings(port=0, drain_seconds=1, **given)


SIZES = (0, 1, 125, 126, 65_535, 65_536)
"""Around those at which a frame's header grows."""


class Probe:
    """An application that notes what happens to it and does what its path says."""

    def __init__(self) -> None:
        self.disconnects: asyncio.Queue[int] = asyncio.Queue()
        self.drained = False
        self.stopped = False
        self.lingers = False
        self.reading, self.left = asyncio.Event(), False
        self.draining = asyncio.Event()
        self.written: list[bool] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["path"] == "/read":
            self.reading.set()
            while (await receive())["type"] != "http.disconnect":
                pass
            self.left = True
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"half", "more_body": True})
            if scope["path"] == "/abort":
                scope["extensions"][ABORT_EXTENSION]["abort"]()
            else:
                await send({"type": "http.response.body", "body": b", whole"})
        elif scope["path"] == "/refuse":
            await receive()
            await send({"type": "websocket.http.response.start", "status": 401, "headers": []})
            await send({"type": "websocket.http.response.body", "body": b"no"})
        else:
            await receive()
            await send({"type": "websocket.accept"})
            await self._websocket(scope, receive, send)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        flood = None
        if scope["path"] == "/abort":
            scope["extensions"][ABORT_EXTENSION]["abort"]()
        elif scope["path"] == "/flood":
            flood = asyncio.create_task(self._flood(send))
        elif scope["path"] == "/write":
            write = scope["extensions"][WRITE_EXTENSION]["write"]
            self.written += [write(b"x" * size) for size in SIZES]
            while self.written[-1]:
                self.written.append(write(bytes(100_000)))
        while (message := await receive())["type"] != "websocket.disconnect":
            pass
        await self.disconnects.put(message["code"])
        if scope["path"] == "/write":
            self.written.append(write(b"too late"))
        if flood is not None:
            flood.cancel()

    async def _flood(self, send: Send) -> None:
        with contextlib.suppress(OSError):
            for _ in range(1000):
                await send({"type": "websocket.send", "bytes": bytes(100_000)})

    async def drain(self, hurry: asyncio.Event) -> None:
        """Everything is done at once, or else nothing until it has to hurry."""
        self.draining.set()
        if self.lingers:
            await hurry.wait()
        self.drained = not self.stopped

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self.stopped = True
        await send({"type": "lifespan.shutdown.complete"})


@contextlib.asynccontextmanager
async def running(
    app: Probe, settings: Settings, bounds: ConnectionBounds | None = None
) -> AsyncIterator[str]:
    """Serve until the block ends, which happens the way an operator ends it: by SIGTERM."""
    socket = bind(settings.host, settings.port)
    listener = Listener(socket=socket, app=app, bounds=bounds or connection_bounds(settings))
    ready = asyncio.Event()

    async def on_ready() -> None:
        ready.set()

    serving = asyncio.create_task(
        Server([listener], settings, on_ready=on_ready, drain=app.drain).serve()
    )
    async with asyncio.timeout(10):
        await ready.wait()
    try:
        yield local_url(settings.host, socket, settings.uses_tls)
    finally:
        signal.raise_signal(signal.SIGTERM)
        async with asyncio.timeout(10):
            await serving


@pytest.fixture
def probe() -> Probe:
    return Probe()


async def test_any_free_port_is_known_before_serving(probe: Probe) -> None:
    async with running(probe, settings()) as url, httpx.AsyncClient(trust_env=False) as client:
        assert not url.endswith(":0")
        assert (await client.get(url)).text == "half, whole"


async def test_a_start_that_fails_at_the_end_stops_the_application(probe: Probe) -> None:
    async def on_ready() -> None:
        raise ConnectionError("the store is gone")

    with contextlib.closing(bind("127.0.0.1", 0)) as socket:
        listener = Listener(socket=socket, app=probe, bounds=connection_bounds(settings()))
        with pytest.raises(ConnectionError, match="the store is gone"):
            await Server([listener], settings(), on_ready=on_ready, drain=probe.drain).serve()
    assert probe.stopped


async def test_a_taken_port_is_an_error_at_once() -> None:
    with contextlib.closing(bind("127.0.0.1", 0)) as taken:
        taken.listen()
        with pytest.raises(CannotListen, match=r"in use; choose another port"):
            bind("127.0.0.1", taken.getsockname()[1])


async def test_an_http_request_can_drop_its_connection(probe: Probe) -> None:
    async with running(probe, settings()) as url, httpx.AsyncClient(trust_env=False) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get(f"{url}/abort")


async def test_a_websocket_can_drop_its_connection(probe: Probe) -> None:
    async with running(probe, settings()) as url:
        async with connect(url.replace("http", "ws") + "/abort", proxy=None) as socket:
            with pytest.raises(ConnectionClosed) as caught:
                await socket.recv()
        assert caught.value.rcvd is None


async def test_messages_are_written_at_once_until_the_reader_is_behind(probe: Probe) -> None:
    async with running(probe, settings()) as url:
        address = url.replace("http", "ws") + "/write"
        async with connect(address, proxy=None, compression=None) as socket:
            sizes = [len(await socket.recv()) for _ in SIZES]
        await probe.disconnects.get()
    assert sizes == list(SIZES)
    assert probe.written[: len(SIZES)] == [True] * len(SIZES)
    assert probe.written[-2:] == [False, False], "it was behind, and then it had left"


async def test_a_refused_upgrade_is_no_error_in_the_log(
    probe: Probe, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(probe, settings()) as url:
        with pytest.raises(InvalidStatus, match="401"):
            await connect(url.replace("http", "ws") + "/refuse", proxy=None)
    assert caplog.records == []


async def test_a_reader_that_neither_reads_nor_answers_pings_is_dropped(probe: Probe) -> None:
    quick = settings(ping_interval_seconds=0.1, ping_timeout_seconds=0.1)
    async with running(probe, quick) as url:
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
        writer.write(_upgrade(url, "/flood"))
        await reader.readuntil(b"\r\n\r\n")
        async with asyncio.timeout(10):
            assert await probe.disconnects.get() in (1005, 1006, 1011)
        writer.close()


def _upgrade(url: str, path: str) -> bytes:
    lines = [
        f"GET {path} HTTP/1.1",
        f"Host: {url.removeprefix('http://')}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version: 13",
    ]
    return "\r\n".join([*lines, "", ""]).encode()


async def test_asked_once_it_waits_and_still_answers_new_connections(probe: Probe) -> None:
    probe.lingers = True
    async with running(probe, settings()) as url, httpx.AsyncClient(trust_env=False) as client:
        signal.raise_signal(signal.SIGTERM)
        async with asyncio.timeout(10):
            await probe.draining.wait()
        assert (await client.get(url)).text == "half, whole"
        assert not probe.drained


async def test_asked_twice_it_stops_at_once_and_still_stops_the_application(probe: Probe) -> None:
    probe.lingers = True
    async with running(probe, settings()) as url:
        socket = await connect(url.replace("http", "ws"), proxy=None)
        signal.raise_signal(signal.SIGTERM)
        async with asyncio.timeout(10):
            await probe.draining.wait()
    assert probe.drained
    assert probe.stopped
    await socket.close()


async def test_asked_twice_it_logs_nothing_of_a_request_whose_body_never_comes(
    probe: Probe, caplog: pytest.LogCaptureFixture
) -> None:
    probe.lingers = True
    async with running(probe, settings()) as url:
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = ["POST /read HTTP/1.1", f"Host: {host}", "Content-Length: 9", "", "half"]
        writer.write("\r\n".join(head).encode())
        async with asyncio.timeout(10):
            await probe.reading.wait()
            signal.raise_signal(signal.SIGTERM)
            await probe.draining.wait()
    assert probe.left
    assert caplog.records == []
    assert await reader.read() == b""
    writer.close()


async def test_shutdown_drains_before_it_closes_sockets(probe: Probe) -> None:
    async with running(probe, settings()) as url:
        socket = await connect(url.replace("http", "ws"), proxy=None)
    assert probe.drained
    assert probe.stopped
    with pytest.raises(ConnectionClosed):
        await socket.recv()


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", "http://127.0.0.1:"),
        ("::1", "http://[::1]:"),
        ("0.0.0.0", "http://127.0.0.1:"),
        ("localhost", "http://localhost:"),
    ],
)
def test_the_url_is_one_that_a_client_here_can_use(host: str, expected: str) -> None:
    with contextlib.closing(bind(host, 0)) as listener:
        assert local_url(host, listener, uses_tls=False).startswith(expected)
