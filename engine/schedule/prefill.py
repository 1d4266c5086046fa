"""Which prompts are computed in a step, and who is admitted for it.

What a prompt needs before it is admitted is done a slice a step: nobody else waits long for it. One
of 120,000 tokens is some ten milliseconds of hashing, before anything is looked up; until a group
is hashed other tenants' groups go first. To empty a cached block takes some microseconds of books,
twice as many where its contents go to the host: 20 to 50 ms for the 7,500 blocks of such a prompt.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial

from engine.blocks.pins import Pins
from engine.blocks.tiers import Tiers
from engine.schedule.admission import Admission
from engine.schedule.budget import Room, StepBudget
from engine.schedule.lifecycle import Lifecycle
from engine.sequences.group import SequenceGroup
from engine.sequences.pace import Pace
from engine.sequences.plan import ScheduledChunk
from engine.sequences.sequence import Sequence
from engine.sequences.uncut import Uncut

_MOST_HASHED = 2048
"""Blocks in one step, all groups together: one or two milliseconds."""
_LEAST_HASHED = 32
"""What a group may have beyond that, so that a short prompt does not wait for long ones."""
_SPARE_HASHED = 1024
"""For such groups together: there may be hundreds."""
_MOST_EMPTIED = 512
"""Blocks in one step: one to four milliseconds."""


class HashAllowance:
    """How many blocks may still be hashed in the step that is being planned."""

    def __init__(self) -> None:
        self._left = _MOST_HASHED
        self._spare = _SPARE_HASHED
        self.is_short = False
        """Whether some of a group was left for the next step."""

    def hash(self, group: SequenceGroup) -> bool:
        """Hash what a waiting group knows, but no more than half of what is left for all.

        Where that is little, a little of what is spared for short prompts. Returns whether nothing
        is left to hash of it.
        """
        half = self._left // 2
        if half >= _LEAST_HASHED:
            self._left -= group.hash_ahead(half)
        else:
            self._spare -= group.hash_ahead(min(_LEAST_HASHED, self._spare))
        is_hashed = group.num_unhashed == 0
        self.is_short |= not is_hashed
        return is_hashed


class EmptyAllowance:
    """How many blocks may still be emptied in the step that is being planned."""

    def __init__(self, tiers: Tiers) -> None:
        self._tiers = tiers
        self._left = _MOST_EMPTIED

    def make(self, admission: Admission) -> bool:
        """Empty some blocks for a group that fits; whether so few are missing that it can start.

        What it starts from stays where it is.
        """
        pool, host = self._tiers.pool, self._tiers.host
        if admission.num_new - pool.num_free <= _MOST_EMPTIED:
            return True
        if self._left:
            pool.acquire(admission.held)
            host.acquire(admission.slots)
            pool.empty(self._left, admission.group.tenant)
            host.release(admission.slots)
            pool.release(admission.held)
            self._left = 0
        return False


@dataclass(slots=True)
class Prefill:
    """A step's prompts, beside what decodes."""

    decoding: list[Sequence]
    """Those that have not had to make room."""
    chunks: list[ScheduledChunk] = field(default_factory=list)
    failed: list[Sequence] = field(default_factory=list)
    """They have ended, because there will be no room for them."""
    awaits_tokens: bool = False
    """Whether somebody is to be preempted once the tokens that are under way are known."""
    is_preparing: bool = False
    """Whether somebody may wait until its prompt is hashed, its blocks are empty, or others have
    been read."""

    def note(self, attempt: Attempt) -> None:
        """Take over what has come of trying to admit a group."""
        self.failed += attempt.failed
        self.awaits_tokens |= attempt.awaits_tokens
        self.is_preparing |= attempt.is_preparing


@dataclass(frozen=True, slots=True)
class Attempt:
    """What has come of trying to admit a group."""

    is_admitted: bool = False
    is_preparing: bool = False
    """See `Prefill`."""
    awaits_tokens: bool = False
    """See `Prefill`."""
    failed: list[Sequence] = field(default_factory=list)
    """See `Prefill`."""


