"""The estimate of a tenant's limits that one process makes while it cannot reach the store.

It watches what passes through this process at all times, with the arithmetic of `scripts`, and in
an outage gives out this process' share of the limits: it errs as far as tenants do not spread
evenly over the replicas.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from tenants.limits.buckets import STREAM_RETRY, streams_of
from tenants.limits.verdict import DAY, MINUTE, Limit, Verdict
from tenants.records import TenantLimits

NEVER = 2**62
"""Longer than any wait: it will never fit."""


class _Hold(NamedTuple):
    """The tokens that a request has taken, of how many a minute, and on which day."""

    tokens: int
    limit: int | None
    day: int
    streams: int


class _Tenant:
    """What one tenant has taken here."""

    def __init__(self) -> None:
        self.requests_full_at = 0
        self.tokens_full_at = 0
        self.used_until = 0  # what `tokens_full_at` would be had nobody taken more than was used
        self.day = 0
        self.day_tokens = 0
        self.streams: dict[str, _Hold] = {}
        self.sockets: set[str] = set()

    def held(self) -> int:
        """How long the bucket would refill all that running requests have taken."""
        return sum(_cost(hold.tokens, hold.limit) for hold in self.streams.values())

    def num_streams(self) -> int:
        """Streams that running requests count as."""
        return sum(hold.streams for hold in self.streams.values())


class LocalEstimate:
    """All tenants as this process sees them; `clock` gives Unix seconds."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._tenants: dict[str, _Tenant] = {}

    def admit(
        self, tenant_id: str, limits: TenantLimits, request_ids: Sequence[str], replicas: int
    ) -> Verdict:
        """Count requests and streams, out of a share of the limits; nothing if it is too much."""
        now = self._now()
        mine = _share(limits, replicas)
        tenant = self._tenant(tenant_id, now)
        requests = max(tenant.requests_full_at, now)
        count, cost = len(request_ids), _cost(len(request_ids), mine.requests_per_minute)
        waits: dict[Limit, int] = {"requests": requests + cost - MINUTE - now}
        if limits.requests_per_minute is not None and count > limits.requests_per_minute:
            waits["requests"] = NEVER
        most, more = mine.concurrent_streams, sum(map(streams_of, request_ids))
        if limits.concurrent_streams is not None and more > limits.concurrent_streams:
            waits["streams"] = NEVER
        elif most is not None and tenant.num_streams() + more > most:
            waits["streams"] = STREAM_RETRY
        verdict = self._verdict(tenant, waits, now)
        if not verdict.limited:
            self.note_admitted(tenant_id, mine, request_ids)
        return self._verdict(tenant, waits, self._now())

    def reserve(
        self, tenant_id: str, limits: TenantLimits, asked: Mapping[str, int], replicas: int
    ) -> Verdict:
        """Take what requests may use, out of a share of the limits; nothing if it is too much."""
        now, tokens = self._now(), sum(asked.values())
        mine = _share(limits, replicas)
        tenant = self._tenant(tenant_id, now)
        budget = max(tenant.tokens_full_at, now)
        waits: dict[Limit, int] = {
            "tokens": budget + _cost(tokens, mine.tokens_per_minute) - MINUTE - now
        }
        if mine.tokens_per_day is not None and tenant.day_tokens + tokens > mine.tokens_per_day:
            waits["tokens_per_day"] = DAY - now % DAY
        verdict = self._verdict(tenant, waits, now)
        if not verdict.limited:
            self.note_reserved(tenant_id, mine, asked)
        return self._verdict(tenant, waits, self._now())

    def note_admitted(
        self, tenant_id: str, limits: TenantLimits, request_ids: Sequence[str]
    ) -> None:
        """Count requests that somebody else has admitted. A bucket is at worst empty."""
        now = self._now()
        tenant = self._tenant(tenant_id, now)
        cost = _cost(len(request_ids), limits.requests_per_minute)
        tenant.requests_full_at = min(max(tenant.requests_full_at, now) + cost, now + MINUTE)
        for one in request_ids:
            hold = _Hold(0, limits.tokens_per_minute, tenant.day, streams_of(one))
            tenant.streams[one] = hold

    def note_reserved(self, tenant_id: str, limits: TenantLimits, asked: Mapping[str, int]) -> None:
        """Count tokens that somebody else has let requests take."""
        now, tokens = self._now(), sum(asked.values())
        tenant = self._tenant(tenant_id, now)
        budget = max(tenant.tokens_full_at, now) + _cost(tokens, limits.tokens_per_minute)
        tenant.tokens_full_at = min(budget, now + MINUTE)
        tenant.day_tokens += tokens
        for one, count in asked.items():
            hold = _Hold(count, limits.tokens_per_minute, tenant.day, streams_of(one))
            tenant.streams[one] = hold

    def note_settled(self, tenant_id: str, request_id: str, used_tokens: int) -> None:
        """Give back what a request did not use; once, however often this is called."""
        now = self._now()
        tenant = self._tenant(tenant_id, now)
        hold = tenant.streams.pop(request_id, None)
        if hold is None:
            return
        taken, used = _cost(hold.tokens, hold.limit), _cost(used_tokens, hold.limit)
        tenant.used_until = max(tenant.used_until, now) + used
        # Never more than what was used and is still held leaves, see `tenants.limits.buckets`.
        given_back = max(tenant.tokens_full_at - taken + used, tenant.used_until + tenant.held())
        tenant.tokens_full_at = min(tenant.tokens_full_at, given_back)
        if hold.day == tenant.day:
            tenant.day_tokens = max(0, tenant.day_tokens - hold.tokens + used_tokens)

    def sockets(self, tenant_id: str) -> set[str]:
        """The tenant's sockets that are open here; to be changed by who opens and closes them."""
        return self._tenant(tenant_id, self._now()).sockets

    def all_sockets(self) -> dict[str, list[str]]:
        """Ids of the sockets that are open here, by tenant."""
        return {key: list(one.sockets) for key, one in self._tenants.items() if one.sockets}

    def forget_idle(self) -> None:
        """Drop the tenants of whom there is nothing to know."""
        now = self._now()
        for tenant_id, one in list(self._tenants.items()):
            full = max(one.requests_full_at, one.tokens_full_at) <= now
            if full and one.day != now // DAY and not one.streams and not one.sockets:
                del self._tenants[tenant_id]

    @staticmethod
    def _verdict(tenant: _Tenant, waits: dict[Limit, int], now: int) -> Verdict:
        limited, wait = max(waits.items(), key=lambda item: item[1])
        return Verdict(
            limited=limited if wait > 0 else "",
            wait=-1 if wait == NEVER else max(0, wait),
            requests_reset=max(0, tenant.requests_full_at - now),
            tokens_reset=max(0, tenant.tokens_full_at - now),
            day=tenant.day,
        )

    def _now(self) -> int:
        return int(self._clock() * 1e6)

    def _tenant(self, tenant_id: str, now: int) -> _Tenant:
        tenant = self._tenants.setdefault(tenant_id, _Tenant())
        if tenant.day != now // DAY:
            tenant.day, tenant.day_tokens = now // DAY, 0
        return tenant


def _share(limits: TenantLimits, replicas: int) -> TenantLimits:
    """One of `replicas` equal parts of what a tenant may take, and never nothing."""

    def part(limit: int | None) -> int | None:
        return None if limit is None else max(1, limit // replicas)

    return replace(
        limits,
        requests_per_minute=part(limits.requests_per_minute),
        tokens_per_minute=part(limits.tokens_per_minute),
        tokens_per_day=part(limits.tokens_per_day),
        concurrent_streams=part(limits.concurrent_streams),
    )


def _cost(amount: int, limit: int | None) -> int:
    """How long a bucket refills `amount`; what is larger than the bucket takes all of it."""
    return 0 if limit is None else min(amount, limit) * MINUTE // limit
