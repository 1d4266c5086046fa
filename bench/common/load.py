"""Load: requests that come when they are due, and senders that never rest."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from bench.common.drivers import Ask, Driver, DriverError, Timing

_LOOK_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """A request of `tenant`, due so many seconds after the start."""

    due_seconds: float
    tenant: str
    ask: Ask


@dataclass
class Sent:
    """What has become of an arrival; `error` is that of the timing."""

    arrival: Arrival
    timing: Timing = field(default_factory=Timing)
    answered: bool = False
    """Whether the answer has ended well."""


@dataclass(frozen=True)
class Phase:
    """What was sent, and between which times (of `perf_counter`)."""

    sent: Sequence[Sent]
    started_at: float
    ended_at: float

    def ttfts(self, tenants: Collection[str]) -> list[float]:
        """Seconds to the first text; for requests without one, how long they had waited."""
        return [
            (one.timing.arrivals[0] if one.timing.arrivals else self.ended_at) - one.timing.sent_at
            for one in self.sent
            if one.arrival.tenant in tenants and one.timing.sent_at and one.timing.error is None
        ]

    def gaps(self, tenants: Collection[str]) -> list[float]:
        """Seconds between two arrivals of text."""
        return [
            gap
            for one in self.sent
            if one.arrival.tenant in tenants
            for gap in one.timing.gaps_seconds
        ]

    def served_tokens(self, tenants: Collection[str], first: float, last: float) -> float:
        """Tokens served between two times, in seconds since the start.

        A prompt counts when its first text comes. That of a request which was broken off is as long
        as the others' on average; each arrival of text counts as one token.
        """
        lengths = [one.timing.prompt_tokens for one in self.sent if one.answered]
        prompt = sum(lengths) / max(1, len(lengths))
        total = 0.0
        for one in self.sent:
            times = [at - self.started_at for at in one.timing.arrivals]
            if one.arrival.tenant not in tenants or not times:
                continue
            if first <= times[0] < last:
                total += one.timing.prompt_tokens or prompt
            total += sum(first <= at < last for at in times)
        return total


def poisson(rate_per_s: float, seconds: float, draw: random.Random) -> list[float]:
    """Arrival times of a Poisson process."""
    times: list[float] = []
    at = draw.expovariate(rate_per_s)
    while at < seconds:
        times.append(at)
        at += draw.expovariate(rate_per_s)
    return times


def evenly(rate_per_s: float, seconds: float, draw: random.Random) -> list[float]:
    """Arrival times at that rate, each about the middle of its interval: never two at once."""
    count = round(rate_per_s * seconds)
    return [(number + draw.uniform(0.25, 0.75)) / rate_per_s for number in range(count)]


async def send_as_due(
    driver: Driver,
    arrivals: Sequence[Arrival],
    *,
    seconds: float,
    awaited: Collection[str],
    grace_seconds: float,
    hopeless: Callable[[Sequence[Sent]], bool] | None = None,
) -> Phase:
    """Send for `seconds`, then until the requests of the `awaited` tenants are answered.

    Those that are not answered when `grace_seconds` are over too, and all others, are broken off;
    all of them as soon as it is `hopeless`.
    """
    started = perf_counter()
    phase = Phase([Sent(arrival) for arrival in arrivals], started, 0.0)
    tasks = [asyncio.create_task(_send(driver, one, started)) for one in phase.sent]
    waiting = [
        task
        for task, one in zip(tasks, phase.sent, strict=True)
        if one.arrival.tenant in awaited and one.arrival.due_seconds < seconds
    ]
    ending = asyncio.create_task(_until_answered(waiting, seconds, grace_seconds))
    look_seconds = None if hopeless is None else _LOOK_SECONDS
    try:
        while not ending.done() and not (hopeless and hopeless(phase.sent)):
            await asyncio.wait([ending], timeout=look_seconds)
    finally:
        ended = perf_counter()
        for task in (ending, *tasks):
            task.cancel()
        await asyncio.gather(ending, *tasks, return_exceptions=True)
    return Phase(phase.sent, started, ended)


async def _until_answered(
    waiting: Collection[asyncio.Task[None]], seconds: float, grace_seconds: float
) -> None:
    await asyncio.sleep(seconds)
    if waiting:
        await asyncio.wait(waiting, timeout=grace_seconds)


async def most_per_s(
    driver: Driver, make_ask: Callable[[str], Ask], *, senders: int, seconds: float
) -> float:
    """Answers a second while each of `senders` always has one request under way.

    The first quarter of the time is not counted. `make_ask` is given a label that never repeats.
    Raises `DriverError` for a request that fails, or when none was answered.
    """
    answered: list[float] = []

    async def keep_sending(sender: int) -> None:
        number = 0
        while True:
            await driver.ask(make_ask(f"{sender}.{number}"), Timing())
            answered.append(perf_counter())
            number += 1

    started = perf_counter()
    tasks = [asyncio.create_task(keep_sending(sender)) for sender in range(senders)]
    done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
    counted_seconds = seconds * 3 / 4
    served = sum(at - started > seconds - counted_seconds for at in answered)
    if not served:
        raise DriverError(f"nothing was answered within {seconds} s")
    return served / counted_seconds


async def _send(driver: Driver, one: Sent, started: float) -> None:
    await asyncio.sleep(started + one.arrival.due_seconds - perf_counter())
    try:
        await driver.ask(one.arrival.ask, one.timing)
    except (DriverError, OSError) as error:
        one.timing.error = str(error)
    else:
        one.answered = True
