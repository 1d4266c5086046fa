"""Which prompts are computed in a step, and who is admitted for it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection

from engine.blocks.pins import Pins
from engine.schedule.admission import Admission, ComputeAdmission
from engine.schedule.group import SequenceGroup
from engine.schedule.lifecycle import Lifecycle
from engine.schedule.plan import ScheduledChunk
from engine.schedule.sequence import Sequence


class PrefillPlanner:
    """Spends what decoding leaves of a step's budget on prompts, in the order of their tenants."""

    def __init__(
        self, lifecycle: Lifecycle, pins: Pins, step_token_budget: int, max_running_sequences: int
    ) -> None:
        self._lifecycle = lifecycle
        self._pins = pins
        self._step_token_budget = step_token_budget
        self._max_running_sequences = max_running_sequences

    def plan(self, decoding: list[Sequence]) -> tuple[list[Sequence], list[ScheduledChunk]]:
        """Choose prompts beside the sequences that decode.

        Returns what of `decoding` has not had to make room, and the prompts' chunks.
        """
        running = self._lifecycle.running
        budget = self._step_token_budget - len(decoding)
        prefilling = [group for group in running.values() if group.prefill]
        chunks: list[ScheduledChunk] = []
        passed: set[str] = set()
        is_blocked = False
        # Without a budget all slots are decoding, and a new request may still take one's place.
        while budget > 0 or not chunks:
            first = None if is_blocked else self.next_waiting(passed)
            candidates = prefilling if first is None else [*prefilling, first]
            if not candidates:
                break
            group = min(candidates, key=self._order)
            if group is not first:
                prefilling.remove(group)
            elif self._admit(group, chunks):
                prefilling = [other for other in prefilling if other.request_id in running]
                budget += len(decoding)
                decoding = [sequence for sequence in decoding if sequence.request_id in running]
                budget -= len(decoding)
            else:
                is_blocked = group.request_id in self._lifecycle.live
                continue
            while group.prefill and budget > 0:
                chunks.append(_next_chunk(group, budget))
                budget -= chunks[-1].count
        return decoding, chunks

    def next_waiting(self, passed: set[str]) -> SequenceGroup | None:
        """The group to be admitted next. Tenants at their own limit are `passed` over."""
        fairness = self._lifecycle.fairness
        while True:
            ranks = {
                account: fairness.rank(account)
                for account in self._lifecycle.accounts.waiting.values()
                if account.tenant not in passed
            }
            if not ranks:
                return None
            least = min(ranks.values())
            first = min(
                (account for account, rank in ranks.items() if rank == least),
                key=lambda account: account.first_waiting.arrival,
            )
            if self._is_within_limit(first.first_waiting):
                return first.first_waiting
            passed.add(first.tenant)
            fairness.passed_over(first)

    def fits(self, admission: Admission, without: Collection[SequenceGroup] = ()) -> bool:
        """Whether there are slots and blocks, were the groups `without` not running.

        A block of headroom for each running sequence keeps it from being preempted at once; groups
        that are back from a preemption, this one among them, have room to run for a while.
        """
        group, lifecycle = admission.group, self._lifecycle
        others = [other for other in lifecycle.running.values() if other not in without]
        released = [blocks for victim in without for blocks in victim.blocks]
        needed = admission.num_new + admission.num_forks
        if others:
            needed += self._headroom(others) + lifecycle.to_be_promised(admission)
        width = group.width + sum(other.width for other in others)
        return width <= self._max_running_sequences and lifecycle.pool.can_allocate(
            needed, group.tenant, admission.held, released
        )

    def _headroom(self, groups: Collection[SequenceGroup]) -> int:
        """Blocks to be left for running groups."""
        return sum(max(group.width, self._lifecycle.promised(group)) for group in groups)

    def _is_within_limit(self, group: SequenceGroup) -> bool:
        """Whether the tenant may hold the group's blocks, and those that what it runs will take."""
        lifecycle, account = self._lifecycle, self._lifecycle.account(group)
        if account.share.max_blocks is None or not account.running:
            return True
        admission = lifecycle.admission(group)
        new = admission.num_blocks - sum(block in account.held for block in admission.hits)
        room = self._headroom(account.running) + lifecycle.to_be_promised(admission)
        return len(account.held) + new + room <= account.share.max_blocks

    def _admit(self, group: SequenceGroup, chunks: list[ScheduledChunk]) -> bool:
        """Admit a waiting group, if room can be made without those of `chunks`.

        A group that will never find room fails.
        """
        lifecycle = self._lifecycle
        admission = lifecycle.admission(group)
        if (
            isinstance(admission, ComputeAdmission)
            and admission.partial_hits
            and not self.fits(admission)
        ):
            admission = admission.without_partial_hits(lifecycle.block_size)
        price = lifecycle.prices.admission(group, admission.num_cached)
        slots = admission.slots
        lifecycle.tiers.host.hold(slots)  # what is preempted now may be swapped
        has_room = self._make_room(admission, price, chunks)
        lifecycle.tiers.host.release(slots)
        if has_room:
            lifecycle.start(admission, price)
        elif not self._can_ever_fit(admission):
            lifecycle.fail(group)
        return has_room

    def _make_room(self, admission: Admission, price: float, chunks: list[ScheduledChunk]) -> bool:
        """Preempt those who have to yield to the group, if it fits then and they can be."""
        if self.fits(admission):
            return True
        lifecycle = self._lifecycle
        planned = {chunk.sequence.request_id for chunk in chunks}
        spared = {group.request_id for group in lifecycle.running.values() if group.is_spared}
        victims = lifecycle.fairness.yielding(
            lifecycle.account(admission.group),
            price,
            lifecycle.accounts.running.values(),
            planned | spared,
        )
        if not victims or not self.fits(admission, victims):
            return False
        if lifecycle.is_ahead:
            lifecycle.must_settle = True
            return False
        fewest = bisect_left(
            range(len(victims)), True, key=lambda n: self.fits(admission, victims[:n])
        )
        for victim in victims[:fewest]:
            lifecycle.preempt(victim)
        return True

    def _can_ever_fit(self, admission: Admission) -> bool:
        """Whether the group fits once everything that runs now has ended."""
        pool = self._lifecycle.pool
        if admission.num_blocks + self._pins.num_blocks + pool.num_reserved <= pool.num_blocks:
            return True
        released = [blocks for group in self._lifecycle.running.values() for blocks in group.blocks]
        return pool.can_allocate(
            admission.num_new + admission.num_forks,
            admission.group.tenant,
            admission.held,
            released,
        )

    def _order(self, group: SequenceGroup) -> tuple[tuple[float, float], bool, int]:
        """The smallest one is computed first."""
        account = self._lifecycle.account(group)
        is_waiting = group.request_id not in self._lifecycle.running
        rank = self._lifecycle.fairness.prefill_rank(account, len(account.running) + is_waiting)
        return rank, is_waiting, group.arrival


def _next_chunk(group: SequenceGroup, budget: int) -> ScheduledChunk:
    """Up to `budget` tokens of the first sequence of the group that is not computed."""
    sequence = group.prefill[0]
    count = min(budget, sequence.num_uncomputed)
    start = sequence.compute(count)
    return ScheduledChunk(sequence, start, count, group.take_prefilled())
