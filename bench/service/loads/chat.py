"""*chat*: conversations of many turns; each turn is sent behind the last answer, with its history.

The turns are those of MT-bench's questions, several of which make one conversation.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Final

from bench.common.drivers import Ask, Timing
from bench.common.traces import DEFAULT_QUESTIONS, Conversation, conversations
from bench.common.workload import CountTokens
from bench.service.loads.rounds import Target, answer, summary

DEFAULTS: Final[Mapping[str, object]] = {
    "tenants": 4,
    "requests": 4,
    "concurrency": 8,
    "output_tokens": 64,
    "turns": 6,
    "questions": DEFAULT_QUESTIONS,
}


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
