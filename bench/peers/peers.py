"""Partywall beside other servers: the loads of `serve`, in turns, one server alive at a time.

Every server is started, warmed up, loaded once and stopped in each round (A B A B), so that
whatever changes on the machine meets all alike; ratios are medians over the rounds. Peers get the
same requests as Partywall, whose tenants have registered the system prompts that they send.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from rich.table import Table

from bench.common.drivers import DRIVERS, Driver, HttpDriver
from bench.common.figures import median_ratio
from bench.common.machine import LoadWatch, PeakMemory, tree_rss_mib
from bench.common.options import add_model, service_flags
from bench.common.service import running_service, served_model
from bench.peers.peer import Peer, read_peers, running_peer
from bench.registry import BenchError, Result
from bench.service.loads import FIGURES as LOAD_FIGURES
from bench.service.loads import Load, add_load_arguments, count, make_load, settle, token_counter
from bench.service.loads.rounds import Target, Tenants, over_rounds, registered, warm_up

_OURS: Final = "partywall"
_OF_EACH: Final = LOAD_FIGURES | {
    "ready_s": "from its start to its readiness, seconds",
    "peak_rss_mib": "most resident memory of all its processes while it was loaded, MiB",
    "foreign_load_percent": "how busy others kept the machine in its worst round, % of all cores",
}
_RATIOS: Final = {
    "output_tokens_per_s": ("tokens_per_s_ratio", "tokens a second"),
    "ttft_ms_p50": ("ttft_p50_ratio", "median time to the first text"),
    "ttft_ms_p99": ("ttft_p99_ratio", "99th percentile of the time to the first text"),
    "itl_ms_p99": ("itl_p99_ratio", "99th percentile of the time between two texts"),
    "goodput_requests_per_s": ("goodput_ratio", "goodput on *mixed*"),
    "ttft_ms_p50_alone_LENGTH": ("ttft_p50_ratio_alone_LENGTH", "time on *cold*, alone"),
    "ttft_ms_p50_at_once_LENGTH": ("ttft_p50_ratio_at_once_LENGTH", "time on *cold*, at once"),
}
"""Of a figure: what the ratio is called, and of what it is the ratio."""
FIGURES: Final = {
    f"{name}_PEER": f"Partywall's {what} over the peer's; PEER is its name in the file"
    for name, what in _RATIOS.values()
} | {
    f"{name}_SERVER": f"{meaning}; SERVER is `{_OURS}` or a peer's name"
    for name, meaning in _OF_EACH.items()
}
_LENGTH: Final = "LENGTH"
_IN_ROUNDS: Final = ("output_tokens_per_s", "ttft_ms_p50", "itl_ms_p50")
_SAMPLE_SECONDS: Final = 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--peers",
        type=Path,
        required=True,
        metavar="FILE",
        help="see bench/peers/peers.example.toml",
    )
    add_load_arguments(parser)
    parser.add_argument("--rounds", type=count, default=2, help="rounds; figures are their medians")
    parser.add_argument(
        "--transport", choices=tuple(DRIVERS), default="http", help="how Partywall is asked"
    )
    add_model(parser, "dtype")
    parser.add_argument("--serve-args", default="", help="more options of `partywall serve`")


def run(options: argparse.Namespace) -> Result:
    """Load all servers in turns, and compare."""
    settle(options)
    peers = read_peers(options.peers)
    load = make_load(options, token_counter(options.model))
    servers = [_ours(options, load), *(_server(peer, load) for peer in peers)]
    for number in range(options.rounds):
        for server in servers:
            server.rounds.append(_load(server, load, options, f"round {number}"))
    figures = {
        f"{name}_{server.name}": value
        for server in servers
        for name, value in server.figures().items()
    }
    for figure in servers[0].rounds[0]:
        if name := ratio_name(figure):
            for peer in servers[1:]:
                ours, theirs = ([one[figure] for one in of.rounds] for of in (servers[0], peer))
                figures[f"{name}_{peer.name}"] = median_ratio(ours, theirs)
    return Result(figures, [_table(servers, figures), _rounds_table(servers)])


@dataclass(frozen=True)
class _Running:
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
class _Server:
    """One of those compared, and what was seen of it in each round."""

    name: str
    start: Callable[[], AbstractContextManager[_Running]]
    connect: Callable[[str, str], Driver]
    """To its URL, asking for a model."""
    omits: Sequence[str] = ()
    rounds: list[dict[str, float]] = field(default_factory=list)

    def figures(self) -> dict[str, float]:
        """Medians over the rounds, but the sum of errors, and the most memory and foreign load."""
        return over_rounds(self.rounds, peak_rss_mib=max, foreign_load_percent=max)


def _ours(options: argparse.Namespace, load: Load) -> _Server:
    flags = [*service_flags(options), *shlex.split(options.serve_args)]

    @contextmanager
    def start() -> Iterator[_Running]:
        with running_service(flags) as service:
            tenants = registered(service, load.systems)
            model = served_model(service.url, tenants[0][0])
            yield _Running(service.url, model, tenants, service.pid, service.ready_seconds)

    return _Server(_OURS, start, DRIVERS[options.transport])


def _server(peer: Peer, load: Load) -> _Server:
    tenants = [(peer.api_key, system) for system in load.systems]

    @contextmanager
    def start() -> Iterator[_Running]:
        with running_peer(peer) as (pid, seconds):
            yield _Running(peer.base_url, peer.model, tenants, pid, seconds)

    connect = partial(HttpDriver, omits=peer.omits, new_connections=peer.new_connections)
    return _Server(peer.name, start, connect, peer.omits)


def _load(server: _Server, load: Load, options: argparse.Namespace, label: str) -> dict[str, float]:
    """One round of one server. Raises `BenchError` where it cannot be started or serves nothing."""
    with server.start() as running:
        try:
            return asyncio.run(_measure(server, running, load, options, label))
        except BenchError as error:
            raise BenchError(f"{server.name}: {error}") from error


async def _measure(
    server: _Server, running: _Running, load: Load, options: argparse.Namespace, label: str
) -> dict[str, float]:
    target = Target(
        server.connect(running.url, running.model),
        running.tenants,
        options.timeout_seconds,
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


def ratio_name(figure: str) -> str | None:
    """What the ratio of that figure is called, where there is one."""
    length = re.search(r"(?<=_)\d+$", figure)
    if length is None:
        return _RATIOS[figure][0] if figure in _RATIOS else None
    name, _ = _RATIOS[figure[: length.start()] + _LENGTH]
    return name.replace(_LENGTH, length[0])


def _table(servers: Sequence[_Server], figures: dict[str, float]) -> Table:
    columns = [server.name for server in servers]
    table = Table("figure", *columns, title="peers", title_justify="left")
    names = list(servers[0].rounds[0])
    for name in [*names, *filter(None, map(ratio_name, names))]:
        cells = (figures.get(f"{name}_{column}") for column in columns)
        table.add_row(name, *("" if cell is None else f"{cell:,.2f}" for cell in cells))
    return table


def _rounds_table(servers: Sequence[_Server]) -> Table:
    columns = ("round", "server", "tokens/s", "TTFT p50 ms", "ITL p50 ms", "foreign load")
    table = Table(*columns, title="rounds", title_justify="left")
    for number in range(len(servers[0].rounds)):
        for server in servers:
            found = server.rounds[number]
            load = found.get("foreign_load_percent")
            table.add_row(
                str(number),
                server.name,
                *(f"{found[name]:,.1f}" for name in _IN_ROUNDS),
                "not known" if load is None else f"{load:.0f} %",
            )
    return table
