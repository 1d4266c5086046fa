"""The gate before the engine: what a request may use is taken on admission, settled at its end.

Whether the service takes requests at all is asked here as well, and nowhere else on their way.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from time import perf_counter
from typing import Any

from msgspec import structs

from app.limits.booking import NOTHING, Bill, Booking, Payable, Used
from app.observe.metrics import Metrics
from app.wire.errors import ApiError, duration, retry_headers, shutting_down
from engine.api import EngineRequest
from tenants.limits.buckets import request_name
from tenants.limits.budgets import Budgets, Hold
from tenants.limits.limiter import Admission, Limiter, LimitExceeded, Quota
from tenants.records import Principal, Tenant
from tenants.usage.journal import Slot
from tenants.usage.prices import Prices

WARNING_HEADER = "x-partywall-budget-warning"
_QUEUE_RETRY_SECONDS = 1.0
HEARTBEAT_SECONDS = 5.0
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
    for them. Whoever dies lets the slots of its streams lapse, and its reservations of budgets:
    `keep_slots` renews them.
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
        self.tickets: set[Ticket] = set()
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
        return not self._queued and not self.tickets

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
        """Count one request, see `admit_all`."""
        (ticket,) = await self.admit_all(principal, [1])
        return ticket

    async def admit_all(self, principal: Principal, streams: Sequence[int]) -> list[Ticket]:
        """Count requests of so many streams each, before anything is done for them: all or none.

        Together they wait as one. The caller must settle each ticket, and reserve tokens with it
        before the engine sees its request; `check` goes first, with nothing awaited between. Raises
        `ApiError` 429; nothing is counted then.
        """
        tenant = principal.tenant
        names = [request_name(secrets.token_hex(8), count) for count in streams]
        self._enqueue(tenant)
        try:
            admissions = await self._granted(self._limiter.admit_all(tenant, names))
        except LimitExceeded as exceeded:
            self._leave_queue(tenant.id)
            raise self._refusal(exceeded) from None
        except BaseException:
            self._leave_queue(tenant.id)
            raise
        tickets = [
            Ticket(self, tenant, admission, waits=index == 0)
            for index, admission in enumerate(admissions)
        ]
        self.tickets.update(tickets)
        return tickets

    async def reserve(self, tickets: Sequence[Ticket], asked: Sequence[Payable]) -> None:
        """Take what requests may use at most, all or none: prompts, and all sequences at their
        longest.

        One that goes on behind `generated` tokens takes the rest of the answer only: the others
        were paid for. Raises `ApiError` 429; the tickets are then settled, and the requests stay
        counted. Raises 503 where they were let in, but by now the time is up.
        """
        most = [_most(one.request) for one in asked]
        admissions = [ticket.admission for ticket in tickets]
        try:
            admissions = await self._granted(
                self._limiter.reserve_all(admissions, [sum(one) for one in most])
            )
        except LimitExceeded as exceeded:
            for ticket in tickets:
                ticket.leave()
            raise self._refusal(exceeded) from None
        except asyncio.CancelledError:
            for ticket in tickets:
                ticket.leave()  # `_granted` gives back what is taken yet
            raise
        for ticket, admission, tokens, one in zip(tickets, admissions, most, asked, strict=True):
            ticket.begin(admission, *tokens, one)
        await self._reserve_money(tickets)
        if self._has_ended:
            raise shutting_down()

    async def _reserve_money(self, tickets: Sequence[Ticket]) -> None:
        """Take of the tenant's budget, if it has one, what the requests may cost."""
        holds = [ticket.hold for ticket in tickets if ticket.hold is not None]
        if not holds:
            return
        prices = self._booking.prices.model
        try:
            warning = await self._budgets.reserve(tickets[0].tenant, holds, prices)
        except LimitExceeded as exceeded:
            for ticket in tickets:
                await ticket.release()
            raise self._refusal(exceeded) from None
        for ticket in tickets:
            ticket.warning = warning

    async def keep_slots(self) -> None:
        """Renew what the streams that run hold, and open sockets, until cancelled."""
        while True:
            await self._limiter.renew([one.admission for one in self.tickets])
            await self._budgets.renew([one.hold for one in self.tickets if one.hold is not None])
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
        headers = retry_headers(_QUEUE_RETRY_SECONDS)
        return ApiError(429, message, code="queue_full", headers=headers)

    def _leave_queue(self, tenant_id: str) -> None:
        self._queued[tenant_id] -= 1
        if not self._queued[tenant_id]:
            del self._queued[tenant_id]
        self._fewer.set()

    async def _granted(self, asking: Coroutine[Any, Any, list[Admission]]) -> list[Admission]:
        """What the limiter grants; given back where the caller has left meanwhile."""
        task = asyncio.create_task(asking)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            # The limiter may have taken everything all the same.
            self._finish(self._give_back(task))
            raise

    async def _give_back(self, granting: asyncio.Task[list[Admission]]) -> None:
        with contextlib.suppress(LimitExceeded):
            for admission in await granting:
                await self._limiter.settle(admission, 0)

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

    def __init__(self, gate: Gate, tenant: Tenant, admission: Admission, waits: bool) -> None:
        """One that `waits` has a place in the queue until its first token."""
        self.admission = admission
        self.tenant = tenant
        self.hold: Hold | None = None
        self.warning: str | None = None
        self._slot: Slot | None = None
        """Where what it has had is noted, once it has its tokens."""
        self._gate = gate
        self._bill = Bill(
            tenant_id=tenant.id, generation=tenant.generation, prices=gate._booking.prices.model
        )
        self._waits = waits
        self._began: float | None = None
        self._settled = False

    @property
    def headers(self) -> Mapping[str, str]:
        """What is left of the tenant's limits, as of the last answer of the limiter, and whether
        its soft budget is spent.
        """
        headers = _quota_headers(self.admission.requests, self.admission.tokens)
        return headers if self.warning is None else headers | {WARNING_HEADER: self.warning}

    @property
    def prices(self) -> Prices:
        """What its tokens cost, once it has begun."""
        return self._bill.prices

    async def reserve(self, asked: Payable) -> None:
        """Take what one request may use at most, see `Gate.reserve`."""
        await self._gate.reserve([self], [asked])

    def begin(self, admission: Admission, prompt: int, output: int, asked: Payable) -> None:
        """Its tokens are taken: its account begins, before its money is reserved. What is reserved
        then is released also if the process dies.
        """
        self.admission = admission
        prices = self._gate._booking.prices.of(self.tenant.id, asked.adapter)
        nanos = prices.most(prompt, output)
        self.hold = self._gate._budgets.hold(self.tenant, admission.request_id, nanos)
        reservation = "" if self.hold is None else self.hold.name
        self._bill = structs.replace(
            self._bill,
            prices=prices,
            reservation=reservation,
            prompt_tokens=prompt,
            head=asked.head,
            adapter=asked.adapter,
        )
        self._slot = self._gate._booking.begin(self._bill)

    def note(self, cached: int, written: int, output: int) -> None:
        """It has had so many tokens, which are paid for also if the process is killed: see `Slot`.

        To be called before anybody is shown them.
        """
        if self._slot is not None:
            self._slot.note_prompt(cached, written)
            self._slot.note_output(output)

    async def release(self) -> None:
        """Settle a request that was not handed to the engine; harmless after its end."""
        await self.settle(NOTHING)

    def leave(self) -> None:
        """What the limiter knows to be over is over here as well."""
        if not self._settled:
            self._settled = True
            self._gate.tickets.discard(self)
            self._leave_queue()
            self._gate._fewer.set()

    def _leave_queue(self) -> None:
        if self._waits:
            self._waits = False
            self._gate._leave_queue(self.tenant.id)

    def first_token(self) -> None:
        """The request waits no longer: its first token is there. Harmless when repeated."""
        if self._began is None and not self._settled:
            self._began = perf_counter()
            self._leave_queue()

    async def settle(self, used: Used) -> None:
        """Account for the end with what was really used; only the first call counts.

        It is done even if the caller is cancelled while it waits.
        """
        if self._settled:
            return
        gate, began = self._gate, self._began
        self.leave()
        stream_seconds = 0.0 if began is None else perf_counter() - began
        slot, self._slot = self._slot, None
        cost = gate._booking.request(self._bill, used, slot, stream_seconds=stream_seconds)
        if self.hold is not None:
            gate._budgets.settle(self.hold, cost)
        tokens = used.prompt_tokens + used.output_tokens
        await asyncio.shield(gate._finish(gate._limiter.settle(self.admission, tokens)))


def _most(request: EngineRequest) -> tuple[int, int]:
    """The tokens of prompt and output that a request may take."""
    output = request.num_lines * request.sampling.max_tokens - request.num_generated
    return 0 if request.num_generated else len(request.prompt), output


def limit_error(exceeded: LimitExceeded) -> ApiError:
    """What a client reads that has reached a limit; without `retry-after` waiting is in vain."""
    wait = exceeded.retry_after_seconds
    # A socket's error event has no headers: its reader has the message only.
    message = str(exceeded) if wait is None else f"{exceeded} Try again in {duration(wait)}."
    headers = _quota_headers(exceeded.requests, exceeded.tokens) | retry_headers(wait)
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
