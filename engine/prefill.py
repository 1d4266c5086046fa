"""Which prompts are computed in a step, and who is admitted for it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence as Rows

from engine.group import SequenceGroup
from engine.layout import Layout, lay_out
from engine.pins import Pins
from engine.plan import ScheduledChunk
from engine.roster import Roster
from engine.sequence import Sequence


class PrefillPlanner:
    """Spends what decoding leaves of a step's budget on prompts, in the order of their tenants."""

    def __init__(
        self, roster: Roster, pins: Pins, step_token_budget: int, max_running_sequences: int
    ) -> None:
        self._roster = roster
        self._pins = pins
        self._step_token_budget = step_token_budget
        self._max_running_sequences = max_running_sequences

    def plan(self, decoding: list[Sequence]) -> tuple[list[Sequence], list[ScheduledChunk]]:
        """Choose prompts beside the sequences that decode.

        Returns what of `decoding` has not had to make room, and the prompts' chunks.
        """
        running = self._roster.running
        budget = self._step_token_budget - len(decoding)
        prefilling = [group for group in running.values() if group.prefill]
        chunks: list[ScheduledChunk] = []
        passed: set[str] = set()
        is_blocked = False
        # Without a budget all slots are decoding, and a new request may still take one's place.
        while budget > 0 or not chunks:
            head = None if is_blocked else self.next_head(passed)
            candidates = prefilling if head is None else [*prefilling, head]
            if not candidates:
                break
            group = min(candidates, key=self._order)
            if group is not head:
                prefilling.remove(group)
            elif self._admit(group, chunks):
                prefilling = [other for other in prefilling if other.request_id in running]
                budget += len(decoding)
                decoding = [sequence for sequence in decoding if sequence.request_id in running]
                budget -= len(decoding)
            else:
                is_blocked = group.request_id in self._roster.live
                continue
            while group.prefill and budget > 0:
                chunks.append(_next_chunk(group, budget))
                budget -= chunks[-1].count
        return decoding, chunks

    def next_head(self, passed: set[str]) -> SequenceGroup | None:
        """The group to be admitted next. Tenants at their own limit are `passed` over."""
        fairness = self._roster.fairness
        while True:
            ranks = {
                account: fairness.rank(account)
                for account in self._roster.accounts.waiting.values()
                if account.tenant not in passed
            }
            if not ranks:
                return None
            least = min(ranks.values())
            first = min(
                (account for account, rank in ranks.items() if rank == least),
                key=lambda account: account.head.arrival,
            )
            if self._is_within_limit(first.head):
                return first.head
            passed.add(first.tenant)
            fairness.passed_over(first)

    def fits(self, layout: Layout, without: Rows[SequenceGroup] = ()) -> bool:
        """Whether there are slots and blocks, were the groups `without` not running.

        A block of headroom for each running sequence keeps it from being preempted at once.
        """
        group = layout.group
        running = self._roster.num_running_sequences - sum(victim.width for victim in without)
        released = [blocks for victim in without for blocks in victim.blocks]
        return (
            running + group.width <= self._max_running_sequences
            and self._roster.pool.can_allocate(
                layout.num_new + layout.num_forks + running, group.tenant, layout.hits, released
            )
        )

    def _is_within_limit(self, group: SequenceGroup) -> bool:
        """Whether the tenant may hold the group's blocks, and one more for each that it runs."""
        account = self._roster.account(group)
        if account.share.max_blocks is None or not account.running:
            return True
        layout = lay_out(group, self._roster.block_size)
        new = layout.num_blocks - sum(block in account.held for block in layout.hits)
        running = sum(other.width for other in account.running)
        return len(account.held) + new + running <= account.share.max_blocks

    def _admit(self, group: SequenceGroup, chunks: list[ScheduledChunk]) -> bool:
        """Admit a waiting group, if room can be made without those of `chunks`.

        A group that will never find room fails.
        """
        layout = lay_out(group, self._roster.block_size)
        num_cached = len(layout.starts[0].hits) * self._roster.block_size
        price = self._roster.prices.admission(group, num_cached)
        if self._make_room(layout, price, chunks):
            self._roster.start(layout, price)
            return True
        if not self._can_ever_fit(layout):
            self._roster.fail(group)
        return False

    def _make_room(self, layout: Layout, price: float, chunks: list[ScheduledChunk]) -> bool:
        """Preempt those who have to yield to the group, if it fits then."""
        if self.fits(layout):
            return True
        roster = self._roster
        victims = roster.fairness.yielding(
            roster.account(layout.group),
            price,
            roster.accounts.running.values(),
            {chunk.sequence.request_id for chunk in chunks},
        )
        if not victims or not self.fits(layout, victims):
            return False
        fewest = bisect_left(
            range(len(victims)), True, key=lambda n: self.fits(layout, victims[:n])
        )
        for victim in victims[:fewest]:
            roster.preempt(victim)
        return True

    def _can_ever_fit(self, layout: Layout) -> bool:
        """Whether the group fits once everything that runs now has ended."""
        pool = self._roster.pool
        if layout.num_blocks + self._pins.num_blocks + pool.num_reserved <= pool.num_blocks:
            return True
        released = [blocks for group in self._roster.running.values() for blocks in group.blocks]
        return pool.can_allocate(
            layout.num_new + layout.num_forks, layout.group.tenant, layout.hits, released
        )

    def _order(self, group: SequenceGroup) -> tuple[tuple[float, float], bool, int]:
        """The smallest one is computed first."""
        account = self._roster.account(group)
        is_waiting = group.request_id not in self._roster.running
        rank = self._roster.fairness.prefill_rank(account, len(account.running) + is_waiting)
        return rank, is_waiting, group.arrival


def _next_chunk(group: SequenceGroup, budget: int) -> ScheduledChunk:
    """Up to `budget` tokens of the first sequence of the group that is not computed."""
    sequence = group.prefill[0]
    count = min(budget, sequence.num_uncomputed)
    start = sequence.compute(count)
    return ScheduledChunk(sequence, start, count, group.take_prefilled())
