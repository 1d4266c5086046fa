"""Whether anything that a client can see tells a tenant what its neighbour has sent.

`partywall audit` on a service of the bench's own with two tenants, or on other servers as the file
of `bench peers` describes them, whose tenants are told apart by nothing and, where
the file says so, by `cache_salt`. The service's tenants have adapters of the same files, more than
its memory holds; the one that the neighbour always uses is pinned, unless it is said that a tenant
is to see its own evicted by others'.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rich.table import Table

from app.isolation_audit.audit import Plan, audit
from app.isolation_audit.observing import CHANNELS
from app.isolation_audit.plot import picture
from app.isolation_audit.probes import NO_ADAPTERS, AdapterNames
from app.isolation_audit.report import Report, document, table
from app.isolation_audit.server import AuditError, Server, Tenant
from bench.adapters.making import Made, linears_of
from bench.common.options import add_model, service_flags
from bench.common.service import Service, running_service
from bench.peers.peer import Peer, read_peers, running_peer
from bench.registry import BenchError, Result

_OURS: Final = "partywall"
FIGURES: Final = {
    "p_min_neighbour": "smallest p-value, over all channels and corrected for their number, that a "
    "neighbour's requests and fresh ones look alike: a leak would make it small",
    "p_max_control": "the largest for a tenant's own requests, which must differ: near 0",
    "p_neighbour_CHANNEL": "the first of one channel: " + ", ".join(CHANNELS),
    "p_control_CHANNEL": "the second of one channel",
    "p_..._PEER": "the same of a peer by its name in the file; with `_salted` behind that, told "
    "to keep the tenants apart by cache_salt",
}
_SALTS: Final = ("audit-a", "audit-b")
_UNSALTED: Final = (None, None)
_TENANTS: Final = ("owner", "neighbour")
_RANK: Final = 16
_ADAPTER_MEMORY: Final = "1MiB"
"""Of the host's: what is not in the KV memory has to come from the store."""
_RATE: Final = 1e6
"""Requests a second, at most: the server is the bench's own, and nobody else waits for it."""
_TIMEOUT_SECONDS: Final = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--samples", type=int, default=250, help="samples a side of each test")
    parser.add_argument("--words", type=int, default=160, help="words of a prompt")
    parser.add_argument("--channel", nargs="+", choices=CHANNELS, help="these alone")
    add_model(parser, "dtype", "kv_memory")
    parser.set_defaults(kv_memory="256MiB")  # it holds 27 of the adapters
    parser.add_argument("--adapters", type=int, default=32, help="adapters of each tenant")
    parser.add_argument(
        "--unpinned", action="store_true", help="let others' adapters evict the neighbour's own"
    )
    parser.add_argument("--seed", type=int, default=0, help="of what is sent, and in which order")
    parser.add_argument(
        "--plots", type=Path, metavar="FOLDER", help="keep each report there, drawn and as JSON"
    )
    parser.add_argument(
        "--peers",
        type=Path,
        metavar="FILE",
        help="audit these in place of Partywall, see bench/peers/peers.example.toml",
    )


def run(options: argparse.Namespace) -> Result:
    """Audit one server after another."""
    figures: dict[str, float] = {}
    tables: list[Table] = []
    try:
        if options.plots is not None:
            options.plots.mkdir(parents=True, exist_ok=True)  # before all that would be lost
        for name, report in _reports(options):
            figures |= _figures(report, "" if name == _OURS else f"_{name}")
            shown = table(report)
            shown.title = f"audit of {name}"
            tables.append(shown)
            if options.plots is not None:
                kept = options.plots / f"audit-{name}"
                kept.with_suffix(".svg").write_text(picture(report))
                kept.with_suffix(".json").write_text(json.dumps(document(report), indent=2) + "\n")
    except (AuditError, OSError) as error:
        raise BenchError(str(error)) from error
    return Result(figures, tables)


def _reports(options: argparse.Namespace) -> Iterator[tuple[str, Report]]:
    if options.peers is not None:
        for peer in read_peers(options.peers):
            with running_peer(peer):
                seed = options.seed
                yield peer.name, asyncio.run(_audited_peer(peer, _UNSALTED, options, seed))
                if peer.cache_salt:  # what it has heard is not new to it: another seed
                    salted = _audited_peer(peer, _SALTS, options, seed + 1)
                    yield f"{peer.name}_salted", asyncio.run(salted)
        return
    flags = [*service_flags(options), "--adapter-memory", _ADAPTER_MEMORY]
    with running_service(flags) as service:
        tenants = [Tenant(service.create_tenant(name)) for name in _TENANTS]
        adapters = _put_adapters(service, options)
        server = Server(service.url, rate=_RATE, timeout_seconds=_TIMEOUT_SECONDS)
        audited = _audited(server, tenants, options, options.seed, adapters)
        yield _OURS, asyncio.run(audited)


def _put_adapters(service: Service, options: argparse.Namespace) -> AdapterNames:
    """The same ones for both tenants, under other names."""
    linears = linears_of(options.model)
    for number in range(options.adapters):
        made = Made(number, linears, _RANK)
        for tenant in _TENANTS:
            name = _adapter_name(tenant, number)
            is_pinned = tenant == _TENANTS[1] and number == 0 and not options.unpinned
            service.put_adapter(tenant, name, made.config, made.weights, pinned=is_pinned)
    owner, neighbour = (
        tuple(f":{_adapter_name(tenant, number)}" for number in range(options.adapters))
        for tenant in _TENANTS
    )
    return AdapterNames(owner, neighbour)


def _adapter_name(tenant: str, number: int) -> str:
    return hashlib.blake2b(f"{tenant} {number}".encode(), digest_size=8).hexdigest()


async def _audited_peer(
    peer: Peer, salts: Sequence[str | None], options: argparse.Namespace, seed: int
) -> Report:
    server = Server(
        peer.base_url,
        peer.model,
        rate=_RATE,
        timeout_seconds=_TIMEOUT_SECONDS,
        new_connections=peer.new_connections,
    )
    return await _audited(server, [Tenant(peer.api_key, salt) for salt in salts], options, seed)


async def _audited(
    server: Server,
    tenants: Sequence[Tenant],
    options: argparse.Namespace,
    seed: int,
    adapters: AdapterNames = NO_ADAPTERS,
) -> Report:
    plan = Plan(
        samples=options.samples,
        words=options.words,
        channels=options.channel or tuple(CHANNELS),
        seed=seed,
        adapters=adapters,
    )
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
