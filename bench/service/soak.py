"""Whether everything at once, for as long as it is given, leaves anything behind.

Tenants chat over HTTP and WebSockets, clients vanish in the middle of answers, others send bodies
that are none, and the engine is killed again and again. Afterwards the service is to be as it was
before: no block in use, no task, no descriptor, no stream, no invariant broken; every chat was
answered to its end, and usage is what these clients were told, to the token.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import httpx
import psutil

from bench.common.drivers import DRIVERS, Ask, Driver, DriverError, Timing
from bench.common.machine import rss_mib
from bench.common.options import add_model, service_flags
from bench.common.service import Service, running_service, served_model
from bench.common.workload import passage
from bench.registry import Result

FIGURES: Final = {
    "answers": "chats that were answered to their end",
    "broken_answers": "chats that were not",
    "answers_per_s": "chats answered a second",
    "vanished": "clients that left in the middle of an answer",
    "asked_again": "chats that were asked again, as there was no engine just then",
    "refused": "bad requests that were refused: by a 4xx, or for want of an engine",
    "server_errors": "bad requests that were answered otherwise",
    "engine_kills": "times that the engine was killed",
    "longest_gap_s": "the longest time between two arrivals of text of one chat, s",
    "invariant_violations": "broken invariants of the block pool, as the engine has counted them",
    "blocks_left": "KV blocks in use at the end beyond those before",
    "tasks_left": "tasks of the event loop at the end beyond those before",
    "descriptors_left": "open descriptors of the service, but for its connections to the store, at "
    "the end beyond those before",
    "streams_left": "streams and sockets of tenants at the end",
    "tokens_unaccounted": "tokens between what chats were told and what their usage says",
    "rss_growth_mib": "how much the service process has grown, MiB",
}
_HARMFUL: Final = (
    "broken_answers",
    "server_errors",
    "invariant_violations",
    "blocks_left",
    "tasks_left",
    "descriptors_left",
    "streams_left",
    "tokens_unaccounted",
)
_WARMING_SECONDS: Final = 10.0
_SETTLING_SECONDS: Final = 90.0
_FLUSH_SECONDS: Final = 2.0
"""More than usage takes to the store."""
_AWAY: Final = "engine_unavailable"
_FULL: Final = "context_length_exceeded"
"""So ends a long conversation."""
_CHATS: Final = {"http": 6, "websocket": 6}
_VANISHING: Final = 4
_MOST_TURNS: Final = 4
_TENANTS: Final = ("chat-0", "chat-1", "chat-2")
_BAD: Final = (
    b"",
    b"{",
    b"\xff\xfe\x00",
    b"[" * 5000,
    b'{"input": 5}',
    b'{"input": "x", "no_such_field": 1}',
    b'{"input": "x", "temperature": "hot"}',
    b'{"input": "x", "max_output_tokens": -1}',
    b'{"input": [{"role": "nobody", "content": "x"}]}',
    b'{"input": "x", "previous_response_id": "resp_none"}',
    b'{"input": "' + b"x " * 300_000 + b'"}',
    b'{"input": "x", "text": {"format": {"type": "json_schema", "schema": {"$ref": 1}}}}',
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--minutes", type=float, default=20.0, help="for which all of it goes on")
    parser.add_argument("--kill-seconds", type=float, default=60.0, help="between deaths")
    parser.add_argument("--seed", type=int, default=0, help="of what is asked, and when")
    add_model(parser)


def run(options: argparse.Namespace) -> Result:
    """Warm up, look, let loose, wait, and look again."""
    with running_service(service_flags(options)) as service:
        figures = asyncio.run(_soak(service, options))
    bad = [f"{name} is {figures[name]:g}" for name in _HARMFUL if figures[name]]
    return Result(figures, failure="; ".join(bad))


@dataclass
class _Seen:
    """What clients have met."""

    counts: Counter[str] = field(default_factory=Counter)
    told_tokens: Counter[str] = field(default_factory=Counter)
    """By tenant, what answers have said that they used."""
    longest_gap: float = 0.0


class _Crowd:
    """All that is done to the service at once."""

    def __init__(self, service: Service, seed: int, kill_seconds: float) -> None:
        self.seen = _Seen()
        self._service = service
        self._kill_seconds = kill_seconds
        self._keys = {name: service.create_tenant(name) for name in _TENANTS}
        self._rude = service.create_tenant("rude")
        self._draw = random.Random(seed)
        self._numbers = itertools.count()
        self._ends_at = 0.0
        self._model = served_model(service.url, self._rude)

    async def storm(self, seconds: float, *, kills: bool) -> None:
        """All of it for so long; chats that have begun then are answered to their end."""
        self._ends_at = time.monotonic() + seconds
        repeated: list[Callable[[], Awaitable[None]]] = [self._vanish] * _VANISHING
        repeated += [partial(self._chat, name) for name in _CHATS for _ in range(_CHATS[name])]
        repeated += [self._send_bad, self._kill] if kills else [self._send_bad]
        await asyncio.gather(*map(self._repeat, repeated))

    async def usage(self, tenant: str) -> int:
        """Tokens that are booked for it."""
        async with self._service.operator() as operator:
            answer = await operator.get(f"/admin/tenants/{tenant}/usage", params={"format": "json"})
        days = answer.raise_for_status().json()["usage"]
        return sum(day["prompt_tokens"] + day["output_tokens"] for day in days)

    async def _repeat(self, what: Callable[[], Awaitable[None]]) -> None:
        while time.monotonic() < self._ends_at:
            await what()

    def _ask(self, api_key: str, history: list[tuple[str, str]], most_tokens: int) -> Ask:
        words = self._draw.choice((4, 20, 100, 400))
        return Ask(
            api_key=api_key,
            system=passage("shared", 200) if self._draw.random() < 0.7 else "",
            question=passage(f"{next(self._numbers)}", words),
            output_tokens=self._draw.randint(1, most_tokens),
            history=tuple(history),
        )

    async def _chat(self, transport: str) -> None:
        """A conversation of some turns, each read to its end."""
        tenant = self._draw.choice(list(self._keys))
        driver = DRIVERS[transport](self._service.url, self._model)
        history: list[tuple[str, str]] = []
        try:
            for _ in range(self._draw.randint(1, _MOST_TURNS)):
                ask = self._ask(self._keys[tenant], history, 60)
                timing = await self._answered(driver, ask)
                self.seen.counts["answers"] += 1
                self.seen.told_tokens[tenant] += timing.prompt_tokens + timing.output_tokens
                self.seen.longest_gap = max([self.seen.longest_gap, *timing.gaps_seconds])
                history.append((ask.question, timing.text))
        except (DriverError, OSError) as error:
            if _FULL not in str(error):
                self.seen.counts[f"broken: {error}"] += 1
                self.seen.counts["broken_answers"] += 1
        finally:
            await driver.close()

    async def _answered(self, driver: Driver, ask: Ask) -> Timing:
        """An answer, asked for again while there is no engine, as clients do."""
        while True:
            timing = Timing()
            try:
                await driver.ask(ask, timing)
            except DriverError as error:
                if timing.arrivals or _AWAY not in str(error):
                    raise
                self.seen.counts["asked_again"] += 1
                await asyncio.sleep(0.5)
            else:
                return timing

    async def _vanish(self) -> None:
        """Ask for much and leave in the middle, or before anything has come."""
        transport = self._draw.choice(list(DRIVERS))
        driver = DRIVERS[transport](self._service.url, self._model)
        asking = asyncio.create_task(driver.ask(self._ask(self._rude, [], 400), Timing()))
        await asyncio.wait({asking}, timeout=self._draw.expovariate(1.5))
        asking.cancel()
        with suppress(asyncio.CancelledError):
            try:
                await asking
            except (DriverError, OSError):  # there may be no engine just now
                await asyncio.sleep(0.1)
        await driver.close()
        self.seen.counts["vanished"] += 1

    async def _send_bad(self) -> None:
        headers = {"authorization": f"Bearer {self._rude}"}
        async with httpx.AsyncClient(base_url=self._service.url, trust_env=False) as client:
            body = self._draw.choice(_BAD)
            answer = await client.post("/v1/responses", content=body, headers=headers, timeout=60)
        is_refused = 400 <= answer.status_code < 500 or _AWAY in answer.text
        self.seen.counts["refused" if is_refused else "server_errors"] += 1
        if not is_refused:
            self.seen.counts[f"{body[:60]!r}: {answer.text[:200]}"] += 1
        await asyncio.sleep(self._draw.expovariate(5.0))

    async def _kill(self) -> None:
        await asyncio.sleep(self._kill_seconds * self._draw.uniform(0.5, 1.5))
        for child in psutil.Process(self._service.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if "engine.assembly.process" in child.cmdline():
                    os.kill(child.pid, signal.SIGKILL)
                    self.seen.counts["engine_kills"] += 1


async def _soak(service: Service, options: argparse.Namespace) -> dict[str, float]:
    crowd = _Crowd(service, options.seed, options.kill_seconds)
    await crowd.storm(_WARMING_SECONDS, kills=False)
    before = await _settled(service)
    warmed = crowd.seen.counts["answers"]
    began = time.monotonic()
    await crowd.storm(options.minutes * 60, kills=True)
    seconds = time.monotonic() - began
    after = await _settled(service, before)
    await asyncio.sleep(_FLUSH_SECONDS)
    unaccounted = 0
    for tenant, told in crowd.seen.told_tokens.items():
        unaccounted += abs(await crowd.usage(tenant) - told)
    counts = crowd.seen.counts
    for what, count in counts.items():
        if ":" in what:
            print(f"{count} x {what}")
    return {
        **{name: float(counts[name]) for name in _COUNTED},
        "answers_per_s": (counts["answers"] - warmed) / seconds,
        "longest_gap_s": crowd.seen.longest_gap,
        "invariant_violations": after["violations"],
        **{f"{name}_left": max(0.0, after[name] - before[name]) for name in _LEFT},
        "tokens_unaccounted": float(unaccounted),
        "rss_growth_mib": after["rss"] - before["rss"],
    }


_COUNTED: Final = (
    *("answers", "broken_answers", "asked_again"),
    *("vanished", "refused", "server_errors", "engine_kills"),
)
_LEFT: Final = ("blocks", "tasks", "descriptors", "streams")


async def _settled(
    service: Service, expected: Mapping[str, float] | None = None
) -> dict[str, float]:
    """What the service holds once that does not shrink any more, or is what is `expected`."""
    deadline = time.monotonic() + _SETTLING_SECONDS
    held = await _held(service)
    calm = 0
    while time.monotonic() < deadline:
        await asyncio.sleep(1.0)
        last, held = held, await _held(service)
        calm = calm + 1 if all(held[name] >= last[name] for name in _LEFT) else 0
        if expected is None and calm >= 10:
            break
        if expected is not None and all(held[name] <= expected[name] for name in _LEFT):
            break
    return held


async def _held(service: Service) -> dict[str, float]:
    metrics = await asyncio.to_thread(service.metrics)
    async with service.operator() as operator:
        live: dict[str, Any] = (await operator.get("/admin/live")).raise_for_status().json()
    return {
        **await asyncio.to_thread(service.held),
        "violations": metrics["partywall_engine_invariant_violations_total"],
        "streams": float(sum(one["streams"] + one["sockets"] for one in live["tenants"])),
        "rss": rss_mib(service.pid),
    }
