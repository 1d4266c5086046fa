"""What one step computes, the tokens of each sequence in batch order, and what it draws."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.api import PromptLogprobs, TokenLogprobs
from engine.blocks.transfers import Transfers
from engine.sequences.beam import Candidate
from engine.sequences.sequence import Sequence


@dataclass(frozen=True, slots=True)
class ScheduledChunk:
    """Tokens `start ... start + count` of a sequence, to be computed in this step."""

    sequence: Sequence
    start: int
    count: int
    samplers: tuple[Sequence, ...]
    """Who draws a token from the chunk's last row, if it ends at the newest token."""
    drafts: tuple[int, ...] = ()
    """What may follow the newest token of a sequence that draws alone: computed in rows of their
    own, each of which draws what follows it."""
    scored: range = range(0)
    """Its positions whose scores tell the log-probability of the prompt's next token."""

    @property
    def is_unknown(self) -> bool:
        """Whether its only token is one that the step launched before draws."""
        return self.start >= len(self.sequence.token_ids)

    @property
    def num_rows(self) -> int:
        """Tokens computed for it in the step."""
        return self.count + len(self.drafts)

    @property
    def draws(self) -> list[Draw]:
        """What it draws, in the order of its rows."""
        ends = range(len(self.drafts) + 1)
        return [Draw(one, self.drafts[:end]) for one in self.samplers for end in ends]


@dataclass(frozen=True, slots=True)
class Draw:
    """A token to be drawn: of `sequence`, behind all that it has and `drafts`."""

    sequence: Sequence
    drafts: tuple[int, ...] = ()

    @property
    def num_tokens(self) -> int:
        """How many tokens come before it."""
        return self.sequence.num_tokens + len(self.drafts)

    @property
    def num_output_tokens(self) -> int:
        """How many of them have been generated, or are supposed to be."""
        return self.sequence.num_output_tokens + len(self.drafts)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step's work, in batch order."""

    chunks: list[ScheduledChunk]
    num_decoding: int = 0
    """Of the chunks, the first ones: sequences whose prompts are computed."""
    transfers: Transfers = field(default_factory=Transfers)
    findable: set[int] = field(default_factory=set)
    """Blocks that can be found since it was planned, and that it or steps under way are to fill."""
    failed: list[Sequence] = field(default_factory=list)
    """What has ended while the step was planned, because there will be no room for it."""
    awaits_tokens: bool = False
    """Whether somebody is to be preempted once the tokens of all steps before this are known."""
    is_preparing: bool = False
    """Whether a prompt is still to be hashed, or to get empty blocks: there may be no chunks."""

    @property
    def samplers(self) -> list[Sequence]:
        """Who draws in the step, in order."""
        return [sampler for chunk in self.chunks for sampler in chunk.samplers]

    @property
    def draws(self) -> list[Draw]:
        """What is drawn in the step, in order: for each sampler one token, and one behind each of
        its drafts."""
        return [draw for chunk in self.chunks for draw in chunk.draws]

    @property
    def num_tokens(self) -> int:
        """Tokens computed in the step."""
        return sum(chunk.num_rows for chunk in self.chunks)

    @property
    def prompts(self) -> list[ScheduledChunk]:
        """Of the chunks, the last ones."""
        return self.chunks[self.num_decoding :]

    @property
    def spans(self) -> list[tuple[int, int]]:
        """What is computed: how many tokens come before, and how many are computed together."""
        spans = [(chunk.start, chunk.count) for chunk in self.chunks]
        for chunk in self.chunks:
            end = chunk.start + chunk.count
            spans += [(end + behind, 1) for behind in range(len(chunk.drafts))]
        return spans


@dataclass(frozen=True, slots=True)
class Sampled:
    """The drawn tokens, one for each of a plan's draws, and log-probabilities where asked for.

    Rows of a beam search have candidates instead, best first, from which `engine.sequences.beam`
    chooses.
    """

    token_ids: list[int]
    logprobs: list[TokenLogprobs | None]
    candidates: dict[int, list[Candidate]] = field(default_factory=dict)
    """By row; the token of such a row is its first candidate."""
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)
    """One for each scored position of a plan's chunks, in their order."""
    failures: dict[int, str] = field(default_factory=dict)
    """By row, why no token could be drawn: a grammar is at a loss. What is drawn there is none."""
    late: frozenset[int] = frozenset()
    """Rows behind drafts in which no token could be drawn in time: these drafts count as wrong."""


@dataclass(frozen=True, slots=True)
class News:
    """What a step means to a sequence: new tokens, its end, that its beams have grown, or
    log-probabilities of its prompt.
    """

    sequence: Sequence
    rows: range = range(0)
    """Of what was drawn: its new tokens."""
    scored: range = range(0)
    """Of what was told of prompts: its own's."""
