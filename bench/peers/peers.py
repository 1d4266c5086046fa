"""Partywall beside other servers: the loads of `serve`, in turns, one server alive at a time.

Every server is started, warmed up, loaded once and stopped in each round (A B A B), so that
whatever changes on the machine meets all alike; ratios are medians over the rounds. Peers get the
same requests as Partywall, whose tenants have registered the system prompts that they send.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.table import Table

from bench.common.drivers import DRIVERS
from bench.common.figures import median_ratio
from bench.common.options import add_model, service_flags
from bench.peers.peer import read_peers
from bench.peers.servers import OURS, Server, load_once, of_partywall, of_peer
from bench.registry import Result
from bench.service.loads import FIGURES as LOAD_FIGURES
from bench.service.loads import add_load_arguments, count, make_load, settle, token_counter

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
    f"{name}_SERVER": f"{meaning}; SERVER is `{OURS}` or a peer's name"
    for name, meaning in _OF_EACH.items()
}
_LENGTH: Final = "LENGTH"
_IN_ROUNDS: Final = ("output_tokens_per_s", "ttft_ms_p50", "itl_ms_p50")


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
    flags = [*service_flags(options), *shlex.split(options.serve_args)]
    partywall = of_partywall(load, flags, options.transport)
    servers = [partywall, *(of_peer(peer, load) for peer in peers)]
    for number in range(options.rounds):
        for server in servers:
            server.rounds.append(
                load_once(server, load, f"round {number}", options.timeout_seconds)
            )
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


def ratio_name(figure: str) -> str | None:
    """What the ratio of that figure is called, where there is one."""
    length = re.search(r"(?<=_)\d+$", figure)
    if length is None:
        return _RATIOS[figure][0] if figure in _RATIOS else None
    name, _ = _RATIOS[figure[: length.start()] + _LENGTH]
    return name.replace(_LENGTH, length[0])


def _table(servers: Sequence[Server], figures: dict[str, float]) -> Table:
    columns = [server.name for server in servers]
    table = Table("figure", *columns, title="peers", title_justify="left")
    names = list(servers[0].rounds[0])
    for name in [*names, *filter(None, map(ratio_name, names))]:
        cells = (figures.get(f"{name}_{column}") for column in columns)
        table.add_row(name, *("" if cell is None else f"{cell:,.2f}" for cell in cells))
    return table


def _rounds_table(servers: Sequence[Server]) -> Table:
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
