"""Which sequences of a batch start with the same blocks, found from their block tables alone.

Sequences that start with the same blocks form a tree: the blocks that all of them share, then those
that fewer of them share, down to what is one sequence's own. Every inner node with a run of blocks
is a candidate for a group, as in ChunkAttention's prefix tree (arXiv 2402.15220) or the levels of
Hydragen (arXiv 2402.05099). A rule says which of them pay.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kernels.backends import default
from kernels.types import PrefixGroups

Integers = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class GroupingRule:
    """When reading a run of keys once is worth what it costs: every member has one part more of its
    result to merge, however long the run is."""

    least_members: int = 2
    least_saved_keys: int = 0
    """Keys that are not read again, for each member."""
    whole: int = 1
    """Keys: runs begin and end at multiples of it."""

    def pays(self, num_members: int, num_reads: int, num_keys: int) -> bool:
        """Whether to group a run of `num_keys` that otherwise is read `num_reads` times."""
        saved = (num_reads - 1) * num_keys
        enough = max(1, self.least_saved_keys * num_members)
        return num_members >= self.least_members and saved >= enough


_NATIVE_SPLIT = 256
"""`PW_SPLIT` of `native/attention/attention.h`: keys of which a row has one part of its result."""

# Measured: two members are even at a run of 200 to 250 keys, sixteen at one of 130.
_NATIVE_RULE = GroupingRule(least_saved_keys=128)
# Estimated: to a GPU, whose time is bytes, a part is as much as some ten keys, and an item more.
_GPU_RULE = GroupingRule(least_saved_keys=64)


def rule_for(device: torch.device, *, batch_invariant: bool = False) -> GroupingRule | None:
    """What pays on `device`; `None` where attention reads nothing once for several sequences, or
    could not do so with the same bits.
    """
    if batch_invariant:
        return replace(_NATIVE_RULE, whole=_NATIVE_SPLIT) if default(device) == "native" else None
    return {"triton": _GPU_RULE, "native": _NATIVE_RULE, "reference": None}[default(device)]


@dataclass(frozen=True, slots=True)
class HostGroups:
    """`kernels.types.PrefixGroups` in the host's memory, int32 throughout."""

    begins: Integers
    ends: Integers
    member_starts: Integers
    members: Integers
    private_starts: Integers

    @property
    def max_members(self) -> int:
        """Members of the largest group."""
        return int(np.diff(self.member_starts).max())

    @property
    def num_spared_keys(self) -> int:
        """How many keys fewer a layer reads in this step, thanks to the groups."""
        reads = np.diff(self.member_starts) - 1
        return int(reads @ (self.ends - self.begins))

    def to(self, device: torch.device) -> PrefixGroups:
        """The tensors that the kernels take."""
        arrays = (self.begins, self.ends, self.member_starts, self.members, self.private_starts)
        begins, ends, starts, members, private = (
            torch.from_numpy(array).to(device) for array in arrays
        )
        return PrefixGroups(begins, ends, starts, members, private, self.max_members)


class GroupFinder:
    """Finds the groups of one step after the other, and looks closer only where something changed.

    From one decode step to the next the tables mostly stay as they are, up to where each leaves the
    others. As long as that is so, the last groups are returned, the very same object.
    """

    def __init__(self, block_size: int, rule: GroupingRule) -> None:
        self._block_size = block_size
        self._rule = rule
        self._groups: HostGroups | None = None
        self._seen = _Seen.nothing()

    def find(
        self, block_tables: Integers, query_lens: Integers, context_lens: Integers
    ) -> HostGroups | None:
        """The groups of a batch, or `None` where none pays.

        `block_tables` is [num_seqs, max_blocks], `query_lens` and `context_lens` are [num_seqs].
        The cost is linear in the blocks that decoding sequences hold, but for sorting them.
        """
        shareable = _shareable(query_lens, context_lens, self._block_size)
        if not self._seen.still_tells(block_tables, shareable):
            self._groups, depths = _find(block_tables, shareable, self._block_size, self._rule)
            self._seen = _Seen.of(block_tables, shareable, depths)
        return self._groups


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the shape of a batch's tree hangs on."""

    shareable: Integers  # [num_seqs]
    depths: Integers  # [num_seqs], leading blocks that some other sequence has, too
    parted: npt.NDArray[np.bool_]  # [num_seqs], whether other blocks follow those, or the end
    blocks: Integers  # [num_seqs, width], the leading columns of the tables
    telling: npt.NDArray[np.bool_]  # [num_seqs, width], which of them matter

    @classmethod
    def nothing(cls) -> _Seen:
        none = np.zeros(0, np.int32)
        return cls.of(none.reshape(0, 0), none, none)

    @classmethod
    def of(cls, block_tables: Integers, shareable: Integers, depths: Integers) -> _Seen:
        parted = depths < shareable
        telling = depths + parted
        width = int(telling.max(initial=0))
        return cls(
            shareable,
            depths,
            parted,
            block_tables[:, :width].copy(),
            np.arange(width) < telling[:, None],
        )

    def still_tells(self, block_tables: Integers, shareable: Integers) -> bool:
        """Whether these tables have the same tree.

        They do where every sequence has the same leading blocks up to the first that nobody else
        has. One that ended while still among others must not have grown: it may go on with them.
        """
        width = self.blocks.shape[1]
        if len(shareable) != len(self.shareable) or block_tables.shape[1] < width:
            return False
        settled = np.where(self.parted, shareable > self.depths, shareable == self.shareable)
        if not settled.all():
            return False
        changed = block_tables[:, :width] != self.blocks
        return not (changed & self.telling).any()


