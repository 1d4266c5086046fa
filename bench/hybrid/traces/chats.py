"""Chats of MT-bench's turns behind registered prompts of many tenants.

64 tenants have a prompt each of 200 to 2,000 tokens; conversations come to them as Zipf has it, and
go on from turn to turn, twelve at most, with a chance that is their tenant's (Beta(4, 2): two in
three). The times between are log-normal around 45 s, and one answer in twenty is asked for again.
Words are 1.3 tokens; answers are log-normal around 250 tokens, reasoning in front of them around
600.

With reasoning, the template drops it from the next prompt (as Qwen's, DeepSeek's and others do):
the sequence that ran parts from the one that follows in front of the reasoning.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from bench.common.traces import Conversation, conversations
from bench.hybrid.shapes import BLOCK
from bench.hybrid.traces.requests import Kind, Request, Trace
from bench.hybrid.traces.texts import Shelf, Text

_TENANTS: Final = 64
_PROMPT: Final = (200, 2_000)
_SECONDS: Final = 3_600.0
_TOKENS_PER_WORD: Final = 1.3
_LOYALTY: Final = (4.0, 2.0)
_MOST_TURNS: Final = 12
_AGAIN: Final = 0.05
_THINK_SECONDS: Final = (45.0, 1.0)
_ANSWER: Final = (250.0, 0.6)
_REASONING: Final = (600.0, 0.7)
_LONGEST: Final = 4_000
TOKEN_SECONDS: Final = 0.02
"""How long an answer takes, a token."""
# What a template writes around a message, and behind the last one before an answer.
_HEAD: Final = 5
ANSWER_HEAD: Final = 3
_THINK_HEAD: Final = 2


@dataclass(frozen=True, slots=True)
class _Turn:
    """What is to be asked: the history without the question, which turn it is, and of whom."""

    tenant: int
    conversation: int
    turn: int
    history: Text
    prompt_end: int


class Chats:
    """Draws a trace of so many conversations."""

    def __init__(self, questions: Sequence[Conversation], number: int, seed: int) -> None:
        self._draw = np.random.default_rng([seed, 27])
        self._questions = [turn for one in questions for turn in one]
        self._shelf = Shelf()
        self._loyalty = self._draw.beta(*_LOYALTY, _TENANTS)
        self._lengths = self._draw.integers(*_PROMPT, _TENANTS, endpoint=True).tolist()
        self._due: list[tuple[float, int, _Turn]] = []
        self._pushed = itertools.count()
        self._serial = 0
        weights = 1 / np.arange(1, _TENANTS + 1)
        tenants = self._draw.choice(_TENANTS, number, p=weights / weights.sum()).tolist()
        starts = np.sort(self._draw.uniform(0, _SECONDS, number)).tolist()
        for conversation, (tenant, at) in enumerate(zip(tenants, starts, strict=True)):
            text = self._shelf.empty.then(("system", tenant), self._lengths[tenant])
            self._push(at, _Turn(tenant, conversation, 0, text, text.tokens))

    def requests(self, *, reasoning: bool) -> list[Request]:
        """Those of the first hour in order of arrival."""
        found = []
        while self._due and self._due[0][0] < _SECONDS:
            at, _, turn = heapq.heappop(self._due)
            found.append(self._ask(at, turn, reasoning=reasoning))
        return found

    def _ask(self, at: float, turn: _Turn, *, reasoning: bool) -> Request:
        name = (turn.conversation, turn.turn)
        number = (7 * turn.conversation + turn.turn) % len(self._questions)
        words = len(self._questions[number].split())
        asked = turn.history.then(("user", *name), _HEAD + round(words * _TOKENS_PER_WORD))
        asked = asked.then("assistant", ANSWER_HEAD)
        self._serial += 1
        thought = drawn(self._draw, _REASONING, _LONGEST) if reasoning else 0
        said = drawn(self._draw, _ANSWER, _LONGEST)
        kept = asked.then(("answer", self._serial), said)
        if reasoning:
            prompt = asked.then("think", _THINK_HEAD)
            ran = prompt.then(("thought", self._serial), thought).then(("said", self._serial), said)
        else:
            prompt, ran = asked, kept
        answered = at + TOKEN_SECONDS * (thought + said)
        if self._draw.random() < _AGAIN:
            self._push(answered + wait(self._draw, _THINK_SECONDS) / 3, turn)
        elif turn.turn + 1 < _MOST_TURNS and self._draw.random() < self._loyalty[turn.tenant]:
            then = _Turn(turn.tenant, turn.conversation, turn.turn + 1, kept, turn.prompt_end)
            self._push(answered + wait(self._draw, _THINK_SECONDS), then)
        places = [(turn.prompt_end // BLOCK, Kind.PROMPT)]
        places.append(((asked if reasoning else kept).tokens // BLOCK, Kind.TURN))
        return Request(at, turn.tenant, prompt.tokens, ran.blocks, tuple(places))

    def _push(self, at: float, turn: _Turn) -> None:
        heapq.heappush(self._due, (at, next(self._pushed), turn))


def drawn(draw: np.random.Generator, lengths: tuple[float, float], longest: int) -> int:
    """Tokens: log-normal with this median and spread of the logarithm."""
    return min(longest, max(1, round(wait(draw, lengths))))


def wait(draw: np.random.Generator, seconds: tuple[float, float]) -> float:
    """Log-normal with this median and spread of the logarithm."""
    return float(draw.lognormal(math.log(seconds[0]), seconds[1]))


def chats(questions: Path, number: int, seed: int, *, reasoning: bool) -> Trace:
    """So many conversations of the file's turns, or of made-up ones where there is no such file."""
    found = conversations(questions)
    name = "chats, reasoning dropped" if reasoning else "chats"
    source = questions.name if questions.is_file() else f"synthetic questions, seed {seed}"
    return Trace(name, source, Chats(found, number, seed).requests(reasoning=reasoning))
