"""Real traces, or ones like them: Azure's and Mooncake's requests, and MT-bench's questions.

Azure's conversation trace of 2023 (Patel et al., Splitwise, ISCA 2024) has times and lengths. In
Mooncake's format (Qin et al., FAST 2025: a JSON object a line) prompts are chains of ids, each of
which stands for 512 tokens and all before: its conversation trace has 12,031 requests that begin
with the same id, 24 ids each on average, 39 % of which continue an earlier prompt. FastChat's file
of MT-bench has chat questions of two turns.
"""

from __future__ import annotations

import csv
import heapq
import json
import random
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import numpy as np

from bench.common.workload import question
from bench.registry import BenchError

AZURE_TRACE: Final = Path("../shared/traces/azure_conv_2023.csv")

# Of prompts and answers: means and standard deviations of the logarithms, and the longest.
_LOG_MEAN = (6.633, 5.019)
_LOG_SPREAD = (0.985, 0.859)
_LONGEST_TEXTS = (14_050, 1_000)

MOONCAKE_TRACE: Final = Path("../shared/traces/mooncake_conversation.jsonl")
TOKENS_PER_ID: Final = 512
Prompt = tuple[int, ...]
_REQUESTS: Final = 12_031
_LONGEST: Final = 247
_SHARED: Final = 0
DEFAULT_QUESTIONS: Final = Path("../shared/traces/mt_bench_questions.jsonl")
_SYNTHETIC: Final = 80
Conversation = tuple[str, ...]
"""What the user says, turn by turn."""


@dataclass(frozen=True, slots=True)
class Traced:
    """A request of the trace: seconds since the first one, tokens of its prompt and its answer."""

    at_seconds: float
    prompt_tokens: int
    output_tokens: int


def read_trace(path: Path) -> list[Traced]:
    """The requests of the file, in order of arrival. Raises `BenchError` if it is no such trace."""
    try:
        with path.open(newline="") as file:
            rows = [
                (
                    datetime.fromisoformat(row["TIMESTAMP"]),
                    int(row["ContextTokens"]),
                    int(row["GeneratedTokens"]),
                )
                for row in csv.DictReader(file)
            ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BenchError(f"{path}: no trace in Azure's format ({error})") from error
    if not rows:
        raise BenchError(f"{path} is empty")
    return [Traced((at - rows[0][0]).total_seconds(), *lengths) for at, *lengths in rows]


def draw_lengths(count: int, draw: np.random.Generator) -> np.ndarray:
    """Tokens of prompts and answers with the trace's means and spreads: `[count, 2]`."""
    logs = draw.normal(_LOG_MEAN, _LOG_SPREAD, (count, 2))
    return np.minimum(np.exp(logs), _LONGEST_TEXTS).astype(int)


def draw_trace(count: int, seed: int) -> list[Traced]:
    """Requests of such lengths, one a second on average, at random times."""
    draw = np.random.default_rng(seed)
    times = np.cumsum(draw.exponential(1.0, count)).tolist()
    lengths = draw_lengths(count, draw).tolist()
    return [Traced(at, *row) for at, row in zip(times, lengths, strict=True)]


@dataclass(frozen=True)
class Conversations:
    """Prompts in order of arrival, and where they come from."""

    source: str
    prompts: list[Prompt]

    @property
    def num_ids(self) -> int:
        """The length of all prompts together."""
        return sum(map(len, self.prompts))


def load_conversations(trace: Path, seed: int) -> Conversations:
    """The prompts of the file `trace`; where there is none, prompts drawn from `seed`.

    Raises `BenchError`, naming the line, for a file that is no such trace.
    """
    if not trace.exists():
        return Conversations(f"synthetic, seed {seed}", draw_prompts(seed))
    try:
        lines = trace.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BenchError(f"{trace} cannot be read: {error}") from error
    prompts = [_prompt(trace, number, line) for number, line in enumerate(lines, 1)]
    if not prompts:
        raise BenchError(f"{trace} is empty")
    return Conversations(trace.name, prompts)


def draw_prompts(seed: int, requests: int = _REQUESTS) -> list[Prompt]:
    """Prompts that share, grow and come back as those of the conversation trace do.

    A conversation's chance to go on is drawn once for it, so that long ones go on more often. Its
    next prompt replaces the last id of the one before (or, now and then, more) and adds some.
    """
    draw = random.Random(f"conversations {seed}")
    due: list[tuple[float, int, Prompt, float]] = []
    prompts: list[Prompt] = []
    next_id = _SHARED + 1
    for now in range(requests):
        if due and due[0][0] <= now:
            _, _, before, loyalty = heapq.heappop(due)
            cut = draw.randint(1, len(before)) if draw.random() < 0.15 else 1
            kept = before[: max(1, len(before) - cut)]
            added = round(draw.lognormvariate(1.3, 1.1))
        else:
            kept, loyalty = (_SHARED,), draw.betavariate(1.3, 2.8)
            added = round(draw.lognormvariate(2.3, 1.2))
        added = min(max(1, added), max(1, _LONGEST - len(kept)))
        prompt = (*kept, *range(next_id, next_id + added))[:_LONGEST]
        next_id += added
        prompts.append(prompt)
        if draw.random() < loyalty:
            gap = 50 + draw.lognormvariate(5.9, 1.1)
            heapq.heappush(due, (now + gap, now, prompt, loyalty))
    return prompts


def _prompt(trace: Path, number: int, line: str) -> Prompt:
    try:
        ids = json.loads(line)["hash_ids"]
    except (ValueError, KeyError, TypeError) as error:
        raise BenchError(f"{trace}, line {number}: no JSON object with hash_ids") from error
    if not isinstance(ids, list) or not all(isinstance(one, int) for one in ids):
        raise BenchError(f"{trace}, line {number}: hash_ids must be a list of numbers")
    return tuple(ids)


def conversations(path: Path) -> list[Conversation]:
    """Those of the file; short synthetic ones where there is none.

    Raises `BenchError` for a file without any.
    """
    if not path.is_file():
        return [(question(f"{i} first"), question(f"{i} then")) for i in range(_SYNTHETIC)]
    try:
        lines = path.read_text().splitlines()
        turns = [tuple(json.loads(line)["turns"]) for line in lines if line.strip()]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BenchError(f"{path}: no questions in MT-bench's format ({error})") from error
    if not turns:
        raise BenchError(f"{path}: no questions")
    return turns
