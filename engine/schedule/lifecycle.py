"""A group's way from queue to end: the only place that gives and takes its blocks."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from engine.api import FinishReason, next_pages
from engine.blocks.chains import Chains
from engine.blocks.tiers import Tiers
from engine.schedule import swapping
from engine.schedule.accounts import Account, Accounts
from engine.schedule.admission import Admission, ComputeAdmission, compute_admission
from engine.schedule.fairness import Fairness, Prices
from engine.schedule.reuse import ReuseCurve
from engine.schedule.roll import RollKeeper
from engine.schedule.swap_or_recompute import SwapOrRecompute
from engine.sequences.group import Saved, SequenceGroup
from engine.sequences.held_adapters import HeldAdapters
from engine.sequences.pace import Pace
from engine.sequences.sequence import Sequence


class Lifecycle:
    """Every live group, and which of them run.

    They come in by `enqueue`, run from `start` on, and leave by `end` or `drop`. Which group, and
    when, is decided elsewhere.
    """

    def __init__(
        self,
        tiers: Tiers,
        recovery: SwapOrRecompute,
        fairness: Fairness,
        prices: Prices,
        min_run_tokens: int,
        step_tokens: int,
        pace: Pace,
    ) -> None:
        """A step computes `step_tokens` at most; `pace` says what tokens take."""
        self.tiers = tiers
        self.pace = pace
        self.step_tokens = step_tokens
        self._forgets = any(kind.forgets for kind in tiers.pool.kinds)
        self.recovery = recovery
        self.pool = tiers.pool
        self.block_size = tiers.block_size
        self.transfers = tiers.transfers
        self.min_run_tokens = min_run_tokens
        self.fairness = fairness
        self.prices = prices
        self.accounts = Accounts()
        self.live: dict[str, SequenceGroup] = {}
        self.running: dict[str, SequenceGroup] = {}
        self.adapters = HeldAdapters(tiers.pool)
        self.num_preemptions = self.num_recomputed = 0
        self.num_host_hit_pages = self.num_in_block_tokens = 0
        self.num_prompt_tokens = self.num_cached_tokens = 0
        self.num_forks = self.num_copied_blocks = 0
        self.reuse = ReuseCurve(tiers.pool.num_blocks, tiers.num_findable)
        self.chains = Chains(tiers)
        self.roll = RollKeeper(tiers, self.chains, self.reuse, self.live, self.running)

    @property
    def num_waiting(self) -> int:
        """Groups that hold no blocks: new ones and preempted ones."""
        return len(self.live) - len(self.running)

    def account(self, group: SequenceGroup) -> Account:
        """The account of the group's tenant."""
        return self.accounts[group.tenant]

    def enqueue(self, group: SequenceGroup) -> None:
        """Let a group wait in its place among the others of its tenant."""
        self.live[group.request_id] = group
        group.waiting_since = self.tiers.clock()
        if group.came_at is None:
            group.came_at = group.waiting_since
        if not self.account(group).waiting:
            self.fairness.begins_to_wait(self.account(group), self.accounts.waiting.values())
        self.accounts.enqueue(group)

    def admission(self, group: SequenceGroup) -> Admission:
        """What a waiting group needs to run, given what is cached now."""
        if group.saved is None:
            return compute_admission(group, self.tiers, self.recovery, self.step_tokens)
        return swapping.swap_admission(group, group.saved, self.tiers, self.step_tokens)

    def price(self, admission: Admission) -> float:
        """What it adds to the tenant's counter."""
        return self.prices.admission(admission.group, admission.num_cached)

    def start(self, admission: Admission) -> None:
        """Let a waiting group run with what `admission` says, for which there is room."""
        group, account = admission.group, self.account(admission.group)
        self.fairness.admits(account)
        account.charge(self.price(admission))
        group.is_charged = True
        group.sequences[0].waited_seconds += self.tiers.clock() - group.waiting_since
        admission.take(self.tiers)
        if isinstance(admission, ComputeAdmission):
            self._count(admission)
        if group.was_preempted:
            group.spared_output = group.num_output_tokens + self.min_run_tokens
        self.accounts.start(group)
        self.running[group.request_id] = group
        for sequence in admission.writing:
            self.grow(group, sequence)

    def promised(self, group: SequenceGroup) -> int:
        """Pages that nobody else may take, so that a group which is back can run for a while, and a
        prompt comes to its end."""
        pages = 0
        if self._forgets:
            tables = ((one.num_tokens, one.table.held) for one in group.prefill)
            pages = sum(held.promised(num, self.step_tokens) for num, held in tables)
        if not group.is_spared:
            return pages
        num_held = self.pool.count(set().union(*group.blocks))
        room = group.room(group.spared_output, self.pool.kinds, self.block_size) - num_held
        return max(pages, room)

    def to_be_promised(self, admission: Admission) -> int:
        """The same for a group that is to be admitted."""
        group = admission.group
        if not group.was_preempted:
            return 0
        output = group.num_output_tokens + self.min_run_tokens
        room = group.room(output, self.pool.kinds, self.block_size)
        return max(0, room - admission.num_pages)

    def headroom(self, groups: Iterable[SequenceGroup]) -> int:
        """Pages to be left for running groups."""
        size = next_pages(self.pool.kinds)
        return sum(max(group.width * size, self.promised(group)) for group in groups)

    @property
    def adapters_in_use(self) -> set[int]:
        """Blocks that must stay findable: the model knows one place of an adapter."""
        return {block for group in self.running.values() for block in group.beside}

    def is_within_limit(self, group: SequenceGroup) -> bool:
        """Whether a waiting group's tenant may hold its blocks, and those that what it runs takes.

        All of the group is hashed.
        """
        account = self.account(group)
        if account.share.max_blocks is None or not account.running:
            return True
        admission, pool = self.admission(group), self.pool
        held_already = [block for block in admission.hits if block in account.held]
        new = admission.num_pages - pool.count(held_already)
        room = self.headroom(account.running) + self.to_be_promised(admission)
        limit = account.share.max_blocks * pool.block_pages
        return pool.count(account.held) + new + room <= limit

    def is_over_limit(self, group: SequenceGroup, needed: int) -> bool:
        """Whether `needed` pages more for a running group are too many for its tenant's limit.

        A request that runs alone was found to fit when it came.
        """
        account = self.account(group)
        limit = account.share.max_blocks
        if limit is None or len(account.running) <= 1:
            return False
        needed += self.pool.count(account.held) + self._promised_beside(group, account.running)
        return needed > limit * self.pool.block_pages

    def has_pages(self, group: SequenceGroup, needed: int) -> bool:
        """Whether there are `needed` pages for a running group, beside those that are promised."""
        promised = self._promised_beside(group, self.running.values())
        return self.pool.can_allocate(needed + promised, group.tenant)

    def grow(self, group: SequenceGroup, sequence: Sequence) -> None:
        """Make sure that a decoding sequence's newest token has a block of its own."""
        account, table = self.account(group), sequence.table
        if table.writes_shared(sequence.num_tokens):
            for source, target in table.copy_on_write(sequence.num_tokens):
                self.transfers.copy(source, target)
                account.let_go([source])
                account.hold([target])
            self.num_copied_blocks += 1
        account.hold(table.grow(sequence.num_tokens))

    def forget(self, group: SequenceGroup, sequence: Sequence) -> None:
        """Give back what no layer sees any more of a sequence, before a step is planned in which it
        goes on: those that are under way come before whatever is written there.
        """
        if self._forgets:
            num_passed = sequence.num_passed(self.block_size)
            blocks = sequence.table.held.forgettable(num_passed)
            if blocks:
                self.account(group).let_go(blocks)
                self.transfers.give_back(blocks)
                sequence.table.forget(num_passed)

    def reach(self, group: SequenceGroup, sequence: Sequence, count: int) -> int:
        """Let a sequence hold blocks for its next `count` tokens, or for as many as there is room.

        Whoever admitted it left room for all, but a reserve may have taken it. Returns how many.
        """
        if not self._forgets:
            return count
        table, computed = sequence.table, sequence.num_computed
        while count and not self.has_pages(group, table.missing(computed + count)):
            count //= 2
        self.account(group).hold(table.grow(computed + count))
        return count

    def extend(self, group: SequenceGroup, sequence: Sequence, count: int) -> None:
        """Let a sequence that has a block for its newest token hold so many drafts for a step."""
        held = sequence.table.held
        self.account(group).hold(held.hold_drafts(sequence.num_tokens, count))

    def settle(self, group: SequenceGroup, sequence: Sequence, num_right: int) -> None:
        """So many drafts are right, and among a sequence's tokens: they count as computed as far as
        all layers can go on behind them. Gives back the blocks that drafts had and tokens do not
        need.
        """
        account, table, start = self.account(group), sequence.table, sequence.num_computed
        end = table.held.reached(start, start + num_right)
        account.let_go(table.held.settle(end))
        first = table.num_sealed
        sequence.compute(end - start)
        for row in table.rows:  # unlike what is sealed for a step to come, they are there
            self.tiers.fresh.difference_update(row[first : table.num_sealed])
        account.let_go(table.shrink(sequence.num_tokens))

    def reorder(self, group: SequenceGroup, choices: list[tuple[Sequence, int]]) -> list[Sequence]:
        """Go on with one sequence for each (parent, next token), in place of the group's own.

        Children share their parent's blocks; a parent without children gives its own back. All have
        computed what they know. Returns the children, in order.
        """
        children: list[Sequence] = []
        for parent, _ in choices:
            if parent in children:
                children.append(parent.fork())
                self.account(group).hold(parent.table.held.blocks)
                self.num_forks += 1
            else:
                children.append(parent)
        for child, (_, token_id) in zip(children, choices, strict=True):
            child.append(token_id)
        childless = [sequence for sequence in group.sequences if sequence not in children]
        group.sequences = [*children, *childless]
        for sequence in childless:
            self.drop(group, sequence)
        return children

    def preempt(self, group: SequenceGroup, *, may_swap: bool = True) -> None:
        """Take a running group's blocks; it waits before those of its tenant that came later.

        What comes back is laid out by its tokens, so all of them have to be known.
        """
        assert not any(one.num_drawn for one in group.unfinished), "its tokens are under way"
        self.num_preemptions += 1
        group.was_preempted = True
        saved = self._save(group) if may_swap else None
        self._stop(group)
        group.sequences = group.unfinished
        if not group.sequences:
            del self.live[group.request_id]
            return
        group.saved = saved
        if saved is None:
            self.num_recomputed += 1
            self._restart(group)
        self.enqueue(group)

    def forget_saved(self, group: SequenceGroup) -> None:
        """What a swapped group has left in the host tier is lost: it is to be computed again."""
        swapping.drop(group, self.tiers)
        self._restart(group)

    def fail(self, group: SequenceGroup) -> list[Sequence]:
        """End a group for which there will be no room; returns what ends by it.

        What has finished just ends.
        """
        needed = self.pool.in_blocks(self.admission(group).num_pages)
        return self.end(
            group,
            "error",
            f"no room for the {needed} blocks of this request: the other blocks of "
            f"{self.pool.num_blocks} are kept by pinned prompts and other tenants' reserves",
        )

    def end(
        self, group: SequenceGroup, reason: FinishReason, error: str | None = None
    ) -> list[Sequence]:
        """End a live group; returns one sequence for each index that ends by it."""
        ended = group.finish(reason, error)
        self.roll.note_end(group)
        del self.live[group.request_id]
        if group.request_id in self.running:
            first = group.sequences[0]
            self.chains.note(group.request, first.table.sealed_hashes(), first.first_hit or 0)
            self._stop(group)
        else:
            self.accounts.leave(group)
            swapping.drop(group, self.tiers)
        return ended

    def end_one(self, group: SequenceGroup, sequence: Sequence, reason: FinishReason) -> None:
        """End one sequence of a live group. Its blocks are back, but for those others build on."""
        sequence.finish_reason = reason
        if sequence not in group.prefill or sequence.num_uncomputed == 0:
            self.drop(group, sequence)
        while group.prefill and group.prefill[-1].finish_reason is not None:
            self.drop(group, group.prefill[-1])

    def drop(self, group: SequenceGroup, sequence: Sequence) -> None:
        """Let a sequence that is over leave its group, and the last one end it."""
        if group.sequences == [sequence]:
            self.end(group, "aborted")
            return
        if group.request_id in self.running:
            self.account(group).let_go(sequence.table.held.blocks)
            self._release([sequence])
        elif group.saved is not None and sequence in group.saved.prefill:
            # Others may build on what it was to compute.
            self.forget_saved(group)
        group.sequences.remove(sequence)
        if sequence in group.prefill:
            group.prefill.remove(sequence)

    def _promised_beside(self, group: SequenceGroup, groups: Iterable[SequenceGroup]) -> int:
        """Pages that are kept for others of `groups`."""
        return sum(self.promised(other) for other in groups if other is not group)

    def _count(self, admission: ComputeAdmission) -> None:
        """Count what an admitted group shares; what it found in the cache, the first time only."""
        self.num_forks += sum(start.is_fork for start in admission.starts)
        if admission.starts[0].sequence.first_hit is None:
            first = admission.starts[0].sequence
            hashes = first.table.prefix_hashes(first.token_ids)
            self.reuse.look_up(hashes)
            self._note_miss(admission, hashes)
            found = min(admission.num_cached, first.num_prompt_tokens)
            if not first.request.num_generated:  # else an earlier engine has counted them
                self.num_prompt_tokens += first.num_prompt_tokens
                self.num_cached_tokens += found
            copied = self.tiers.host.count(admission.slots)
            self.num_host_hit_pages += copied
            self.num_in_block_tokens += sum(hit.num_tokens for hit in admission.partial_hits)
            for sequence in admission.group.sequences:
                sequence.first_hit = found
            seconds = self.pace.seconds(0, found) or 0.0
            first.saved_seconds = max(0.0, seconds - self.recovery.costs.swap_in_seconds(copied))

    def _note_miss(self, admission: ComputeAdmission, hashes: list[bytes]) -> None:
        """Keep what is known of the first block that a hit lacked: soon it is there again."""
        index = admission.num_cached // self.block_size
        if index < len(hashes):
            admission.group.missed = self.tiers.miss(hashes, index)
            admission.group.alike = admission.starts[0].num_alike * self.block_size
        admission.group.admitted_at = self.tiers.clock()

    def _save(self, group: SequenceGroup) -> Saved | None:
        """Swap a running group to the host, if that is its way back and there is room."""
        if any(sequence.finish_reason is not None for sequence in group.prefill):
            return None  # others are to build on what will not be computed
        if group.candidates:
            return None  # the beams that have drawn already would have nothing to compute
        if any(sequence.table.has_outgrown(sequence.num_tokens) for sequence in group.unfinished):
            return None  # other rotary factors make other KV
        if not self.tiers.host.num_pages:
            return None
        held = swapping.contents(group, self.block_size)
        if not held.blocks or not swapping.can_save(held, self.tiers):
            return None
        if self.transfers.fills(held.blocks):
            return None  # it has just come back, and is not there yet
        way = self.recovery.way_back(swapping.loss(group, held, self.tiers))
        return swapping.save(group, held, self.tiers) if way == "swap" else None

    def _restart(self, group: SequenceGroup) -> None:
        """Forget what a group without blocks has computed."""
        for sequence in group.sequences:
            sequence.num_cached = sequence.num_computed = 0
            sequence.table.begin(sequence.num_tokens)

    def _stop(self, group: SequenceGroup) -> None:
        """Take a group off the running ones, with all of its blocks."""
        del self.running[group.request_id]
        self.accounts.stop(group)
        group.prefill = []
        group.candidates.clear()
        self._release(group.sequences)
        self.adapters.let_go(group)

    def _release(self, sequences: list[Sequence]) -> None:
        """The one place where sequences give their blocks back."""
        self.transfers.give_back(chain.from_iterable(seq.table.held.blocks for seq in sequences))
        for sequence in sequences:
            # As in the pool, the beginning is the last to become the least recently used.
            self.reuse.touch(reversed(sequence.table.sealed_hashes()))
            sequence.table.release()
