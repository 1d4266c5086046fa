"""One step's tensors: the chunks of a plan, packed without padding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from types import MappingProxyType
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.api.kinds import EVERYTHING, Kind
from engine.batch.pictures import PictureRows, SeenRows
from engine.batch.states import state_runs
from engine.blocks.table import BlockTable
from engine.sequences.plan import ScheduledChunk, StepPlan
from kernels.prefix_groups import GroupFinder, GroupingRule, HostGroups, Integers
from kernels.types import (
    AdaptedRows,
    Adapter,
    AttentionBatch,
    Chunk,
    Mutual,
    PrefixGroups,
    StateRuns,
)

_SPARE = 16
_Part = tuple[Sequence[int], int, int, Sequence[int] | Integers]
"""Of a sequence: its tokens, where those that are computed start, their number, and its pages, of
one column or of each."""


@dataclass(slots=True)
class _Followed:
    """What is known of a table."""

    rows: list[list[int]]
    """The table's own lists, by kind."""
    lengths: list[int]
    """Of these, when they were looked at last."""
    pages: npt.NDArray[np.int32]  # [num_columns, at least the longest length]


_ANY_PAGES: Final = np.broadcast_to(np.int32(0), 1 << 31)
"""As many as anybody has tokens for; they take no memory."""


class TableMirror:
    """Follows block tables by what their rows allow themselves: to grow, to replace the last block,
    and to forget the first ones.

    What was given back and admitted again is another list.
    """

    def __init__(self, kinds: Sequence[Kind] = (EVERYTHING,)) -> None:
        """Of blocks of these kinds: a column is a kind and one of its blocks' pages. States, which
        come last, are in none; where there is nothing else, one column has any pages.
        """
        seen = [kind for kind in kinds if not kind.is_state]
        ends = list(accumulate(kind.pages for kind in seen))
        self._columns = [slice(end - kind.pages, end) for kind, end in zip(seen, ends, strict=True)]
        self._num_columns = ends[-1] if ends else 1
        self._tables: WeakKeyDictionary[BlockTable, _Followed] = WeakKeyDictionary()

    def row(self, table: BlockTable) -> npt.NDArray[np.int32]:
        """The table's pages, [num_blocks], or [num_columns, num_blocks] where there are several
        columns; they hold until the next call. What was forgotten is any page, as what some kind
        does not hold yet.
        """
        if not self._columns:
            return _ANY_PAGES
        rows, known = table.rows[: len(self._columns)], self._tables.get(table)
        if known is None:
            pages = np.zeros((self._num_columns, 0), np.int32)
            known = self._tables[table] = _Followed(list(rows), [0] * len(rows), pages)
        longest = max(map(len, rows))
        if longest > known.pages.shape[1]:
            more = longest + longest // 2 + _SPARE - known.pages.shape[1]
            known.pages = np.pad(known.pages, ((0, 0), (0, more)))
        for number, blocks in enumerate(rows):
            start = max(0, known.lengths[number] - 1) if blocks is known.rows[number] else 0
            known.rows[number], known.lengths[number] = blocks, len(blocks)
            own = known.pages[self._columns[number], start : len(blocks)]
            if self._num_columns == 1 and not table.pool.kinds[0].forgets:
                own[0] = blocks[start:]  # a block of one page has its number
            else:
                numbers = np.maximum(np.array(blocks[start:], np.int64), 0)
                own[:] = table.pool.pages[numbers, : len(own)].T
        found = known.pages[:, :longest]
        return found if self._num_columns > 1 else found[0]


@dataclass(frozen=True, slots=True)
class MoreColumns:
    """Where layers read and write whose pages are not in the first column."""

    block_tables: Tensor  # [num_columns - 1, num_seqs, max_blocks] int32
    slots: Tensor  # [num_columns - 1, num_tokens] int64


