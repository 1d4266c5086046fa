"""How often tokens are there already, counted on a GPU as they come.

The counts of a sequence whose tokens have penalties lie in a row of a table on the device, its
place, for as long as it draws in every step. A step adds what has come since the last one: as a
rule the newest token, which only the device may know; the host goes through no tokens again. A
sequence that goes on from another one of its request copies that one's counts, as beams do in every
step; whoever comes anew, or comes back, brings its tokens once.
"""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from engine.batch.staging import Array, upload
from engine.run.penalties import (
    Entries,
    TokenCounts,
    Tokens,
    biases,
    has_penalties,
    penalty_numbers,
)
from engine.sequences.plan import Draw
from engine.sequences.sequence import Sequence
from kernels.penalties import penalise
from kernels.reference.penalties import penalised

_FEWEST_PLACES = 8
_IN_PROMPT, _ONCE = 1, 2
"""What is counted of a token: see `kernels.penalties.penalise`."""


@dataclass(frozen=True, slots=True)
class _Counted:
    """Of a sequence: what its place holds."""

    place: int
    request_id: str
    known: list[int]
    """The sequence's own list, which grows and does not change."""
    length: int
    """Tokens that are counted; the host may not know the last one."""

    def begins(self, sequence: Sequence) -> bool:
        """Whether the tokens of `sequence` begin with those that are counted."""
        if self.length > sequence.num_tokens:  # a step was undone
            return False
        if self.known is sequence.token_ids:
            return True
        is_known = self.length <= min(len(self.known), len(sequence.token_ids))
        same_request = self.request_id == sequence.request_id
        return (
            same_request
            and is_known
            and self.known[: self.length] == sequence.token_ids[: self.length]
        )


@dataclass(slots=True)
class _Changes:
    """What a step changes in the table, in this order."""

    copied: list[tuple[int, int]] = field(default_factory=list)
    """(from, to), all at once."""
    cleared: list[int] = field(default_factory=list)
    in_prompt: list[tuple[int, Tokens]] = field(default_factory=list)
    """(place, tokens)"""
    in_output: list[tuple[int, Tokens]] = field(default_factory=list)
    newest: list[tuple[int, int]] = field(default_factory=list)
    """(place, row of the batch whose newest token is one more)"""

    def arrays(self, size: int) -> list[Array]:
        """For `DeviceCounts`: places in the table, or in all of it as one row."""
        places, rows = _pairs(self.newest)
        return [
            *_pairs(self.copied),
            np.array(self.cleared, np.int64),
            _flat(self.in_prompt, size),
            _flat(self.in_output, size),
            places * size,
            rows,
        ]


