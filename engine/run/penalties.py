"""What a request adds to the scores of tokens before one is chosen: its bias, and penalties for
tokens that are there already.

Both concern few tokens of the vocabulary, and only these are touched. How often a token is there is
counted as it comes, not anew in each step: here on the host, and for a GPU's scores on the device
(`engine.run.device_counts`).
"""

from __future__ import annotations

import math
from collections import abc
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.api import SamplingParams
from engine.batch.staging import Array, upload
from engine.sequences.plan import Draw
from engine.sequences.sequence import Sequence
from kernels.reference.penalties import penalised

Tokens = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float32]

_SPARE = 16


@dataclass(slots=True)
class _Counted:
    """The distinct tokens of `known`, the sequence's own list, from some place on."""

    known: list[int]
    length: int
    """Tokens that have been counted, or passed over."""
    places: dict[int, int] = field(default_factory=dict)
    tokens: Tokens = field(default_factory=lambda: np.zeros(0, np.int64))
    counts: Numbers = field(default_factory=lambda: np.zeros(0, np.float32))
    """How often each is in the output; 0 for one that only the prompt has."""

    def advance(self, num_prompt_tokens: int) -> None:
        """Count what has come since."""
        for position in range(self.length, len(self.known)):
            token = self.known[position]
            place = self.places.setdefault(token, len(self.places))
            if place == len(self.tokens):
                spare = place // 2 + _SPARE
                self.tokens = np.concatenate([self.tokens, np.zeros(spare, np.int64)])
                self.counts = np.concatenate([self.counts, np.zeros(spare, np.float32)])
            self.tokens[place] = token
            self.counts[place] += position >= num_prompt_tokens
        self.length = len(self.known)

    def with_drafts(self, drafts: tuple[int, ...]) -> tuple[Tokens, Numbers]:
        """The tokens and their counts, were `drafts` the next of the output."""
        size = len(self.places)
        tokens, counts = self.tokens[:size], self.counts[:size]
        if not drafts:
            return tokens, counts
        new = [token for token in dict.fromkeys(drafts) if token not in self.places]
        tokens = np.concatenate([tokens, np.array(new, np.int64)])
        counts = np.concatenate([counts, np.zeros(len(new), np.float32)])
        for draft in drafts:
            counts[tokens == draft] += 1
        return tokens, counts


class TokenCounts:
    """Follows the tokens of sequences, whose lists grow and never change."""

    def __init__(self) -> None:
        self._counted: WeakKeyDictionary[Sequence, _Counted] = WeakKeyDictionary()

    def __len__(self) -> int:
        return len(self._counted)

    def of(self, draw: Draw) -> tuple[Tokens, Numbers]:
        """The known tokens before `draw` that have penalties, each once, and how often the output
        has them. They hold until the next call.
        """
        sequence = draw.sequence
        counted = self._counted.get(sequence)
        if counted is None or counted.known is not sequence.token_ids:
            with_prompt = sequence.sampling.repetition_penalty != 1
            start = 0 if with_prompt else sequence.num_prompt_tokens
            counted = self._counted[sequence] = _Counted(sequence.token_ids, start)
        counted.advance(sequence.num_prompt_tokens)
        return counted.with_drafts(draw.drafts)

    def adjust(self, scores: Tensor, draws: abc.Sequence[Draw], newest: Tensor | None) -> Tensor:
        """What the options of `draws` make of their scores; `scores` itself if that is nothing.

        It is a copy in float32 with the bias, then a repetition penalty over prompt and output
        (Keskar et al., 2019), then presence and frequency penalties over the output, as OpenAI
        defines them. `scores` is [num_rows, vocab_size]; of `newest`, see
        `engine.run.sampler.sample`.
        """
        adjustments = Adjustments.of(draws, self)
        return scores if adjustments is None else adjustments.apply(scores, newest)


@dataclass(frozen=True, slots=True)
class Entries:
    """A number for some tokens of a batch's rows, on the host."""

    rows: npt.NDArray[np.int64]  # [num_entries]
    tokens: Tokens  # [num_entries]
    numbers: Numbers  # [num_entries]

    @classmethod
    def of(cls, by_row: dict[int, tuple[Tokens, Numbers]]) -> Entries:
        """From the tokens and numbers of some rows."""
        return cls(
            np.repeat(np.array(list(by_row), np.int64), [len(one) for one, _ in by_row.values()]),
            np.concatenate([np.zeros(0, np.int64), *(tokens for tokens, _ in by_row.values())]),
            np.concatenate([np.zeros(0, np.float32), *(some for _, some in by_row.values())]),
        )


