"""What all compared systems have in common: they take requests, and compute in steps.

Where every slot of the KV memory goes is told by the categories of the paper's figure 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Protocol

from bench.paper.cost_model import StepShape


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Slots (tokens of KV) by what they are used for; they add up to the whole memory."""

    token_states: float = 0
    """Hold the KV of a token that its request still needs."""
    reserved: float = 0
    """Held empty for tokens that will come."""
    internal: float = 0
    """Held, but for tokens that will never come, or whose request needs nothing any more."""
    external: float = 0
    """Lost to the allocator: what it rounds up, and free memory too scattered for who waits."""
    free: float = 0
    """Whoever comes next can have it."""

    @property
    def total(self) -> float:
        """All slots."""
        return self.held + self.free

    @property
    def held(self) -> float:
        """Slots that nobody else can have."""
        return self.token_states + self.reserved + self.internal + self.external

    @property
    def utilization(self) -> float:
        """The share of what is held that holds token states."""
        return self.token_states / self.held if self.held else 0.0

    def weighted(self, weight: float) -> MemoryUse:
        """Every category times `weight`."""
        return MemoryUse(*(getattr(self, part.name) * weight for part in fields(self)))

    def __add__(self, other: MemoryUse) -> MemoryUse:
        parts = (getattr(self, part.name) + getattr(other, part.name) for part in fields(self))
        return MemoryUse(*parts)


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """A request whose answer is written down already.

    No system but Orca (Oracle) and Orca (Pow2) looks at the answer's length ahead of time.
    """

    number: int
    arrival: float
    """Seconds from the start of the trace."""
    prompt: Sequence[int]
    output: Sequence[int]

    @property
    def num_states(self) -> int:
        """Tokens of KV at its end: the last output token is never computed."""
        return len(self.prompt) + len(self.output) - 1


@dataclass(frozen=True, slots=True)
class Step:
    """One step: what was computed, and what came of it."""

    shape: StepShape
    running: int
    """Requests in the batch."""
    memory: MemoryUse
    """While the step ran."""
    finished: Sequence[int] = field(default=())
    """Numbers of the requests that were answered with it."""


class Server(Protocol):
    """A serving system under simulation. Requests are admitted first come, first served."""

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to compute."""
        ...

    def submit(self, request: TracedRequest) -> None:
        """Queue a request."""
        ...

    def step(self) -> Step:
        """Admit what can be admitted, and compute one step. Only called when not idle."""
        ...
