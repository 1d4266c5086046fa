"""Every live group, and which of them run: the only place that gives and takes their blocks."""

from __future__ import annotations

from engine.accounts import Account, Accounts
from engine.block_pool import BlockPool
from engine.fairness import Fairness, Prices
from engine.group import SequenceGroup
from engine.layout import Layout, lay_out
from engine.request import FinishReason
from engine.sequence import Sequence
from engine.transfers import TransferQueue


class Roster:
    """Groups come in by `enqueue`, run from `start` on, and leave by `end` or `drop`.

    Which group, and when, is decided elsewhere.
    """

    def __init__(
        self, pool: BlockPool, block_size: int, fairness: Fairness, prices: Prices
    ) -> None:
        self.pool = pool
        self.block_size = block_size
        self.fairness = fairness
        self.prices = prices
        self.accounts = Accounts()
        self.transfers = TransferQueue()
        self.live: dict[str, SequenceGroup] = {}
        self.running: dict[str, SequenceGroup] = {}
        self.failed: list[Sequence] = []
        """Sequences that have ended while a step was planned, and are still to be reported."""
        self.num_preemptions = 0
        self.num_cached_tokens = 0
        self.num_forks = 0
        self.num_copied_blocks = 0

    @property
    def num_waiting(self) -> int:
        """Groups that hold no blocks: new ones and preempted ones."""
        return len(self.live) - len(self.running)

    @property
    def num_running_sequences(self) -> int:
        """How many sequences the running groups may compute in one step."""
        return sum(group.width for group in self.running.values())

    def account(self, group: SequenceGroup) -> Account:
        """The account of the group's tenant."""
        return self.accounts[group.tenant]

    def enqueue(self, group: SequenceGroup, *, first: bool = False) -> None:
        """Let a group wait, behind the others of its tenant or before them."""
        self.live[group.request_id] = group
        if not self.account(group).waiting:
            self.fairness.begins_to_wait(self.account(group), self.accounts.waiting.values())
        self.accounts.enqueue(group, first=first)

    def start(self, layout: Layout, price: float) -> None:
        """Let a waiting group run from the blocks of `layout`, for which there is room."""
        group, account = layout.group, self.account(layout.group)
        self.fairness.admits(account)
        account.charge(price)
        group.is_charged = True
        layout.take(self.pool, self.block_size)
        first = group.prefill[0]
        if first.first_hit is None:
            self.num_cached_tokens += first.num_cached
            for sequence in group.sequences:
                sequence.first_hit = first.num_cached
        self.num_forks += sum(start.is_fork for start in layout.starts)
        self.accounts.start(group)
        self.running[group.request_id] = group

    def grow(self, group: SequenceGroup, sequence: Sequence) -> None:
        """Make room for a decoding sequence's newest token, in a block of its own."""
        account, table = self.account(group), sequence.table
        if table.writes_shared(sequence.num_tokens):
            source, target = table.copy_on_write(sequence.num_tokens)
            # Whoever else holds the source belongs to this group, which is preempted as one: it
            # stays as it is until the copy is made, or the copy is not wanted any more.
            self.transfers.copy(source, target)
            account.let_go([source])
            account.hold([target])
            self.num_copied_blocks += 1
        account.hold(table.grow(sequence.num_tokens))

    def reorder(self, group: SequenceGroup, choices: list[tuple[Sequence, int]]) -> list[Sequence]:
        """Go on with one sequence for each (parent, next token), in place of the group's own.

        Children share their parent's blocks; a parent without children gives its own back. All have
        computed what they know. Returns the children, in order.
        """
        children: list[Sequence] = []
        for parent, _ in choices:
            if parent in children:
                children.append(parent.fork())
                self.account(group).hold(parent.table.blocks)
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

    def preempt(self, group: SequenceGroup) -> None:
        """Take a running group's blocks; it waits before the others of its tenant."""
        self.num_preemptions += 1
        self._stop(group)
        group.sequences = group.unfinished
        if not group.sequences:
            del self.live[group.request_id]
            return
        for sequence in group.sequences:
            sequence.num_cached = sequence.num_computed = 0
        self.enqueue(group, first=True)

    def fail(self, group: SequenceGroup) -> None:
        """End a group for which there will be no room; what has finished just ends."""
        needed = lay_out(group, self.block_size).num_blocks
        self.failed += self.end(
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
        del self.live[group.request_id]
        if group.request_id in self.running:
            self._stop(group)
        else:
            self.accounts.leave(group)
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
            self.account(group).let_go(sequence.table.blocks)
            self._release(sequence)
        group.sequences.remove(sequence)
        if sequence in group.prefill:
            group.prefill.remove(sequence)

    def _stop(self, group: SequenceGroup) -> None:
        """Take a group off the running ones, with all of its blocks."""
        del self.running[group.request_id]
        self.accounts.stop(group)
        group.prefill = []
        group.candidates.clear()
        for sequence in group.sequences:
            self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        """The one place where a sequence gives its blocks back."""
        self.transfers.cancel(sequence.table.blocks)
        sequence.table.release()
