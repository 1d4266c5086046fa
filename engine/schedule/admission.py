"""Which blocks a group starts from: shared between its sequences, found in the cache, or new."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

from engine.blocks.partial_hits import PartialHit
from engine.blocks.tiers import Tiers
from engine.schedule.swap_or_recompute import SwapOrRecompute
from engine.sequences.group import SequenceGroup
from engine.sequences.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Admission(ABC):
    """What a group needs to run, each block counted once, and how it gets it."""

    group: SequenceGroup
    num_new: int
    """Blocks that it takes for its known tokens beside `hits`."""
    num_forks: int
    """Blocks that its sequences take for themselves when they write next."""
    num_cached: int
    """Tokens of its prompt that need not be computed; 0 where its tenant was charged for it."""

    @property
    @abstractmethod
    def hits(self) -> list[int]:
        """Blocks of the pool that it starts from."""

    @property
    def held(self) -> list[int]:
        """These, and blocks of which it copies a part."""
        return self.hits

    @property
    def slots(self) -> list[int]:
        """Host slots that it starts from and does not hold yet."""
        return []

    @property
    def num_blocks(self) -> int:
        """Distinct blocks that it holds when every sequence has its next token."""
        return len(self.hits) + self.num_new + self.num_forks

    @property
    def writing(self) -> list[Sequence]:
        """Sequences whose newest token may still need a block of its own."""
        return []

    def without_partial_hits(self, block_size: int) -> Admission:  # noqa: ARG002
        """The same without holding blocks only to copy a part of them."""
        return self

    @abstractmethod
    def take(self, tiers: Tiers) -> None:
        """Give each sequence its blocks, for which there is room."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where one sequence starts from."""

    sequence: Sequence
    num_shared: int
    """How many blocks it takes from the sequence before it."""
    hits: list[int]
    """Cached blocks behind those."""
    slots: list[int]
    """Host slots behind those, whose blocks are brought back."""
    partial_hit: PartialHit | None
    """What comes next."""
    is_fork: bool = False
    """Whether it equals the sequence before it, and so shares even its partly filled block."""

    @property
    def num_ready_blocks(self) -> int:
        """Full blocks that need no computation of its own."""
        return self.num_shared + len(self.hits) + len(self.slots)

    def num_ready(self, block_size: int) -> int:
        """Tokens that need no computation of its own."""
        if self.is_fork:
            return self.sequence.num_tokens
        partial = 0 if self.partial_hit is None else self.partial_hit.num_tokens
        return self.num_ready_blocks * block_size + partial


@dataclass(frozen=True, slots=True)
class ComputeAdmission(Admission):
    """That of a group that has no KV of its own: a new one, or one to be recomputed."""

    starts: list[Start]

    @property
    def hits(self) -> list[int]:
        """See `Admission`."""
        return [block for start in self.starts for block in start.hits]

    @property
    def partial_hits(self) -> list[PartialHit]:
        """What it copies of blocks."""
        return [start.partial_hit for start in self.starts if start.partial_hit is not None]

    @property
    def held(self) -> list[int]:
        """See `Admission`."""
        return self.hits + [hit.block for hit in self.partial_hits]

    @property
    def slots(self) -> list[int]:
        """See `Admission`."""
        return [slot for start in self.starts for slot in start.slots]

    def without_partial_hits(self, block_size: int) -> ComputeAdmission:
        """See `Admission`."""
        starts = [replace(start, partial_hit=None) for start in self.starts]
        return replace(self, starts=starts, num_cached=starts[0].num_ready(block_size))

    def take(self, tiers: Tiers) -> None:
        """See `Admission`. The group is to be computed in the order of `starts`."""
        pool, slots = tiers.pool, self.slots
        # All of them first: what one sequence takes must evict nothing that another one has found.
        pool.acquire(self.held)
        tiers.host.acquire(slots)
        before: list[int] = []
        for start in self.starts:
            sequence = start.sequence
            shared = before[: start.num_shared]
            pool.acquire(shared)
            sequence.table.admit(sequence.num_tokens, shared + start.hits)
            _bring_back(start, tiers)
            sequence.num_cached = sequence.num_computed = start.num_ready(tiers.block_size)
            before = sequence.table.blocks
        pool.release([hit.block for hit in self.partial_hits])
        tiers.host.release(slots)
        self.group.prefill = [start.sequence for start in self.starts]


