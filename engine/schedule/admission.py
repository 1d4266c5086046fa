"""Which blocks a group starts from: shared between its sequences, found in the cache, or new."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace

from engine.api import next_pages
from engine.blocks.hashing import NO_EXTRAS
from engine.blocks.lookup import Found, Lookup
from engine.blocks.partial_hits import PartialHit
from engine.blocks.rows import HOLE, Rows
from engine.blocks.tiers import Tiers
from engine.schedule.swap_or_recompute import SwapOrRecompute
from engine.sequences.group import SequenceGroup
from engine.sequences.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Admission(ABC):
    """What a group needs to run, in pages, each block counted once, and how it gets it."""

    group: SequenceGroup
    num_new: int
    """Those that it takes for its known tokens beside `hits`, at most at a time."""
    num_forks: int
    """Those that its sequences take for themselves when they write next."""
    num_hits: int
    """Those of `hits`."""
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
    def num_pages(self) -> int:
        """What it holds when every sequence has its next token."""
        return self.num_hits + self.num_new + self.num_forks

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
    rows: list[list[int]]
    """Cached blocks behind those, by kind, behind holes where it needs none; all as long."""
    slots: list[dict[int, int]]
    """By kind, and by the index of a hole, host slots whose blocks are brought back there."""
    partial_hit: PartialHit | None
    """What comes next."""
    beside: tuple[int, ...] = ()
    """The blocks of other kinds beside that."""
    is_fork: bool = False
    """Whether it equals the sequence before it, and so shares even its partly filled block."""
    num_alike: int = 0
    """So many blocks of another sequence are alike, some of them of no use to it."""
    is_parting: bool = False
    """Whether others have gone on otherwise there."""
    shared: list[range] = field(default_factory=list)
    """By kind, the blocks that it takes from the sequence before it."""
    kept: list[range] = field(default_factory=list)
    """By kind, those that the one behind it takes."""

    @property
    def hits(self) -> list[int]:
        """The cached blocks."""
        return [block for row in self.rows for block in row if block != HOLE]

    @property
    def copied(self) -> list[int]:
        """The blocks, by kind, of which it copies a part, if there is such a hit."""
        return [] if self.partial_hit is None else [self.partial_hit.block, *self.beside]

    @property
    def num_ready_blocks(self) -> int:
        """Full blocks that need no computation of its own."""
        return self.num_shared + len(self.rows[0])

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
        return self.hits + [block for start in self.starts for block in start.copied]

    @property
    def slots(self) -> list[int]:
        """See `Admission`."""
        return [slot for start in self.starts for row in start.slots for slot in row.values()]

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
        before = Rows(pool, tiers.block_size, "")
        for start in self.starts:
            sequence, table = start.sequence, start.sequence.table
            num_tokens = sequence.num_tokens
            held = before.first(start.shared)
            pool.acquire([block for row in held for block in row if block != HOLE])
            rows = [[*row, *hits] for row, hits in zip(held, start.rows, strict=True)]
            filled = [[start.num_shared + index for index in row] for row in start.slots]
            parts_behind = {start.num_alike} if start.is_parting else set[int]()
            if not start.num_shared:
                known = table.prefix_hashes(sequence.token_ids)
                parts_behind.update(pool.came_back(known, start.num_ready_blocks))
            table.admit(num_tokens, rows, start.kept, filled, parts_behind)
            _bring_back(start, tiers)
            sequence.num_cached = sequence.num_computed = start.num_ready(tiers.block_size)
            before = table.held
        pool.release([block for start in self.starts for block in start.copied])
        tiers.host.release(slots)
        self.group.prefill = [start.sequence for start in self.starts]


def _bring_back(start: Start, tiers: Tiers) -> None:
    """Fill new blocks of a sequence from the host, and one from the beginning of another block."""
    sequence, table = start.sequence, start.sequence.table
    for kind, slots in enumerate(start.slots):
        for index, slot in slots.items():
            own = start.num_shared + index
            tiers.transfers.swap_in(slot, table.rows[kind][own])
            table.restore(own, sequence.token_ids, tiers.host.owners[slot], kind)
    if start.partial_hit is not None:
        index = start.num_ready_blocks
        table.held.grow(index + 1)
        for source, row in zip(start.copied, table.rows, strict=True):
            tiers.transfers.copy_held(source, row[index])


def compute_admission(
    group: SequenceGroup, tiers: Tiers, recovery: SwapOrRecompute, step: int
) -> ComputeAdmission:
    """The admission that shares most between the group's sequences, given what is cached now.

    In the order of their tokens each sequence shares with the one before it whatever it shares with
    any earlier one. Long sequences come behind short ones, and share nothing with them, where other
    rotary factors make other KV of the same tokens. A step computes `step` tokens at most.
    """
    starts = _starts(group, tiers, recovery)
    while (limit := _uncovered(starts, tiers)) is not None:
        starts = _starts(group, tiers, recovery, limit)
    starts = _handed_on(starts, tiers)
    writes = group.request.sampling.max_tokens > 0
    num_forks = group.width - sum(not start.is_fork for start in starts)
    return ComputeAdmission(
        group,
        num_new=sum(_pages(start, tiers, step) for start in starts),
        num_forks=num_forks * next_pages(tiers.pool.kinds) if writes else 0,
        num_hits=tiers.pool.count([block for start in starts for block in start.hits]),
        num_cached=starts[0].num_ready(tiers.block_size),
        starts=starts,
    )


def _starts(
    group: SequenceGroup, tiers: Tiers, recovery: SwapOrRecompute, limit: int | None = None
) -> list[Start]:
    """Where each sequence starts from, if nothing is found behind its first `limit` tokens."""
    starts: list[Start] = []
    before: list[int] = []
    extras = NO_EXTRAS
    for sequence in sorted(group.unfinished, key=lambda one: (one.table.extras, one.token_ids)):
        tokens, table = sequence.token_ids, sequence.table
        if table.extras != extras:
            extras, before = table.extras, []
        if tokens == before:
            num_blocks = -(-len(tokens) // tiers.block_size)
            nothing = [list[int]() for _ in tiers.pool.kinds]
            no_slots = [dict[int, int]() for _ in tiers.pool.kinds]
            starts.append(Start(sequence, num_blocks, nothing, no_slots, None, is_fork=True))
            continue
        num_shared = _common_blocks(before, tokens, tiers.block_size)
        # Cached blocks tell no scores; the last known token is never taken from the cache.
        known = tokens[: group.num_scored + 1] if group.is_scoring else tokens
        known = known if limit is None else known[: limit + 1]
        starts.append(_start(sequence, known, num_shared, tiers, recovery))
        before = tokens
    return starts


def _uncovered(starts: list[Start], tiers: Tiers) -> int | None:
    """How many first tokens one sequence shares with the one before it, and needs some of in a kind
    that this one, which begins behind them, has no need of; `None`: there are none.
    """
    size = tiers.block_size
    for number, kind in enumerate(tiers.pool.kinds):
        for place, start in enumerate(starts) if kind.forgets else ():
            for index in kind.seen(start.num_shared * size, size) if not start.is_fork else ():
                if not _has(starts[:place], number, index):
                    return kind.first_needed(start.num_shared * size)
    return None


def _has(starts: list[Start], number: int, index: int) -> bool:
    """Whether the last of these comes to hold a block of a kind, its own or one of those before."""
    for start in reversed(starts):
        if index >= start.num_ready_blocks:
            return True
        if index >= start.num_shared:
            own = index - start.num_shared
            return start.rows[number][own] != HOLE or own in start.slots[number]
    return False


def _handed_on(starts: list[Start], tiers: Tiers) -> list[Start]:
    """The same, where each holds what those behind it take from it, where kinds forget."""
    size, behind = tiers.block_size, [range(0) for _ in tiers.pool.kinds]
    found: list[Start] = []
    for start in reversed(starts):
        num_tokens = start.sequence.num_tokens if start.is_fork else start.num_shared * size
        shared = [
            range(min([kind.seen(num_tokens, size).start, *kept[:1]]), start.num_shared)
            for kind, kept in zip(tiers.pool.kinds, behind, strict=True)
        ]
        found.append(replace(start, shared=shared, kept=behind))
        behind = shared
    return found[::-1]


def _pages(start: Start, tiers: Tiers, step: int) -> int:
    """What a sequence comes to hold, at most at a time, beside what it shares or has found."""
    if start.is_fork:
        return 0
    size, num_tokens, pages = tiers.block_size, start.sequence.num_tokens, 0
    num_found = start.num_ready_blocks
    for kind, slots, kept in zip(tiers.pool.kinds, start.slots, start.kept, strict=True):
        missing = -(-num_tokens // size) - num_found
        if kind.forgets:
            held = num_found - kind.seen(num_found * size, size).start
            most = max(0, kind.blocks_for(num_tokens, size, step) - held)
            most += max(0, kept.stop - max(kept.start, num_found))
            missing = min(missing, most)
        pages += kind.pages * (missing + len(slots))
    return pages


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
    found = _found(hashes, num_shared, len(tokens), tiers, recovery)
    place = table.next_place(known, num_shared + len(found.rows[0]))
    partial_hit = None if place is None else tiers.partial_hits.longest(place)
    beside = () if partial_hit is None else tuple(tiers.pool.beside(partial_hit.block))
    if len(beside) < len(tiers.pool.kinds) - 1 or not tiers.fresh.isdisjoint(beside):
        partial_hit = None  # a step copies what earlier ones have computed
    if any(kind.is_state for kind in tiers.pool.kinds):
        partial_hit = None  # a state is that behind the whole block
    alike, num_found = num_shared + found.num_alike, num_shared + len(found.rows[0])
    is_parting = alike > num_found or (place is not None and tiers.partial_hits.is_followed(place))
    return Start(
        sequence,
        num_shared,
        found.rows,
        found.slots,
        partial_hit,
        beside,
        num_alike=alike,
        is_parting=is_parting,
    )


def _found(
    hashes: list[bytes], num_shared: int, num_tokens: int, tiers: Tiers, recovery: SwapOrRecompute
) -> Found:
    """What is found in the pool and, where copies are cheaper than computing the same, the host
    tier, of a sequence of so many tokens.
    """
    pool, host, size = tiers.pool, tiers.host, tiers.block_size
    tier = host if host.num_pages else None
    found = Lookup(pool, tier, tiers.fresh).longest(hashes, num_shared, size)
    slots = [slot for row in found.slots for slot in row.values()]
    if not slots:
        return found
    present = Lookup(pool, None, tiers.fresh).longest(hashes, num_shared, size)
    without, having = (
        (start, num_tokens - start)
        for start in ((num_shared + len(one.rows[0])) * size for one in (present, found))
    )
    is_cheaper = recovery.should_bring_back(host.count(slots), without, having)
    return found if is_cheaper else present


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
