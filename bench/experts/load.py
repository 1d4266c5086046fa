"""What every server is asked: distinct prompts of one length, one by one and several at once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final

import msgspec

from bench.common.drivers import Ask
from bench.common.machine import LoadWatch
from bench.common.service import stop
from bench.common.workload import CountTokens, exact_text, unique_start
from bench.experts.modules import Answer, Question
from bench.registry import BenchError
from bench.service.loads.rounds import Target, send_round, summary

STREAMS: Final = (1, 8)
"""How many are under way at once."""
_ALONE: Final = 2
"""Requests a round that have the server for themselves."""
MEASURED: Final = {
    "output_tokens_per_s": "output_tokens_per_s",
    "ttft_ms_p50": "ttft_ms",
    "itl_ms_p50": "itl_ms",
}
"""Of a round's summary, and what it is called here."""
_ROOT: Final = Path(__file__).parents[2]
_WARM_UP_TOKENS: Final = 8


@dataclass(frozen=True)
class Streams:
    """So many tokens in and out, greedily and past any end."""

    prompt_tokens: int
    output_tokens: int
    count: CountTokens
    systems: Sequence[str] = ("",)

    def texts(self, streams: int, label: str) -> list[str]:
        """Those of a round, of which no other round or server has any."""
        seeds = [f"experts {label} {streams} {number}" for number in range(max(streams, _ALONE))]
        return [
            exact_text(unique_start(seed), seed, self.prompt_tokens, self.count) for seed in seeds
        ]

    async def measure(self, target: Target, label: str) -> dict[str, float]:
        """See `Load.measure`. Raises `BenchError` if a request fails, too."""
        found: dict[str, float] = {}
        ((api_key, _),) = target.tenants
        for streams in STREAMS:
            asks = [
                Ask(api_key=api_key, system="", question=text, output_tokens=self.output_tokens)
                for text in self.texts(streams, label)
            ]
            timings, seconds = await send_round(target, asks, concurrency=streams)
            if failed := next((timing.error for timing in timings if timing.error), None):
                raise BenchError(f"a request failed: {failed}")
            seen = summary(timings, seconds)
            found |= {f"{name}_{streams}": seen[of] for of, name in MEASURED.items()}
        return found


class Modules:
    """A running process of the model's own modules (`bench.experts.modules`)."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def ask(self, question: Question) -> Answer:
        """Its answer. Raises `BenchError` if it has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(msgspec.json.encode(question) + b"\n")
            self._process.stdin.flush()
            return msgspec.json.decode(self._process.stdout.readline(), type=Answer)
        except (BrokenPipeError, msgspec.DecodeError) as error:
            raise BenchError("the process of the model's own modules ended") from error

    def measure(self, load: Streams, label: str) -> dict[str, float]:
        """As `Streams.measure` does of a server."""
        found: dict[str, float] = {}
        self.ask(Question(load.texts(1, f"{label} warm-up")[:1], _WARM_UP_TOKENS))
        watch = LoadWatch()
        for streams in STREAMS:
            texts = load.texts(streams, label)
            answers = [
                self.ask(Question(texts[first : first + streams], load.output_tokens))
                for first in range(0, len(texts), streams)
            ]
            found |= {f"{name}_{streams}": x for name, x in _of(answers, streams).items()}
        return found | {"foreign_load_percent": watch.foreign_percent()}

    def distinct_experts(self, load: Streams) -> dict[int, float]:
        """How many experts of a layer a decode step uses, by how many are under way."""
        return {
            streams: self.ask(
                Question(
                    load.texts(streams, "routing")[:streams],
                    load.output_tokens,
                    counts_experts=True,
                )
            ).distinct_experts
            for streams in STREAMS
        }


def _of(answers: Sequence[Answer], streams: int) -> dict[str, float]:
    tokens = sum(len(answer.seconds) for answer in answers) * streams
    gaps = [after - before for answer in answers for before, after in pairwise(answer.seconds)]
    return {
        "output_tokens_per_s": tokens / sum(answer.seconds[-1] for answer in answers),
        "ttft_ms": 1000 * median(answer.seconds[0] for answer in answers),
        "itl_ms": 1000 * median(gaps),
    }


@contextmanager
def running_modules(folder: Path) -> Iterator[Modules]:
    """That process for a folder, ended at the end."""
    command = [sys.executable, "-m", "bench.experts.modules", str(folder)]
    process = subprocess.Popen(
        command,
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield Modules(process)
    finally:
        stop(process)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.stdout.close()
