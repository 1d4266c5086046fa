"""Swapped groups: what they leave in the host tier, and how they come back exactly as they were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from engine.blocks.rows import HOLE, Outline
from engine.blocks.tiers import Tiers
from engine.schedule.admission import Admission
from engine.schedule.swap_or_recompute import Loss, Span
from engine.sequences.group import Saved, SequenceGroup
from engine.sequences.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Contents:
    """What a running group holds, but for what none of its layers sees any more."""

    outlines: dict[Sequence, Outline]
    blocks: list[int]
    """The distinct blocks that hold KV, in order."""
    complete: set[int]
    """Those of them that are filled to their end."""


def contents(group: SequenceGroup, block_size: int) -> Contents:
    """What a running group holds.

    A sequence that is to be computed has blocks which hold nothing yet; others may share them.
    """
    outlines: dict[Sequence, Outline] = {}
    empty: set[int] = set()
    incomplete: set[int] = set()
    for sequence in group.unfinished:
        computed = sequence.num_computed
        outline = sequence.table.held.outline(sequence.num_passed(block_size))
        outlines[sequence] = outline
        empty |= outline.behind(-(-computed // block_size))
        incomplete |= outline.behind(computed // block_size)
    names = dict.fromkeys(name for outline in outlines.values() for name in outline.names())
    blocks = [block for block in names if block not in empty]
    return Contents(outlines, blocks, set(blocks) - incomplete)


def loss(group: SequenceGroup, held: Contents, tiers: Tiers) -> Loss:
    """What it takes to bring a running group back, which holds this."""
    surviving = _surviving(group, tiers)
    present = _present(held.blocks, tiers)
    return Loss(
        swap_outs=tiers.pool.count([block for block in held.blocks if block not in present]),
        swap_ins=tiers.pool.count([block for block in held.blocks if block not in surviving]),
        remaining=[
            (sequence.num_computed, sequence.num_uncomputed)
            for sequence in group.unfinished
            if sequence.num_uncomputed
        ],
        lost=list(_lost(held.outlines, surviving, tiers)),
    )


def can_save(held: Contents, tiers: Tiers) -> bool:
    """Whether the host tier has room for what a group holds."""
    present = _present(held.blocks, tiers)
    pages = tiers.pool.count([block for block in held.blocks if block not in present])
    return tiers.host.can_allocate(pages, "", list(present.values()))


def save(group: SequenceGroup, held: Contents, tiers: Tiers) -> Saved:
    """Copy what a running group holds to the host, but for what is there already."""
    pool, slots = tiers.pool, _present(held.blocks, tiers)
    tiers.host.acquire(slots.values())
    for block in held.blocks:
        if block not in slots:
            slots[block] = tiers.host.take(
                pool.owners[block], pool.chain_hash(block), pool.kinds_of[block]
            )
            tiers.transfers.swap_out(block, slots[block])
    return Saved(
        outlines=held.outlines,
        slots=slots,
        complete=held.complete,
        num_sealed={sequence: sequence.table.num_sealed for sequence in held.outlines},
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
        return _writing(self.group, self.saved)

    def take(self, tiers: Tiers) -> None:
        """See `Admission`: the group shares what it shared, and computes what it had left."""
        group, saved = self.group, self.saved
        tiers.pool.acquire(self.held)
        blocks = dict(self.found)
        for name, kind in saved.names(group.sequences).items():
            if name not in blocks:
                (blocks[name],) = tiers.pool.allocate(1, group.tenant, kind)
                if name in saved.slots:
                    tiers.transfers.swap_in(saved.slots[name], blocks[name])
        shared: set[int] = set()
        for sequence in group.sequences:
            outline = saved.outlines[sequence]
            names = outline.names().keys()
            tiers.pool.acquire([blocks[name] for name in names if name in shared])
            shared |= names
            sequence.table.resume(outline, blocks, saved.num_sealed[sequence])
            for kind, row in enumerate(outline.rows):
                for index, name in enumerate(row):
                    if name in saved.complete:
                        owner = tiers.host.owners[saved.slots[name]]
                        sequence.table.restore(index, sequence.token_ids, owner, kind)
        group.prefill = self.writing + saved.prefill
        drop(group, tiers)


def swap_admission(group: SequenceGroup, saved: Saved, tiers: Tiers, step: int) -> SwapAdmission:
    """How a swapped group comes back, given what is cached now. A step computes `step` tokens at
    most.
    """
    pool = tiers.pool
    names = saved.names(group.sequences)
    found: dict[int, int] = {}
    for name, kind in names.items():
        block_hash = tiers.host.chain_hash(saved.slots[name]) if name in saved.slots else None
        if block_hash is not None:
            found.update((name, block) for block in pool.find([block_hash], kind))
    new = sum(pool.kinds[kind].pages for name, kind in names.items() if name not in found)
    promised = sum(
        saved.outlines[one].promised(pool.kinds, one.num_tokens, tiers.block_size, step)
        for one in group.sequences
        if one in saved.prefill
    )
    return SwapAdmission(
        group,
        num_new=new + promised,
        num_forks=_written_anew(group, saved, tiers),
        num_hits=pool.count(found.values()),
        num_cached=0,
        saved=saved,
        found=found,
    )


def drop(group: SequenceGroup, tiers: Tiers) -> None:
    """Give up the slots of a group that was swapped, if it was."""
    if group.saved is not None:
        tiers.host.release(list(group.saved.slots.values()))
        group.saved = None


def _writing(group: SequenceGroup, saved: Saved) -> list[Sequence]:
    return [one for one in group.sequences if one not in saved.prefill]


def _written_anew(group: SequenceGroup, saved: Saved, tiers: Tiers) -> int:
    """Pages that the sequences of a swapped group take when they write their newest token: of next
    blocks, and of shared ones that only one of them can go on in.
    """
    pages = 0
    for number, kind in enumerate(tiers.pool.kinds):
        written: list[int] = []
        for sequence in _writing(group, saved):
            index = (sequence.num_tokens - 1) // tiers.block_size
            row = saved.outlines[sequence].rows[number]
            written += row[index : index + 1]
            pages += kind.pages * (index >= len(row))
        pages += kind.pages * (len(written) - len(set(written)))
    return pages


def _present(blocks: Iterable[int], tiers: Tiers) -> dict[int, int]:
    """The slots that hold the same as `blocks` already."""
    present: dict[int, int] = {}
    for block in blocks:
        block_hash = tiers.pool.chain_hash(block)
        if block_hash is not None:
            slots = tiers.host.find([block_hash], tiers.pool.kinds_of[block])
            present.update((block, slot) for slot in slots)
    return present


def _surviving(group: SequenceGroup, tiers: Tiers) -> set[int]:
    """The group's blocks that others hold, too, and that can be found."""
    own, pool = Counter(block for blocks in group.blocks for block in blocks), tiers.pool
    return {
        block
        for block, count in own.items()
        if pool.references[block] > count and pool.chain_hash(block) is not None
    }


def _lost(outlines: dict[Sequence, Outline], surviving: set[int], tiers: Tiers) -> Iterable[Span]:
    """What is to be computed without swapping; each block once, whoever shares it.

    Where a window does not survive, that is everything: what was before it is gone.
    """
    present = {HOLE, *surviving}
    for sequence, outline in outlines.items():
        start = sequence.num_tokens - 1
        for kind, row in zip(tiers.pool.kinds, outline.rows, strict=True):
            missing = next((index for index, block in enumerate(row) if block not in present), None)
            if missing is not None:
                start = min(start, 0 if kind.forgets else missing * tiers.block_size)
        yield start, sequence.num_tokens - start
        present.update(outline.names())
