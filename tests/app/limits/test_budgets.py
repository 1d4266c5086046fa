"""A tenant's budget over HTTP: what is told, what is refused, and what it was spent for."""

from __future__ import annotations

from datetime import date

import httpx
import openai
import pytest

from tenants.usage.prices import PriceList, Prices
from tests.app.admin.problem import fields
from tests.app.conftest import MODEL, World
from tests.tenants.adapters.putting import put

WARNING = "x-partywall-budget-warning"


@pytest.fixture
def prices() -> PriceList:
    return PriceList(model=Prices(currency="EUR", input=1000, cached=10, written=2000, output=5000))


async def booked(world: World, tenant: str = "acme") -> str:
    """What a tenant has spent, once all that has ended is counted."""
    await world.app.state.service.gate.close()
    await world.stores.usage.flush()
    days = await world.stores.usage.read(tenant, date.min, date.max)
    return str(sum(day.cost_nanos for day in days))


async def test_a_spent_soft_budget_is_told_in_a_header(world: World) -> None:
    await world.limit("acme", soft_budget_micros=1)
    ask = world.client().chat.completions.with_raw_response.create
    message = {"role": "user", "content": "hello"}
    first = await ask(model=MODEL, messages=[message], max_tokens=4)  # type: ignore[list-item]
    assert WARNING not in first.headers
    usage = first.parse().usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    written = usage.prompt_tokens_details.cache_write_tokens or 0
    plain = usage.prompt_tokens - written
    assert await booked(world) == str(plain * 1000 + written * 2000 + 4 * 5000)
    second = await ask(model=MODEL, messages=[message], max_tokens=4)  # type: ignore[list-item]
    assert second.headers[WARNING].startswith("the soft budget of 0.000001000 EUR for 20")


async def test_what_a_hard_budget_does_not_allow_is_insufficient_quota(world: World) -> None:
    await world.limit("acme", hard_budget_micros=500, tokens_per_day=10_000)
    responses = world.client().responses
    await responses.create(model=MODEL, input="hello", max_output_tokens=4)
    with pytest.raises(openai.RateLimitError) as caught:
        await responses.create(model=MODEL, input="hello", max_output_tokens=100)
    error = caught.value
    assert (error.code, error.type) == ("insufficient_quota", "insufficient_quota")
    assert "hard budget of 0.000500000 EUR" in error.message
    assert error.response.headers["x-should-retry"] == "false"
    assert int(error.response.headers["retry-after"]) > 0
    # What was refused is given back, and another tenant has a budget of its own.
    again = await responses.with_raw_response.create(
        model=MODEL, input="hello", max_output_tokens=4
    )
    assert again.status_code == 200
    await world.client("umbra").responses.create(model=MODEL, input="hello", max_output_tokens=100)
    assert await booked(world) != "0"
    assert await world.redis.execute("ZCARD", "pw:{acme}:spending") == 0


async def test_an_operator_sees_prices_and_sets_budgets(
    admin: httpx.AsyncClient, world: World
) -> None:
    limits = {"soft_budget_micros": 5_000_000, "hard_budget_micros": 10_000_000}
    changed = await admin.patch("/tenants/acme", json={"limits": limits})
    assert {name: changed.json()["limits"][name] for name in limits} == limits
    assert (await admin.get("/prices")).json() == {
        "model": MODEL,
        "currency": "EUR",
        "input": "1.000000000",
        "cached": "0.010000000",
        "written": "2.000000000",
        "output": "5.000000000",
        "block_hours": "0.000000000",
        "adapters": {},
    }
    await world.client().responses.create(model=MODEL, input="hello", max_output_tokens=4)
    spent = int(await booked(world))
    usage = (await admin.get("/tenants/acme/usage")).json()
    assert usage["currency"] == "EUR"
    assert usage["usage"][0]["cost"] == f"0.{spent:09d}"


class TestWithPricesOfAdapters:
    @pytest.fixture
    def prices(self) -> PriceList:
        one = Prices(currency="EUR", input=1, cached=1, written=1, output=1)
        dear = Prices(currency="EUR", input=10, cached=10, written=10, output=1000)
        return PriceList(model=one, adapters={"acme/rhyme": dear})

    async def test_tokens_of_an_adapter_cost_what_is_given_for_it(
        self, admin: httpx.AsyncClient, world: World
    ) -> None:
        world.engine.linears = {"model.q_proj": (8, 8)}
        for tenant in ("acme", "umbra"):
            await put(world.stores.adapters, tenant, "rhyme")
        spent: list[int] = []
        for tenant, model in (("acme", MODEL), ("acme", f"{MODEL}:rhyme"), ("umbra", ":rhyme")):
            before = int(await booked(world, tenant))
            answer = await world.client(tenant).responses.create(
                model=model, input="hello", max_output_tokens=4
            )
            assert answer.usage is not None
            spent.append(int(await booked(world, tenant)) - before)
        prompt = answer.usage.input_tokens
        assert spent == [prompt + 4, prompt * 10 + 4 * 1000, prompt + 4]
        told = (await admin.get("/tenants/acme/usage/adapters")).json()
        assert (told["currency"], told["usage"][0]["cost"]) == ("EUR", f"0.{spent[1]:09d}")
        assert (await admin.get("/prices")).json()["adapters"] == {
            "acme/rhyme": {
                "input": "0.010000000",
                "cached": "0.010000000",
                "written": "0.010000000",
                "output": "1.000000000",
            }
        }

    async def test_a_budget_holds_at_the_price_of_an_adapter(self, world: World) -> None:
        world.engine.linears = {"model.q_proj": (8, 8)}
        await put(world.stores.adapters, "acme", "rhyme")
        await world.limit("acme", hard_budget_micros=2)
        responses = world.client().responses
        with pytest.raises(openai.RateLimitError):
            await responses.create(model=f"{MODEL}:rhyme", input="hello", max_output_tokens=4)
        await responses.create(model=MODEL, input="hello", max_output_tokens=4)


class TestWithoutPrices:
    @pytest.fixture
    def prices(self) -> PriceList:
        return PriceList(model=Prices())

    async def test_a_budget_that_nothing_would_count_against_is_refused(
        self, admin: httpx.AsyncClient
    ) -> None:
        for name in ("soft_budget_micros", "hard_budget_micros"):
            body = {"limits": {name: 5}}
            assert fields(await admin.patch("/tenants/acme", json=body), 409) == [f"limits.{name}"]
            body["id"] = "nova"  # type: ignore[assignment]
            assert fields(await admin.post("/tenants", json=body), 409) == [f"limits.{name}"]
        assert (await admin.get("/tenants/acme/usage")).json()["currency"] is None
