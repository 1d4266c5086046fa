"""A sequence as a draft model knows it: the known tokens, and guesses behind them."""

from __future__ import annotations

from bisect import bisect_right
from copy import copy
from math import exp
from typing import Final

from msgspec import structs

from engine.blocks.table import BlockTable
from engine.draft.drafter import Acceptance, Draft
from engine.sequences.plan import ScheduledChunk
from engine.sequences.sequence import Sequence

_EDGES: Final = (0.2, 0.4, 0.6, 0.8, 0.9, 0.97)
"""Of a guess's probability, by the model that has guessed: between them are the levels."""
PRIORS: Final = (0.1, 0.25, 0.45, 0.65, 0.8, 0.9, 0.97)
_ANY_PRIOR: Final = 0.7
_ANY: Final = len(PRIORS)
"""The level of a guess that is still to be made."""


class Shadow:
    """Tokens that a draft model computes for a sequence, in blocks of the model's own.

    They are drawn as the sequence's own are, with its seed, bias and penalties. So where both
    models think alike, they also draw alike.
    """

    def __init__(self, sequence: Sequence, table: BlockTable, vocab_size: int) -> None:
        """`vocab_size` is that of the smaller vocabulary: the last token in it stands for all that
        only one model has.
        """
        sampling = sequence.sampling
        bias = {token: bias for token, bias in sampling.logit_bias.items() if token < vocab_size}
        self._vocab_size = vocab_size
        self.sequence = copy(sequence)
        """What is computed: a sequence of the draft model's."""
        self.sequence.table = table
        self.sequence.request = structs.replace(sequence.request, adapter=None, pictures=())
        self.sequence.token_ids = []
        self.sequence.num_drawn = self.sequence.num_cached = self.sequence.num_computed = 0
        stops = tuple(token for token in sampling.stop_token_ids if token < vocab_size)
        self.sequence.sampling = structs.replace(
            sampling, logprobs=0, logit_bias=bias, stop_token_ids=stops
        )
        self.num_rests = 0
        """Times that guesses were not worth it, one after the other."""
        self._levels: list[int] = []
        """Of the guesses: how probable each is."""
        self._acceptance = Acceptance((*PRIORS, _ANY_PRIOR))

    @property
    def num_guesses(self) -> int:
        """Tokens behind the known ones."""
        return len(self._levels)

    @property
    def num_known(self) -> int:
        """Tokens that are no guesses."""
        return len(self.sequence.token_ids) - self.num_guesses

    @property
    def is_over(self) -> bool:
        """Whether the newest guess is a stop token: nothing comes behind it."""
        own = self.sequence
        return bool(self._levels) and own.token_ids[-1] in own.sampling.stop_token_ids

    @property
    def chance(self) -> float:
        """How likely one guess more is right, and all before it."""
        return self._acceptance.chances([*self._levels, _ANY])[-1]

    def follow(self, token_ids: list[int]) -> None:
        """These are the known tokens now. Guesses that were right are among them; behind a wrong
        one none stands, and what was computed of it and them does not count.
        """
        own, first = self.sequence, self.num_known
        guesses = own.token_ids[first:]
        new = [self._clamped(token) for token in token_ids[first:]]
        num_right = _num_equal(guesses, new)
        self._learn(self._levels[: len(new)], num_right)
        if num_right == len(new):
            del self._levels[:num_right]
            return
        self._levels.clear()
        if num_right == len(guesses):
            own.token_ids += new[num_right:]
        else:
            # Another list: who counts what is in this one expects that it grows and never changes.
            own.token_ids = own.token_ids[: first + num_right] + new[num_right:]
            own.num_computed = min(own.num_computed, first + num_right)

    def chunk(self, most: int) -> ScheduledChunk:
        """The next tokens to be computed, `most` at most. It draws if these are all."""
        own = self.sequence
        count = min(own.num_uncomputed, most)
        samplers = (own,) if count == own.num_uncomputed else ()
        return ScheduledChunk(own, own.num_computed, count, samplers)

    def guess(self, token_id: int, logprob: float) -> None:
        """What has been drawn behind all tokens, and its log-probability."""
        self.sequence.token_ids.append(self._clamped(token_id))
        self._levels.append(bisect_right(_EDGES, exp(logprob)))

    def draft(self, most: int) -> Draft:
        """The guesses, as many as are wanted."""
        guesses = self.sequence.token_ids[self.num_known :]
        return Draft(tuple(guesses[:most]), tuple(self._levels[:most]))

    def _learn(self, levels: list[int], num_right: int) -> None:
        """So many of these guesses have come true, or all."""
        self._acceptance.learn(levels, num_right)
        self._acceptance.learn([_ANY] * len(levels), num_right)

    def _clamped(self, token_id: int) -> int:
        return min(token_id, self._vocab_size - 1)


def _num_equal(some: list[int], others: list[int]) -> int:
    for count, (one, other) in enumerate(zip(some, others, strict=False)):
        if one != other:
            return count
    return min(len(some), len(others))
