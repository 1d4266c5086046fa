"""Guesses for outputs that are held to grammars: what a grammar leaves no choice of is no guess.

Names of properties, brackets and constants come in runs, which one step then verifies ("jump
forward": Zheng et al., SGLang, arXiv 2312.07104). Masks decide alike with them and without: where
text is forced, they allow only the tokens that it is usually cut into.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from typing import Final

from engine.constraint.follower import Followers
from engine.draft.drafter import NO_DRAFT, Draft, Drafter
from engine.sequences.sequence import Sequence

_PRIOR: Final = 0.98
"""Of a forced token."""


class Held:
    """Takes of the guesses of `others` what a grammar allows, and adds what it forces; a `Drafter`.

    The level of forced tokens comes behind those of the others.
    """

    def __init__(self, others: Drafter, followers: Followers) -> None:
        self._others = others
        self._followers = followers
        self._forced_level = len(others.priors)
        self.priors: Ordered[float] = (*others.priors, _PRIOR)

    def propose(
        self, wanted: Ordered[tuple[Sequence, int]], token_seconds: float, /
    ) -> list[Draft]:
        """See `Drafter`."""
        drafts = self._others.propose(wanted, token_seconds)
        return [
            draft if sequence.grammar is None else self._held(sequence, most, draft)
            for (sequence, most), draft in zip(wanted, drafts, strict=True)
        ]

    def ended(self, sequence: Sequence) -> None:
        """See `Drafter`."""
        self._others.ended(sequence)

    def forget_tenant(self, tenant: str) -> None:
        """See `Drafter`."""
        self._others.forget_tenant(tenant)

    def _held(self, sequence: Sequence, most: int, draft: Draft) -> Draft:
        follower = self._followers.of(sequence)
        if follower.is_slow:
            return NO_DRAFT  # others would wait for a mask behind each guess
        forced = follower.forced(most)
        count = follower.num_allowed(draft.token_ids)
        tokens = draft.token_ids[:count]
        if tokens[: len(forced)] != forced:
            tokens = forced
        levels = (self._forced_level,) * len(forced)
        return Draft(tokens, levels + draft.levels[len(forced) : len(tokens)])
