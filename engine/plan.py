"""What one step computes: the tokens of each sequence, in batch order."""

from __future__ import annotations

from dataclasses import dataclass

from engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class ScheduledChunk:
    """Tokens `start ... start + count` of a sequence, to be computed in this step."""

    sequence: Sequence
    start: int
    count: int
    samples: bool
    """Whether the chunk ends at the newest known token, so that the next one is drawn."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step's work, in batch order."""

    chunks: list[ScheduledChunk]

    @property
    def num_tokens(self) -> int:
        """Tokens computed in the step."""
        return sum(chunk.count for chunk in self.chunks)
