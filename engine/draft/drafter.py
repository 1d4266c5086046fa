"""What a drafter is: whoever guesses how sequences go on, and says how sure it is.

Nothing that is emitted depends on a guess: the model draws each token as it would have without
(`engine.schedule.results`), and a guess only decides how many it draws in one step. So the output
is distributed as the model's own, and even the same (Leviathan, Kalman and Matias, "Fast inference
from transformers via speculative decoding", ICML 2023, accept a part of wrong guesses; our sampler
is a function of seed and position, with which equality is the whole rule).
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from typing import Protocol

from engine.sequences.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens that may follow a sequence's newest one, in order."""

    token_ids: tuple[int, ...] = ()
    levels: tuple[int, ...] = ()
    """For each of them, how sure the drafter is of it, given those before: a number from 0 up to
    what `Drafter.priors` knows. How often each level is right is learned from each sequence."""


NO_DRAFT = Draft()


class Drafter(Protocol):
    """Guesses how sequences go on."""

    @property
    def priors(self) -> Ordered[float]:
        """How often a guess of each level is right, before anything is learned."""
        ...

    def propose(
        self, wanted: Ordered[tuple[Sequence, int]], token_seconds: float, /
    ) -> list[Draft]:
        """A draft of at most so many tokens for each sequence, behind the tokens that are known.

        `token_seconds` is what a token takes without guesses: what takes longer is not worth it.
        """
        ...

    def ended(self, sequence: Sequence) -> None:
        """A sequence has ended, whatever ended it."""
        ...

    def forget_tenant(self, tenant: str) -> None:
        """Use nothing of what the tenant's requests have left behind."""
        ...
