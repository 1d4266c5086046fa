"""How large a step may be: as configured, or smaller for a while after memory did not suffice."""

from __future__ import annotations

_CALM_STEPS = 256
"""After so many steps without a failure twice as much is tried again."""


class StepBudget:
    """Limits a step's tokens, and the sequences that run at once."""

    def __init__(self, num_tokens: int, num_sequences: int) -> None:
        self._most_tokens = num_tokens
        self._most_sequences = num_sequences
        self._limit = max(num_tokens, num_sequences)
        self._num_calm = 0

    @property
    def num_tokens(self) -> int:
        """Tokens computed in one step, at most."""
        return min(self._most_tokens, self._limit)

    @property
    def num_sequences(self) -> int:
        """Sequences that run at once, at most, but for a request that runs alone."""
        return min(self._most_sequences, self._limit)

    def halve(self, num_tokens: int) -> bool:
        """A step of `num_tokens` was too large: the next ones have half as many, at most.

        Returns whether that is any less.
        """
        half = num_tokens // 2
        if not 0 < half < self._limit:
            return False
        self._limit = half
        self._num_calm = 0
        return True

    def succeeded(self) -> None:
        """A step has been computed."""
        most = max(self._most_tokens, self._most_sequences)
        if self._limit == most:
            return
        self._num_calm += 1
        if self._num_calm == _CALM_STEPS:
            self._limit = min(2 * self._limit, most)
            self._num_calm = 0
