"""The gate: what it takes, gives back and counts, whatever becomes of a request."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

import pytest
from msgspec import structs

from app.limits import admission
from app.limits.admission import Gate, Ticket
from app.limits.booking import NOTHING, Booking, Payable, Used
from app.observe.metrics import Metrics
from app.wire.errors import ApiError, duration
from engine.api import BeamParams, EngineRequest, Namespaces, SamplingParams
from tenants.limits.budgets import Budgets
from tenants.limits.limiter import Admission, Limiter, LimitExceeded
from tenants.records import ApiKey, Principal, Tenant, TenantLimits
from tenants.usage.meter import UsageMeter

USED = Used(prompt_tokens=5, cached_tokens=4, output_tokens=3)


class SlowLimiter(Limiter):
    """Grants everything, once it may, and notes what it was asked."""

    def __init__(self) -> None:
        self.defaults = TenantLimits()
        self.may = asyncio.Event()
        self.may.set()
        self.admitted = 0
        self.refuses: Exception | None = None
        self.taken: list[int] = []
        self.settled: list[int] = []

    async def admit_all(self, tenant: Tenant, request_ids: Sequence[str]) -> list[Admission]:
        await self.may.wait()
        self.admitted += len(request_ids)
        return [
            Admission(
                tenant_id=tenant.id,
                request_id=request_id,
                limits=tenant.limits,
                shared=True,
                requests=None,
                tokens=None,
            )
            for request_id in request_ids
        ]

    async def reserve_all(
        self, admissions: Sequence[Admission], tokens: Sequence[int]
    ) -> list[Admission]:
        await self.may.wait()
        if self.refuses is not None:
            raise self.refuses
        self.taken += tokens
        return [
            structs.replace(one, taken_tokens=count)
            for one, count in zip(admissions, tokens, strict=True)
        ]

    async def settle(self, admission: Admission, used_tokens: int) -> None:
        await self.may.wait()
        self.settled.append(used_tokens)


class Notebook(UsageMeter):
    """Notes what is metered."""

    def __init__(self) -> None:
        super().__init__(Mock())
        self.added: list[dict[str, Any]] = []

    def add(self, tenant_id: str, *, generation: str = "", **counts: Any) -> None:
        assert generation == "0.0"
        self.added.append({"tenant_id": tenant_id, **counts})


class Unlimited(Budgets):
    """Of tenants without a budget nothing is asked."""

    def __init__(self) -> None:
        pass


@pytest.fixture
def limiter() -> SlowLimiter:
    return SlowLimiter()


@pytest.fixture
def meter() -> Notebook:
    return Notebook()


@pytest.fixture
def gate(limiter: SlowLimiter, meter: Notebook) -> Gate:
    return Gate(limiter, Unlimited(), Booking(meter), Metrics(), 3)


def principal(**limits: int) -> Principal:
    tenant = Tenant(
        id="acme",
        name="acme",
        namespace_secret=b"s" * 32,
        created_at=0.0,
        limits=TenantLimits(**limits),
    )
    return Principal(
        tenant=tenant, key=ApiKey(id="k", tenant_id="acme", digest=b"", created_at=0.0)
    )


def request(*, prompt: int = 5, generated: int = 0, max_tokens: int = 10) -> EngineRequest:
    return EngineRequest(
        request_id="r",
        tenant="acme",
        prompt=[1] * prompt,
        namespaces=Namespaces(shared_key=b"", private_key=b""),
        sampling=SamplingParams(max_tokens=max_tokens),
        generated=[[1] * generated],
    )


async def admit(gate: Gate, request: EngineRequest, **limits: int) -> Ticket:
    """A ticket with the tokens of `request`."""
    ticket = await gate.admit(principal(**limits))
    await ticket.reserve(Payable(request))
    return ticket


async def test_a_request_is_counted_before_its_tokens_are_known(
    gate: Gate, limiter: SlowLimiter
) -> None:
    ticket = await gate.admit(principal())
    assert (limiter.admitted, limiter.taken) == (1, [])
    await ticket.release()
    assert limiter.settled == [0]


async def test_a_request_whose_tokens_are_refused_leaves_its_place_and_stays_counted(
    gate: Gate, limiter: SlowLimiter
) -> None:
    for _ in range(2):
        ticket = await gate.admit(principal(queued_requests=1))
        limiter.refuses = LimitExceeded("tokens", "too many", 1.0)
        with pytest.raises(ApiError) as refused:
            await ticket.reserve(Payable(request()))
        assert (refused.value.status, refused.value.headers["retry-after"]) == (429, "1")
        await ticket.release()  # what a caller may do without a thought
    assert (limiter.admitted, limiter.settled) == (2, [])


async def test_the_prompt_and_the_longest_answer_are_taken_and_what_was_used_is_settled(
    gate: Gate, limiter: SlowLimiter
) -> None:
    ticket = await admit(gate, request())
    assert limiter.taken == [15]
    await ticket.settle(USED)
    assert limiter.settled == [8]


@pytest.mark.parametrize(
    ("several", "taken"),
    [
        ({"num_sequences": 3}, 5 + 3 * 10),
        ({"beam": BeamParams(num_beams=4, num_return=2)}, 5 + 4 * 10),
        ({"num_sequences": 2, "generated": [[1] * 3, [1] * 4]}, 2 * 10 - 7),
    ],
    ids=["n", "beams", "continued"],
)
async def test_every_sequence_that_is_computed_is_taken_at_its_longest(
    gate: Gate, limiter: SlowLimiter, several: dict[str, Any], taken: int
) -> None:
    await admit(gate, structs.replace(request(), **several))
    assert limiter.taken == [taken]


async def test_only_the_first_settlement_counts(
    gate: Gate, limiter: SlowLimiter, meter: Notebook
) -> None:
    ticket = await admit(gate, request())
    await ticket.settle(USED)
    await ticket.settle(NOTHING)
    assert limiter.settled == [8]
    assert len(meter.added) == 1


async def test_seconds_of_a_stream_count_from_its_first_token_to_its_end(
    gate: Gate, meter: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(admission, "perf_counter", lambda: now)
    ticket = await admit(gate, request())
    now = 110.0
    ticket.first_token()
    now = 113.0
    ticket.first_token()
    await ticket.settle(USED)
    assert meter.added[0]["stream_seconds"] == 3.0


async def test_a_request_that_was_never_answered_is_not_counted(
    gate: Gate, limiter: SlowLimiter, meter: Notebook
) -> None:
    await (await admit(gate, request())).settle(NOTHING)
    assert limiter.settled == [0]
    assert (meter.added[0]["requests"], meter.added[0]["stream_seconds"]) == (0, 0.0)
    await (await admit(gate, request())).settle(USED)
    assert meter.added[1]["requests"] == 1


async def test_an_answer_that_goes_on_takes_its_rest_and_is_no_new_request(
    gate: Gate, limiter: SlowLimiter, meter: Notebook
) -> None:
    ticket = await admit(gate, request(generated=4))
    assert limiter.taken == [6]
    await ticket.settle(Used(output_tokens=6))
    assert meter.added[0]["requests"] == 0
    assert meter.added[0]["output_tokens"] == 6


async def test_what_is_taken_for_a_client_that_leaves_meanwhile_is_given_back(
    gate: Gate, limiter: SlowLimiter
) -> None:
    limiter.may.clear()
    admitting = asyncio.create_task(gate.admit(principal(queued_requests=1)))
    await asyncio.sleep(0)
    admitting.cancel()
    await asyncio.wait({admitting})
    limiter.may.set()
    await gate.close()
    assert (limiter.admitted, limiter.settled) == (1, [0])
    ticket = await gate.admit(principal(queued_requests=1))
    limiter.may.clear()
    reserving = asyncio.create_task(ticket.reserve(Payable(request())))
    await asyncio.sleep(0)
    reserving.cancel()
    await asyncio.wait({reserving})
    limiter.may.set()
    await gate.close()
    assert (limiter.taken, limiter.settled) == ([15], [0, 0])
    assert isinstance(await gate.admit(principal(queued_requests=1)), Ticket)


async def test_a_request_whose_reservation_breaks_off_can_still_be_given_back(
    gate: Gate, limiter: SlowLimiter
) -> None:
    ticket = await gate.admit(principal(queued_requests=1))
    limiter.refuses = ValueError("unforeseen")
    with pytest.raises(ValueError, match="unforeseen"):
        await ticket.reserve(Payable(request()))
    await ticket.release()
    assert limiter.settled == [0]
    assert isinstance(await gate.admit(principal(queued_requests=1)), Ticket)


async def test_a_settlement_is_finished_though_its_caller_is_cancelled(
    gate: Gate, limiter: SlowLimiter
) -> None:
    ticket = await admit(gate, request())
    limiter.may.clear()
    settling = asyncio.create_task(ticket.settle(USED))
    await asyncio.sleep(0)
    settling.cancel()
    await asyncio.wait({settling})
    assert limiter.settled == []
    limiter.may.set()
    await gate.close()
    assert limiter.settled == [8]


@pytest.mark.parametrize("begins", [False, True])
async def test_a_place_in_the_queue_is_free_from_the_first_token_or_the_end_on(
    gate: Gate, begins: bool
) -> None:
    narrow = principal(queued_requests=1)
    for _ in range(3):
        ticket = await gate.admit(narrow)
        with pytest.raises(ApiError) as refused:
            await gate.admit(narrow)
        assert refused.value.code == "queue_full"
        if begins:
            ticket.first_token()
        else:
            await ticket.settle(NOTHING)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0ms"),
        (0.0201, "21ms"),
        (1, "1s"),
        (1.5, "1.5s"),
        (59.9999, "1m0s"),
        (360, "6m0s"),
        (3601, "1h0m1s"),
    ],
)
def test_times_are_written_as_clients_know_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


async def test_all_tenants_together_wait_in_one_queue_that_has_an_end(gate: Gate) -> None:
    waiting = [await gate.admit(principal()) for _ in range(3)]
    with pytest.raises(ApiError, match="waiting for the service") as full:
        await gate.admit(principal())
    assert (full.value.status, full.value.code) == (429, "queue_full")
    assert int(full.value.headers["retry-after"]) > 0
    waiting[0].first_token()
    await waiting[1].release()
    assert [await gate.admit(principal()) for _ in range(2)]


async def test_a_tenant_without_a_limit_of_waiting_requests_has_the_services_default(
    gate: Gate, limiter: SlowLimiter
) -> None:
    limiter.defaults = TenantLimits(queued_requests=1)
    await gate.admit(principal())
    with pytest.raises(ApiError) as refused:
        await gate.admit(principal())
    assert (refused.value.status, refused.value.code) == (429, "queue_full")
    await gate.admit(principal(queued_requests=2))
