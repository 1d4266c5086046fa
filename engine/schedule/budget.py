"""How large a step may be, what it has left for prompts, and whose may take how much of it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from engine.schedule.accounts import Account
from engine.schedule.lifecycle import Lifecycle
from engine.sequences.group import SequenceGroup
from engine.sequences.pace import Pace
from engine.sequences.plan import ScheduledChunk
from engine.sequences.sequence import Sequence

_FEWEST_ROWS = 16
_CALM_STEPS = 256
"""After so many steps without a failure twice as much is tried again."""


class StepBudget:
    """Limits a step's tokens, and the sequences that run at once: as configured, or less for a
    while after memory did not suffice.
    """

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


@dataclass(slots=True)
class Room:
    """What is left of a step for prompts."""

    lifecycle: Lifecycle
    left: int
    """Tokens, in all."""
    short: float
    """Worth of tokens with which the step is no longer than others should wait for it."""
    pace: Pace
    streams: list[Account]
    """Tenants whose sequences decode in the step."""
    hidden: float | None
    """Worth of tokens for those who owe time to what decodes; `None`: nothing is owed."""
    rows: int
    """Tokens of prompts whose log-probabilities are told."""
    decoded: int
    """Tokens of what decodes."""
    num_spent: int = 0
    """Tokens that prompts have taken."""

    @classmethod
    def beside(
        cls, decoding: list[Sequence], lifecycle: Lifecycle, budget: StepBudget, pace: Pace
    ) -> Room:
        """What a step has left beside what decodes.

        Streams wait for it, or newcomers. Scores over the whole vocabulary take much memory: there
        is some for as many rows as sequences may decode.
        """
        decoded = num_rows(decoding)
        accounts, left = lifecycle.accounts, budget.num_tokens - decoded
        rows = max(_FEWEST_ROWS, budget.num_sequences - len(decoding))
        streams = [accounts[tenant] for tenant in {one.request.tenant for one in decoding}]
        short: float | None = None
        if decoding:
            short = pace.prompt_tokens
        elif accounts.num_known > 1:
            short = pace.efficient_tokens
        short = math.inf if short is None else short
        is_owed = bool(decoding) and pace.is_in_debt
        hidden = pace.hidden_rows - decoded if is_owed else None
        return cls(lifecycle, left, short, pace, streams, hidden, rows, decoded)

    def share(self, group: SequenceGroup) -> int:
        """Tokens that a group's prompt may take of what is left."""
        account = self.lifecycle.account(group)
        left = min(self.left, self.rows) if group.is_scoring else self.left
        is_waiting = group.request_id not in self.lifecycle.running
        start = 0 if is_waiting else group.prefill[0].num_computed
        if self.hidden is not None and self.lifecycle.fairness.must_pay(account, self.streams):
            return min(left, self.pace.affordable(self.hidden, start))
        may_draw_out = self.lifecycle.fairness.may_draw_out(
            len(account.waiting) - is_waiting, self.streams
        )
        if may_draw_out or math.isinf(self.short):
            return left
        return min(left, self.pace.affordable(self.short, start))

    def spend(self, chunk: ScheduledChunk) -> None:
        """So much of a prompt is computed."""
        self.rows -= len(chunk.scored)
        self.left -= chunk.count
        worth = self.pace.worth(chunk.start, chunk.count)
        self.short -= worth
        if self.hidden is not None:
            self.hidden -= worth
        self.num_spent += chunk.count

    def gain(self, decoding: Iterable[Sequence]) -> None:
        """No others decode after all."""
        gained = self.decoded - num_rows(decoding)
        self.decoded -= gained
        self.left += gained
        self.short += gained


def num_rows(decoding: Iterable[Sequence]) -> int:
    """Tokens of a step in which these decode: one each, and right drafts that have no state."""
    return sum(one.num_uncomputed for one in decoding)
