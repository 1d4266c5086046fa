"""All sequences of one request: scheduled, preempted and resumed as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass, field
from itertools import takewhile

from engine.api import BlockFate, EngineRequest, FinishReason, Kind, most_pages
from engine.blocks.rows import Outline
from engine.blocks.table import BlockTable
from engine.grammar.compiled import CompiledGrammar
from engine.sequences.beam import BeamSearch, Candidate
from engine.sequences.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Saved:
    """What a swapped group was, when it held blocks whose numbers are mere names now."""

    outlines: dict[Sequence, Outline]
    """The blocks of each sequence; equal ones were shared."""
    slots: dict[int, int]
    """Where the KV of a block is in the host tier; blocks that held none have no slot."""
    complete: set[int]
    """The blocks that were filled to their end."""
    num_sealed: dict[Sequence, int]
    """See `BlockTable`."""
    prefill: list[Sequence]
    """See `SequenceGroup`."""

    def names(self, sequences: Iterable[Sequence]) -> dict[int, int]:
        """The distinct blocks of `sequences`, with their kinds."""
        names: dict[int, int] = {}
        for sequence in sequences:
            names |= self.outlines[sequence].names()
        return names


@dataclass(eq=False)
class SequenceGroup:
    """A request inside the engine, from its arrival to the end of its last sequence."""

    request: EngineRequest
    sequences: list[Sequence]
    """Those that are not over; while the group runs also finished ones that still hold blocks."""
    arrival: int
    """Its place in the order in which requests came."""
    is_charged: bool
    """Whether its tenant has been charged for the prompt."""
    prefill: list[Sequence] = field(default_factory=list)
    """Sequences that have drawn nothing since the admission, in the order of their computation.

    Each may build on blocks of those before it. One that equals its predecessor shares all of its
    blocks, has nothing to compute, and draws from the predecessor's last row.
    """
    prefill_due: float = 0.0
    """When they should be computed, by the tokens of prompts in all steps until then."""
    search: BeamSearch | None = None
    """What the sequences are the live beams of, in its order."""
    candidates: dict[Sequence, list[Candidate]] = field(default_factory=dict)
    """The next tokens of beams that wait for the other ones to be computed."""
    adapter: tuple[bytes, ...] = ()
    """By what the blocks of its adapter are found."""
    beside: list[int] = field(default_factory=list)
    """These blocks, while it runs."""
    num_scored: int = 0
    """Of the prompt's log-probabilities that are to be told: how many are known, the first ones."""
    num_searched: int = 0
    """Tokens by which all beams have grown, those that were dropped included."""
    saved: Saved | None = None
    """What it left in the host tier when it was preempted, if it was swapped."""
    waiting_since: float = 0.0
    """When it began to wait, the last time, by the clock of the block pool."""
    came_at: float | None = None
    """When it began to wait, the first time."""
    was_preempted: bool = False
    admitted_at: float = 0.0
    """When it was admitted first, by that clock."""
    missed: BlockFate | None = None
    """What was known then of the first block that it might have found, and did not."""
    alike: int = 0
    """Tokens whose keys were found when it was first admitted, with and without use."""
    spared_output: int = 0
    """It is not preempted before one of its sequences has generated so many tokens."""

    @classmethod
    def of(
        cls,
        request: EngineRequest,
        new_table: Callable[[], BlockTable],
        arrival: int,
        grammar: CompiledGrammar | None = None,
    ) -> SequenceGroup:
        """The group of a request that has just come, without the sequences that are over."""
        indices = [i for i in range(request.num_sequences) if i not in request.ended]
        sequences = [Sequence(request, new_table(), index, grammar) for index in indices]
        group = cls(request, sequences, arrival, is_charged=request.num_generated > 0)
        group.num_scored = request.num_scored
        if request.beam is not None:
            sampling = request.sampling
            group.search = BeamSearch(request.beam, sampling.max_tokens, sampling.stop_token_ids)
        return group

    @property
    def request_id(self) -> str:
        """Unique among live requests."""
        return self.request.request_id

    @property
    def tenant(self) -> str:
        """Whose request it is."""
        return self.request.tenant

    @property
    def place(self) -> tuple[int, int]:
        """Its place among its tenant's requests: those of higher priority come before it."""
        return -self.request.priority, self.arrival

    @property
    def is_scoring(self) -> bool:
        """Whether log-probabilities of its prompt are still to be told."""
        wanted = self.request.sampling.prompt_logprobs is not None
        return wanted and self.num_scored < len(self.request.prompt) - 1

    def scored(self, start: int, count: int) -> range:
        """Which of so many positions from `start` on tell a log-probability of the prompt."""
        if not self.is_scoring:
            return range(0)
        first, last = max(start, self.num_scored), len(self.request.prompt) - 1
        return range(first, max(first, min(start + count, last)))

    @property
    def unfinished(self) -> list[Sequence]:
        """The sequences that go on."""
        return [sequence for sequence in self.sequences if sequence.finish_reason is None]

    @property
    def decoding(self) -> list[Sequence]:
        """The sequences of which only the newest token is left to compute."""
        return [
            sequence
            for sequence in self.sequences
            if sequence.may_decode
            and sequence not in self.prefill
            and sequence not in self.candidates
        ]

    @property
    def width(self) -> int:
        """How many sequences it may compute in one step."""
        return len(self.sequences) if self.request.beam is None else self.request.num_lines

    @property
    def num_tokens(self) -> int:
        """The prompt once, and what each sequence has generated."""
        outputs = sum(sequence.num_output_tokens for sequence in self.sequences)
        return len(self.request.prompt) + outputs

    @property
    def num_output_tokens(self) -> int:
        """What the longest of its sequences that go on has generated."""
        return max((sequence.num_output_tokens for sequence in self.unfinished), default=0)

    @property
    def is_spared(self) -> bool:
        """Whether it is back from a preemption for so short that it is not preempted again."""
        return self.spared_output > 0 and self.num_output_tokens < self.spared_output

    def room(self, output: int, kinds: Iterable[Kind], block_size: int) -> int:
        """Pages that it may come to hold, if it generates up to `output`.

        Its sequences share the full blocks of the prompt, and no other for certain.
        """
        prompt = len(self.request.prompt)
        length = prompt + min(output, self.request.sampling.max_tokens)
        return most_pages(kinds, block_size, prompt, length, self.width, step=1)

    @property
    def num_unhashed(self) -> int:
        """Blocks of known tokens that are still to be hashed before any is looked up."""
        return sum(one.table.num_unhashed(one.token_ids) for one in self.unfinished)

    def hash_ahead(self, most: int) -> int:
        """Hash up to `most` more blocks; returns how many. The prompt is hashed once for all."""
        left = most
        first, *others = self.unfinished
        left -= first.table.hash_ahead(first.token_ids, left)
        for other in others if left else ():
            other.table.share_hashes(first.table, len(self.request.prompt))
            left -= other.table.hash_ahead(other.token_ids, left)
        return most - left

    @property
    def blocks(self) -> list[list[int]]:
        """The blocks of each sequence."""
        return [sequence.table.held.blocks for sequence in self.sequences]

    def check(self) -> None:
        """Verify the counters of a running group. Raises `AssertionError`."""
        for sequence in self.sequences:
            assert 0 <= sequence.num_cached <= sequence.num_computed <= sequence.num_tokens
            is_computed = sequence in self.candidates or sequence.finish_reason is not None
            assert sequence.num_uncomputed or is_computed or sequence in self.prefill
            most = 1 + sequence.table.held.most_again
            assert sequence.num_uncomputed <= most or sequence in self.prefill
        assert all(sequence in self.sequences for sequence in self.prefill)
        is_awaited = self.prefill or any(sequence.num_drawn for sequence in self.sequences)
        assert not self.candidates or is_awaited, "beams wait for nothing"

    def take_prefilled(self) -> tuple[Sequence, ...]:
        """The first of `prefill` that are computed to their end: they decode from now on.

        Returns the ones that go on, to draw their next token.
        """
        done = list(takewhile(lambda sequence: sequence.num_uncomputed == 0, self.prefill))
        del self.prefill[: len(done)]
        return tuple(sequence for sequence in done if sequence.finish_reason is None)

    def finish(self, reason: FinishReason, error: str | None = None) -> list[Sequence]:
        """End what goes on; returns one sequence for each index that ends by it."""
        ended = self.unfinished
        for sequence in ended:
            sequence.finish_reason, sequence.error = reason, error
        return ended if self.search is None else self._outputs()

    def found(self) -> list[Sequence]:
        """What a beam search has ended with, best first, as sequences that are over."""
        assert self.search is not None
        found = self._outputs()
        for sequence, hypothesis in zip(found, self.search.hypotheses, strict=True):
            sequence.token_ids = self.request.prompt + hypothesis.token_ids
            sequence.finish_reason, sequence.score = hypothesis.finish_reason, hypothesis.score
        return found

    def _outputs(self) -> list[Sequence]:
        """One sequence for each index of a beam search. They only tell of its end, and hold nothing
        themselves.
        """
        outputs = [copy(self.sequences[0]) for _ in range(self.request.num_outputs)]
        for index, output in enumerate(outputs):
            output.index = index
        return outputs
