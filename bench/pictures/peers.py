"""Partywall beside other servers that see: the same model, the same pictures, in turns.

Every server is started, warmed up, asked and stopped in each round, over chat completions: two
questions about each of some pictures, one after the other, and then chats at once, each of two
questions about a picture of its own. Ratios are the best peer's times over Partywall's, and
Partywall's tokens a second over the best peer's.
"""

from __future__ import annotations

import argparse
import base64
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import median
from typing import Final

from bench.common.drivers import Ask, HttpDriver, Timing
from bench.common.figures import median_ratio
from bench.common.service import running_service, served_model
from bench.common.workload import question
from bench.peers.peer import filled_in, read_peers
from bench.peers.servers import OURS, Running, Server, load_once, of_peer
from bench.pictures.hostile import drawn, file_of
from bench.registry import BenchError
from bench.service.loads.rounds import Target, send_round

FIGURES: Final = {
    "peer_ratio_first": "first token of the first question: the best peer's time over ours, median",
    "peer_ratio_second": "of the second one",
    "peer_ratio_chats": "tokens a second of chats: ours over the best peer's, median",
    "first_ms_SERVER": "first token of the first question about a picture, ms, median",
    "second_ms_SERVER": "of the second one",
    "chats_per_s_SERVER": "tokens a second of chats at once, until all are answered",
}
_PICTURES: Final = 2
_PIXELS: Final = 1024
_ANSWER_TOKENS: Final = 32
_TIMEOUT_SECONDS: Final = 900.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the comparison."""
    parser.add_argument(
        "--peers",
        type=Path,
        metavar="FILE",
        help="compare with these, too, see bench/pictures/peers.example.toml",
    )
    parser.add_argument("--peer-chats", type=int, default=4, help="at once, beside peers")


def measure(options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """All servers in turns, of the model in `folder`. Raises `BenchError` where one fails."""
    load = _Questions(options.peer_chats)
    words = {"{folder}": str(folder)}
    peers = [of_peer(filled_in(peer, words), load) for peer in read_peers(options.peers)]
    servers = [_partywall(options, folder), *peers]
    for number in range(options.rounds):
        for server in servers:
            server.rounds.append(load_once(server, load, f"round {number}", _TIMEOUT_SECONDS))
    return _figures(servers)


def _partywall(options: argparse.Namespace, folder: Path) -> Server:
    """This service."""
    flags = ["--model", str(folder), "--dtype", options.dtype, "--kv-memory", "2GiB"]

    @contextmanager
    def start() -> Iterator[Running]:
        with running_service(flags) as service:
            key = service.create_tenant("bench")
            model = served_model(service.url, key)
            yield Running(service.url, model, [(key, "")], service.pid, service.ready_seconds)

    return Server(OURS, start, HttpDriver)


@dataclass(frozen=True)
class _Questions:
    """About pictures that no server has seen before."""

    chats: int
    systems: Sequence[str] = ("",)
    _seeds: Iterator[int] = field(default_factory=count)

    async def measure(self, target: Target, label: str) -> dict[str, float]:
        """See `bench.service.loads.Load`. Raises `BenchError` if a request fails, too."""
        await _asked(target, [self._picture()], f"{label}, warm-up")
        times: dict[str, list[float]] = {"first_ms": [], "second_ms": []}
        for number in range(_PICTURES):
            urls = [self._picture()]
            for name, found in times.items():
                (timing,), _ = await _asked(target, urls, f"{label}, {number} {name}")
                found.append(1000 * timing.ttft_seconds)
        urls = [self._picture() for _ in range(self.chats)]
        turns = [await _asked(target, urls, f"{label}, turn {turn}") for turn in range(2)]
        tokens = sum(timing.output_tokens for timings, _ in turns for timing in timings)
        rate = tokens / sum(seconds for _, seconds in turns)
        return {name: median(found) for name, found in times.items()} | {"chats_per_s": rate}

    def _picture(self) -> str:
        """A new one, as a URL."""
        data = file_of(drawn(next(self._seeds), _PIXELS, _PIXELS), "JPEG")
        return f"data:image/jpeg;base64,{base64.b64encode(data).decode()}"


async def _asked(target: Target, urls: Sequence[str], label: str) -> tuple[list[Timing], float]:
    """A question about each picture, at once, and the seconds until all are answered."""
    ((api_key, _),) = target.tenants
    asks = [
        Ask(
            api_key=api_key,
            system="",
            question=question(f"{label}, {number}"),
            output_tokens=_ANSWER_TOKENS,
            pictures=(url,),
        )
        for number, url in enumerate(urls)
    ]
    timings, seconds = await send_round(target, asks, concurrency=len(asks))
    if failed := next((timing.error for timing in timings if timing.error), None):
        raise BenchError(f"a request failed: {failed}")
    return timings, seconds


def _figures(servers: Sequence[Server]) -> dict[str, float]:
    ours, *theirs = [server.rounds for server in servers]

    def best(name: str, *, is_time: bool) -> float:
        """The ratio to the best peer's, over 1 where ours is better."""
        own = [one[name] for one in ours]
        others = [[one[name] for one in rounds] for rounds in theirs]
        pairs = [(peer, own) if is_time else (own, peer) for peer in others]
        return min(median_ratio(*pair) for pair in pairs)

    found = {
        "peer_ratio_first": best("first_ms", is_time=True),
        "peer_ratio_second": best("second_ms", is_time=True),
        "peer_ratio_chats": best("chats_per_s", is_time=False),
    }
    for server in servers:
        found |= {f"{name}_{server.name}": value for name, value in server.figures().items()}
    return found
