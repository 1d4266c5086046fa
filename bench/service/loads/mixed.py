"""*mixed*: arrivals and lengths of the Azure trace, scaled to the machine.

Requests come when they are due, whether or not others are answered. Half of them are sampled, a
third begin with their tenant's system prompt, and all others resemble nothing. The figures are
those at one rate, which is the same for every server; then the goodput is looked for.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Final

from bench.common.drivers import Ask, Sampling
from bench.common.figures import percentile
from bench.common.load import Arrival, Phase, Sent, send_as_due
from bench.common.traces import AZURE_TRACE, Traced, draw_trace, read_trace
from bench.common.workload import CountTokens, exact_text, unique_start
from bench.registry import BenchError
from bench.service.loads.closed import SAMPLED, system_prompts
from bench.service.loads.rounds import Target, summary, warm_up

_SHARE: Final = 99
"""Percent of the requests, and of the gaps, that must be within the bounds."""
_FACTOR: Final = 2.0
_MOST_STEPS: Final = 5

DEFAULTS: Final[Mapping[str, object]] = {
    "tenants": 4,
    "system_tokens": 512,
    "trace": AZURE_TRACE,
    "shrink": 8.0,
    "rate": 3.0,
    "seconds": 10.0,
    "halvings": 2,
}
FIGURES: Final = {
    "goodput_requests_per_s": "mixed: greatest arrival rate found at which the time to the first "
    "text is at most 1 s and that between two texts at most 100 ms, both as 99th percentiles "
    "(requests that fail count as late); 0 if there is none",
}
_SYNTHETIC: Final = 20_000
_GRACE_SECONDS: Final = 10.0
_FEWEST_PROMPT, _FEWEST_OUTPUT = 16, 2


@dataclass(frozen=True)
class Bounds:
    """On the 99th percentiles of the time to the first text and between two texts."""

    ttft_seconds: float = 1.0
    itl_seconds: float = 0.1

    def kept(self, sent: Sequence[Sent]) -> bool:
        """Whether requests whose time is over were within the bounds; one unanswered was not."""
        late = sum(not one.answered or self._is_late(one) for one in sent)
        gaps = [gap for one in sent for gap in one.timing.gaps_seconds]
        return late <= _allowed(len(sent)) and self._long(gaps) <= _allowed(len(gaps))

    def hopeless(self, sent: Sequence[Sent]) -> bool:
        """Whether they cannot be any more, whatever the answers that are still to come."""
        late = sum(self._is_late(one) for one in sent)
        gaps = [gap for one in sent for gap in one.timing.gaps_seconds]
        most_gaps = sum(one.arrival.ask.output_tokens - 1 for one in sent)
        return late > _allowed(len(sent)) or self._long(gaps) > _allowed(most_gaps)

    def _is_late(self, one: Sent) -> bool:
        """Whether its first text came too late, is overdue, or will never come."""
        timing = one.timing
        if timing.error is not None:
            return True
        if not timing.sent_at:
            return False
        first = timing.arrivals[0] if timing.arrivals else perf_counter()
        return first - timing.sent_at > self.ttft_seconds

    def _long(self, gaps: Sequence[float]) -> int:
        return sum(gap > self.itl_seconds for gap in gaps)


async def greatest_rate(
    keeps: Callable[[float], Awaitable[bool]], *, start: float, start_keeps: bool, halvings: int
) -> float:
    """The greatest rate found at which the bounds are kept; 0 where the least tried is too much.

    From `start` it doubles (or halves) the rate until one is kept and the next is not, at most 32
    times up or down, and then halves what lies between them, as ratios, so many times.
    """
    low, high = (start, None) if start_keeps else (0.0, start)
    for _ in range(_MOST_STEPS):
        if low and high:
            break
        rate = low * _FACTOR if low else (high or start) / _FACTOR
        if await keeps(rate):
            low = rate
        else:
            high = rate
    if not low or high is None:
        return low
    for _ in range(halvings):
        rate = (low * high) ** 0.5
        if await keeps(rate):
            low = rate
        else:
            high = rate
    return low


def _allowed(count: int) -> int:
    """How many of so many may be beyond the bound of the 99th percentile."""
    return count * (100 - _SHARE) // 100


_BOUNDS: Final = Bounds()


@dataclass(frozen=True)
class Mixed:
    """Slices of the trace, at the rate that is asked for."""

    systems: Sequence[str]
    options: argparse.Namespace
    count: CountTokens
    trace: Sequence[Traced]

    @classmethod
    def of(cls, options: argparse.Namespace, count: CountTokens) -> Mixed:
        """As the options say. Raises `BenchError` for a trace or system prompts that cannot be."""
        if options.trace.is_file():
            trace = read_trace(options.trace)
        else:
            told = "give --trace FILE; arrivals and lengths are drawn with its statistics"
            print(f"mixed: {options.trace} is not there ({told})", file=sys.stderr)
            trace = draw_trace(_SYNTHETIC, seed=0)
        return cls(system_prompts(options, count), options, count, trace)

    async def measure(self, target: Target, label: str) -> dict[str, float]:
        """See `Load.measure`."""
        rate: float = self.options.rate
        phase = await self._send(target, label, rate)

        async def keeps(rate: float) -> bool:
            await warm_up(target)  # so that what was broken off before is out of the way
            tried = await self._send(target, label, rate, until_hopeless=True)
            return _BOUNDS.kept(tried.sent)

        goodput = await greatest_rate(
            keeps,
            start=rate,
            start_keeps=_BOUNDS.kept(phase.sent),
            halvings=self.options.halvings,
        )
        return _summary(phase) | {"goodput_requests_per_s": goodput}

    async def _send(
        self, target: Target, label: str, rate: float, *, until_hopeless: bool = False
    ) -> Phase:
        """A slice of the trace, broken off when the bounds cannot be kept any more, if asked to."""
        phase = await send_as_due(
            target.driver,
            self.arrivals(target, label, rate),
            seconds=self.options.seconds,
            awaited=[api_key for api_key, _ in target.tenants],
            grace_seconds=_GRACE_SECONDS,
            hopeless=_BOUNDS.hopeless if until_hopeless else None,
        )
        for one in phase.sent:
            if one.answered:
                one.timing.error = target.fault(one.arrival.ask, one.timing)
        return phase

    def arrivals(self, target: Target, label: str, rate: float) -> list[Arrival]:
        """`rate * seconds` requests that follow each other in the trace, in as many seconds.

        They begin at the same place for every rate of one label, and say something else.
        """
        count = max(1, round(rate * self.options.seconds))
        if count >= len(self.trace):
            raise BenchError(f"the trace has {len(self.trace)} requests: too few for {rate}/s")
        first = random.Random(f"mixed {label}").randrange(len(self.trace) - count)
        chosen = self.trace[first : first + count]
        begin, end = chosen[0].at_seconds, self.trace[first + count].at_seconds
        scale = self.options.seconds / max(end - begin, 1e-3)
        return [
            Arrival(
                due_seconds=(one.at_seconds - begin) * scale,
                tenant=target.tenants[number % len(target.tenants)][0],
                ask=self._ask(target, f"{label} {rate} {number}", number, one),
            )
            for number, one in enumerate(chosen)
        ]

    def _ask(self, target: Target, label: str, number: int, traced: Traced) -> Ask:
        """Every second one is sampled, every third one begins with a shared prompt."""
        api_key, system = target.tenants[number % len(target.tenants)]
        seed = f"mixed {label}"
        prompt_tokens = round(traced.prompt_tokens / self.options.shrink)
        output_tokens = round(traced.output_tokens / self.options.shrink)
        return Ask(
            api_key=api_key,
            system=system if number % 3 == 0 else "",
            question=exact_text(
                unique_start(seed), seed, max(_FEWEST_PROMPT, prompt_tokens), self.count
            ),
            output_tokens=max(_FEWEST_OUTPUT, output_tokens),
            sampling=SAMPLED if number % 2 else Sampling(),
        )


def _summary(phase: Phase) -> dict[str, float]:
    """The figures of a round; requests without an answer count with how long they had waited."""
    ttfts = phase.ttfts({one.arrival.tenant for one in phase.sent})
    for one in phase.sent:
        if not one.answered:
            one.timing.error = one.timing.error or "no answer in time"
    found = summary([one.timing for one in phase.sent], phase.ended_at - phase.started_at)
    return found | {
        "ttft_ms_p50": percentile(ttfts, 50) * 1000,
        "ttft_ms_p99": percentile(ttfts, 99) * 1000,
    }
