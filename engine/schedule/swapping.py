"""Swapped groups: what they leave in the host tier, and how they come back exactly as they were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from engine.blocks.tiers import Tiers
from engine.schedule.admission import Admission
from engine.schedule.swap_or_recompute import Loss, Span
from engine.sequences.group import Saved, SequenceGroup
from engine.sequences.sequence import Sequence


def contents(group: SequenceGroup, block_size: int) -> list[int]:
    """The distinct blocks of a running group that hold KV, in order.

    A sequence that is to be computed has blocks which hold nothing yet; others may share them.
    """
    empty: set[int] = set()
    for sequence in group.unfinished:
        empty.update(sequence.table.blocks[-(-sequence.num_computed // block_size) :])
    rows = (sequence.table.blocks for sequence in group.unfinished)
    held = dict.fromkeys(block for row in rows for block in row)
    return [block for block in held if block not in empty]


def loss(group: SequenceGroup, blocks: list[int], tiers: Tiers) -> Loss:
    """What it takes to bring a running group back, which holds KV in `blocks`."""
    surviving = _surviving(group, tiers)
    present = _present(blocks, tiers)
    return Loss(
        swap_outs=len(blocks) - len(present),
        swap_ins=sum(block not in surviving for block in blocks),
        remaining=[
            (sequence.num_computed, sequence.num_uncomputed)
            for sequence in group.unfinished
            if sequence.num_uncomputed
        ],
        lost=list(_lost(group.unfinished, surviving, tiers.block_size)),
    )


def can_save(blocks: list[int], tiers: Tiers) -> bool:
    """Whether the host tier has room for what `blocks` hold."""
    present = _present(blocks, tiers)
    return tiers.host.can_allocate(len(blocks) - len(present), "", list(present.values()))


def save(group: SequenceGroup, blocks: list[int], tiers: Tiers) -> Saved:
    """Copy what a running group holds in `blocks` to the host, but for what is there already."""
    slots = _present(blocks, tiers)
    tiers.host.acquire(slots.values())
    for block in blocks:
        if block not in slots:
            slots[block] = tiers.host.take(tiers.pool.owners[block], tiers.pool.hash_of(block))
            tiers.transfers.swap_out(block, slots[block])
    incomplete: set[int] = set()
    sequences = group.unfinished
    for sequence in sequences:
        incomplete.update(sequence.table.blocks[sequence.num_computed // tiers.block_size :])
    return Saved(
        rows={sequence: list(sequence.table.blocks) for sequence in sequences},
        slots=slots,
        complete={block for block in blocks if block not in incomplete},
        num_sealed={sequence: sequence.table.num_sealed for sequence in sequences},
        prefill=list(group.prefill),
    )


@dataclass(frozen=True, slots=True)
class SwapAdmission(Admission):
    """That of a swapped group, which holds its slots."""

    saved: Saved
    found: dict[int, int]
    """Blocks of the pool that hold the same as blocks which the group had."""

    @property
    def hits(self) -> list[int]:
        """See `Admission`."""
        return list(self.found.values())

    @property
    def writing(self) -> list[Sequence]:
        """See `Admission`."""
        return [one for one in self.group.sequences if one not in self.saved.prefill]

    def take(self, tiers: Tiers) -> None:
        """See `Admission`: the group shares what it shared, and computes what it had left."""
        group, saved = self.group, self.saved
        tiers.pool.acquire(self.held)
        blocks = dict(self.found)
        fresh = [name for name in saved.names(group.sequences) if name not in blocks]
        allocated = tiers.pool.allocate(len(fresh), group.tenant)
        blocks.update(zip(fresh, allocated, strict=True))
        for name in fresh:
            if name in saved.slots:
                tiers.transfers.swap_in(saved.slots[name], blocks[name])
        shared: set[int] = set()
        for sequence in group.sequences:
            row = saved.rows[sequence]
            tiers.pool.acquire([blocks[name] for name in row if name in shared])
            shared.update(row)
            sequence.table.resume([blocks[name] for name in row], saved.num_sealed[sequence])
            for index, name in enumerate(row):
                if name in saved.complete:
                    owner = tiers.host.owners[saved.slots[name]]
                    sequence.table.restore(index, sequence.token_ids, owner)
        group.prefill = self.writing + saved.prefill
        drop(group, tiers)


def swap_admission(group: SequenceGroup, saved: Saved, tiers: Tiers) -> SwapAdmission:
    """How a swapped group comes back, given what is cached now."""
    names = saved.names(group.sequences)
    found: dict[int, int] = {}
    for name in names:
        block_hash = tiers.host.hash_of(saved.slots[name]) if name in saved.slots else None
        if block_hash is not None:
            found.update((name, block) for block in tiers.pool.find([block_hash]))
    written: list[int] = []
    num_forks = 0
    for sequence in group.sequences:
        if sequence in saved.prefill:
            continue
        row, index = saved.rows[sequence], (sequence.num_tokens - 1) // tiers.block_size
        if index < len(row):
            written.append(row[index])
        else:
            num_forks += 1
    num_forks += len(written) - len(set(written))
    return SwapAdmission(
        group, len(names) - len(found), num_forks, len(found), 0, saved=saved, found=found
    )


def drop(group: SequenceGroup, tiers: Tiers) -> None:
    """Give up the slots of a group that was swapped, if it was."""
    if group.saved is not None:
        tiers.host.release(list(group.saved.slots.values()))
        group.saved = None


def _present(blocks: Iterable[int], tiers: Tiers) -> dict[int, int]:
    """The slots that hold the same as `blocks` already."""
    present: dict[int, int] = {}
    for block in blocks:
        block_hash = tiers.pool.hash_of(block)
        if block_hash is not None:
            present.update((block, slot) for slot in tiers.host.find([block_hash]))
    return present


def _surviving(group: SequenceGroup, tiers: Tiers) -> set[int]:
    """The group's blocks that others hold, too, and that can be found."""
    own, pool = Counter(block for blocks in group.blocks for block in blocks), tiers.pool
    return {
        block
        for block, count in own.items()
        if pool.references[block] > count and pool.hash_of(block) is not None
    }


def _lost(sequences: list[Sequence], surviving: set[int], block_size: int) -> Iterable[Span]:
    """What is to be computed without swapping; each block once, whoever shares it."""
    present = set(surviving)
    for sequence in sequences:
        blocks = sequence.table.blocks
        missing = (index for index, block in enumerate(blocks) if block not in present)
        start = min(next(missing, len(blocks)) * block_size, sequence.num_tokens - 1)
        yield start, sequence.num_tokens - start
        present.update(blocks)
