"""What tenants may take in a minute, in a day and at once, over all replicas.

Requests and tokens a minute are buckets after the generic cell rate algorithm (GCRA, ITU-T I.371).
A request is counted before anything is done for it; once its length is known, the tokens that it
may use at most are taken, and what it did not use is given back at its end. A request that runs
holds a lease, so that the requests of a replica that died do not count for ever.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from tenants import redis_keys
from tenants.errors import StoreUnavailable
from tenants.limits.buckets import (
    ADMIT,
    LATE_SECONDS,
    OPEN_SOCKET,
    RENEW,
    RESERVE,
    SETTLE,
    STREAM_RETRY,
)
from tenants.limits.local_estimate import LocalEstimate
from tenants.limits.verdict import LimitExceeded, Quota, Verdict
from tenants.records import Tenant, TenantLimits
from tenants.storage import changes
from tenants.storage.commits import ANY
from tenants.storage.connection import GuardedRedis

__all__ = ["Admission", "LimitExceeded", "Limiter", "Quota"]

_log = logging.getLogger(__name__)
NO_LIMITS = TenantLimits()
LEASE_SECONDS = 30.0
"""How long a stream or a socket counts without being renewed."""


class Admission(msgspec.Struct, frozen=True):
    """A request that was counted, and the tokens that were reserved for it.

    `limits` are those that hold, `shared` says whether they do over all replicas.
    `requests` and `tokens` are what is left of the tenant's limits a minute, if it has them. `day`
    is the UTC day that its tokens count to, `None` while Redis is not known to have taken them.
    """

    tenant_id: str
    request_id: str
    limits: TenantLimits
    shared: bool
    requests: Quota | None
    tokens: Quota | None
    taken_tokens: int = 0
    day: int | None = None
    generation: str = ANY


class Limiter:
    """Holds tenants to their limits, over all processes that share a Redis.

    While Redis is down this process goes by its own estimate (see `local_estimate`); nothing here
    raises `StoreUnavailable`. `defaults` of requests a minute, streams and sockets are for tenants
    that have no limit of their own, which cost no round trip: they hold in each process.
    """

    def __init__(
        self,
        redis: GuardedRedis,
        *,
        defaults: TenantLimits = NO_LIMITS,
        lease_seconds: float = LEASE_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.defaults = defaults
        self._redis = redis
        self._lease = int(lease_seconds * 1e6)
        self._clock = clock
        self._local = LocalEstimate(clock)
        self._replicas = 1
        # What could not be handed in: the tokens that a request has used, and until when it counts.
        self._unsettled: dict[str, tuple[Admission, int, float]] = {}

    @property
    def replicas(self) -> int:
        """How many processes share the store, as far as this one knows."""
        return self._replicas

    async def admit_all(self, tenant: Tenant, request_ids: Sequence[str]) -> list[Admission]:
        """Count requests, and their streams for as long as each runs: all of them, or none.

        To be asked before any work is done for them; `request_name` gives ids. Who is admitted must
        `settle` each, whatever becomes of it. Raises `LimitExceeded`; nothing is counted then.
        """
        limits = tenant.limits.over(self.defaults)
        shared = _counts(tenant.limits.over(NO_LIMITS))
        verdict = Verdict("", 0, 0, 0, 0)
        if _counts_requests(limits) and not shared:
            verdict = self._local.admit(tenant.id, limits, request_ids, 1)
        elif _counts_requests(limits):
            try:
                verdict = await self._admit_in_redis(tenant, limits, request_ids)
            except StoreUnavailable:
                verdict = self._local.admit(tenant.id, limits, request_ids, self._replicas)
            else:
                if not verdict.limited:
                    self._local.note_admitted(tenant.id, limits, request_ids)
        if verdict.limited:
            raise verdict.error(limits)
        return [
            Admission(
                tenant_id=tenant.id,
                request_id=request_id,
                limits=limits,
                shared=shared,
                requests=verdict.requests(limits),
                tokens=verdict.tokens(limits),
                generation=tenant.generation,
            )
            for request_id in request_ids
        ]

    async def reserve_all(
        self, admissions: Sequence[Admission], tokens: Sequence[int]
    ) -> list[Admission]:
        """Take what each of a tenant's admitted requests may use at most, prompt and output.

        Raises `LimitExceeded`; they are then no streams any more, but they stay counted.
        """
        limits, tenant_id = admissions[0].limits, admissions[0].tenant_id
        asked = {one.request_id: count for one, count in zip(admissions, tokens, strict=True)}
        if not admissions[0].shared or not _counts_tokens(limits):
            return [replace(one, taken_tokens=asked[one.request_id]) for one in admissions]
        day = None
        try:
            verdict = await self._reserve_in_redis(admissions[0], asked)
        except StoreUnavailable:
            verdict = self._local.reserve(tenant_id, limits, asked, self._replicas)
        else:
            day = verdict.day
            if not verdict.limited:
                self._local.note_reserved(tenant_id, limits, asked)
        if verdict.limited:
            for request_id in asked:
                self._local.note_settled(tenant_id, request_id, 0)
            raise verdict.error(limits, sum(tokens))
        return [
            replace(
                one,
                requests=verdict.requests(limits),
                tokens=verdict.tokens(limits),
                taken_tokens=asked[one.request_id],
                day=day,
            )
            for one in admissions
        ]

    async def settle(self, admission: Admission, used_tokens: int) -> None:
        """End a request that used so many tokens; the rest is given back, once.

        What Redis does not take now is handed in with a later `renew`.
        """
        if _counts(admission.limits):
            self._local.note_settled(admission.tenant_id, admission.request_id, used_tokens)
        if not admission.shared:
            return
        try:
            await self._settle_in_redis(admission, used_tokens)
        except StoreUnavailable:
            until = self._clock() + LATE_SECONDS
            self._unsettled[admission.request_id] = admission, used_tokens, until

    async def open_socket(self, tenant: Tenant, socket_id: str) -> None:
        """Count a socket, until it is closed. Raises `LimitExceeded`."""
        limits = tenant.limits.over(self.defaults)
        most = limits.sockets
        if most is None:
            return
        mine = self._local.sockets(tenant.id)
        try:
            if tenant.limits.sockets is None:
                opened = len(mine) < most
            else:
                opened = await self._redis.run_script(
                    OPEN_SOCKET,
                    [redis_keys.meta(tenant.id), redis_keys.sockets(tenant.id)],
                    [socket_id, self._lease, most],
                )
        except StoreUnavailable:
            opened = len(mine) < most and len(mine) < max(1, most // self._replicas)
        if not opened:
            raise Verdict("sockets", STREAM_RETRY, 0, 0, 0).error(limits)
        mine.add(socket_id)

    async def close_socket(self, tenant: Tenant, socket_id: str) -> None:
        """Count a socket no longer; where Redis is down its lease will end."""
        mine = self._local.sockets(tenant.id)
        if socket_id in mine:
            mine.remove(socket_id)
            if tenant.limits.sockets is None:
                return
            try:
                await self._redis.execute("ZREM", redis_keys.sockets(tenant.id), socket_id)
            except StoreUnavailable as error:
                _log.info("a closed socket counts until its lease ends: %s", error)

    async def renew(self, admissions: Iterable[Admission]) -> None:
        """The heartbeat, every few seconds: keep these requests and all open sockets counted.

        Also hands in what could not be settled, and learns how many replicas there are.
        """
        self._local.forget_idle()
        leases: dict[str, list[str]] = defaultdict(list)
        for admission in admissions:
            if admission.shared:
                leases[redis_keys.streams(admission.tenant_id)].append(admission.request_id)
        for tenant_id, socket_ids in self._local.all_sockets().items():
            leases[redis_keys.sockets(tenant_id)] += socket_ids
        try:
            self._replicas = max(1, await changes.count_subscribers(self._redis))
            await self._redis.run_script_on_each(
                RENEW, [([key], [self._lease, *ids]) for key, ids in leases.items()]
            )
            await self._settle_late()
        except StoreUnavailable as error:
            _log.debug("leases are not renewed: %s", error)

    async def _settle_late(self) -> None:
        for request_id, (admission, used_tokens, until) in list(self._unsettled.items()):
            if self._clock() < until:
                await self._settle_in_redis(admission, used_tokens)
            self._unsettled.pop(request_id, None)

    async def _admit_in_redis(
        self, tenant: Tenant, limits: TenantLimits, request_ids: Sequence[str]
    ) -> Verdict:
        reply = await self._redis.run_script(
            ADMIT,
            _keys(tenant.id),
            [
                self._lease,
                _argument(limits.requests_per_minute),
                _argument(limits.tokens_per_minute),
                _argument(limits.concurrent_streams),
                tenant.generation,
                *request_ids,
            ],
        )
        limited, *times = reply
        return Verdict(limited.decode(), *times)

    async def _reserve_in_redis(self, one: Admission, asked: Mapping[str, int]) -> Verdict:
        limits = one.limits
        reply = await self._redis.run_script(
            RESERVE,
            _keys(one.tenant_id),
            [
                self._lease,
                _argument(limits.requests_per_minute),
                _argument(limits.tokens_per_minute),
                _argument(limits.tokens_per_day),
                one.generation,
                *(word for pair in asked.items() for word in pair),
            ],
        )
        limited, *times = reply
        return Verdict(limited.decode(), *times)

    async def _settle_in_redis(self, admission: Admission, used_tokens: int) -> None:
        await self._redis.run_script(
            SETTLE,
            [*_keys(admission.tenant_id), redis_keys.settled(admission.tenant_id)],
            [
                admission.request_id,
                used_tokens,
                _argument(admission.limits.tokens_per_minute),
                _argument(admission.day),
                admission.generation,
            ],
        )


def _keys(tenant_id: str) -> list[str]:
    return [
        redis_keys.meta(tenant_id),
        redis_keys.limits(tenant_id),
        redis_keys.streams(tenant_id),
        redis_keys.held(tenant_id),
        redis_keys.generation(tenant_id),
    ]


def _counts_requests(limits: TenantLimits) -> bool:
    """Whether requests are limited over all replicas."""
    return limits.requests_per_minute is not None or limits.concurrent_streams is not None


def _counts_tokens(limits: TenantLimits) -> bool:
    """Whether tokens are."""
    return limits.tokens_per_minute is not None or limits.tokens_per_day is not None


def _counts(limits: TenantLimits) -> bool:
    return _counts_requests(limits) or _counts_tokens(limits)


def _argument(limit: int | None) -> int | str:
    return "" if limit is None else limit
