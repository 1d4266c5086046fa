"""Whether anything that a client can see tells a tenant what its neighbour has sent.

`partywall audit` on a service of the bench's own with two tenants, or on other servers as the file
of `bench peers` describes them, whose tenants are told apart by `cache_salt` or by nothing.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rich.table import Table

from app.audit.audit import Plan, audit
from app.audit.observing import CHANNELS
from app.audit.plot import picture
from app.audit.report import Report, table
from app.audit.server import AuditError, Server, Tenant
from bench.common.machine import warn_if_busy
from bench.common.service import running_service
from bench.registry import BenchError, Result, parameters
from bench.service.peer import read_peers, running_peer
from engine.model.weights import DEFAULT_MODEL

_OURS: Final = "partywall"
FIGURES: Final = {
    "p_min_neighbour": "smallest p-value, over all channels and corrected for their number, that a "
    "neighbour's requests and fresh ones look alike: a leak would make it small",
    "p_max_control": "the largest for a tenant's own requests, which must differ: near 0",
    "p_neighbour_CHANNEL": "the first of one channel: " + ", ".join(CHANNELS),
    "p_control_CHANNEL": "the second of one channel",
    "p_..._PEER": "the same of a peer by its name in the file; with `_salted` behind that, given "
    "a cache_salt for each tenant",
}
_SALTS: Final = ("audit-a", "audit-b")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--samples", type=int, default=250, help="samples a side of each test")
    parser.add_argument("--words", type=int, default=64, help="words of a prompt")
    parser.add_argument("--channel", nargs="+", choices=CHANNELS, help="these alone")
    parser.add_argument("--model", default=DEFAULT_MODEL, help="model served")
    parser.add_argument("--dtype", default="auto", help="type of weights and KV cache")
    parser.add_argument("--kv-memory", default="1GiB", help="memory of the KV cache")
    parser.add_argument("--seed", type=int, default=0, help="of what is sent, and in which order")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw each audit there")
    parser.add_argument(
        "--peers",
        type=Path,
        metavar="FILE",
        help="audit these in place of Partywall, see bench/service/peers.example.toml",
    )
    parser.add_argument("--salt", action="store_true", help="give peers a cache_salt a tenant")


def run(options: argparse.Namespace) -> Result:
    """Audit one server after another."""
    foreign = warn_if_busy()
    figures: dict[str, float] = {}
    tables: list[Table] = []
    try:
        for name, report in _reports(options):
            figures |= _figures(report, "" if name == _OURS else f"_{name}")
            shown = table(report)
            shown.title = f"audit of {name}"
            tables.append(shown)
            if options.plots is not None:
                options.plots.joinpath(f"audit-{name}.svg").write_text(picture(report))
    except (AuditError, OSError) as error:
        raise BenchError(str(error)) from error
    return Result(parameters(options, foreign_load_percent=foreign), figures, tables)


def _reports(options: argparse.Namespace) -> Iterator[tuple[str, Report]]:
    if options.peers is not None:
        for peer in read_peers(options.peers):
            with running_peer(peer):
                salts = _SALTS if options.salt else (None, None)
                tenants = [Tenant(peer.api_key, salt) for salt in salts]
                url, alone = peer.base_url, peer.new_connections
                report = asyncio.run(_audited(url, peer.model, tenants, options, alone))
            yield peer.name + "_salted" * options.salt, report
        return
    flags = ["--model", options.model, "--dtype", options.dtype, "--kv-memory", options.kv_memory]
    with running_service(flags) as service:
        tenants = [Tenant(service.create_tenant(name)) for name in ("owner", "neighbour")]
        yield _OURS, asyncio.run(_audited(service.url, "", tenants, options))


async def _audited(
    url: str,
    model: str,
    tenants: list[Tenant],
    options: argparse.Namespace,
    new_connections: bool = False,
) -> Report:
    plan = Plan(
        samples=options.samples,
        words=options.words,
        channels=options.channel or tuple(CHANNELS),
        seed=options.seed,
    )
    # The server is the bench's own: nobody else waits for it.
    server = Server(url, model, rate=1e6, timeout_seconds=60, new_connections=new_connections)
    try:
        return await audit(server, tenants[0], tenants[1], plan)
    finally:
        await server.close()


def _figures(report: Report, suffix: str) -> dict[str, float]:
    found = {
        "p_min_neighbour": report.p_min_neighbour,
        "p_max_control": report.p_max_control,
    }
    for finding in report.findings:
        if finding.neighbour is not None and finding.control is not None:
            found[f"p_neighbour_{finding.channel}"] = finding.neighbour.corrected_p
            found[f"p_control_{finding.channel}"] = finding.control.corrected_p
    return {name + suffix: value for name, value in found.items()}
