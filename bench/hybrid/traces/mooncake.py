"""Mooncake's conversations (FAST 2025), their ids of 512 tokens taken apart into blocks.

The trace tells the ids of prompts alone. Where a later prompt goes on from one (it has all of its
whole ids, more than one, and at least as many tokens as prompt and answer), the answer is taken to
be what follows there: of 3,975 prompts in that hour which begin with all whole ids of another,
3,548 are as long. Where none does, the answer is like no other text. Without that, no state behind
an answer would ever be of use, Marconi's least of all. Nothing is declared: all there is to know of
a prompt is that its conversation may go on behind its answer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import numpy as np

from bench.common.traces import TOKENS_PER_ID, draw_prompts
from bench.hybrid.shapes import BLOCK
from bench.hybrid.traces.requests import Kind, Request, Trace
from bench.registry import BenchError

_EACH: Final = TOKENS_PER_ID // BLOCK
_SYNTHETIC_SECONDS: Final = 0.3
_SYNTHETIC_ANSWER: Final = 300
_Row = tuple[float, int, int, tuple[int, ...]]
"""Seconds, tokens of the prompt and the answer, ids."""


def mooncake(path: Path, number: int, seed: int) -> Trace:
    """The first so many requests of the file, or drawn ones where there is no such file.

    Raises `BenchError`, naming the line, for a file that is no such trace.
    """
    if path.exists():
        rows, source = _read(path, number), path.name
    else:
        rows, source = _drawn(number, seed), f"synthetic, seed {seed}"
    return Trace("Mooncake's conversations", source, _requests(rows))


def _read(path: Path, number: int) -> list[_Row]:
    rows: list[_Row] = []
    try:
        lines = path.read_text().splitlines()[:number]
    except (OSError, UnicodeDecodeError) as error:
        raise BenchError(f"{path} cannot be read: {error}") from error
    for at, line in enumerate(lines, 1):
        try:
            found = json.loads(line)
            lengths = int(found["input_length"]), int(found["output_length"])
            rows.append((float(found["timestamp"]) / 1000, *lengths, tuple(found["hash_ids"])))
        except (ValueError, KeyError, TypeError) as error:
            raise BenchError(f"{path}, line {at}: not in Mooncake's format ({error})") from error
    if not rows:
        raise BenchError(f"{path} is empty")
    return rows


def _drawn(number: int, seed: int) -> list[_Row]:
    """Prompts end in the middle of their last id."""
    prompts = draw_prompts(seed, number)
    return [
        (
            at * _SYNTHETIC_SECONDS,
            len(ids) * TOKENS_PER_ID - TOKENS_PER_ID // 2,
            _SYNTHETIC_ANSWER,
            ids,
        )
        for at, ids in enumerate(prompts)
    ]


def _requests(rows: list[_Row]) -> list[Request]:
    nexts = _successors(rows)
    continued: dict[int, int] = {}
    """The last id of a prompt, by the id that has its place in the prompt that goes on from it."""
    ran: list[np.ndarray] = [np.empty(0, np.int32)] * len(rows)
    fresh = 1 + max(one for *_, ids in rows for one in ids)
    for number in range(len(rows) - 1, -1, -1):
        _, prompt, answer, ids = rows[number]
        after = nexts[number]
        if after is not None:
            last = rows[after][3][len(ids) - 1]
            continued[ids[-1]] = continued.get(last, last)
            ids = rows[after][3]
        blocks = _blocks([continued.get(one, one) for one in ids])
        if after is None:
            added = -(-answer // TOKENS_PER_ID) + 1
            behind = _blocks(list(range(fresh, fresh := fresh + added)))
            blocks = np.concatenate([blocks[: prompt // BLOCK], behind])
        ran[number] = blocks[: (prompt + answer) // BLOCK]
    return [
        Request(at, 0, prompt, blocks, ((len(blocks), Kind.TURN),))
        for (at, prompt, *_), blocks in zip(rows, ran, strict=True)
    ]


def _successors(rows: list[_Row]) -> list[int | None]:
    """For each request the first one that goes on behind its answer."""
    waiting: dict[int, list[int]] = {}
    """Requests by the last of their whole ids."""
    found: list[int | None] = [None] * len(rows)
    for number, (_, prompt, _, ids) in enumerate(rows):
        for one in ids:
            for before in waiting.get(one, ()):
                _, tokens, answer, shared = rows[before]
                if prompt >= tokens + answer and len(ids) >= len(shared) and found[before] is None:
                    found[before] = number
        if len(ids) > 2:
            waiting.setdefault(ids[-2], []).append(number)
    return found


def _blocks(ids: list[int]) -> np.ndarray:
    """Blocks of whole ids."""
    each = np.arange(_EACH, dtype=np.int32)
    return (np.array(ids, np.int32)[:, None] * _EACH + each).ravel()
