"""Drafters that know what the simulated model says, and may be told to be wrong."""

from __future__ import annotations

import random
from collections.abc import Sequence as Ordered

from engine.draft.drafter import Draft
from engine.sequences.sequence import Sequence
from tests.engine.simulated_model import VOCAB, next_token


class Seer:
    """Guesses right with a chance of `right` each time, and says at random how sure it is."""

    priors = (0.3, 0.9, 0.99)

    def __init__(self, rng: random.Random, right: float) -> None:
        self._rng = rng
        self._right = right
        self.over: list[Sequence] = []
        self.forgotten: list[str] = []

    def propose(self, wanted: Ordered[tuple[Sequence, int]], _: float, /) -> list[Draft]:
        return [self._draft(sequence, self._rng.randint(0, most)) for sequence, most in wanted]

    def ended(self, sequence: Sequence) -> None:
        self.over.append(sequence)

    def forget_tenant(self, tenant: str) -> None:
        self.forgotten.append(tenant)

    def _draft(self, sequence: Sequence, count: int) -> Draft:
        history = list(sequence.token_ids)
        for _ in range(count):
            is_right = self._rng.random() < self._right
            token = next_token(history, sequence.index)
            history.append(token if is_right else self._rng.randrange(VOCAB))
        guesses = tuple(history[len(sequence.token_ids) :])
        return Draft(guesses, tuple(self._rng.randrange(3) for _ in guesses))
