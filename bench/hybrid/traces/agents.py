"""Agents that call tools in a loop, with breakpoints where their client marks them.

A dozen applications have a prompt each, of system and tools, of 2,000 to 8,000 tokens. A session
has some tasks; a step appends a call (log-normal around 60 tokens) and its result (around 250, with
a long tail), some seconds later. The client marks the end of system and tools, and of the newest
message. One step in 33 is asked for again as it was, as many go back by up to four steps and on
with something else, and one in twelve starts sub-agents: loops of their own behind the same prompt,
whose end the step waits for.
"""

from __future__ import annotations

import itertools
from typing import Final

import numpy as np

from bench.hybrid.shapes import BLOCK
from bench.hybrid.traces.chats import ANSWER_HEAD, TOKEN_SECONDS, drawn, wait
from bench.hybrid.traces.requests import Kind, Request, Trace
from bench.hybrid.traces.texts import Shelf, Text

_APPS: Final = 12
_PROMPT: Final = (2_000, 8_000)
_SECONDS: Final = 1_800.0
_TASK: Final = (150.0, 0.8)
_CALL: Final = (60.0, 0.6)
_RESULT: Final = (250.0, 1.2)
_LONGEST: Final = 6_000
_TOOL_SECONDS: Final = (4.0, 1.0)
_USER_SECONDS: Final = (60.0, 1.0)
_TASKS: Final = 0.5
"""The chance of another task."""
_STEPS: Final = (3, 20)
_SUB_STEPS: Final = (3, 8)
_SUB_AGENTS: Final = 3
_REPEATED: Final = 0.03
_BRANCHED: Final = 0.03
_MOST_BACK: Final = 4
_DELEGATED: Final = 1 / 12


class Agents:
    """Draws a trace of so many sessions."""

    def __init__(self, sessions: int, seed: int) -> None:
        self._draw = np.random.default_rng([seed, 28])
        self._pieces = itertools.count()
        self._found: list[Request] = []
        empty = Shelf().empty
        lengths = self._draw.integers(*_PROMPT, _APPS, endpoint=True).tolist()
        self._prompts = [empty.then(("tools", app), length) for app, length in enumerate(lengths)]
        weights = 1 / np.arange(1, _APPS + 1)
        apps = self._draw.choice(_APPS, sessions, p=weights / weights.sum()).tolist()
        for app, at in zip(apps, self._draw.uniform(0, _SECONDS, sessions).tolist(), strict=True):
            self._session(app, at)

    def requests(self) -> list[Request]:
        """Those of the first half an hour in order of arrival."""
        found = (one for one in self._found if one.at < _SECONDS)
        return sorted(found, key=lambda one: one.at)

    def _session(self, app: int, at: float) -> None:
        text = self._prompts[app]
        while True:
            text, at = self._task(app, text, at, _STEPS)
            if self._draw.random() >= _TASKS:
                return
            at += wait(self._draw, _USER_SECONDS)

    def _task(self, app: int, text: Text, at: float, steps: tuple[int, int]) -> tuple[Text, float]:
        """Steps behind a text; returns the text at the end, and when that is."""
        text = self._message(text, _TASK)
        behind = [text]
        for _ in range(int(self._draw.integers(*steps, endpoint=True))):
            called, at = self._ask(app, text, at, _CALL)
            at += wait(self._draw, _TOOL_SECONDS)
            if self._draw.random() < _REPEATED:
                called, at = self._ask(app, text, at, _CALL)
            if steps != _SUB_STEPS and self._draw.random() < _DELEGATED:
                at = self._delegate(app, at)
            text = self._message(called, _RESULT)
            behind.append(text)
            if self._draw.random() < _BRANCHED:
                back = int(self._draw.integers(1, _MOST_BACK, endpoint=True))
                del behind[max(1, len(behind) - back) :]
                text = behind[-1]
        return self._ask(app, text, at, _RESULT)

    def _delegate(self, app: int, at: float) -> float:
        """Sub-agents side by side; returns when the last one is done."""
        number = int(self._draw.integers(1, _SUB_AGENTS, endpoint=True))
        prompt = self._prompts[app]
        return max(self._task(app, prompt, at, _SUB_STEPS)[1] for _ in range(number))

    def _message(self, text: Text, length: tuple[float, float]) -> Text:
        return text.then(next(self._pieces), drawn(self._draw, length, _LONGEST))

    def _ask(
        self, app: int, text: Text, at: float, length: tuple[float, float]
    ) -> tuple[Text, float]:
        """Returns the text with an answer behind it, and when that is there."""
        prompt = text.then("assistant", ANSWER_HEAD)
        answer = drawn(self._draw, length, _LONGEST)
        ran = prompt.then(next(self._pieces), answer)
        places = (
            (self._prompts[app].tokens // BLOCK, Kind.PROMPT),
            (text.tokens // BLOCK, Kind.BREAKPOINT),
            (ran.tokens // BLOCK, Kind.TURN),
        )
        self._found.append(Request(at, app, prompt.tokens, ran.blocks, places))
        return ran, at + answer * TOKEN_SECONDS


def agents(sessions: int, seed: int) -> Trace:
    """So many sessions."""
    return Trace("agents", f"synthetic, seed {seed}", Agents(sessions, seed).requests())
