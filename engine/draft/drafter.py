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
from typing import Final, Protocol

from engine.sequences.sequence import Sequence

_PRIOR_WEIGHT = 2.0
"""Guesses that the prior counts for."""
_KEPT = 0.93
"""Of what was learned, with every guess of the same level: the last fourteen count, about."""
_SURE: Final = 0.6
"""Of the prior of a draft's first guess: then the other drafter is not asked."""


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

    priors: Ordered[float]
    """How often a guess of each level is right, before anything is learned."""

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


class Acceptance:
    """Learned from one sequence alone: what another one's guesses come to is not its business."""

    def __init__(self, priors: Ordered[float]) -> None:
        self._right = [_PRIOR_WEIGHT * prior for prior in priors]
        self._seen = [_PRIOR_WEIGHT] * len(priors)

    def chances(self, levels: Ordered[int]) -> list[float]:
        """For each guess of a draft: how likely it and all before it are right."""
        chances, chance = [], 1.0
        for level in levels:
            chance *= self._right[level] / self._seen[level]
            chances.append(chance)
        return chances

    def learn(self, levels: Ordered[int], num_right: int) -> None:
        """So many of a draft's guesses were right; what came behind the first wrong one says
        nothing."""
        for place, level in enumerate(levels[: num_right + 1]):
            self._right[level] = _KEPT * self._right[level] + (place < num_right)
            self._seen[level] = _KEPT * self._seen[level] + 1


class LookupFirst:
    """Asks `lookup` for all sequences, and `model` for those that have no sure draft; a `Drafter`.

    The model's levels come behind those of the look-up.
    """

    def __init__(self, lookup: Drafter, model: Drafter) -> None:
        self._lookup = lookup
        self._model = model
        self._num_found = len(lookup.priors)
        self.priors: Ordered[float] = (*lookup.priors, *model.priors)

    def propose(
        self, wanted: Ordered[tuple[Sequence, int]], token_seconds: float, /
    ) -> list[Draft]:
        """See `Drafter`."""
        drafts = self._lookup.propose(wanted, token_seconds)
        unsure = [place for place, draft in enumerate(drafts) if not self._is_sure(draft)]
        asked = [wanted[place] for place in unsure]
        guessed = self._model.propose(asked, token_seconds) if asked else []
        for place, draft in zip(unsure, guessed, strict=True):
            if draft.token_ids:
                levels = tuple(self._num_found + level for level in draft.levels)
                drafts[place] = Draft(draft.token_ids, levels)
        return drafts

    def ended(self, sequence: Sequence) -> None:
        """See `Drafter`."""
        self._lookup.ended(sequence)
        self._model.ended(sequence)

    def forget_tenant(self, tenant: str) -> None:
        """See `Drafter`."""
        self._lookup.forget_tenant(tenant)
        self._model.forget_tenant(tenant)

    def _is_sure(self, draft: Draft) -> bool:
        return bool(draft.levels) and self._lookup.priors[draft.levels[0]] >= _SURE
