"""Partywall beside other servers that have adapters: the same ones, the same streams, in turns.

Adapters of random weights are written as PEFT writes them and, by llama.cpp's own script, as its
files. Every server is started, asked once for each adapter, loaded and stopped in each round: with
as many streams of the base, and with streams of all adapters at once. Ratios are Partywall's tokens
a second over the best peer's.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.table import Table

from bench.adapters.making import Made, linears_of
from bench.common.drivers import Ask, Driver, HttpDriver
from bench.common.figures import median_ratio, numbers_table
from bench.common.options import service_flags
from bench.common.service import running_service, served_model
from bench.common.workload import CountTokens, exact_text, unique_start
from bench.peers.peer import filled_in, read_peers
from bench.peers.servers import OURS, Running, Server, load_once, of_peer
from bench.registry import BenchError
from bench.service.loads import token_counter
from bench.service.loads.rounds import Target, send_round, summary
from engine.model.weights import resolve_model

ADAPTERS: Final = 8
_KINDS: Final = ("base", "adapters")
_SHOWN: Final = {
    "output_tokens_per_s": "tokens_per_s",
    "ttft_ms_p50": "ttft_ms",
    "itl_ms_p50": "itl_ms",
}
"""Of a round's summary, and what it is called here."""
FIGURES: Final = {
    f"peer_ratio_{kind}": f"tokens a second of streams of {what}, prompts included, over the best "
    "peer's, median"
    for kind, what in zip(_KINDS, ("the base", f"{ADAPTERS} adapters"), strict=True)
} | {
    "tokens_per_s_KIND_SERVER": "of each server, KIND base or adapters",
    "ttft_ms_KIND_SERVER": "time to the first text, median, ms",
    "itl_ms_KIND_SERVER": "time between two texts, median, ms",
}
_PROMPT_TOKENS: Final = 64
_TIMEOUT_SECONDS: Final = 600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the comparison."""
    parser.add_argument(
        "--peers",
        type=Path,
        metavar="FILE",
        help="compare with these, too, see bench/adapters/peers.example.toml",
    )
    parser.add_argument(
        "--lora-to-gguf",
        type=Path,
        metavar="SCRIPT",
        help="llama.cpp's convert_lora_to_gguf.py, for a peer that takes its files",
    )


def measure(options: argparse.Namespace) -> tuple[dict[str, float], Table]:
    """All servers in turns. Raises `BenchError` where one does not answer everything."""
    folder, linears = resolve_model(options.model), linears_of(options.model)
    adapters = [Made(number, linears, options.rank) for number in range(ADAPTERS)]
    load = _Streams(options.streams, options.output, token_counter(options.model))
    with tempfile.TemporaryDirectory(prefix="partywall-adapters-") as made:
        for number, adapter in enumerate(adapters):
            _write(adapter, Path(made, f"a{number}"), folder, options.lora_to_gguf)
        words = {"{adapters}": made, "{folder}": str(folder)}
        peers = [of_peer(filled_in(peer, words), load) for peer in read_peers(options.peers)]
        servers = [_partywall(adapters, service_flags(options)), *peers]
        for number in range(options.rounds):
            for server in servers:
                found = load_once(server, load, f"round {number}", _TIMEOUT_SECONDS)
                server.rounds.append(found)
    return _figures(servers), _table(servers)


@dataclass(frozen=True)
class _Streams:
    """So many at once, of the base and of adapters, greedily and past any end."""

    streams: int
    output_tokens: int
    count: CountTokens
    systems: Sequence[str] = ("",)

    async def measure(self, target: Target, label: str) -> dict[str, float]:
        """See `bench.service.loads.Load`. Raises `BenchError` if a request fails, too."""
        await self._round(target, f"{label} warm-up", ADAPTERS, 1, with_adapters=True)
        found: dict[str, float] = {}
        for kind in _KINDS:
            seen = await self._round(
                target,
                f"{label} {kind}",
                self.streams,
                self.output_tokens,
                with_adapters=kind == "adapters",
            )
            found |= {f"{name}_{kind}": seen[of] for of, name in _SHOWN.items()}
        return found

    async def _round(
        self, target: Target, label: str, streams: int, output: int, *, with_adapters: bool
    ) -> dict[str, float]:
        ((api_key, _),) = target.tenants
        asks = []
        for number in range(streams):
            seed = f"adapters {label} {number}"
            asks.append(
                Ask(
                    api_key=api_key,
                    system="",
                    question=exact_text(unique_start(seed), seed, _PROMPT_TOKENS, self.count),
                    output_tokens=output,
                    adapter=number % ADAPTERS if with_adapters else None,
                )
            )
        timings, seconds = await send_round(target, asks, concurrency=streams)
        if failed := next((timing.error for timing in timings if timing.error), None):
            raise BenchError(f"a request failed: {failed}")
        return summary(timings, seconds)


def _partywall(adapters: Sequence[Made], flags: Sequence[str]) -> Server:
    """This service, with a tenant that has the adapters."""

    @contextmanager
    def start() -> Iterator[Running]:
        with running_service(flags) as service:
            key = service.create_tenant("bench")
            for number, made in enumerate(adapters):
                service.put_adapter("bench", f"a{number}", made.config, made.weights)
            model = served_model(service.url, key)
            yield Running(service.url, model, [(key, "")], service.pid, service.ready_seconds)

    def connect(url: str, model: str) -> Driver:
        return HttpDriver(url, model, adapter=f'{{"model": "{model}:a{{number}}"}}')

    return Server(OURS, start, connect)


def _write(made: Made, folder: Path, base: Path, script: Path | None) -> None:
    """As PEFT does and, with a script, as llama.cpp does. Raises `BenchError`."""
    folder.mkdir()
    (folder / "adapter_config.json").write_bytes(made.config)
    (folder / "adapter_model.safetensors").write_bytes(made.weights)
    if script is None:
        return
    command = [sys.executable, str(script), "--base", str(base), "--outtype", "bf16"]
    command += ["--outfile", f"{folder}.gguf", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"{script}: {done.stderr[-2000:]}")


def _figures(servers: Sequence[Server]) -> dict[str, float]:
    found = {}
    for kind in _KINDS:
        rates = [[one[f"tokens_per_s_{kind}"] for one in server.rounds] for server in servers]
        ours, *theirs = rates
        found[f"peer_ratio_{kind}"] = min(median_ratio(ours, peer) for peer in theirs)
    for server in servers:
        medians = server.figures()
        found |= {
            f"{name}_{kind}_{server.name}": medians[f"{name}_{kind}"]
            for name in _SHOWN.values()
            for kind in _KINDS
        }
    return found


def _table(servers: Sequence[Server]) -> Table:
    table = numbers_table("adapters beside peers", "figure", *(one.name for one in servers))
    medians = [server.figures() for server in servers]
    for name in medians[0]:
        cells = (f"{one[name]:,.1f}" if name in one else "" for one in medians)
        table.add_row(name, *cells)
    return table
