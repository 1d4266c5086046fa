"""Schemas over HTTP: Partywall and its peers, each with the schemas and without, in turns."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from rich.table import Table

from bench.common.drivers import Ask, HttpDriver
from bench.common.figures import InTurns, median_ratio, numbers_table
from bench.common.options import service_flags
from bench.common.service import running_service, served_model
from bench.common.workload import question
from bench.formats.schemas import schema_of
from bench.peers.peer import Peer, read_peers, running_peer
from bench.registry import BenchError
from bench.service.loads.rounds import Target, send_round, summary

_OURS = "partywall"
_TIMEOUT_SECONDS = 300.0
_WARM_TOKENS = 8


_Start = Callable[[], AbstractContextManager[Target]]


def compare(options: argparse.Namespace) -> tuple[dict[str, float], list[Table]]:
    """Figures, and tables, of as many answers at once as the first of the batch sizes.

    Raises `BenchError` for a server that does not start, or answers nothing.
    """
    servers: dict[str, _Start] = {_OURS: partial(_ours, options)}
    servers |= {peer.name: partial(_peer, peer) for peer in read_peers(options.peers)}
    found = {name: InTurns() for name in servers}
    for turn in range(options.peer_rounds):
        for name, start in servers.items():
            try:
                with start() as target:
                    asyncio.run(_measure(found[name], target, options, turn))
            except BenchError as error:
                raise BenchError(f"{name}: {error}") from error
    figures: dict[str, float] = {}
    title = "over HTTP: tokens a second, free and held to schemas; medians of rounds"
    table = numbers_table(title, "server", "free", "held", "held / free")
    for name, one in found.items():
        table.add_row(name, f"{one.plain:,.0f}", f"{one.rate:,.0f}", f"{one.ratio:.3f}")
        figures[f"held_tokens_per_s_{name}"] = one.rate
        figures[f"held_over_free_{name}"] = one.ratio
        if name != _OURS:
            figures[f"{name}_tokens_per_s_ratio"] = median_ratio(found[_OURS].rates, one.rates)
    return figures, [table]


@contextmanager
def _ours(options: argparse.Namespace) -> Iterator[Target]:
    with running_service(service_flags(options)) as service:
        key = service.create_tenant("structured")
        yield _target(HttpDriver(service.url, served_model(service.url, key)), key)


@contextmanager
def _peer(peer: Peer) -> Iterator[Target]:
    with running_peer(peer):
        driver = HttpDriver(
            peer.base_url, peer.model, omits=peer.omits, new_connections=peer.new_connections
        )
        yield _target(driver, peer.api_key)


def _target(driver: HttpDriver, api_key: str) -> Target:
    """Answers may be shorter: a server may know less of schemas than that arrays are long."""
    return Target(driver, [(api_key, "")], _TIMEOUT_SECONDS, shorter=True)


async def _measure(found: InTurns, target: Target, options: argparse.Namespace, turn: int) -> None:
    """One round; what a schema costs once is paid before."""
    try:
        for held in (True, False):
            await _rate(target, options, f"warm-up {turn}", _WARM_TOKENS, held=held)
        for held in (turn % 2 == 0, turn % 2 == 1):
            rates = found.rates if held else found.plain_rates
            rates.append(await _rate(target, options, f"{turn}", options.tokens, held=held))
    finally:
        await target.driver.close()


async def _rate(
    target: Target, options: argparse.Namespace, label: str, tokens: int, *, held: bool
) -> float:
    """Tokens a second of a batch."""
    (api_key, system), *_ = target.tenants
    asks = [
        Ask(
            api_key=api_key,
            system=system,
            question=f"{question(f'{label}, {number}')} Answer with records in JSON.",
            output_tokens=tokens,
            schema=schema_of(number, options.tokens) if held else None,
        )
        for number in range(options.batches[0])
    ]
    timings, seconds = await send_round(target, asks, concurrency=len(asks))
    for timing in timings:
        if timing.error is not None:
            raise BenchError(timing.error)
    return summary(timings, seconds)["output_tokens_per_s"]
