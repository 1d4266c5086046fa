"""Which sequences decode in a step, and who is preempted for the blocks that they need."""

from __future__ import annotations

from collections.abc import Iterable

from engine.schedule.group import SequenceGroup
from engine.schedule.lifecycle import Lifecycle
from engine.schedule.sequence import Sequence


class DecodePlanner:
    """Every sequence whose prompt is computed goes on by a token, for as long as there is room."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle

    def plan(self) -> list[Sequence]:
        """Give every decoding sequence room for its next token, oldest first; returns them."""
        running = self._lifecycle.running
        decoding = [(group, sequence) for group in running.values() for sequence in group.decoding]
        for group, sequence in decoding:
            if sequence.table.has_outgrown(sequence.num_tokens):
                self._start_anew(group)
            elif sequence.table.needed(sequence.num_tokens) and group.request_id in running:
                self._grow(group, sequence)
            if self._lifecycle.must_settle:
                break
        return [sequence for group, sequence in decoding if group.request_id in running]

    def _start_anew(self, group: SequenceGroup) -> None:
        """Let a group that has outgrown its KV be computed again."""
        if self._lifecycle.is_ahead:
            self._lifecycle.must_settle = True
        elif group.request_id in self._lifecycle.running:
            self._lifecycle.preempt(group)

    def _grow(self, group: SequenceGroup, sequence: Sequence) -> None:
        """Take blocks for a decoding sequence, preempting whoever has to go before its group.

        Over its tenant's limit that is the tenant's newest request, but a request that runs alone
        was found to fit when it came.
        """
        lifecycle = self._lifecycle
        account = lifecycle.account(group)
        needed = sequence.table.needed(sequence.num_tokens)
        while True:
            limit = account.share.max_blocks
            is_over = (
                limit is not None
                and len(account.running) > 1
                and len(account.held) + needed + self._promised(account.running, group) > limit
            )
            if not is_over and lifecycle.pool.can_allocate(
                needed + self._promised(lifecycle.running.values(), group), account.tenant
            ):
                lifecycle.grow(group, sequence)
                return
            if lifecycle.is_ahead:
                lifecycle.must_settle = True
                return
            if not is_over and len(lifecycle.running) == 1:
                lifecycle.fail(group)
                return
            victim = self._victim(account.running if is_over else lifecycle.running.values())
            lifecycle.preempt(victim)
            if victim is group:
                return

    def _promised(self, groups: Iterable[SequenceGroup], without: SequenceGroup) -> int:
        """Blocks that are kept for others which are back from a preemption."""
        return sum(self._lifecycle.promised(group) for group in groups if group is not without)

    def _victim(self, groups: Iterable[SequenceGroup]) -> SequenceGroup:
        """Who is preempted next; one that is spared only where a reserve has broken its promise."""
        return max(groups, key=lambda group: (not group.is_spared, self._priority(group)))

    def _priority(self, group: SequenceGroup) -> tuple[tuple[float, float], int]:
        """The largest one is preempted first."""
        return self._lifecycle.fairness.rank(self._lifecycle.account(group)), group.arrival
