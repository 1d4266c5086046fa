"""Thousands of sockets on one service: memory, delivery, and what clients leave behind.

Most sockets are idle, some stream; then clients connect and vanish at random, in the middle of an
answer, politely or not. A delivery's delay is the time from the making of an event in the service
to its arrival in the client, which shares the machine with the service.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import httpx
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import WebSocketException

from bench.common.drivers import connect_to
from bench.common.figures import percentile
from bench.common.machine import rss_mib
from bench.common.options import add_model, service_flags
from bench.common.service import Service, running_service, served_model
from bench.common.workload import passage
from bench.registry import BenchError, Result

FIGURES: Final = {
    "idle_socket_kib": "resident memory of the service process for each open, idle socket, KiB",
    "delivery_ms_p50": "from the making of an event to its arrival in the client, median, ms",
    "delivery_ms_p99": "the same, 99th percentile",
    "errors": "sockets and requests that were refused, lost or ended badly",
    "leaked_blocks": "KV blocks still in use after all clients have gone",
    "leaked_tasks": "tasks of the service's event loop beyond those before the first client",
    "leaked_fds": "file descriptors of the service process beyond those before the first client, "
    "without pooled connections to the store",
    "clients_vanished": "connections that were opened and dropped at random",
}
_SPARE_FILES: Final = 500
_OPENING_AT_ONCE: Final = 50
_PATIENCE_SECONDS: Final = 60.0
_CALM_SECONDS: Final = 1.0
_SETTLING_SECONDS: Final = 30.0
_LONGEST_STAY_SECONDS: Final = 6.0
_LONGEST_PAUSE_SECONDS: Final = 2.0
_ABANDONED_SECONDS: Final = 1
_FAILURES: Final = (OSError, TimeoutError, WebSocketException, httpx.HTTPError)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--sockets", type=int, default=2000, help="sockets open at once")
    parser.add_argument("--streams", type=int, default=64, help="sockets that stream at once")
    parser.add_argument("--output-tokens", type=int, default=32, help="tokens of an answer")
    parser.add_argument("--rounds", type=int, default=2, help="answers on each of those sockets")
    parser.add_argument("--clients", type=int, default=500, help="clients that come and vanish")
    parser.add_argument("--churn-seconds", type=float, default=60.0, help="for how long")
    add_model(parser, "dtype", "kv_memory")
    parser.add_argument("--seed", type=int, default=0, help="of what the clients do")


def run(options: argparse.Namespace) -> Result:
    """Open the sockets, stream, close them; then let clients come and vanish."""
    _allow_files(max(options.sockets, options.clients) + _SPARE_FILES)
    flags = [*service_flags(options), "--resume-grace-seconds", str(_ABANDONED_SECONDS)]
    flags += ["--max-connections", str(max(options.sockets, options.clients) + _SPARE_FILES)]
    with running_service(flags, program="bench.service.stamped") as service:
        return Result(asyncio.run(_measure(service, options)).figures())


def _allow_files(count: int) -> None:
    """Let this process, and those it starts, open so many files. Raises `BenchError`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        raise BenchError(f"a process may open {hard} files here, and {count} are needed")
    if soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))


@dataclass
class _Found:
    """Everything that was measured."""

    idle_socket_kib: float = 0.0
    delays: list[float] = field(default_factory=list)
    errors: int = 0
    vanished: int = 0
    leaks: list[dict[str, float]] = field(default_factory=list)
    """What the service still held each time when all clients had gone."""

    def figures(self) -> dict[str, float]:
        return {
            "idle_socket_kib": self.idle_socket_kib,
            "delivery_ms_p50": percentile(self.delays, 50) * 1000,
            "delivery_ms_p99": percentile(self.delays, 99) * 1000,
            "errors": float(self.errors),
            "leaked_blocks": max(one["blocks"] for one in self.leaks),
            "leaked_tasks": max(one["tasks"] for one in self.leaks),
            "leaked_fds": max(one["descriptors"] for one in self.leaks),
            "clients_vanished": float(self.vanished),
        }


class _Client:
    """Opens sockets and asks for answers as one tenant."""

    def __init__(self, service: Service, found: _Found, options: argparse.Namespace) -> None:
        self._api_key = service.create_tenant("crowd")
        self._url = service.url
        self._model = served_model(service.url, self._api_key)
        self._output_tokens = options.output_tokens
        self._found = found
        self._asked = 0
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self.http = httpx.AsyncClient(
            base_url=service.url,
            headers={"authorization": f"Bearer {self._api_key}"},
            timeout=_PATIENCE_SECONDS,
            limits=limits,
            trust_env=False,
        )

    async def open(self) -> ClientConnection:
        """A new socket."""
        given = {"ping_interval": None, "open_timeout": _PATIENCE_SECONDS, "close_timeout": 1.0}
        return await connect_to(self._url, self._api_key, **given)

    def request(self) -> dict[str, object]:
        """The body of a request that resembles no other."""
        self._asked += 1
        return {
            "model": self._model,
            "input": passage(f"request {self._asked}", 8),
            "max_output_tokens": self._output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "store": False,
        }

    async def stream(self, socket: ClientConnection) -> list[float]:
        """Ask, and read to the end of the answer; returns how late each event was, in seconds."""
        delays: list[float] = []
        await socket.send(json.dumps({"type": "response.create"} | self.request()))
        while True:
            event = json.loads(await socket.recv())
            arrived = time.monotonic()
            if event["type"] in ("error", "response.failed"):
                self._found.errors += 1
                return delays
            delays.append(arrived - event["made_at"])
            if event["type"] in ("response.completed", "response.incomplete"):
                return delays

    async def guarded(self, work: Awaitable[object]) -> None:
        """Do something, counting its failure."""
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await work
        except _FAILURES:
            self._found.errors += 1