@dataclass(frozen=True, slots=True)
class Batch:
    """Packed tokens of one step, on the compute device."""

    token_ids: Tensor  # [num_tokens] int64
    positions: Tensor  # [num_tokens] int64, by which queries and keys are turned
    logit_rows: Tensor  # [num_logit_rows] int64, indices into the packed tokens
    attention: AttentionBatch
    """With the pages of the first column."""
    is_long: Tensor | None = None
    """[num_tokens] bool: whose sequence is longer than the `rotary_switch`, if there is one."""
    more: MoreColumns | None = None
    """Those behind the first column, if there are any."""
    states: StateRuns | None = None
    """In the host's memory. Where a model has states and none are said, each sequence begins with
    none, and nobody goes on with it."""
    adapted: tuple[AdaptedRows, ...] = ()
    """In the host's memory, too."""
    seen: SeenRows | None = None

    @property
    def columns(self) -> list[AttentionBatch]:
        """The batch with the pages of each column. All have the first one's groups, which are of
        places in a block table, and which layers with a window leave aside.
        """
        if self.more is None:
            return [self.attention]
        pairs = zip(self.more.block_tables, self.more.slots, strict=True)
        others = [replace(self.attention, block_tables=one, slots=slots) for one, slots in pairs]
        return [self.attention, *others]


class BatchBuilder:
    """Packs the plans of one step after the other, and finds which sequences share their keys.

    With a `rule` batches have prefix groups, if a kind sees everything; those of the last step stay
    where they still hold.
    """

    def __init__(
        self,
        block_size: int,
        device: torch.device,
        rule: GroupingRule | None,
        rotary_switch: int | None = None,
        kinds: Sequence[Kind] = (EVERYTHING,),
        adapters: Mapping[bytes, Adapter] = MappingProxyType({}),
        pictures: PictureRows | None = None,
    ) -> None:
        """Of requests' `adapters`, those that are in the model's memory. Without `pictures` the
        model sees none.
        """
        self._pictures = pictures
        self._block_size = block_size
        self._adapters = adapters
        self._device = device
        self._rotary_switch = rotary_switch
        self._finder = None
        if rule is not None and not kinds[0].forgets:
            self._finder = GroupFinder(block_size, rule)
        self._tables = TableMirror(kinds)
        self._has_states = any(kind.is_state for kind in kinds)
        self._found: HostGroups | None = None
        self._groups: PrefixGroups | None = None
        self._spared = 0
        self.num_spared_keys = 0
        """Keys that a layer has not read again since the start, because they were grouped."""

    def build(self, plan: StepPlan) -> Batch:
        """The batch of `plan`, with a logit row for each token that is drawn, and then one for each
        position that is scored.

        Where the host does not know a token, it is 0. A draft is packed like a sequence of its own
        that begins with the blocks of the one that it continues, and so is each token that is
        computed again with a newest one: a step that decodes stays one.
        """
        chunks = plan.chunks
        firsts = first_rows(plan)
        places = list(zip(chunks, firsts, strict=True))
        rows = [row for chunk, first in places for row in _drawing(chunk, first)]
        rows += [first + at - chunk.start for chunk, first in places for at in chunk.scored]
        parts = [
            part
            for number, chunk in enumerate(chunks)
            for part in self._parts(chunk, one_by_one=number < plan.num_decoding)
        ]
        batch = pack(parts, rows, self._block_size, self._device, self._group)
        states = state_runs(chunks, self._block_size) if self._has_states else None
        batch = replace(
            batch, is_long=self._is_long(chunks), states=states, adapted=self._adapted(places)
        )
        return batch if self._pictures is None else _showing(batch, self._pictures, places)

    def _adapted(self, places: Sequence[tuple[ScheduledChunk, int]]) -> tuple[AdaptedRows, ...]:
        """The rows of each adapter, given chunks and their first rows."""
        found: dict[bytes, list[int]] = {}
        for chunk, first in places:
            use = chunk.sequence.request.adapter
            if use is not None and use.start < chunk.start + chunk.num_rows:
                start = first + max(0, use.start - chunk.start)
                found.setdefault(use.name, []).extend(range(start, first + chunk.num_rows))
        return tuple(
            AdaptedRows(self._adapters[name], torch.tensor(rows)) for name, rows in found.items()
        )

    def _parts(self, chunk: ScheduledChunk, *, one_by_one: bool) -> Iterator[_Part]:
        pages, token_ids = self._tables.row(chunk.sequence.table), _token_ids(chunk)
        length = 1 if one_by_one else chunk.count
        for start in range(chunk.start, chunk.start + chunk.count, length):
            yield token_ids, start, length, pages
        for position, token_id in enumerate(chunk.drafts, chunk.start + chunk.count):
            yield _Only(token_id), position, 1, pages

    def _is_long(self, chunks: Sequence[ScheduledChunk]) -> Tensor | None:
        """See `Batch`; a sequence counts with the tokens that its plan knows of."""
        switch = self._rotary_switch
        if switch is None:
            return None
        rows = [chunk.sequence.num_tokens > switch for chunk in chunks]
        counts = [chunk.num_rows for chunk in chunks]
        return torch.from_numpy(np.array(rows).repeat(counts)).to(self._device)

    def _group(self, tables: Integers, counts: Integers, contexts: Integers) -> PrefixGroups | None:
        if self._finder is None:
            return None
        found = self._finder.find(tables, counts, contexts)
        if found is not self._found:
            self._found = found
            self._groups = None if found is None else found.to(self._device)
            self._spared = 0 if found is None else found.num_spared_keys
        self.num_spared_keys += self._spared
        return self._groups


