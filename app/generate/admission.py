"""The gate before the engine: what a request may use is taken on admission, settled at its end.

Whether the service takes requests at all is asked here as well, and nowhere else on their way.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
from collections import Counter
from collections.abc import Coroutine, Mapping
from time import perf_counter
from typing import Any

from msgspec import structs

from app.generate.booking import NOTHING, Bill, Booking, SharedHead, Used
from app.upkeep.metrics import Metrics
from app.wire.errors import ApiError, shutting_down
from engine.api import EngineRequest
from tenants.generations import generation_of
from tenants.limits.budgets import Budgets, Hold
from tenants.limits.limiter import Admission, Limiter, LimitExceeded, Quota
from tenants.metering.journal import Slot
from tenants.records import Principal, Tenant

HEARTBEAT_SECONDS = 5.0
WARNING_HEADER = "x-partywall-budget-warning"
_QUEUE_RETRY_SECONDS = 1.0
_CODES = {
    "requests": "rate_limit_exceeded",
    "tokens": "rate_limit_exceeded",
    "tokens_per_day": "tokens_per_day_exceeded",
    "streams": "concurrent_streams_exceeded",
    "sockets": "sockets_exceeded",
    "budget": "insufficient_quota",
}


class Gate:
    """Admits requests within their tenants' limits, and meters what they used.

    One for each service process; what holds across processes is the limiter's business. Of all
    tenants together `max_queued_requests` wait for their first token, from before any work is done
    for them. `run` keeps the leases of running streams alive.
    """

    def __init__(
        self,
        limiter: Limiter,
        budgets: Budgets,
        booking: Booking,
        metrics: Metrics,
        max_queued_requests: int,
    ) -> None:
        self._limiter = limiter
        self._budgets = budgets
        self._booking = booking
        self._metrics = metrics
        self._max_queued_requests = max_queued_requests
        self._queued: Counter[str] = Counter()
        self._tickets: set[Ticket] = set()
        self._unfinished: set[asyncio.Task[None]] = set()
        self.is_shut = False
        """Whether nobody is let in any more."""
        self._has_ended = False
        self._fewer = asyncio.Event()

    @property
    def is_empty(self) -> bool:
        """Whether every request that was let in is over.

        Each counts from before anything is asked of it: none falls between that and its start.
        """
        return not self._queued and not self._tickets

    def check(self) -> None:
        """Raise `ApiError` 503 where nobody is let in any more."""
        if self.is_shut:
            raise shutting_down()

    def shut(self) -> None:
        """Let nobody in any more."""
        self.is_shut = True

    def end(self) -> None:
        """Have nothing started any more, not even what was let in before."""
        self.is_shut = self._has_ended = True

    async def emptied(self) -> None:
        """Wait until it is empty."""
        while not self.is_empty:
            self._fewer.clear()
            await self._fewer.wait()

    async def admit(self, principal: Principal) -> Ticket:
        """Count one request and one stream, before anything is done for them.

        The caller must settle the ticket, and reserve tokens with it before the engine sees the
        request; `check` goes first, with nothing awaited between. Raises `ApiError` 429; nothing is
        counted then.
        """
        tenant = principal.tenant
        self._enqueue(tenant)
        try:
            admission = await self._granted(self._limiter.admit(tenant, secrets.token_hex(8)))
        except LimitExceeded as exceeded:
            self._leave_queue(tenant.id)
            raise self._refusal(exceeded) from None
        except BaseException:
            self._leave_queue(tenant.id)
            raise
        ticket = Ticket(self, tenant, admission)
        self._tickets.add(ticket)
        return ticket

    async def run(self) -> None:
        """Renew the leases of running streams and open sockets until cancelled."""
        while True:
            await self._limiter.renew([ticket.admission for ticket in self._tickets])
            await self._budgets.renew([one.hold for one in self._tickets if one.hold is not None])
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def close(self) -> None:
        """Wait until everything that has ended is accounted for."""
        while self._unfinished:
            await asyncio.wait(self._unfinished)

    def _enqueue(self, tenant: Tenant) -> None:
        most = tenant.limits.over(self._limiter.defaults).queued_requests
        if most is not None and self._queued[tenant.id] >= most:
            message = f"{most} requests are waiting for their first token already."
            raise self._full("queue", message)
        if self._queued.total() >= self._max_queued_requests:
            # How many there are of whom is nobody's business.
            raise self._full("service_queue", "Too many requests are waiting for the service.")
        self._queued[tenant.id] += 1

    def _full(self, limit: str, message: str) -> ApiError:
        self._metrics.limited.labels(limit).inc()
        headers = _retry_headers(_QUEUE_RETRY_SECONDS)
        return ApiError(429, message, code="queue_full", headers=headers)

    def _leave_queue(self, tenant_id: str) -> None:
        self._queued[tenant_id] -= 1
        if not self._queued[tenant_id]:
            del self._queued[tenant_id]
        self._fewer.set()

    async def _granted(self, asking: Coroutine[Any, Any, Admission]) -> Admission:
        """What the limiter grants; given back where the caller has left meanwhile."""
        task = asyncio.create_task(asking)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            # The limiter may have taken everything all the same.
            self._finish(self._give_back(task))
            raise

    async def _give_back(self, granting: asyncio.Task[Admission]) -> None:
        with contextlib.suppress(LimitExceeded):
            await self._limiter.settle(await granting, 0)

    def _refusal(self, exceeded: LimitExceeded) -> ApiError:
        self._metrics.limited.labels(exceeded.limit).inc()
        return limit_error(exceeded)

    def _finish(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Have `work` done even where whoever asked for it is cancelled meanwhile."""
        task = asyncio.create_task(work)
        self._unfinished.add(task)
        task.add_done_callback(self._unfinished.discard)
        return task