class DeviceCounts:
    """Counts for all sequences of a step; the next one begins where it ends."""

    def __init__(self) -> None:
        self._table = torch.zeros(0, 0, dtype=torch.int32)  # [places, vocab_size]
        self._counted: dict[Sequence, _Counted] = {}
        """Of the sequences of the last step."""

    def __len__(self) -> int:
        return len(self._counted)

    def adjust(self, scores: Tensor, draws: abc.Sequence[Draw], newest: Tensor | None) -> Tensor:
        """See `TokenCounts`."""
        bias = Entries.of(biases(draws))
        rows = [row for row, one in enumerate(draws) if has_penalties(one.sequence.sampling)]
        changes = self._follow(draws, rows, newest is not None)
        if not rows and not len(bias.rows):
            return scores
        size = scores.shape[1]
        self._make_room(scores)
        slots = np.full(len(draws), -1, np.int64)
        for row in rows:
            slots[row] = self._counted[draws[row].sequence].place
        guessed = [(row, draws[row].drafts) for row in rows]
        drafts = [
            (row, token, tokens.count(token))
            for row, tokens in guessed
            for token in dict.fromkeys(tokens)
        ]
        draft_rows, draft_tokens, times = np.array(drafts, np.int64).reshape(-1, 3).T
        host: list[Array] = [
            bias.rows * size + bias.tokens,
            bias.numbers,
            slots,
            penalty_numbers(draws),
            *(draft_rows.copy(), draft_tokens.copy(), times.astype(np.float32)),
            *changes.arrays(size),
        ]
        arrays = upload(host, scores.device)
        if len(bias.rows):
            scores = scores.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
            scores.view(-1).index_add_(0, arrays[0], arrays[1])
        if not rows:
            return scores
        self._change(arrays[7:], newest)
        slot, number = arrays[2:4]
        result = penalise(scores, self._table, slot, number)
        if drafts:
            self._add_drafts(result, scores, slot, number, arrays[4:7])
        return result

    def _follow(self, draws: abc.Sequence[Draw], rows: list[int], knows_newest: bool) -> _Changes:
        """Give every sequence of `rows` a place. Returns what its counts lack."""
        last, changes = self._counted, _Changes()
        firsts = {draws[row].sequence: row for row in reversed(rows)}
        kept = {one: last[one] for one in firsts if one in last and last[one].begins(one)}
        taken = {counted.place for counted in kept.values()}
        free = (place for place in range(len(last) + len(firsts)) if place not in taken)
        self._counted = {}
        for sequence, row in firsts.items():
            length = 0
            counted = kept.get(sequence)
            place = next(free) if counted is None else counted.place
            if counted is None:
                counted = _longest(last.values(), sequence)
                if counted is None:
                    changes.cleared.append(place)
                else:
                    changes.copied.append((counted.place, place))
            if counted is not None:
                length = counted.length
            by_device = row if knows_newest else None
            _count(sequence, length, place, by_device, changes)
            self._counted[sequence] = _Counted(
                place, sequence.request_id, sequence.token_ids, sequence.num_tokens
            )
        return changes

    def _make_room(self, scores: Tensor) -> None:
        """A table of all places that are taken, beside the scores and as wide as they are."""
        needed = 1 + max((one.place for one in self._counted.values()), default=-1)
        if needed > len(self._table):
            most = max(_FEWEST_PLACES, 1 << (needed - 1).bit_length())
            grown = torch.zeros(most, scores.shape[1], dtype=torch.int32, device=scores.device)
            if len(self._table):
                grown[: len(self._table)] = self._table
            self._table = grown

    def _change(self, arrays: abc.Sequence[Tensor], newest: Tensor | None) -> None:
        """Bring the table up to this step; `arrays` are those of `_Changes`."""
        sources, targets, cleared, in_prompt, in_output, places, rows = arrays
        table, flat = self._table, self._table.view(-1)
        if len(sources):
            table.index_copy_(0, targets, table.index_select(0, sources))
        if len(cleared):
            table.index_fill_(0, cleared, 0)
        if len(in_prompt):
            flat.index_fill_(0, in_prompt, _IN_PROMPT)
        if len(in_output):
            flat.index_add_(0, in_output, flat.new_full(in_output.shape, _ONCE))
        if len(rows):
            assert newest is not None
            places = places + newest.index_select(0, rows)
            flat.index_add_(0, places, flat.new_full(places.shape, _ONCE))

    def _add_drafts(
        self,
        result: Tensor,
        scores: Tensor,
        slots: Tensor,
        numbers: Tensor,
        drafts: abc.Sequence[Tensor],
    ) -> None:
        """Put into `result` the tokens of guesses, which count in their own rows alone."""
        rows, tokens, times = drafts
        codes = self._table[slots.index_select(0, rows), tokens]
        values = scores[rows, tokens].to(torch.float32)
        counts = (codes >> 1).to(torch.float32) + times
        result[rows, tokens] = penalised(values, counts, numbers.index_select(1, rows))


Counts = TokenCounts | DeviceCounts


def token_counts(device: torch.device) -> Counts:
    """Where penalties are counted for scores on `device`."""
    return DeviceCounts() if device.type == "cuda" else TokenCounts()


def _longest(counted: abc.Iterable[_Counted], sequence: Sequence) -> _Counted | None:
    """Whose counts `sequence` can go on from, most of it done."""
    found = [one for one in counted if one.begins(sequence)]
    return max(found, key=lambda one: one.length, default=None)


def _count(sequence: Sequence, length: int, place: int, row: int | None, changes: _Changes) -> None:
    """What a place that holds the first `length` tokens lacks of the tokens of `sequence`.

    The device knows the newest token of `row`, if that is given.
    """
    known, num_prompt = sequence.token_ids, sequence.num_prompt_tokens
    end = sequence.num_tokens
    if length == 0 and sequence.sampling.repetition_penalty != 1:
        changes.in_prompt.append((place, np.array(known[:num_prompt], np.int64)))
    start = max(length, num_prompt)
    if row is not None and end > start:
        changes.newest.append((place, row))
        end -= 1
    if end > start:
        changes.in_output.append((place, np.array(known[start:end], np.int64)))


def _pairs(pairs: list[tuple[int, int]]) -> tuple[Tokens, Tokens]:
    first, second = np.array(pairs, np.int64).reshape(-1, 2).T
    return first.copy(), second.copy()


def _flat(entries: list[tuple[int, Tokens]], size: int) -> Tokens:
    """Where tokens of places are, if the table were one row."""
    return np.concatenate(
        [np.zeros(0, np.int64), *(place * size + tokens for place, tokens in entries)]
    )