def _bring_back(start: Start, tiers: Tiers) -> None:
    """Fill new blocks of a sequence from the host, and one from the beginning of another block."""
    sequence, table = start.sequence, start.sequence.table
    first = start.num_shared + len(start.hits)
    for index, slot in enumerate(start.slots, first):
        tiers.transfers.swap_in(slot, table.blocks[index])
        table.restore(index, sequence.token_ids, tiers.host.owners[slot])
    if start.partial_hit is not None:
        tiers.transfers.copy_held(start.partial_hit.block, table.blocks[start.num_ready_blocks])


def compute_admission(
    group: SequenceGroup, tiers: Tiers, recovery: SwapOrRecompute
) -> ComputeAdmission:
    """The admission that shares most between the group's sequences, given what is cached now.

    In the order of their tokens each sequence shares with the one before it whatever it shares with
    any earlier one. Long sequences come behind short ones, and share nothing with them, where other
    rotary factors make other KV of the same tokens.
    """
    starts: list[Start] = []
    num_new = 0
    before: list[int] = []
    extras = b""
    for sequence in sorted(group.unfinished, key=lambda one: (one.table.extras, one.token_ids)):
        tokens, table = sequence.token_ids, sequence.table
        if table.extras != extras:
            extras, before = table.extras, []
        if tokens == before:
            starts.append(Start(sequence, table.missing(len(tokens), 0), [], [], None, True))
            continue
        num_shared = _common_blocks(before, tokens, tiers.block_size)
        # Cached blocks tell no scores; the last known token is never taken from the cache.
        known = tokens[: group.num_scored + 1] if group.is_scoring else tokens
        starts.append(_start(sequence, known, num_shared, tiers, recovery))
        num_new += table.missing(len(tokens), num_shared + len(starts[-1].hits))
        before = tokens
    writes = group.request.sampling.max_tokens > 0
    num_forks = group.width - sum(not start.is_fork for start in starts)
    num_cached = starts[0].num_ready(tiers.block_size)
    return ComputeAdmission(group, num_new, num_forks if writes else 0, num_cached, starts)


def _start(
    sequence: Sequence,
    known: list[int],
    num_shared: int,
    tiers: Tiers,
    recovery: SwapOrRecompute,
) -> Start:
    """What is found of the tokens `known`, which a sequence begins with, behind the blocks that it
    shares with the one before it.
    """
    tokens, table = sequence.token_ids, sequence.table
    hashes = table.prefix_hashes(known)[num_shared:]
    hits = tiers.pool.find(hashes)
    slots = tiers.host.find(hashes[len(hits) :])
    present = (num_shared + len(hits)) * tiers.block_size
    back = present + len(slots) * tiers.block_size
    if slots and not recovery.should_bring_back(
        len(slots), (present, len(tokens) - present), (back, len(tokens) - back)
    ):
        slots = []
    num_ready = num_shared + len(hits) + len(slots)
    place = table.next_place(known, num_ready)
    partial_hit = None if place is None else tiers.partial_hits.longest(place)
    return Start(sequence, num_shared, hits, slots, partial_hit)


def _common_blocks(one: list[int], other: list[int], block_size: int) -> int:
    """How many full blocks two token sequences begin with alike."""
    count = 0
    most = min(len(one), len(other)) // block_size
    while count < most and (
        one[count * block_size : (count + 1) * block_size]
        == other[count * block_size : (count + 1) * block_size]
    ):
        count += 1
    return count