async def _measure(service: Service, options: argparse.Namespace) -> _Found:
    found = _Found()
    client = _Client(service, found, options)
    try:
        await _warm_up(client)
        before = await asyncio.to_thread(service.held)
        await _crowd(service, client, found, options)
        found.leaks.append(await _leaks(service, before))
        await _churn(client, found, options)
        await client.http.aclose()  # which keeps connections that were abandoned while opening
        found.leaks.append(await _leaks(service, before))
    finally:
        await client.http.aclose()
    return found


async def _warm_up(client: _Client) -> None:
    """Have everything loaded that the first request loads."""
    socket = await client.open()
    await client.stream(socket)
    await socket.close()
    (await client.http.post("/v1/responses", json=client.request())).raise_for_status()


async def _crowd(
    service: Service, client: _Client, found: _Found, options: argparse.Namespace
) -> None:
    """Many idle sockets, some of which then stream."""
    memory_before = rss_mib(service.pid)
    sockets: list[ClientConnection] = []

    async def open_one() -> None:
        sockets.append(await client.open())

    await _each(client, (open_one for _ in range(options.sockets)), _OPENING_AT_ONCE)
    await asyncio.sleep(_CALM_SECONDS)
    memory = rss_mib(service.pid) - memory_before
    found.idle_socket_kib = 1024 * memory / max(1, len(sockets))

    async def read(socket: ClientConnection) -> None:
        found.delays += await client.stream(socket)

    for _ in range(options.rounds):
        streaming = sockets[: options.streams]
        await asyncio.gather(*(client.guarded(read(socket)) for socket in streaming))
    await _each(client, (partial(_ping, one) for one in sockets), len(sockets))
    await asyncio.gather(*(socket.close() for socket in sockets))


async def _ping(socket: ClientConnection) -> None:
    await (await socket.ping())


async def _each(
    client: _Client, works: Iterable[Callable[[], Awaitable[object]]], at_once: int
) -> None:
    """Do everything, so many at once."""
    room = asyncio.Semaphore(at_once)

    async def do(work: Callable[[], Awaitable[object]]) -> None:
        async with room:
            await client.guarded(work())

    await asyncio.gather(*(do(work) for work in works))


async def _churn(client: _Client, found: _Found, options: argparse.Namespace) -> None:
    """Clients that come, ask or not, and vanish."""
    ends_at = time.monotonic() + options.churn_seconds

    async def come_and_go(draw: random.Random) -> None:
        while True:
            await asyncio.sleep(draw.uniform(0.0, _LONGEST_PAUSE_SECONDS))
            if time.monotonic() > ends_at:
                return
            visit = _visit_socket if draw.random() < 0.7 else _visit_http
            await client.guarded(visit(client, draw))
            found.vanished += 1

    seeds = range(options.clients)
    await asyncio.gather(*(come_and_go(random.Random(f"{options.seed} {one}")) for one in seeds))


async def _visit_socket(client: _Client, draw: random.Random) -> None:
    """Open a socket, perhaps ask, and leave within some seconds, with or without a close frame."""
    socket = await client.open()
    try:
        async with asyncio.timeout(draw.uniform(0.0, _LONGEST_STAY_SECONDS)):
            if draw.random() < 0.5:
                await client.stream(socket)
            await asyncio.Event().wait()
    except TimeoutError:
        pass
    if draw.random() < 0.5:
        await socket.close()
    else:
        socket.transport.abort()


async def _visit_http(client: _Client, draw: random.Random) -> None:
    """Ask for an answer, streamed or not, and leave before it is complete, or not."""
    body = client.request() | {"stream": draw.random() < 0.7}
    try:
        async with asyncio.timeout(draw.uniform(0.0, _LONGEST_STAY_SECONDS)):
            answer = await client.http.post("/v1/responses", json=body)
            answer.raise_for_status()
    except TimeoutError:
        pass


async def _leaks(service: Service, before: dict[str, float]) -> dict[str, float]:
    """What is still held beyond what was held `before`, once nothing changes for the better."""
    deadline = time.monotonic() + _SETTLING_SECONDS
    while True:
        held = await asyncio.to_thread(service.held)
        leak = {name: max(0.0, value - before[name]) for name, value in held.items()}
        if not any(leak.values()) or time.monotonic() > deadline:
            return leak
        await asyncio.sleep(0.2)