def pack(
    parts: Sequence[_Part],
    logit_rows: Sequence[int],
    block_size: int,
    device: torch.device,
    group: Callable[[Integers, Integers, Integers], PrefixGroups | None] | None = None,
) -> Batch:
    """Pack (token ids, start, count, pages) of each sequence.

    Token p of a sequence has its KV in slot
    `pages[p // block_size] * block_size + p % block_size`, of each column. What `group` says of the
    first column's block tables, the counts and the context lengths becomes the batch's groups.
    """
    starts = np.array([start for _, start, _, _ in parts], dtype=np.int64)
    counts = np.array([count for _, _, count, _ in parts], dtype=np.int64)
    contexts = starts + counts
    tables = _block_tables([pages for _, _, _, pages in parts], -(-contexts // block_size))
    tokens = chain.from_iterable(ids[start : start + count] for ids, start, count, _ in parts)
    query_starts = np.concatenate([[0], counts.cumsum()])
    num_tokens = int(query_starts[-1])
    rows = np.arange(len(parts)).repeat(counts)
    positions = np.arange(num_tokens) + (starts - query_starts[:-1])[rows]
    # Each column's in one piece, as kernels read them.
    slots = tables[:, rows, positions // block_size].astype(np.int64, order="C") * block_size
    slots += positions % block_size

    def tensor(array: Integers, kind: type[np.integer[Any]]) -> Tensor:
        return torch.from_numpy(array.astype(kind, copy=False)).to(device)

    return Batch(
        token_ids=tensor(np.fromiter(tokens, np.int64, num_tokens), np.int64),
        positions=tensor(positions, np.int64),
        logit_rows=tensor(np.array(logit_rows, np.int64), np.int64),
        attention=AttentionBatch(
            block_tables=tensor(tables[0], np.int32),
            query_starts=tensor(query_starts, np.int32),
            context_lens=tensor(contexts, np.int32),
            slots=tensor(slots[0], np.int64),
            max_query_len=int(counts.max()),
            max_context_len=int(contexts.max()),
            groups=None if group is None else group(tables[0], counts, contexts),
            chunks=_chunks(query_starts[:-1], counts, contexts),
        ),
        more=MoreColumns(tensor(tables[1:], np.int32), tensor(slots[1:], np.int64))
        if len(tables) > 1
        else None,
    )


def _chunks(starts: Integers, counts: Integers, contexts: Integers) -> tuple[Chunk, ...]:
    (rows,) = np.nonzero(counts > 1)
    columns = (rows, starts[rows], counts[rows], contexts[rows])
    return tuple(map(Chunk, *(column.tolist() for column in columns)))


def _showing(
    batch: Batch, pictures: PictureRows, places: Sequence[tuple[ScheduledChunk, int]]
) -> Batch:
    """A batch, on the host, with what its rows show, given chunks and their first rows."""
    seen = pictures.find(places, batch.positions)
    if seen is None or not seen.mutual:
        return replace(batch, seen=seen)
    starts = batch.attention.query_starts.numpy()
    rows = np.searchsorted(starts, [one.first_token for one in seen.mutual], "right") - 1
    attention = replace(
        batch.attention,
        mutual=tuple(
            one._replace(row=int(row)) for one, row in zip(seen.mutual, rows, strict=True)
        ),
        mutual_in_windows=pictures.mutual is not None and pictures.mutual.in_windows,
    )
    return replace(batch, attention=attention, seen=seen)


def one_by_one(mutual: Sequence[Mutual]) -> tuple[Mutual, ...]:
    """The same queries, each for itself: what one gets does not depend on how many are computed."""
    return tuple(
        one._replace(first_token=one.first_token + at, num_queries=1, position=one.position + at)
        for one in mutual
        for at in range(one.num_queries)
    )


def token_by_token(batch: Batch) -> Batch:
    """The same tokens, each as the only query of a sequence that ends with it.

    Kernels that take many queries at once round differently than those for one; so a token's
    attention does not depend on the chunk that it comes in. Groups are lost.
    """
    attention = batch.attention
    num_tokens = len(batch.token_ids)
    counts = attention.query_starts.diff()
    alone = replace(
        attention,
        block_tables=attention.block_tables.repeat_interleave(counts, dim=0),
        query_starts=torch.arange(num_tokens + 1, dtype=torch.int32),
        context_lens=_contexts(attention),
        max_query_len=1,
        groups=None,
        chunks=(),
        mutual=tuple(one._replace(row=one.first_token) for one in one_by_one(attention.mutual)),
    )
    more = batch.more
    if more is not None:
        more = replace(more, block_tables=more.block_tables.repeat_interleave(counts, dim=1))
    return replace(batch, attention=alone, more=more)


def _contexts(attention: AttentionBatch) -> Tensor:
    """Of each token, how many there are with it: [num_tokens] int32."""
    ends = attention.query_starts[1:]
    behind = (ends - attention.context_lens).repeat_interleave(attention.query_starts.diff())
    rows = torch.arange(1, int(ends[-1]) + 1, device=behind.device)
    return (rows - behind).to(torch.int32)


class _Only(list[int]):
    """Stands for the tokens of a sequence of which one is computed: here it is, wherever."""

    def __init__(self, token_id: int) -> None:
        super().__init__([token_id])

    def __getitem__(self, _: object) -> list[int]:  # type: ignore[override]
        return self.copy()


def _token_ids(chunk: ScheduledChunk) -> Sequence[int]:
    """Its sequence's tokens; where the host does not know the newest one, that is 0."""
    return _Only(0) if chunk.is_unknown else chunk.sequence.token_ids


def first_rows(plan: StepPlan) -> list[int]:
    """Where each chunk of a plan begins in its batch."""
    return list(accumulate((chunk.num_rows for chunk in plan.chunks), initial=0))[:-1]


def _drawing(chunk: ScheduledChunk, first: int) -> Iterable[int]:
    """The rows of a chunk that begins with row `first` from which each of its draws is drawn."""
    last = first + chunk.count - 1
    if chunk.drafts:
        return range(last, last + len(chunk.drafts) + 1)
    return [last] * len(chunk.samplers)


def _block_tables(
    pages: Sequence[Sequence[int] | Integers], used: Integers
) -> npt.NDArray[np.int32]:
    """[num_columns, num_seqs, max_blocks]: of each the first `used` pages, padded with 0."""
    first, width = pages[0], int(used.max())
    if not (isinstance(first, np.ndarray) and first.ndim == 2):
        tables = np.zeros((1, len(pages), width), np.int32)
        for row, own, count in zip(tables[0], pages, used.tolist(), strict=True):
            row[:count] = own[:count]
        return tables
    tables = np.zeros((len(first), len(pages), width), np.int32)
    for index, (own, count) in enumerate(zip(pages, used.tolist(), strict=True)):
        tables[:, index, :count] = np.asarray(own)[:, :count]
    return tables
