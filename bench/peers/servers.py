"""Servers that are compared: each started, loaded once and stopped, by what it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from bench.common.drivers import DRIVERS, Driver, HttpDriver
from bench.common.machine import LoadWatch, PeakMemory, tree_rss_mib
from bench.common.service import running_service, served_model
from bench.peers.peer import Peer, running_peer
from bench.registry import BenchError
from bench.service.loads import Load
from bench.service.loads.rounds import Target, Tenants, over_rounds, registered, warm_up

OURS: Final = "partywall"
_SAMPLE_SECONDS: Final = 0.2


@dataclass(frozen=True)
class Running:
    """A server that is ready, and who asks it."""

    url: str
    model: str
    tenants: Tenants
    pid: int | None
    """`None` for one that nobody here has started: its memory and load are not known."""
    ready_seconds: float

    def memory(self) -> AbstractContextManager[PeakMemory | None]:
        """Watches that of all its processes."""
        if self.pid is None:
            return nullcontext()
        return PeakMemory(partial(tree_rss_mib, self.pid), _SAMPLE_SECONDS)


@dataclass
class Server:
    """One of those compared, and what was seen of it in each round."""

    name: str
    start: Callable[[], AbstractContextManager[Running]]
    connect: Callable[[str, str], Driver]
    """To its URL, asking for a model."""
    omits: Sequence[str] = ()
    rounds: list[dict[str, float]] = field(default_factory=list)

    def figures(self) -> dict[str, float]:
        """Medians over the rounds, but the sum of errors, and the most memory and foreign load."""
        return over_rounds(self.rounds, peak_rss_mib=max, foreign_load_percent=max)


def of_partywall(load: Load, flags: Sequence[str], transport: str = "http") -> Server:
    """This service, told `flags`, whose tenants have registered the load's system prompts."""

    @contextmanager
    def start() -> Iterator[Running]:
        with running_service(flags) as service:
            tenants = registered(service, load.systems)
            model = served_model(service.url, tenants[0][0])
            yield Running(service.url, model, tenants, service.pid, service.ready_seconds)

    return Server(OURS, start, DRIVERS[transport])


def of_peer(peer: Peer, load: Load) -> Server:
    """A peer, which is sent the same prompts."""
    tenants = [(peer.api_key, system) for system in load.systems]

    @contextmanager
    def start() -> Iterator[Running]:
        with running_peer(peer) as (pid, seconds):
            yield Running(peer.base_url, peer.model, tenants, pid, seconds)

    connect = partial(
        HttpDriver,
        omits=peer.omits,
        new_connections=peer.new_connections,
        adapter=peer.adapter,
    )
    return Server(peer.name, start, connect, peer.omits)


def load_once(server: Server, load: Load, label: str, timeout_seconds: float) -> dict[str, float]:
    """One round of one server. Raises `BenchError` where it cannot be started or serves nothing."""
    with server.start() as running:
        try:
            return asyncio.run(_measure(server, running, load, label, timeout_seconds))
        except BenchError as error:
            raise BenchError(f"{server.name}: {error}") from error


async def _measure(
    server: Server, running: Running, load: Load, label: str, timeout_seconds: float
) -> dict[str, float]:
    target = Target(
        server.connect(running.url, running.model),
        running.tenants,
        timeout_seconds,
        shorter="ignore_eos" in server.omits,
    )
    try:
        await warm_up(target)
        watch = LoadWatch()
        with running.memory() as peak:
            found = await load.measure(target, label)
        foreign = watch.foreign_percent()
    finally:
        await target.driver.close()
    if peak is not None:
        found["ready_s"] = running.ready_seconds
        found["peak_rss_mib"] = peak.mib
        found["foreign_load_percent"] = foreign
    return found
