"""The traces of the paper's sections 6.2, 6.4 and 6.5: plain requests, shared prefixes, chats."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from bench.paper import lengths
from bench.paper.baselines.server import TracedRequest
from bench.paper.lengths import Lengths, poisson_arrivals

_FEWEST = 8
_CHAT_PROMPT_TOKENS = 1024
_CHAT_OUTPUT_TOKENS = 1024
_CHAT_MEAN_ROUNDS = 4
_CHAT_PAUSE_SECONDS = 30.0
_CHAT_READING_SECONDS = 0.1
"""For each token of the answer."""
_CHAT_EARLIER_SECONDS = 400.0


@dataclass(frozen=True, slots=True)
class Workload:
    """What requests look like, and for how long they come."""

    name: str
    kind: Literal["ShareGPT", "Alpaca", "Azure", "translation", "chat"]
    seconds: float
    prefix: int = 0
    """Tokens that all prompts begin with."""
    azure_path: Path | None = None
    seed: int = 0

    @property
    def has_distinct_prompts(self) -> bool:
        """Whether no two requests begin alike."""
        return self.kind != "chat" and self.prefix == 0

    def trace(self, rate: float) -> list[TracedRequest]:
        """The requests of `seconds` (but at least a few) at `rate` a second, in order of arrival.

        The same ones come at every rate, at the same relative times.
        """
        expected = rate * self.seconds
        count = math.ceil(expected + 6 * math.sqrt(expected) + 10)
        if self.kind == "chat":
            return self._chats(rate)
        found = self.lengths(count)
        prefix = tokens(-1, self.prefix)
        return [
            TracedRequest(
                number,
                arrival,
                prefix + tokens(number, found.prompts[number]),
                tokens(number, found.outputs[number]),
            )
            for number, arrival in enumerate(poisson_arrivals(count, rate, self.seed))
            if arrival <= self.seconds or number < _FEWEST
        ]

    def lengths(self, count: int) -> Lengths:
        """How long prompts (without what they share) and answers are."""
        if self.kind == "Azure":
            return lengths.azure(count, self.azure_path, self.seed)
        if self.kind == "Alpaca":
            return lengths.alpaca(count, self.seed)
        if self.kind == "translation":
            return lengths.translation(count, self.seed)
        return lengths.sharegpt(count, self.seed)

    def _chats(self, rate: float) -> list[TracedRequest]:
        """Conversations: a prompt is the last 1,024 tokens of what was said and asked.

        The number of rounds is geometric with mean 4. A user reads an answer at ten tokens a
        second and thinks for half a minute on average. Some have begun before the trace does.
        """
        conversations = rate / _CHAT_MEAN_ROUNDS
        count = math.ceil(2 * conversations * (self.seconds + _CHAT_EARLIER_SECONDS)) + _FEWEST
        starts = poisson_arrivals(count, conversations, self.seed)
        draw = np.random.default_rng((self.seed, 2))
        rounds = draw.geometric(1 / _CHAT_MEAN_ROUNDS, count)
        found = self.lengths(int(rounds.sum()))
        pauses = np.random.default_rng((self.seed, 3)).exponential(
            _CHAT_PAUSE_SECONDS, len(found.prompts)
        )
        requests: list[TracedRequest] = []
        message = 0
        for arrival, turns in zip(starts, rounds, strict=True):
            history: list[int] = []
            arrival -= _CHAT_EARLIER_SECONDS
            for turn in range(message, message + int(turns)):
                if arrival > self.seconds and len(requests) >= _FEWEST:
                    break
                history += tokens(2 * turn, found.prompts[turn])
                prompt = history[-_CHAT_PROMPT_TOKENS:]
                length = min(found.outputs[turn], _CHAT_OUTPUT_TOKENS)
                output = tokens(2 * turn + 1, length)
                if arrival >= 0:
                    requests.append(TracedRequest(0, arrival, prompt, output))
                history += output
                arrival += float(pauses[turn]) + _CHAT_READING_SECONDS * length
            message += int(turns)
        requests.sort(key=lambda request: request.arrival)
        return [replace(request, number=number) for number, request in enumerate(requests)]


def tokens(text: int, count: int) -> list[int]:
    """`count` token ids of a text; no two texts have a block in common."""
    return [text + 2] * count
