"""What an operator sees of a tenant's cache: by conversation, by registered prompt, by day."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

import httpx
import pytest
from transformers import PreTrainedTokenizerBase
from typer.testing import CliRunner

from app.cli.options import CommandError
from app.cli.program import app
from tenants.usage.meter import UsageMeter
from tests.app.admin.problem import fields
from tests.app.conftest import ADMIN_TOKEN, MODEL, World
from tests.app.pooled_engine import BLOCK_SIZE, PooledEngine

CACHE = "/tenants/acme/cache"
TEXT = "You know the catalog: anvils, rope, glue, and what they cost. Be brief and friendly."
SECRET_WORD = "platypus"


@pytest.fixture
async def engine(tokenizer: PreTrainedTokenizerBase) -> AsyncIterator[PooledEngine]:
    engine = PooledEngine(tokenizer)
    await engine.start()
    yield engine
    await engine.close()


async def say(world: World, text: str, tenant: str = "acme", **options: Any) -> Any:
    return await world.client(tenant).responses.create(
        model=MODEL, input=text, max_output_tokens=4, **options
    )


async def chains(admin: httpx.AsyncClient, tenant: str = "acme", **query: Any) -> list[Any]:
    answer = await admin.get(f"/tenants/{tenant}/cache", params=query)
    assert answer.status_code == 200
    assert SECRET_WORD not in answer.text
    return list(answer.json()["chains"])


async def test_a_conversation_is_told_by_its_id_and_its_prompt(
    admin: httpx.AsyncClient, world: World
) -> None:
    await world.register("acme", "desk", TEXT)
    client = world.client()
    conversation = await client.conversations.create()
    for _ in range(2):
        await say(
            world,
            f"a {SECRET_WORD} for you",
            conversation=conversation.id,
            instructions=TEXT,
            prompt_cache_options={"ttl": "30m"},
        )
    alone = await say(world, f"one more {SECRET_WORD}, and nobody else, for all of us")
    first, told, prompt = await chains(admin)
    assert (first["conversation"], first["prompt"], first["shared_tokens"]) == (alone.id, None, 0)
    assert told["conversation"] == conversation.id
    assert told["prompt"] == {"owner": "acme", "name": "desk", "version": 1}
    assert (told["requests"], told["hits"]) == (2, 1)
    assert told["tokens"] == told["found_tokens"] > told["shared_tokens"] == prompt["tokens"]
    assert told["tokens"] % BLOCK_SIZE == 0
    assert 0 < told["lease_seconds"] <= 1800
    assert (told["leased_tokens"], first["leased_tokens"]) == (told["tokens"], 0)
    assert 0 <= told["idle_seconds"] <= told["age_seconds"]
    assert (prompt["conversation"], prompt["prompt"]) == (None, told["prompt"])
    assert (prompt["requests"], prompt["hits"]) == (2, 2)


async def test_what_is_said_behind_a_response_is_told_once(
    admin: httpx.AsyncClient, world: World
) -> None:
    before = await say(world, "a long hello to everybody who is here")
    after = await say(world, "and another one", previous_response_id=before.id)
    (one,) = await chains(admin)
    assert (one["conversation"], one["requests"], one["hits"]) == (after.id, 2, 1)


async def test_a_member_sees_what_it_uses_of_its_group_and_nothing_of_others(
    admin: httpx.AsyncClient, world: World
) -> None:
    await admin.post("/groups", json={"id": "law"})
    for tenant in ("acme", "umbra"):
        await admin.patch(f"/tenants/{tenant}", json={"share_group": "law"})
    await world.register("@law", "catalog", TEXT)
    await world.register("umbra", "own", f"{TEXT} Besides, never say no to anybody who asks.")
    theirs = await say(world, "hello there", "umbra", instructions=TEXT)
    assert await chains(admin) == []
    ours = await say(world, "hello here, all of you", instructions=TEXT)
    conversation, prompt = await chains(admin)
    catalog = {"owner": "@law", "name": "catalog", "version": 1}
    assert (conversation["conversation"], conversation["prompt"]) == (ours.id, catalog)
    assert (prompt["prompt"], prompt["requests"], prompt["hits"]) == (catalog, 1, 1)
    others = await chains(admin, "umbra")
    assert {one["conversation"] for one in others} == {None, theirs.id}
    named = {one["prompt"]["name"] for one in others if one["conversation"] is None}
    assert named == {"own", "catalog"}


async def test_pages_go_on_where_the_last_one_ended(admin: httpx.AsyncClient, world: World) -> None:
    asked = [await say(world, f"{number} bottles of the best on the wall") for number in range(5)]
    ids, after = [], None
    for count in (2, 2, 1):
        query = {"limit": 2} | ({} if after is None else {"after": after})
        page = (await admin.get(CACHE, params=query)).json()
        assert len(page["chains"]) == count
        ids += [one["conversation"] for one in page["chains"]]
        after = page["next"]
    assert after is None
    assert ids == [one.id for one in reversed(asked)]
    assert fields(await admin.get(CACHE, params={"limit": 0}), 422) == ["limit"]
    assert fields(await admin.get(CACHE, params={"after": "x"}), 422) == ["after"]
    assert (await admin.get("/tenants/nobody/cache")).status_code == 404


async def test_what_was_found_is_told_by_day_for_a_month(
    admin: httpx.AsyncClient, world: World
) -> None:
    today = datetime.now(UTC).date()
    for ago, counts in ((40, (10, 10)), (3, (200, 50)), (2, (0, 0))):
        noon = datetime.combine(today - timedelta(ago), datetime.min.time(), UTC).timestamp()
        meter = UsageMeter(world.redis, clock=lambda noon=noon: noon)  # type: ignore[misc]
        meter.add("acme", requests=1, prompt_tokens=counts[0], cached_tokens=counts[1])
        await meter.flush()
    days = {date.fromisoformat(day["day"]): day for day in (await admin.get(CACHE)).json()["days"]}
    assert days.keys() == {today - timedelta(3), today - timedelta(2)}
    assert days[today - timedelta(3)]["hit_ratio"] == 0.25
    assert days[today - timedelta(2)]["hit_ratio"] is None


async def test_the_command_shows_the_same(world: World) -> None:
    await world.register("acme", "desk", TEXT)
    answer = await say(world, "hello to everybody here", instructions=TEXT)

    def partywall(*words: str, token: str = ADMIN_TOKEN) -> str:
        options = ["tenant", "cache", *words, "--url", world.admin_url, "--admin-token", token]
        done = CliRunner().invoke(app, options)
        if done.exception is not None:
            raise done.exception
        return done.output

    told = await asyncio.to_thread(lambda: partywall("acme"))
    assert answer.id in told
    assert "acme/desk 1" in told
    told = await asyncio.to_thread(lambda: partywall("acme", "--json", "--limit", "1"))
    (one,) = json.loads(told)["chains"]
    assert one["conversation"] == answer.id
    with pytest.raises(CommandError, match="no tenant 'nobody'"):
        await asyncio.to_thread(lambda: partywall("nobody"))
    with pytest.raises(CommandError, match=r"token"):
        await asyncio.to_thread(lambda: partywall("acme", token="wrong"))
