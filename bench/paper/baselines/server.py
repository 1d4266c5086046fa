"""What all compared systems have in common: they take requests, and compute in steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bench.paper.baselines.memory import MemoryUse
from bench.paper.cost_model import StepShape


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