def _shareable(query_lens: Integers, context_lens: Integers, block_size: int) -> Integers:
    """[num_seqs], blocks that a decoding sequence neither writes in this step nor ever again."""
    return np.where(query_lens == 1, (context_lens - 1) // block_size, 0)


def _find(
    block_tables: Integers, shareable: Integers, block_size: int, rule: GroupingRule
) -> tuple[HostGroups | None, Integers]:
    """The groups, and of each sequence how many leading blocks some other one has, too."""
    num_seqs = len(shareable)
    depths = np.zeros(num_seqs, np.int32)
    order, common = _sorted_by_blocks(block_tables, shareable)
    depths[order[1:]] = common
    depths[order[:-1]] = np.maximum(depths[order[:-1]], common)
    runs = _runs(common.tolist(), block_size, rule)
    if not runs:
        return None, depths
    private_starts = np.zeros(num_seqs, np.int32)
    members = []
    for _, end, first, last in runs:
        members.append(np.sort(order[first:last]))
        private_starts[members[-1]] = end
    begins, ends = np.array([run[:2] for run in runs], np.int32).T.copy()
    groups = HostGroups(
        begins,
        ends,
        np.cumsum([0, *map(len, members)], dtype=np.int32),
        np.concatenate(members).astype(np.int32),
        private_starts,
    )
    return groups, depths


def _sorted_by_blocks(block_tables: Integers, shareable: Integers) -> tuple[Integers, Integers]:
    """The sequences in an order in which equal beginnings are neighbours, and how many leading
    blocks each shares with the next one in that order, [num_seqs - 1]."""
    num_seqs = len(shareable)
    width = int(shareable.max(initial=0)) + 1
    # Behind its shareable blocks a row goes on with a number that no other row has.
    ends = -1 - np.arange(num_seqs, dtype=np.int32)[:, None]
    rows = np.repeat(ends, width, axis=1)
    inside = np.arange(width) < shareable[:, None]
    np.copyto(rows, block_tables[:, :width], where=inside)
    order = np.argsort(rows.view(np.dtype((np.void, 4 * width)))[:, 0])
    rows = rows[order]
    return order, (rows[1:] != rows[:-1]).argmax(axis=1)


def _runs(
    common: list[int], block_size: int, rule: GroupingRule
) -> list[tuple[int, int, int, int]]:
    """The runs that pay, outer ones first: (first key, end, first member, end in sorted order).

    Where a run does not pay, those behind it begin where it would have begun.
    """
    runs = []
    pending = [(0, len(common) + 1, 0)] if common else []
    while pending:
        first, last, begin = pending.pop()
        depth = min(common[first : last - 1])
        cuts = [place + 1 for place in range(first, last - 1) if common[place] == depth]
        end = depth * block_size // rule.whole * rule.whole
        if rule.pays(last - first, len(cuts) + 1, end - begin):
            runs.append((begin, end, first, last))
            begin = end
        branches = pairwise([first, *cuts, last])
        pending += [(left, right, begin) for left, right in branches if right - left > 1]
    return runs