class Ticket:
    """An admitted request, until `settle` gives back what it took and did not use.

    `headers` (`x-ratelimit-*`) go with its answer.
    """

    def __init__(self, gate: Gate, tenant: Tenant, admission: Admission) -> None:
        self.admission = admission
        self._gate = gate
        self._tenant = tenant
        self.hold: Hold | None = None
        self._warning: str | None = None
        self.slot: Slot | None = None
        """Where what it has had is noted as it has it, once it has its tokens."""
        self._bill = Bill(
            tenant_id=tenant.id, generation=generation_of(tenant), prices=gate._booking.prices
        )
        self._began: float | None = None
        self._settled = False

    @property
    def headers(self) -> Mapping[str, str]:
        """What is left of the tenant's limits, as of the last answer of the limiter, and whether
        its soft budget is spent.
        """
        headers = _quota_headers(self.admission.requests, self.admission.tokens)
        return headers if self._warning is None else headers | {WARNING_HEADER: self._warning}

    async def reserve(self, request: EngineRequest, head: SharedHead | None = None) -> None:
        """Take what `request` may use at most: its prompt, and all its sequences at their longest.

        One that goes on behind `generated` tokens takes the rest of the answer only: the others
        were paid for. Of its prompt `head` is a share group's. Raises `ApiError` 429; the ticket is
        then settled, and the request stays counted. Raises 503 where it was let in, but by now the
        time is up.
        """
        gate = self._gate
        output = request.num_lines * request.sampling.max_tokens - request.num_generated
        prompt = 0 if request.num_generated else len(request.prompt)
        try:
            self.admission = await gate._granted(
                gate._limiter.reserve(self.admission, prompt + output)
            )
        except LimitExceeded as exceeded:
            self._leave()
            raise gate._refusal(exceeded) from None
        except asyncio.CancelledError:
            self._leave()  # `_granted` gives back what is taken yet
            raise
        await self._reserve_money(prompt, output, head)
        if gate._has_ended:
            raise shutting_down()

    async def _reserve_money(self, prompt: int, output: int, head: SharedHead | None) -> None:
        """Take of the tenant's budget, if it has one, what the request may cost.

        Its account begins before: what is reserved is released also if the process dies.
        """
        gate, tenant, prices = self._gate, self._tenant, self._bill.prices
        nanos = prices.most(prompt, output)
        self.hold = gate._budgets.hold(tenant, self.admission.request_id, nanos)
        reservation = "" if self.hold is None else self.hold.name
        self._bill = structs.replace(
            self._bill, reservation=reservation, prompt_tokens=prompt, head=head
        )
        self.slot = gate._booking.begin(self._bill)
        if self.hold is None:
            return
        try:
            self._warning = await gate._budgets.reserve(tenant, self.hold, prices)
        except LimitExceeded as exceeded:
            await self.release()
            raise gate._refusal(exceeded) from None

    async def release(self) -> None:
        """Settle a request that was not handed to the engine; harmless after its end."""
        await self.settle(NOTHING)

    def _leave(self) -> None:
        """What the limiter knows to be over is over here as well."""
        if not self._settled:
            self._settled = True
            self._gate._tickets.discard(self)
            if self._began is None:
                self._gate._leave_queue(self._tenant.id)
            self._gate._fewer.set()

    def first_token(self) -> None:
        """The request waits no longer: its first token is there. Harmless when repeated."""
        if self._began is None and not self._settled:
            self._began = perf_counter()
            self._gate._leave_queue(self._tenant.id)

    async def settle(self, used: Used) -> None:
        """Account for the end with what was really used; only the first call counts.

        It is done even if the caller is cancelled while it waits.
        """
        if self._settled:
            return
        gate, began = self._gate, self._began
        self._leave()
        stream_seconds = 0.0 if began is None else perf_counter() - began
        slot, self.slot = self.slot, None
        cost = gate._booking.request(self._bill, used, slot, stream_seconds=stream_seconds)
        if self.hold is not None:
            gate._budgets.settle(self.hold, cost)
        tokens = used.prompt_tokens + used.output_tokens
        await asyncio.shield(gate._finish(gate._limiter.settle(self.admission, tokens)))


