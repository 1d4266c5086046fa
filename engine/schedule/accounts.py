"""Each tenant's live state: its share, its queue, what it runs, and the blocks that this holds."""

from __future__ import annotations

from bisect import insort
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.api import TenantShare
from engine.sequences.group import SequenceGroup

_IDLE_ACCOUNTS = 1024
"""Idle tenants whose counters are remembered; forgetting one forgives what it owes, no more."""


@dataclass(eq=False, slots=True)
class Account:
    """One tenant. Its requests start in the order of their places, and its last is preempted first.

    So of one priority every running request is older than every waiting one, but for one that is
    back from a preemption and spared for a while.
    """

    tenant: str
    share: TenantShare = field(default_factory=TenantShare)
    waiting: OrderedDict[str, SequenceGroup] = field(default_factory=OrderedDict)
    running: list[SequenceGroup] = field(default_factory=list)
    """In the order of their places, as those that wait are."""
    held: dict[int, int] = field(default_factory=dict)
    """Blocks of the running requests, and how many of their sequences hold each."""
    served: float = 0.0
    """Weighted tokens served, divided by the tenant's weight."""
    counter: float = 0.0
    """`served` as fairness counts it: lifted when the tenant comes back from idle."""

    @property
    def first_waiting(self) -> SequenceGroup:
        """The waiting request that is next."""
        return next(iter(self.waiting.values()))

    def charge(self, price: float) -> None:
        """Count service worth `price`."""
        self.served += price / self.share.weight
        self.counter += price / self.share.weight

    def hold(self, blocks: Iterable[int]) -> None:
        """A running sequence has taken `blocks`."""
        for block in blocks:
            self.held[block] = self.held.get(block, 0) + 1

    def let_go(self, blocks: Iterable[int]) -> None:
        """A running sequence gives `blocks` back."""
        for block in blocks:
            self.held[block] -= 1
            if not self.held[block]:
                del self.held[block]

    def check(self) -> None:
        """Verify that blocks are counted and requests are served in order.

        Raises `AssertionError`.
        """
        tables = [blocks for group in self.running for blocks in group.blocks]
        held = Counter(block for blocks in tables for block in blocks)
        assert held == self.held, f"{self.tenant!r}: blocks held are miscounted"
        assert not any(any(group.blocks) for group in self.waiting.values())
        for groups in (self.running, self.waiting.values()):
            places = [group.place for group in groups]
            assert places == sorted(places), f"{self.tenant!r} is not served in order"


class Accounts:
    """All tenants with live requests, and the most recent idle ones."""

    def __init__(self) -> None:
        self.waiting: dict[str, Account] = {}
        """Tenants with waiting requests."""
        self.running: dict[str, Account] = {}
        """Tenants with running requests."""
        self._all: dict[str, Account] = {}
        self._idle: OrderedDict[str, None] = OrderedDict()

    def __getitem__(self, tenant: str) -> Account:
        """The account of a tenant that `open` has been called for."""
        return self._all[tenant]

    def get(self, tenant: str) -> Account:
        """The account of a tenant; an empty one if nothing is known of it."""
        return self._all.get(tenant) or Account(tenant)

    @property
    def num_known(self) -> int:
        """How many accounts are remembered."""
        return len(self._all)

    def known(self) -> list[Account]:
        """Every account that is remembered."""
        return list(self._all.values())

    def open(self, tenant: str, share: TenantShare) -> Account:
        """The tenant's account, from now on with this share."""
        account = self._all[tenant] = self.get(tenant)
        account.share = share
        return account

    def enqueue(self, group: SequenceGroup) -> None:
        """Let a request wait in its place among the others of its tenant."""
        account = self._all[group.tenant]
        account.waiting[group.request_id] = group
        behind = [one.request_id for one in account.waiting.values() if one.place > group.place]
        for request_id in behind:
            account.waiting.move_to_end(request_id)
        self.settle(account)

    def start(self, group: SequenceGroup) -> None:
        """Move the tenant's next request from its queue to what it runs."""
        account = self._all[group.tenant]
        del account.waiting[group.request_id]
        insort(account.running, group, key=lambda group: group.place)
        for blocks in group.blocks:
            account.hold(blocks)
        self.settle(account)

    def stop(self, group: SequenceGroup) -> None:
        """Take a running request away, with the blocks that it still holds."""
        account = self._all[group.tenant]
        account.running.remove(group)
        for blocks in group.blocks:
            account.let_go(blocks)
        self.settle(account)

    def leave(self, group: SequenceGroup) -> None:
        """Take a request out of its tenant's queue."""
        account = self._all[group.tenant]
        del account.waiting[group.request_id]
        self.settle(account)

    def forget(self, tenant: str) -> None:
        """Forget an idle tenant; one with live requests is kept."""
        if tenant in self._idle:
            del self._idle[tenant], self._all[tenant]

    def settle(self, account: Account) -> None:
        """Put the account among those that it belongs to now."""
        for accounts, belongs in ((self.waiting, account.waiting), (self.running, account.running)):
            if belongs:
                accounts[account.tenant] = account
            else:
                accounts.pop(account.tenant, None)
        if account.waiting or account.running:
            self._idle.pop(account.tenant, None)
            return
        self._idle[account.tenant] = None
        if len(self._idle) > _IDLE_ACCOUNTS:
            oldest, _ = self._idle.popitem(last=False)
            del self._all[oldest]
