"""An operator reads what sharing is worth: to the token, by tenant and registered prompt."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from msgspec import structs

from engine.api import Evicted
from tenants.usage.prices import PriceList, Prices, shown
from tests.app.conftest import MODEL, World
from tests.app.scripted_engine import SAVED_SECONDS

PRICES = Prices(currency="EUR", input=300, cached=30, written=400, output=900)
NOTHING = {
    **{"requests": 0, "prompt_tokens": 0, "found_tokens": 0, "hit_rate": None, "seconds": 0.0},
    **{"worth": "0.000000000", "discount": "0.000000000"},
}


@pytest.fixture
def prices() -> PriceList:
    return PriceList(model=PRICES)


async def ask(world: World, tenant: str = "acme", **body: Any) -> tuple[int, int]:
    """How many tokens its prompt had, and how many of them were found."""
    answer = await world.client(tenant).responses.create(model=MODEL, max_output_tokens=3, **body)
    assert answer.usage is not None
    return answer.usage.input_tokens, answer.usage.input_tokens_details.cached_tokens


def saved(*asked: tuple[int, int]) -> dict[str, Any]:
    prompt, found = (sum(numbers) for numbers in zip(*asked, strict=True))
    return {
        "requests": len(asked),
        "prompt_tokens": prompt,
        "found_tokens": found,
        "hit_rate": found / prompt,
        "seconds": pytest.approx(found * SAVED_SECONDS),
        "worth": shown(found * 300),
        "discount": shown(found * 270),
    }


async def test_what_was_saved_is_told_to_the_token(admin: httpx.AsyncClient, world: World) -> None:
    empty = (await admin.get("/sharing")).json()
    assert empty["total"] == {"name": None, "now": NOTHING, "today": NOTHING}
    assert (empty["tenants"], empty["prompts"], empty["evictions"]) == ([], [], [])
    said = "You know the catalog: anvils, rope and glue, by size and by colour. "
    acme = [await ask(world, input=said + one) for one in ("Anvil?", "Rope?", "Rope?")]
    umbra = [await ask(world, "umbra", input=said)]
    assert acme[0][1] == umbra[0][1] == 0 < acme[2][1]
    told = (await admin.get("/sharing")).json()
    everybody = saved(*acme, *umbra)
    assert told["total"] == {"name": None, "now": everybody, "today": everybody}
    assert told["tenants"] == [
        {"name": "acme", "now": saved(*acme), "today": saved(*acme)},
        {"name": "umbra", "now": saved(*umbra), "today": saved(*umbra)},
    ]
    assert (told["currency"], told["now_seconds"], told["prompts"]) == ("EUR", 20, [])
    first, others = (await admin.get("/sharing", params={"most": 1})).json()["tenants"]
    assert (first["name"], others) == ("acme", told["tenants"][1] | {"name": None})
    metrics = (await admin.get(f"{world.admin_url}/metrics")).text
    seconds = sum(found for _, found in acme) * SAVED_SECONDS
    (line,) = [
        one
        for one in metrics.splitlines()
        if one.startswith('partywall_prompt_seconds_saved_total{tenant="acme"}')
    ]
    assert float(line.split()[1]) == pytest.approx(seconds)


async def test_a_registered_prompt_is_told_by_its_own_tokens(
    admin: httpx.AsyncClient, world: World
) -> None:
    text = "You are the desk of a shop that sells anvils, rope and glue to whoever asks. " * 3
    await world.register("acme", "desk", text)
    asked = [await ask(world, prompt={"id": "desk"}, input=one) for one in ("Anvil?", "Rope?")]
    (prompt,) = (await admin.get("/sharing")).json()["prompts"]
    today = prompt["today"]
    shared = world.engine.requests[-1].namespaces.shared_tokens
    assert prompt["name"] == "acme/desk"
    assert today["prompt_tokens"] == 2 * shared
    assert today["found_tokens"] == sum(min(found, shared) for _, found in asked)
    assert 0 < today["found_tokens"] <= today["prompt_tokens"] < sum(one for one, _ in asked)
    assert today["seconds"] == pytest.approx(today["found_tokens"] * SAVED_SECONDS)


async def test_who_pushed_out_whom_is_told_and_what_of_it_is_not_known(
    admin: httpx.AsyncClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    stats = structs.replace(
        await world.engine.stats(),
        evicted=[
            Evicted("acme", "bulk", "pressure", 1500, 1200),
            Evicted("old", "", "deleted", 9, 0),
        ],
    )

    async def told() -> Any:
        return stats

    monkeypatch.setattr(world.engine, "stats", told)
    assert (await admin.get("/sharing")).json()["evictions"] == [
        {
            **{"tenant": "acme", "by": "pressure", "taken_by": "bulk"},
            **{"last_minute": 1200, "blocks": 1500},
        },
        {"tenant": "old", "by": "deleted", "taken_by": None, "last_minute": 0, "blocks": 9},
    ]
    monkeypatch.undo()
    world.engine.down = True
    assert (await admin.get("/sharing")).json()["evictions"] is None


async def test_it_is_told_to_operators_of_all_alone(admin: httpx.AsyncClient, world: World) -> None:
    made = await admin.post("/tokens", json={"name": "ann", "role": "admin", "tenant": "acme"})
    held = {"authorization": f"Bearer {made.json()['admin_token']}"}
    assert (await admin.get("/sharing", headers=held)).status_code == 403
    assert (await admin.get("/sharing", headers=world.headers())).status_code == 401
    assert (await admin.get("/sharing", params={"most": 257})).status_code == 422