class PrefillPlanner:
    """Spends what decoding leaves of a step's budget on prompts, in the order of their tenants."""

    def __init__(
        self, lifecycle: Lifecycle, pins: Pins, budget: StepBudget, pace: Pace, uncut: Uncut
    ) -> None:
        self._uncut = uncut
        self._lifecycle = lifecycle
        self._pins = pins
        self._budget = budget
        self._pace = pace
        self._num_planned = 0
        """Tokens of prompts in all steps: the time by which those are due that were admitted."""

    def plan(self, decoding: list[Sequence], *, may_preempt: bool) -> Prefill:
        """Choose prompts beside the sequences that decode.

        Nobody may be preempted whose tokens are not all known.
        """
        running = self._lifecycle.running
        step = Prefill(decoding)
        room = Room.beside(decoding, self._lifecycle, self._budget, self._pace)
        prefilling = [group for group in running.values() if group.prefill]
        passed: set[str] = set()
        planned: set[str] = set()  # who is part of the step keeps its place in it
        hashing, emptying = HashAllowance(), EmptyAllowance(self._lifecycle.tiers)
        is_blocked = False
        # Without a budget all slots are decoding, and a new request may still take one's place.
        while room.left > 0 or not step.chunks:
            first = None if is_blocked else self.next_waiting(passed, hashing)
            candidates = prefilling if first is None else [*prefilling, first]
            if step.chunks or room.left > 0:
                candidates = [group for group in candidates if room.share(group) > 0]
            if not candidates:
                break
            group = self._next(candidates, first, passed, hashing)
            planned.add(group.request_id)
            if group is first:
                attempt = self._admit(group, planned, emptying, may_preempt)
                step.note(attempt)
                if attempt.is_preparing:
                    passed.add(group.tenant)
                elif not attempt.is_admitted:
                    is_blocked = not attempt.failed
                else:  # to be computed when it is its turn among those that run
                    prefilling = [one for one in [*prefilling, group] if one.request_id in running]
                    left = [one for one in step.decoding if one.request_id in running]
                    room.gain(left)
                    step.decoding = left
                continue
            prefilling.remove(group)
            for sequence in group.prefill:  # before the step reads any of it
                self._lifecycle.forget(group, sequence)
            while group.prefill and (share := room.share(group)) > 0:
                sequence = group.prefill[0]
                rest = room.left if step.chunks or step.decoding else None
                wanted = self._uncut.most(sequence, min(share, sequence.num_uncomputed), rest)
                if not wanted:
                    break
                reach = partial(self._lifecycle.reach, group, sequence)
                count = self._uncut.reached(sequence, wanted, reach)
                if not count:
                    self._give_way(group, step, may_preempt=may_preempt)
                    break
                step.chunks.append(_chunk(group, sequence, count))
                room.spend(step.chunks[-1])
        self._num_planned += room.num_spent
        step.is_preparing |= hashing.is_short or bool(self._lifecycle.tiers.arriving)
        return step

    def _give_way(self, group: SequenceGroup, step: Prefill, *, may_preempt: bool) -> None:
        """A running prompt finds no room to go on, as a reserve has taken what was left for it: it
        waits anew, and fails where it runs alone.
        """
        if any(chunk.sequence in group.sequences for chunk in step.chunks):
            return
        if not may_preempt:
            step.awaits_tokens = True
        elif len(self._lifecycle.running) == 1:
            step.failed += self._lifecycle.fail(group)
        else:
            self._lifecycle.preempt(group)
        # Some of its sequences may have been about to decode.
        running = self._lifecycle.running
        step.decoding = [one for one in step.decoding if one.request_id in running]

    def next_waiting(self, passed: set[str], allowance: HashAllowance) -> SequenceGroup | None:
        """The group to be admitted next, of tenants that are not `passed` over.

        Those whose prompt `allowance` is too short for are, from now on, and those at their own
        limit.
        """
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
            group = first.first_waiting
            is_hashed = allowance.hash(group)  # before anything looks it up
            if is_hashed and self._lifecycle.is_within_limit(group):
                return group
            passed.add(first.tenant)
            if is_hashed:
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
            needed += lifecycle.headroom(others) + lifecycle.to_be_promised(admission)
        width = group.width + sum(other.width for other in others)
        has_slots = width <= self._budget.num_sequences or not others
        return has_slots and lifecycle.pool.can_allocate(
            needed, group.tenant, admission.held, released
        )

    def _admit(
        self,
        group: SequenceGroup,
        planned: set[str],
        emptying: EmptyAllowance,
        may_preempt: bool,
    ) -> Attempt:
        """Admit a waiting group, if room can be made without those that are `planned`.

        A group that will never find room fails.
        """
        if not self._lifecycle.adapters.hold(group):
            return Attempt(is_preparing=True)
        attempt = self._make_room(group, planned, emptying, may_preempt)
        if not attempt.is_admitted:
            self._lifecycle.adapters.let_go(group)
        return attempt

    def _make_room(
        self,
        group: SequenceGroup,
        planned: set[str],
        emptying: EmptyAllowance,
        may_preempt: bool,
    ) -> Attempt:
        """See `_admit`, of a group whose adapter is there."""
        lifecycle = self._lifecycle
        admission = lifecycle.admission(group)
        victims: list[SequenceGroup] | None = []
        if not self.fits(admission):  # there may be no room for blocks only to be copied
            admission = admission.without_partial_hits(lifecycle.block_size)
            victims = self._victims(admission, planned)
        if victims is None:
            is_lost = not self._can_ever_fit(admission)
            return Attempt(failed=lifecycle.fail(group) if is_lost else [])
        if victims and not may_preempt:
            return Attempt(awaits_tokens=True)
        if not victims and not emptying.make(admission):
            return Attempt(is_preparing=True)
        lifecycle.tiers.host.acquire(admission.slots)  # what is preempted now may be swapped
        for victim in victims:
            lifecycle.preempt(victim)
        lifecycle.tiers.host.release(admission.slots)
        lifecycle.start(admission)
        group.prefill_due = self._due(group, sum(one.num_uncomputed for one in group.prefill))
        return Attempt(is_admitted=True)

    def _victims(
        self, admission: Admission, planned: Collection[str]
    ) -> list[SequenceGroup] | None:
        """Who has to be preempted so that a group fits; `None` if it does not fit even then.

        Neither those whose ids are `planned` are, as parts of this step, nor those that are spared.
        """
        if self.fits(admission):
            return []
        lifecycle = self._lifecycle
        spared = {group.request_id for group in lifecycle.running.values() if group.is_spared}
        victims = lifecycle.fairness.yielding(
            lifecycle.account(admission.group),
            lifecycle.price(admission),
            lifecycle.accounts.running.values(),
            spared.union(planned),
        )
        if not victims or not self.fits(admission, victims):
            return None
        fewest = bisect_left(
            range(len(victims)), True, key=lambda n: self.fits(admission, victims[:n])
        )
        return victims[:fewest]

    def _can_ever_fit(self, admission: Admission) -> bool:
        """Whether the group fits once everything that runs now, or is read, has ended."""
        pool = self._lifecycle.pool
        kept = self._pins.num_pages + pool.num_reserved + pool.count(admission.group.beside)
        if admission.num_pages + kept <= pool.num_pages:
            return True
        released = [blocks for group in self._lifecycle.running.values() for blocks in group.blocks]
        released.append(self._lifecycle.tiers.arriving)
        return pool.can_allocate(
            admission.num_new + admission.num_forks,
            admission.group.tenant,
            admission.held,
            released,
        )

    def _next(
        self,
        candidates: list[SequenceGroup],
        first: SequenceGroup | None,
        passed: set[str],
        allowance: HashAllowance,
    ) -> SequenceGroup:
        """Which of the candidates is computed now, or admitted if it is `first`, the last one."""
        running = [group for group in candidates if group is not first]
        if not running:
            return candidates[-1]
        group = min(running, key=lambda group: (group.prefill_due, group.arrival))
        is_open = len(running) < len(candidates)
        if is_open and self._is_any_due_before(group.prefill_due, passed, allowance):
            return candidates[-1]
        return group

    def _is_any_due_before(self, due: float, passed: set[str], allowance: HashAllowance) -> bool:
        """Whether a prompt waits that is due before `due`, be it behind the one to be admitted."""
        return any(
            allowance.hash(group)
            and self._due(group, self._num_left(group)) < due
            and self._lifecycle.is_within_limit(group)
            for account in self._lifecycle.accounts.waiting.values()
            if account.tenant not in passed
            for group in [account.first_waiting]
        )

    def _num_left(self, group: SequenceGroup) -> int:
        """About how many tokens a waiting group has to compute: by a few look-ups, as many wait.

        As if nothing were cached while others compute what it continues with: it had better wait.
        """
        if group.saved is not None:
            return sum(sequence.num_uncomputed for sequence in group.saved.prefill)
        if group.is_scoring:
            return group.num_tokens - group.num_scored
        tiers, sequence = self._lifecycle.tiers, group.unfinished[0]
        hashes = sequence.table.prefix_hashes(sequence.token_ids)
        num_found = tiers.roughly_found(hashes)
        if 0 < num_found < len(hashes) and any(
            other.prefill and other.prefill[0].table.next_hash == hashes[num_found]
            for other in self._lifecycle.running.values()
        ):
            return group.num_tokens
        return group.num_tokens - num_found * tiers.block_size

    def _due(self, group: SequenceGroup, num_tokens: int) -> float:
        """When its prompt is due if it is admitted now and has so much to compute."""
        account = self._lifecycle.account(group)
        num_before = sum(other.place < group.place for other in account.running)
        return self._num_planned + self._lifecycle.fairness.patience(
            account, num_before, num_tokens
        )


def _chunk(group: SequenceGroup, sequence: Sequence, count: int) -> ScheduledChunk:
    """So many tokens of the first sequence of the group that is not computed."""
    start = sequence.compute(count)
    scored = group.scored(start, count)
    return ScheduledChunk(sequence, start, count, group.take_prefilled(), scored=scored)
