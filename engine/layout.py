"""Which blocks a group starts from: shared between its sequences, found in the cache, or new."""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from dataclasses import dataclass

from engine.block_pool import BlockPool
from engine.group import SequenceGroup
from engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Start:
    """Where one sequence starts from."""

    sequence: Sequence
    num_shared: int
    """How many blocks it takes from the sequence before it."""
    hits: list[int]
    """Cached blocks behind those."""
    is_fork: bool
    """Whether it equals the sequence before it, and so shares even its partly filled block."""

    def num_ready(self, block_size: int) -> int:
        """Tokens that need no computation of its own."""
        if self.is_fork:
            return self.sequence.num_tokens
        return (self.num_shared + len(self.hits)) * block_size


@dataclass(frozen=True, slots=True)
class Layout:
    """What a group needs to be admitted, each block counted once."""

    group: SequenceGroup
    starts: list[Start]
    num_new: int
    """Blocks that it takes for its known tokens beside the `hits`."""
    num_forks: int
    """Sequences that take a block of their own with their next token, for a shared one."""

    @property
    def hits(self) -> list[int]:
        """All cached blocks that it starts from."""
        return [block for start in self.starts for block in start.hits]

    @property
    def num_blocks(self) -> int:
        """Distinct blocks that it holds when every sequence has its next token."""
        return len(self.hits) + self.num_new + self.num_forks

    def take(self, pool: BlockPool, block_size: int) -> None:
        """Give each sequence its blocks. The group is to be computed in the order of `starts`."""
        # All hits first: what one sequence takes must evict nothing that another one has found.
        pool.acquire(self.hits)
        before: list[int] = []
        for start in self.starts:
            sequence = start.sequence
            shared = before[: start.num_shared]
            pool.acquire(shared)
            sequence.table.admit(sequence.num_tokens, shared + start.hits)
            sequence.num_cached = sequence.num_computed = start.num_ready(block_size)
            before = sequence.table.blocks
        self.group.prefill = [start.sequence for start in self.starts]


def lay_out(group: SequenceGroup, block_size: int) -> Layout:
    """The layout that shares most between the group's sequences, given what is cached now.

    In the order of their tokens each sequence shares with the one before it whatever it shares with
    any earlier one.
    """
    starts: list[Start] = []
    num_new = 0
    before: list[int] = []
    for sequence in sorted(group.unfinished, key=lambda sequence: sequence.token_ids):
        tokens, table = sequence.token_ids, sequence.table
        if tokens == before:
            starts.append(Start(sequence, table.missing(len(tokens), 0), [], is_fork=True))
            continue
        num_shared = _common_blocks(before, tokens, block_size)
        hits = table.hits(tokens)[num_shared:]
        starts.append(Start(sequence, num_shared, hits, is_fork=False))
        num_new += table.missing(len(tokens), num_shared + len(hits))
        before = tokens
    writes = group.request.sampling.max_tokens > 0
    num_forks = group.width - sum(not start.is_fork for start in starts)
    return Layout(group, starts, num_new, num_forks if writes else 0)


def _common_blocks(one: Tokens[int], other: Tokens[int], block_size: int) -> int:
    """How many full blocks two token sequences begin with alike."""
    count = 0
    most = min(len(one), len(other)) // block_size
    while count < most and (
        one[count * block_size : (count + 1) * block_size]
        == other[count * block_size : (count + 1) * block_size]
    ):
        count += 1
    return count
