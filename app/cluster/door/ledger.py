"""What leases have cost at all replicas, as far as this front door is to book it.

A replica has one door book for it, and another one when that leaves. What was counted before a door
has heard anything of a replica has been booked by others, or is nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from msgspec import structs

from engine.api import TenantStats


@dataclass(slots=True)
class _Account:
    """An owner's, from when it is heard of until no replica knows it any more."""

    number: int
    block_seconds: float = 0.0


@dataclass(slots=True)
class _Seen:
    """What a replica has said of an owner."""

    since: float
    block_seconds: float


@dataclass(slots=True)
class LeaseLedger:
    """Block-seconds by owner: what they grow by at a replica while this door books for it."""

    _accounts: dict[str, _Account] = field(default_factory=dict)
    _replicas: dict[int, dict[str, _Seen]] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def observe(
        self,
        replica: int,
        tenants: Mapping[str, TenantStats],
        gone: Collection[str] | None = None,
        *,
        books: bool,
    ) -> None:
        """A replica has said this of those that have changed; whether this door is to book it.

        Others are as before, but for those that are `gone`; `None`: for all.
        """
        is_new = replica not in self._replicas
        seen = self._replicas.setdefault(replica, {})
        for owner, one in tenants.items():
            known = seen.get(owner)
            is_same = known is not None and known.since == one.leases_since
            start = known.block_seconds if known is not None and is_same else 0.0
            if is_new:
                start = one.lease_block_seconds
            # It may fall by a little: a lease that has just ended counted until now before.
            seconds = max(start, one.lease_block_seconds)
            seen[owner] = _Seen(one.leases_since, seconds)
            account = self._accounts.get(owner)
            if account is None:
                account = self._accounts[owner] = _Account(next(self._numbers))
            if books:
                account.block_seconds += seconds - start
        left = seen.keys() - tenants.keys() if gone is None else gone
        for owner in left:
            seen.pop(owner, None)
        self._close_accounts(left)

    def forget(self, replica: int) -> None:
        """Nothing is heard of it; what it counts meanwhile, others book."""
        self._close_accounts(self._replicas.pop(replica, {}))

    def booked(self, tenants: Mapping[str, TenantStats]) -> dict[str, TenantStats]:
        """`tenants` with what is to be booked of each."""
        return {owner: self._with_account(owner, one) for owner, one in tenants.items()}

    def _with_account(self, owner: str, one: TenantStats) -> TenantStats:
        account = self._accounts.get(owner)
        if account is None:
            return structs.replace(one, lease_block_seconds=0.0, leases_since=-1.0)
        return structs.replace(
            one, lease_block_seconds=account.block_seconds, leases_since=float(account.number)
        )

    def _close_accounts(self, owners: Iterable[str]) -> None:
        """Of those of `owners` that no replica knows."""
        for owner in owners:
            if not any(owner in seen for seen in self._replicas.values()):
                self._accounts.pop(owner, None)