@dataclass(frozen=True, slots=True)
class Adjustments:
    """Bias and penalties of a batch's rows."""

    _bias: Entries
    _present: Entries
    """Tokens that have penalties, as far as the host knows them, and their counts in the output."""
    _unknown: Array  # [num_unknown] int64: rows with penalties whose newest token it does not know
    _numbers: Array  # [3, num_rows] float32: repetition, frequency and presence penalty

    @classmethod
    def of(cls, draws: abc.Sequence[Draw], counts: TokenCounts) -> Adjustments | None:
        """What `draws` want; `None` if that is nothing."""
        params = [draw.sequence.sampling for draw in draws]
        biased = biases(draws)
        with_penalties = [row for row, p in enumerate(params) if has_penalties(p)]
        if not (biased or with_penalties):
            return None
        return cls(
            Entries.of(biased),
            Entries.of({row: counts.of(draws[row]) for row in with_penalties}),
            np.array([row for row in with_penalties if _is_unknown(draws[row])], np.int64),
            penalty_numbers(draws),
        )

    def apply(self, scores: Tensor, newest: Tensor | None) -> Tensor:
        """See `TokenCounts.adjust`."""
        size = scores.shape[1]
        host = [
            self._bias.rows * size + self._bias.tokens,
            self._bias.numbers,
            self._present.rows,
            self._present.rows * size + self._present.tokens,
            self._present.numbers,
            self._unknown,
            self._numbers,
        ]
        biased, bias, rows, places, counts, unknown, numbers = upload(host, scores.device)
        scores = scores.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        flat = scores.view(-1)
        if len(biased):
            flat.index_add_(0, biased, bias)
        if newest is None or not len(unknown):
            flat.index_copy_(0, places, penalised(flat[places], counts, numbers[:, rows]))
            return scores
        newest_places = unknown * size + newest[unknown]
        by_row = unknown.new_full((len(scores),), -1).index_copy_(0, unknown, newest_places)
        # A newest token that its row does not have among those that are known is there once.
        is_newest = places == by_row[rows]
        counts = counts + is_newest
        found = counts.new_zeros(len(scores)).index_add_(0, rows, counts * is_newest)[unknown]
        latest = penalised(flat[newest_places], found.clamp(min=1), numbers[:, unknown])
        flat.index_copy_(0, places, penalised(flat[places], counts, numbers[:, rows]))
        flat.index_copy_(0, newest_places, latest)
        return scores


def _is_unknown(draw: Draw) -> bool:
    """Whether only the device knows its newest token."""
    return draw.sequence.num_drawn > 0 and not draw.drafts


def biases(draws: abc.Sequence[Draw]) -> dict[int, tuple[Tokens, Numbers]]:
    """By row: the tokens that have a bias, and these."""
    return {
        row: (
            np.fromiter(bias, np.int64, len(bias)),
            np.fromiter(bias.values(), np.float32, len(bias)),
        )
        for row, draw in enumerate(draws)
        if (bias := _bias(draw))
    }


def _bias(draw: Draw) -> dict[int, float]:
    """The request's own, and what keeps an output from ending too soon."""
    sampling = draw.sequence.sampling
    if draw.num_output_tokens >= sampling.min_tokens:
        return sampling.logit_bias
    return sampling.logit_bias | dict.fromkeys(sampling.stop_token_ids, -math.inf)


def has_penalties(params: SamplingParams) -> bool:
    """Whether tokens that are there already are scored lower, or higher."""
    return params.repetition_penalty != 1 or bool(
        params.presence_penalty or params.frequency_penalty
    )


def penalty_numbers(draws: abc.Sequence[Draw]) -> Numbers:
    """As `kernels.penalties.penalise` takes them: [3, num_rows]."""
    params = [draw.sequence.sampling for draw in draws]
    numbers = [(p.repetition_penalty, p.frequency_penalty, p.presence_penalty) for p in params]
    return np.ascontiguousarray(np.array(numbers, np.float32).T)
