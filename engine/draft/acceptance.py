"""How often guesses come true, for each sequence and each level of a drafter's certainty."""

from __future__ import annotations

from collections.abc import Sequence

_PRIOR_WEIGHT = 2.0
"""Guesses that the prior counts for."""
_KEPT = 0.93
"""Of what was learned, with every guess of the same level: the last fourteen count, about."""


class Acceptance:
    """Learned from one sequence alone: what another one's guesses come to is not its business."""

    def __init__(self, priors: Sequence[float]) -> None:
        self._right = [_PRIOR_WEIGHT * prior for prior in priors]
        self._seen = [_PRIOR_WEIGHT] * len(priors)

    def chances(self, levels: Sequence[int]) -> list[float]:
        """For each guess of a draft: how likely it and all before it are right."""
        chances, chance = [], 1.0
        for level in levels:
            chance *= self._right[level] / self._seen[level]
            chances.append(chance)
        return chances

    def learn(self, levels: Sequence[int], num_right: int) -> None:
        """So many of a draft's guesses were right; what came behind the first wrong one says
        nothing."""
        for place, level in enumerate(levels[: num_right + 1]):
            self._right[level] = _KEPT * self._right[level] + (place < num_right)
            self._seen[level] = _KEPT * self._seen[level] + 1