def limit_error(exceeded: LimitExceeded) -> ApiError:
    """What a client reads that has reached a limit; without `retry-after` waiting is in vain."""
    wait = exceeded.retry_after_seconds
    # A socket's error event has no headers: its reader has the message only.
    message = str(exceeded) if wait is None else f"{exceeded} Try again in {duration(wait)}."
    headers = _quota_headers(exceeded.requests, exceeded.tokens) | _retry_headers(wait)
    if exceeded.limit == "budget":
        headers["x-should-retry"] = "false"  # a client is not to wait for the next month
    return ApiError(429, message, code=_CODES[exceeded.limit], headers=headers)


def _quota_headers(requests: Quota | None, tokens: Quota | None) -> dict[str, str]:
    """`x-ratelimit-{limit,remaining,reset}-{requests,tokens}`, of the limits that there are."""
    headers: dict[str, str] = {}
    for kind, quota in (("requests", requests), ("tokens", tokens)):
        if quota is not None:
            headers[f"x-ratelimit-limit-{kind}"] = str(quota.limit)
            headers[f"x-ratelimit-remaining-{kind}"] = str(quota.remaining)
            headers[f"x-ratelimit-reset-{kind}"] = duration(quota.reset_seconds)
    return headers


def _retry_headers(seconds: float | None) -> dict[str, str]:
    if seconds is None:
        return {"x-should-retry": "false"}
    milliseconds = max(1, math.ceil(seconds * 1000))
    return {
        "retry-after": str(math.ceil(milliseconds / 1000)),
        "retry-after-ms": str(milliseconds),
    }


def duration(seconds: float) -> str:
    """A time as these headers carry it: `20ms`, `1.5s`, `6m0s`, `1h0m0s`."""
    milliseconds = math.ceil(max(0.0, seconds) * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:g}s"
    minutes, rest = divmod(math.ceil(milliseconds / 1000), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest}s" if hours else f"{minutes}m{rest}s"
