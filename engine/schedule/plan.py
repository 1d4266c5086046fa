"""What one step computes, the tokens of each sequence in batch order, and what it draws."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.api import TokenLogprobs
from engine.blocks.transfers import Transfers
from engine.schedule.beam import Candidate
from engine.schedule.sequence import Sequence


@dataclass(frozen=True, slots=True)
class ScheduledChunk:
    """Tokens `start ... start + count` of a sequence, to be computed in this step."""

    sequence: Sequence
    start: int
    count: int
    samplers: tuple[Sequence, ...]
    """Who draws a token from the chunk's last row, if it ends at the newest token."""

    @property
    def is_unknown(self) -> bool:
        """Whether its only token is one that the step launched before draws."""
        return self.start >= len(self.sequence.token_ids)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step's work, in batch order."""

    chunks: list[ScheduledChunk]
    transfers: Transfers = field(default_factory=Transfers)
    findable: set[int] = field(default_factory=set)
    """Blocks that can be found since it was planned, and that it or steps under way are to fill."""
    failed: list[Sequence] = field(default_factory=list)
    """What has ended while the step was planned, because there will be no room for it."""
    awaits_tokens: bool = False
    """Whether somebody is to be preempted once the tokens of all steps before this are known."""
    is_hashing: bool = False
    """Whether a prompt is still to be hashed: there may be nothing to compute so far."""

    @property
    def samplers(self) -> list[Sequence]:
        """Who draws a token in the step, in order."""
        return [sampler for chunk in self.chunks for sampler in chunk.samplers]

    @property
    def num_tokens(self) -> int:
        """Tokens computed in the step."""
        return sum(chunk.count for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class Sampled:
    """The drawn tokens, and log-probabilities for the rows that asked for them.

    Rows of a beam search have candidates instead, best first, from which `engine.schedule.beam`
    chooses.
    """

    token_ids: list[int]
    logprobs: list[TokenLogprobs | None]
    candidates: dict[int, list[Candidate]] = field(default_factory=dict)
    """By row; the token of such a row is its first candidate."""
