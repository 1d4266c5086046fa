"""Which prompts are computed in a step, and who is admitted for it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence as Rows

from engine.blocks.pins import Pins
from engine.schedule.allocation import Admission, Layout
from engine.schedule.group import SequenceGroup
from engine.schedule.plan import ScheduledChunk
from engine.schedule.roster import Roster
from engine.schedule.sequence import Sequence


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

    def fits(self, admission: Admission, without: Rows[SequenceGroup] = ()) -> bool:
        """Whether there are slots and blocks, were the groups `without` not running.

        A block of headroom for each running sequence keeps it from being preempted at once; groups
        that are back from a preemption, this one among them, have room to run for a while.
        """
        group, roster = admission.group, self._roster
        others = [other for other in roster.running.values() if other not in without]
        released = [blocks for victim in without for blocks in victim.blocks]
        needed = admission.num_new + admission.num_forks
        if others:
            needed += self._headroom(others) + roster.to_be_promised(admission)
        width = group.width + sum(other.width for other in others)
        return width <= self._max_running_sequences and roster.pool.can_allocate(
            needed, group.tenant, admission.held, released
        )

    def _headroom(self, groups: Rows[SequenceGroup]) -> int:
        """Blocks to be left for running groups."""
        return sum(max(group.width, self._roster.promised(group)) for group in groups)

    def _is_within_limit(self, group: SequenceGroup) -> bool:
        """Whether the tenant may hold the group's blocks, and those that what it runs will take."""
        roster, account = self._roster, self._roster.account(group)
        if account.share.max_blocks is None or not account.running:
            return True
        admission = roster.admission(group)
        new = admission.num_blocks - sum(block in account.held for block in admission.hits)
        room = self._headroom(account.running) + roster.to_be_promised(admission)
        return len(account.held) + new + room <= account.share.max_blocks

    def _admit(self, group: SequenceGroup, chunks: list[ScheduledChunk]) -> bool:
        """Admit a waiting group, if room can be made without those of `chunks`.

        A group that will never find room fails.
        """
        roster = self._roster
        admission = roster.admission(group)
        if isinstance(admission, Layout) and admission.heads and not self.fits(admission):
            admission = admission.without_heads(roster.block_size)
        price = roster.prices.admission(group, admission.num_cached)
        slots = admission.slots
        roster.tiers.host.hold(slots)  # what is preempted now may be swapped
        has_room = self._make_room(admission, price, chunks)
        roster.tiers.host.release(slots)
        if has_room:
            roster.start(admission, price)
        elif not self._can_ever_fit(admission):
            roster.fail(group)
        return has_room

    def _make_room(self, admission: Admission, price: float, chunks: list[ScheduledChunk]) -> bool:
        """Preempt those who have to yield to the group, if it fits then and they can be."""
        if self.fits(admission):
            return True
        roster = self._roster
        planned = {chunk.sequence.request_id for chunk in chunks}
        spared = {group.request_id for group in roster.running.values() if group.is_spared}
        victims = roster.fairness.yielding(
            roster.account(admission.group),
            price,
            roster.accounts.running.values(),
            planned | spared,
        )
        if not victims or not self.fits(admission, victims):
            return False
        if roster.is_ahead:
            roster.must_settle = True
            return False
        fewest = bisect_left(
            range(len(victims)), True, key=lambda n: self.fits(admission, victims[:n])
        )
        for victim in victims[:fewest]:
            roster.preempt(victim)
        return True

    def _can_ever_fit(self, admission: Admission) -> bool:
        """Whether the group fits once everything that runs now has ended."""
        pool = self._roster.pool
        if admission.num_blocks + self._pins.num_blocks + pool.num_reserved <= pool.num_blocks:
            return True
        released = [blocks for group in self._roster.running.values() for blocks in group.blocks]
        return pool.can_allocate(
            admission.num_new + admission.num_forks,
            admission.group.tenant,
            admission.held,
            released,
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
