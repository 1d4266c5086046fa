"""What is asked of a prefix cache: requests in order of arrival, and the tree that they make.

All policies see one tree, made once: of *runs*, which are blocks that no request of the trace tells
apart. What is behind a request's own sequence is used by the policy that knows the future alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np

from bench.hybrid.shapes import BLOCK, Shape


class Kind(StrEnum):
    """Why somebody may come back to a place in a text."""

    PROMPT = "prompt"
    """The constant part of a registered prompt ends, or system and tools that a client marked."""
    BREAKPOINT = "breakpoint"
    """A client marked the end of a message."""
    TURN = "turn"
    """The conversation's next turn goes on here, as the template will render it."""


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt and the answer that was computed behind it."""

    at: float
    """Seconds since the first request."""
    tenant: int
    prompt_tokens: int
    blocks: np.ndarray
    """Whole blocks of prompt and answer (`bench.hybrid.traces.texts`)."""
    places: tuple[tuple[int, Kind], ...]
    """Where somebody is known to come back: whole blocks up to there, ascending."""

    @property
    def most_found(self) -> int:
        """Blocks that a hit can have: the last token is always computed."""
        return min((self.prompt_tokens - 1) // BLOCK, len(self.blocks))


@dataclass(frozen=True)
class Trace:
    """Requests in order of arrival."""

    name: str
    source: str
    requests: list[Request]


@dataclass(frozen=True, slots=True)
class Served:
    """A request as a way through the tree."""

    request: Request
    path: list[int]
    """The runs of its sequence."""
    most: int
    """So many runs of the path a hit can have."""
    best: int
    """So many of them would be found if nothing were ever forgotten."""


@dataclass(frozen=True)
class Tree:
    """The runs of a trace: how many blocks they have, where they end, what is before them."""

    trace: Trace
    served: list[Served]
    lengths: list[int]
    ends: list[int]
    """Blocks from the beginning of the text."""
    parents: list[int]
    """-1 at the beginning."""

    @property
    def num_blocks(self) -> int:
        """Different blocks of all sequences."""
        return sum(self.lengths)

    @property
    def prompt_tokens(self) -> int:
        """Of all requests."""
        return sum(one.request.prompt_tokens for one in self.served)

    @property
    def findable(self) -> int:
        """Tokens of prompts that would be found if nothing were ever forgotten."""
        return sum(self.end(one.path, one.best) for one in self.served) * BLOCK

    @cached_property
    def children(self) -> list[list[int]]:
        """The runs that go on from each."""
        found: list[list[int]] = [[] for _ in self.ends]
        for run, parent in enumerate(self.parents):
            if parent >= 0:
                found[parent].append(run)
        return found

    def end(self, path: Sequence[int], runs: int) -> int:
        """Blocks of the first so many runs of a path."""
        return self.ends[path[runs - 1]] if runs else 0

    def touched_bytes(self, shape: Shape) -> int:
        """The keys of all, and a state of each request."""
        return self.num_blocks * shape.block_bytes + len(self.served) * shape.state_bytes


def grow(trace: Trace) -> Tree:
    """The tree of a trace."""
    size = 1 + max((int(one.blocks.max()) for one in trace.requests if one.blocks.size), default=0)
    known, cut = np.zeros(size, bool), np.zeros(size, bool)
    shared = []
    for one in trace.requests:
        alike = int(known[one.blocks].sum())
        shared.append(min(alike, one.most_found))
        known[one.blocks] = True
        depths = {alike, shared[-1], one.most_found, len(one.blocks), *(at for at, _ in one.places)}
        cut[one.blocks[[depth - 1 for depth in depths if depth]]] = True
    return _Growth(trace).grown(cut, shared)


class _Growth:
    """Numbers the runs in order of appearance."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._numbers: dict[int, int] = {}
        """By the last block."""
        self._lengths: list[int] = []
        self._ends: list[int] = []
        self._parents: list[int] = []

    def grown(self, cut: np.ndarray, shared: Sequence[int]) -> Tree:
        served = []
        for one, alike in zip(self._trace.requests, shared, strict=True):
            ends = (np.flatnonzero(cut[one.blocks]) + 1).tolist()
            path = self._path(one, ends)
            most, best = (sum(end <= limit for end in ends) for limit in (one.most_found, alike))
            served.append(Served(one, path, most, best))
        return Tree(self._trace, served, self._lengths, self._ends, self._parents)

    def _path(self, request: Request, ends: Sequence[int]) -> list[int]:
        path: list[int] = []
        before = 0
        for end in ends:
            last = int(request.blocks[end - 1])
            if last not in self._numbers:
                self._numbers[last] = len(self._ends)
                self._lengths.append(end - before)
                self._ends.append(end)
                self._parents.append(path[-1] if path else -1)
            path.append(self._numbers[last])
            before = end
        return path
