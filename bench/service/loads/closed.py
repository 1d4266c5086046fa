"""Loads of so many requests, or conversations, under way at once: each waits for one to end.

*shared* and *sampled*: tenants whose requests begin with their system prompts, which are sent
inline (so that any OpenAI-compatible server gets the same load), and questions that never repeat.
*cold*: prompts that resemble no other from their first words on, alone and several at once. *chat*:
conversations of many turns, each sent behind the last answer, with its history; the turns are those
of MT-bench's questions, several of which make one conversation.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from math import inf
from time import perf_counter
from typing import Final

from bench.common.drivers import Ask, Sampling, Timing
from bench.common.figures import percentile
from bench.common.traces import DEFAULT_QUESTIONS, Conversation, conversations
from bench.common.workload import CountTokens, exact_text, question, system_prompt, unique_start
from bench.service.loads.rounds import Target, answer, send_round, summary

STEADY_DEFAULTS: Final[Mapping[str, object]] = {
    "tenants": 4,
    "requests": 8,
    "concurrency": 8,
    "system_tokens": 512,
    "output_tokens": 64,
}
SAMPLED: Final = Sampling(temperature=1.0, top_p=0.95)

COLD_DEFAULTS: Final[Mapping[str, object]] = {
    "tenants": 4,
    "concurrency": 8,
    "output_tokens": 16,
    "lengths": [256, 1024, 4096],
}
COLD_FIGURES: Final = {
    "ttft_ms_p50_alone_LENGTH": "cold: time to the first text of a unique prompt of LENGTH tokens, "
    "one request at a time, median, ms",
    "ttft_ms_p50_at_once_LENGTH": "cold: the same, --concurrency requests at once, of all "
    "--lengths in turn",
}
_ALONE: Final = 3
"""Requests of each length that have the server for themselves."""
CHAT_DEFAULTS: Final[Mapping[str, object]] = {
    "tenants": 4,
    "requests": 4,
    "concurrency": 8,
    "output_tokens": 64,
    "turns": 6,
    "questions": DEFAULT_QUESTIONS,
}


@dataclass(frozen=True)
class Steady:
    """So many requests of each tenant a round, so many at once."""

    systems: Sequence[str]
    options: argparse.Namespace
    sampling: Sampling

    @classmethod
    def shared(cls, options: argparse.Namespace, count: CountTokens) -> Steady:
        """Greedy answers. Raises `BenchError` if no system prompt of that length can be made."""
        return cls(system_prompts(options, count), options, Sampling())

    @classmethod
    def sampled(cls, options: argparse.Namespace, count: CountTokens) -> Steady:
        """The same, and every answer sampled."""
        return cls(system_prompts(options, count), options, SAMPLED)

    async def measure(self, target: Target, label: str) -> dict[str, float]:
        """See `Load.measure`."""
        asks = [
            Ask(
                api_key=api_key,
                system=system,
                question=question(f"{label}, {number}.{tenant}"),
                output_tokens=self.options.output_tokens,
                sampling=self.sampling,
            )
            for number in range(self.options.requests)
            for tenant, (api_key, system) in enumerate(target.tenants)
        ]
        return summary(*await send_round(target, asks, concurrency=self.options.concurrency))


def system_prompts(options: argparse.Namespace, count: CountTokens) -> list[str]:
    """One for each tenant. Raises `BenchError` if one of that length cannot be made."""
    return [
        system_prompt(f"tenant-{number}", options.system_tokens, count)
        for number in range(options.tenants)
    ]


@dataclass(frozen=True)
class Cold:
    """Prompts of each length one by one, then several at once, of all lengths in turn."""

    systems: Sequence[str]
    options: argparse.Namespace
    count: CountTokens

    @classmethod
    def of(cls, options: argparse.Namespace, count: CountTokens) -> Cold:
        """As the options say; there are no system prompts."""
        return cls([""] * options.tenants, options, count)

    async def measure(self, target: Target, label: str) -> dict[str, float]:
        """See `Load.measure`."""
        lengths: Sequence[int] = self.options.lengths
        at_once: int = self.options.concurrency
        seen: list[Timing] = []
        wall_seconds = 0.0
        found: dict[str, float] = {}
        for name, wanted, concurrency in (
            ("alone", [length for length in lengths for _ in range(_ALONE)], 1),
            ("at_once", list(islice(cycle(lengths), at_once)), at_once),
        ):
            asks = self._asks(target, f"{label} {name}", wanted)
            timings, seconds = await send_round(target, asks, concurrency=concurrency)
            for length in sorted(set(wanted)):
                found[f"ttft_ms_p50_{name}_{length}"] = _ttft_ms_p50(
                    [one for one, tokens in zip(timings, wanted, strict=True) if tokens == length]
                )
            seen += timings
            wall_seconds += seconds
        return summary(seen, wall_seconds) | found

    def _asks(self, target: Target, label: str, lengths: Sequence[int]) -> list[Ask]:
        """Requests whose text has exactly that many tokens, none of which was seen before."""
        asks = []
        for number, length in enumerate(lengths):
            api_key, system = target.tenants[number % len(target.tenants)]
            seed = f"cold {label} {length} {number}"
            asks.append(
                Ask(
                    api_key=api_key,
                    system=system,
                    question=exact_text(unique_start(seed), seed, length, self.count),
                    output_tokens=self.options.output_tokens,
                )
            )
        return asks


def _ttft_ms_p50(timings: Sequence[Timing]) -> float:
    """Of those that were answered; infinite if none was."""
    good = [timing.ttft_seconds for timing in timings if timing.error is None]
    return percentile(good, 50) * 1000 if good else inf


@dataclass(frozen=True)
class Chat:
    """So many conversations of each tenant a round, so many at once."""

    systems: Sequence[str]
    options: argparse.Namespace
    questions: Sequence[Conversation]

    @classmethod
    def of(cls, options: argparse.Namespace, _: CountTokens) -> Chat:
        """As the options say. Raises `BenchError` for a file without questions."""
        if not options.questions.is_file():
            told = "give --questions FILE; its own short questions are asked"
            print(f"chat: {options.questions} is not there ({told})", file=sys.stderr)
        return cls([""] * options.tenants, options, conversations(options.questions))

    async def measure(self, target: Target, label: str) -> dict[str, float]:
        """See `Load.measure`."""
        waiting = [
            (api_key, f"{label}, {number}.{tenant}")
            for number in range(self.options.requests)
            for tenant, (api_key, _) in enumerate(target.tenants)
        ]
        timings: list[Timing] = []

        async def work() -> None:
            while waiting:
                await self._converse(target, *waiting.pop(), timings)

        started = perf_counter()
        await asyncio.gather(*(work() for _ in range(self.options.concurrency)))
        return summary(timings, perf_counter() - started)

    async def _converse(
        self, target: Target, api_key: str, label: str, timings: list[Timing]
    ) -> None:
        """One conversation, to its last turn or the first that fails."""
        history: tuple[tuple[str, str], ...] = ()
        for text in self.turns(label):
            ask = Ask(
                api_key=api_key,
                system="",
                question=text,
                output_tokens=self.options.output_tokens,
                history=history,
            )
            timing = await answer(target, ask)
            timings.append(timing)
            if timing.error is not None:
                return
            history += ((text, timing.text),)

    def turns(self, label: str) -> list[str]:
        """What the user says; no two conversations begin alike."""
        texts: list[str] = []
        draw = random.Random(f"chat {label}")
        while len(texts) < self.options.turns:
            texts += draw.choice(self.questions)
        return [f"({label}) {texts[0]}", *texts[1 : self.options.turns]]
