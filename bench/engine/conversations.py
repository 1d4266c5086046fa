"""The prompts of a chat service, as chains of ids: each id stands for 512 tokens and all before.

Read from a trace in Mooncake's format (Qin et al., FAST 2025: a JSON object a line, `hash_ids`),
or drawn from a seed with the statistics of its conversation trace: 12,031 requests that begin with
the same id, 24 ids each on average, 39 % of which continue an earlier prompt.
"""

from __future__ import annotations

import heapq
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.registry import BenchError

DEFAULT_TRACE: Final = Path("../shared/traces/mooncake_conversation.jsonl")
TOKENS_PER_ID: Final = 512

Prompt = tuple[int, ...]

_REQUESTS: Final = 12_031
_LONGEST: Final = 247
_SHARED: Final = 0


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
