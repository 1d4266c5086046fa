"""Two drafters as one: a look-up costs nothing, and a model guesses where nothing is found."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from typing import Final

from engine.draft.drafter import Draft, Drafter
from engine.sequences.sequence import Sequence

_SURE: Final = 0.6
"""Of the prior of a draft's first guess: then the other drafter is not asked."""


class LookupFirst:
    """Asks `lookup` for all sequences, and `model` for those that have no sure draft; a `Drafter`.

    The model's levels come behind those of the look-up.
    """

    def __init__(self, lookup: Drafter, model: Drafter) -> None:
        self._lookup = lookup
        self._model = model
        self._num_found = len(lookup.priors)

    @property
    def priors(self) -> Ordered[float]:
        """See `Drafter`."""
        return (*self._lookup.priors, *self._model.priors)

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
