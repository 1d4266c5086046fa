"""Which sequences decode in a step, and what their growth takes from others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from engine.schedule.lifecycle import Lifecycle
from engine.sequences.group import SequenceGroup
from engine.sequences.sequence import Sequence

Turns = Callable[[list[Sequence]], list[Sequence]]
"""Of the sequences that may decode, those that are to in the next step, in the same order."""


@dataclass(frozen=True, slots=True)
class Growth:
    """Who decodes in a step."""

    sequences: list[Sequence] = field(default_factory=list)
    """They have room for their next tokens."""
    failed: list[Sequence] = field(default_factory=list)
    """They have ended, because there will be no room for them."""
    awaits_tokens: bool = False
    """Whether somebody is to be preempted once the tokens that are under way are known. Until then
    nobody decodes."""


class DecodePlanner:
    """Every sequence whose prompt is computed and whose turn it is goes on by a token, for as long
    as there is room."""

    def __init__(self, lifecycle: Lifecycle, turns: Turns = list) -> None:
        self._lifecycle = lifecycle
        self._turns = turns

    def plan(self, *, may_preempt: bool) -> Growth:
        """Give every decoding sequence room for its next token, oldest first.

        Nobody may be preempted whose tokens are not all known.
        """
        running = self._lifecycle.running
        able = [sequence for group in running.values() for sequence in group.decoding]
        decoding = [(running[sequence.request_id], sequence) for sequence in self._turns(able)]
        failed: list[Sequence] = []
        for group, sequence in decoding:
            if group.request_id not in running:
                continue
            ended = self._make_room(group, sequence, may_preempt)
            if ended is None:
                return Growth(awaits_tokens=True)
            failed += ended
        sequences = [sequence for group, sequence in decoding if group.request_id in running]
        return Growth(sequences, failed)

    def _make_room(
        self, group: SequenceGroup, sequence: Sequence, may_preempt: bool
    ) -> list[Sequence] | None:
        """Let a sequence have what its next token needs; the answer is that of `_grow`.

        One that has outgrown its KV is preempted with its group: all of it is computed again.
        """
        table, num_tokens = sequence.table, sequence.num_tokens
        self._lifecycle.forget(group, sequence)
        if table.has_outgrown(num_tokens):
            if not may_preempt:
                return None
            self._lifecycle.preempt(group)
        elif table.needed(num_tokens):
            return self._grow(group, sequence, may_preempt)
        return []

    def _grow(
        self, group: SequenceGroup, sequence: Sequence, may_preempt: bool
    ) -> list[Sequence] | None:
        """Take blocks for a decoding sequence, preempting whoever has to go before its group.

        Over its tenant's limit that is the tenant's newest request, but a request that runs alone
        was found to fit when it came. Returns what has ended for want of room, or `None` if
        somebody is to be preempted who may not be.
        """
        lifecycle = self._lifecycle
        account = lifecycle.account(group)
        needed = sequence.table.needed(sequence.num_tokens)
        while True:
            is_over = lifecycle.is_over_limit(group, needed)
            if not is_over and lifecycle.has_pages(group, needed):
                lifecycle.grow(group, sequence)
                return []
            if not may_preempt:
                return None
            is_alone = len(lifecycle.running) == 1 and not lifecycle.tiers.arriving
            if not is_over and is_alone:
                return lifecycle.fail(group)
            groups = account.running if is_over else lifecycle.running.values()
            victim = self._victim(groups)
            lifecycle.preempt(victim)
            if victim is group:
                return []

    def _victim(self, groups: Iterable[SequenceGroup]) -> SequenceGroup:
        """Which of the running `groups` makes room for one of their sequences.

        It is the newest of the most over-served tenant; one that is spared only where a reserve has
        broken its promise.
        """
        lifecycle = self._lifecycle

        def priority(group: SequenceGroup) -> tuple[bool, tuple[float, float], int]:
            rank = lifecycle.fairness.rank(lifecycle.account(group))
            return not group.is_spared, rank, group.arrival

        return max(groups, key=priority)
