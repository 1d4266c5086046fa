"""Registered system prompts, over a real server."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
import redis
from msgspec.structs import replace

from engine.api import EngineInfo, Namespaces
from engine.blocks.hashing import Extras, block_hashes
from tenants.errors import InvalidField, PromptNotFound, TenantNotFound
from tenants.prompts.index import engine_fingerprint, index_prompt
from tenants.prompts.system_prompts import SystemPrompts
from tenants.records import SystemPrompt, Tenant
from tests.tenants.conftest import OpenRoom, Room, everything, listening

INFO = EngineInfo(
    model="acme/Model-1",
    device="cpu",
    dtype="bfloat16",
    block_size=16,
    num_blocks=100,
    max_context_tokens=1600,
    max_running_sequences=64,
    vocab_size=256,
    eos_token_ids=(2,),
    hash_extras=b"weights 1, bfloat16",
)


@pytest.fixture
async def acme(room: Room) -> Tenant:
    await room.store.create_tenant("umbra")
    return (await room.store.create_tenant("acme"))[0]


@pytest.fixture
def prompts(room: Room, acme: Tenant) -> SystemPrompts:
    return room.prompts


async def test_every_new_text_is_a_new_version_and_the_newest_is_active(
    prompts: SystemPrompts,
) -> None:
    first = await prompts.put("acme", "law", "one")
    assert first.active
    second = await prompts.put("acme", "law", "two")
    assert (first.version, first.text, second.version, second.text) == (1, "one", 2, "two")
    assert second.active
    first = replace(first, active=False)
    assert await prompts.get("acme", "law") == second
    assert await prompts.get("acme", "law", 1) == first
    assert await prompts.get("acme", "law", "1") == first
    assert await prompts.get("acme", "law", 2) == second
    assert await prompts.versions("acme", "law") == [second, first]


async def test_a_version_may_be_put_aside_and_activated_later(prompts: SystemPrompts) -> None:
    first = await prompts.put("acme", "law", "one", activate=False)
    assert first.active  # something must be
    second = await prompts.put("acme", "law", "two", activate=False)
    assert not second.active
    assert await prompts.get("acme", "law") == first
    assert await prompts.list("acme") == [first]
    active = await prompts.activate("acme", "law", 2)
    assert active == replace(second, active=True)
    assert await prompts.get("acme", "law") == active
    assert await prompts.get("acme", "law", 1) == replace(first, active=False)
    back = await prompts.activate("acme", "law", 1)
    assert await prompts.list("acme") == [back] == [first]


async def test_a_version_may_say_which_adapter_is_meant(prompts: SystemPrompts) -> None:
    first = await prompts.put("acme", "law", "one")
    assert first.adapter is None
    second = await prompts.put("acme", "law", "one", adapter="rhyme")
    assert (second.version, second.adapter) == (2, "rhyme")
    assert await prompts.put("acme", "law", "one", adapter="rhyme") == second
    with pytest.raises(InvalidField, match="adapter"):
        await prompts.put("acme", "law", "one", adapter="no name")


async def test_the_newest_text_put_again_is_activated_by_that(prompts: SystemPrompts) -> None:
    await prompts.put("acme", "law", "one")
    second = await prompts.put("acme", "law", "two", activate=False)
    assert await prompts.put("acme", "law", "two", activate=False) == second
    assert await prompts.put("acme", "law", "two") == replace(second, active=True)
    assert len(await prompts.versions("acme", "law")) == 2


@pytest.mark.parametrize(("name", "version"), [("law", 3), ("law", 0), ("law", -1), ("tax", 1)])
async def test_what_is_not_there_cannot_be_activated(
    prompts: SystemPrompts, name: str, version: int
) -> None:
    await prompts.put("acme", "law", "one")
    second = await prompts.put("acme", "law", "two")
    with pytest.raises(PromptNotFound, match=name):
        await prompts.activate("acme", name, version)
    assert await prompts.get("acme", "law") == second


async def test_a_pin_stays_with_the_prompt_through_its_versions(prompts: SystemPrompts) -> None:
    first = await prompts.put("acme", "law", "one")
    assert not first.pinned
    assert await prompts.set_pinned("acme", "law", True) == replace(first, pinned=True)
    second = await prompts.put("acme", "law", "two")
    assert second.pinned
    assert await prompts.list("acme") == [second]
    assert await prompts.set_pinned("acme", "law", False) == replace(second, pinned=False)
    with pytest.raises(PromptNotFound, match="tax"):
        await prompts.set_pinned("acme", "tax", True)
    await prompts.set_pinned("acme", "law", True)
    await prompts.delete("acme", "law")
    assert not (await prompts.put("acme", "law", "three")).pinned


async def test_prompts_and_versions_are_listed_page_by_page(prompts: SystemPrompts) -> None:
    for name in ("tax", "law", "art"):
        await prompts.put("acme", name, "one")
    assert [prompt.name for prompt in await prompts.list("acme", limit=2)] == ["art", "law"]
    assert [prompt.name for prompt in await prompts.list("acme", after="law")] == ["tax"]
    assert await prompts.list("acme", after="tax", limit=2) == []
    for number in range(11):
        await prompts.put("acme", "law", f"{number}")
    numbers = [prompt.version for prompt in await prompts.versions("acme", "law", limit=3)]
    assert numbers == [12, 11, 10]
    numbers = [prompt.version for prompt in await prompts.versions("acme", "law", 10, 2)]
    assert numbers == [9, 8]
    with pytest.raises(PromptNotFound, match="lax"):
        await prompts.versions("acme", "lax")


async def test_the_active_text_put_again_is_no_new_version(prompts: SystemPrompts) -> None:
    first = await prompts.put("acme", "law", "one")
    assert await prompts.put("acme", "law", "one") == first
    await prompts.put("acme", "law", "two")
    again = await prompts.put("acme", "law", "one")
    assert (again.version, again.text) == (3, "one")


async def test_texts_come_back_exactly(prompts: SystemPrompts) -> None:
    text = "Grüße \U0001f600 \x00 \r\n\t" + "x" * 100_000
    await prompts.put("acme", "law", text)
    found = await prompts.get("acme", "law")
    assert found is not None
    assert found.text == text
    assert await prompts.find_by_text("acme", text) == found


async def test_versions_put_at_the_same_time_are_all_kept(
    prompts: SystemPrompts, redis_url: str, open_room: OpenRoom
) -> None:
    other = (await open_room(redis_url)).prompts
    puts = [one.put("acme", "law", f"{n}") for n, one in enumerate([prompts, other] * 5)]
    made = await asyncio.gather(*puts)
    assert sorted(prompt.version for prompt in made) == list(range(1, 11))
    for prompt in made:
        found = await prompts.get("acme", "law", prompt.version)
        assert found == replace(prompt, active=prompt.version == 10)


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("law", 3),
        ("law", 0),
        ("law", -1),
        ("law", "latest"),
        ("law", ""),
        ("law", "1 "),
        ("law", "01"),
        ("law", "9" * 400),
        ("law", "\ud800"),
        ("lax", None),
        ("", None),
        ("la w", None),
        ("*", None),
        ("l" * 65, None),
        ("\ud800", None),
    ],
)
async def test_what_is_not_there_is_none(
    prompts: SystemPrompts, name: str, version: int | str | None
) -> None:
    await prompts.put("acme", "law", "one")
    await prompts.put("acme", "law", "two")
    assert await prompts.get("acme", name, version) is None


async def test_another_tenants_prompt_is_not_there(prompts: SystemPrompts) -> None:
    await prompts.put("acme", "law", "one")
    assert await prompts.get("umbra", "law") is None
    assert await prompts.find_by_text("umbra", "one") is None
    assert await prompts.list("umbra") == []
    with pytest.raises(PromptNotFound):
        await prompts.delete("umbra", "law")
    assert await prompts.get("acme", "law") is not None


async def test_the_list_holds_the_active_version_of_each_prompt_by_name(
    prompts: SystemPrompts,
) -> None:
    assert await prompts.list("acme") == []
    tax = await prompts.put("acme", "tax", "one")
    await prompts.put("acme", "law", "two")
    law = await prompts.put("acme", "law", "three")
    assert await prompts.list("acme") == [law, tax]


async def test_a_deleted_prompt_is_gone_in_all_versions(
    prompts: SystemPrompts, raw: redis.Redis
) -> None:
    await prompts.put("acme", "law", "the old wording")
    await prompts.put("acme", "law", "the new wording")
    tax = await prompts.put("acme", "tax", "another")
    await prompts.delete("acme", "law")
    assert await prompts.list("acme") == [tax]
    for version in (None, 1, 2):
        assert await prompts.get("acme", "law", version) is None
    assert await prompts.find_by_text("acme", "the old wording") is None
    assert not [value for value in everything(raw).values() if b"wording" in value]
    with pytest.raises(PromptNotFound, match="law"):
        await prompts.delete("acme", "law")


async def test_a_version_number_never_comes_back_with_another_text(
    prompts: SystemPrompts,
) -> None:
    await prompts.put("acme", "law", "one")
    await prompts.delete("acme", "law")
    again = await prompts.put("acme", "law", "one")
    assert again.version == 2
    assert await prompts.get("acme", "law", 1) is None
    assert await prompts.find_by_text("acme", "one") == again


async def test_any_live_version_is_found_by_its_exact_text(prompts: SystemPrompts) -> None:
    first = await prompts.put("acme", "law", "one")
    second = await prompts.put("acme", "law", "two")
    assert await prompts.find_by_text("acme", "one") == replace(first, active=False)
    assert await prompts.find_by_text("acme", "two") == second
    for text in ("", "on", "one ", "One", "\ud800"):
        assert await prompts.find_by_text("acme", text) is None


async def test_a_text_that_was_not_registered_is_found_once_it_is(prompts: SystemPrompts) -> None:
    assert await prompts.find_by_text("acme", "one") is None
    assert await prompts.get("acme", "law") is None
    prompt = await prompts.put("acme", "law", "one")
    assert await prompts.find_by_text("acme", "one") == prompt
    assert await prompts.get("acme", "law") == prompt


async def test_one_text_under_two_names_is_found_until_both_are_gone(
    prompts: SystemPrompts,
) -> None:
    law = await prompts.put("acme", "law", "one")
    tax = await prompts.put("acme", "tax", "one")
    assert await prompts.find_by_text("acme", "one") in (law, tax)
    await prompts.delete("acme", "law")
    assert await prompts.find_by_text("acme", "one") == tax
    await prompts.delete("acme", "tax")
    assert await prompts.find_by_text("acme", "one") is None


async def test_a_prompt_needs_its_tenant(
    prompts: SystemPrompts, room: Room, raw: redis.Redis
) -> None:
    await room.store.delete_tenant("acme")
    with pytest.raises(TenantNotFound, match="acme"):
        await prompts.put("acme", "law", "one")
    assert not [key for key in everything(raw) if b"{acme}" in key]


@pytest.mark.parametrize("name", ["", "a b", "a:b", "ä", "n" * 65, "n\n", "\ud800"])
async def test_an_impossible_name_is_refused(prompts: SystemPrompts, name: str) -> None:
    with pytest.raises(InvalidField) as caught:
        await prompts.put("acme", name, "one")
    assert caught.value.field == "name"


@pytest.mark.parametrize("text", ["", "\ud800", "x" * ((1 << 20) + 1)])
async def test_an_impossible_text_is_refused(prompts: SystemPrompts, text: str) -> None:
    with pytest.raises(InvalidField) as caught:
        await prompts.put("acme", "law", text)
    assert caught.value.field == "text"
    assert await prompts.list("acme") == []


async def test_what_one_process_puts_another_uses_on_notice(
    room: Room, acme: Tenant, redis_url: str, open_room: OpenRoom
) -> None:
    remembering = await open_room(redis_url, cache_seconds=3600)
    old = await room.prompts.put("acme", "law", "one")
    async with listening(remembering) as heard:
        assert await remembering.prompts.get("acme", "law") == old
        assert await remembering.prompts.find_by_text("acme", "two") is None
        new = await room.prompts.put("acme", "law", "two")
        change = await asyncio.wait_for(heard.get(), 20)
        assert (change.kind, change.tenant_id, change.name) == ("prompts", "acme", "law")
        assert await remembering.prompts.get("acme", "law") == new
        assert await remembering.prompts.find_by_text("acme", "two") == new
        await room.prompts.delete("acme", "law")
        await asyncio.wait_for(heard.get(), 20)
        assert await remembering.prompts.get("acme", "law") is None
        assert await remembering.prompts.find_by_text("acme", "two") is None


async def test_a_known_prompt_costs_no_round_trip(
    prompts: SystemPrompts, room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = await prompts.put("acme", "law", "one")
    for _ in range(2):
        assert await prompts.get("acme", "law") == prompt
        assert await prompts.find_by_text("acme", "one") == prompt
        assert await prompts.find_by_text("acme", "not registered") is None
        monkeypatch.setattr(room.redis, "execute", None)


def test_an_index_holds_the_hashes_that_the_engine_computes(acme: Tenant) -> None:
    ids = list(range(100))
    prompt = SystemPrompt(name="law", version=3, text="one", created_at=0.0)
    index = index_prompt(acme.namespace_key, prompt, ids, INFO, warmed_at=1.0)
    assert (index.name, index.version, index.token_count) == ("law", 3, 100)
    conversation = [*ids, *range(60)]
    request = Namespaces(
        shared_key=acme.namespace_key, private_key=acme.user_key("ann"), shared_tokens=100
    )
    chain = block_hashes(conversation, INFO.block_size, request, Extras(INFO.hash_extras))
    assert len(index.block_hashes) == 100 // 16
    assert chain[: len(index.block_hashes)] == index.block_hashes
    # The block that straddles the border is the conversation's.
    assert len(chain) == 160 // 16


async def test_two_tenants_indexes_of_one_prompt_share_no_hash(room: Room, acme: Tenant) -> None:
    umbra = await room.store.get_tenant("umbra")
    indexes = []
    for tenant in (acme, umbra):
        prompt = await room.prompts.put(tenant.id, "law", "one")
        indexes.append(
            index_prompt(tenant.namespace_key, prompt, list(range(64)), INFO, warmed_at=1.0)
        )
    assert len(indexes[0].block_hashes) == 4
    assert not set(indexes[0].block_hashes) & set(indexes[1].block_hashes)


async def test_an_index_is_kept_for_each_version_and_engine(
    prompts: SystemPrompts, acme: Tenant
) -> None:
    other_info = msgspec.structs.replace(INFO, hash_extras=b"weights 2")
    engine, other_engine = engine_fingerprint(INFO), engine_fingerprint(other_info)
    assert engine != other_engine
    assert engine != engine_fingerprint(msgspec.structs.replace(INFO, block_size=32))
    assert engine == engine_fingerprint(msgspec.structs.replace(INFO, num_blocks=5))
    one = await prompts.put("acme", "law", "one")
    two = await prompts.put("acme", "law", "two")
    index = index_prompt(acme.namespace_key, one, list(range(50)), INFO, warmed_at=1.0)
    await prompts.save_index("acme", index)
    assert await prompts.newest_index("acme", one) == index
    assert await prompts.newest_index("acme", two) is None
    newer = index_prompt(acme.namespace_key, one, list(range(40)), INFO, warmed_at=2.0)
    await prompts.save_index("acme", newer)
    assert await prompts.newest_index("acme", one) == newer
    other = index_prompt(acme.namespace_key, one, list(range(30)), other_info, warmed_at=3.0)
    await prompts.save_index("acme", other)
    assert await prompts.newest_index("acme", one) == other
    again = index_prompt(acme.namespace_key, one, list(range(20)), INFO, warmed_at=2.5)
    await prompts.save_index("acme", again)
    assert await prompts.newest_index("acme", one) == other  # still kept beside the first engine's


async def test_an_index_survives_its_process(
    prompts: SystemPrompts, acme: Tenant, redis_url: str, open_room: OpenRoom
) -> None:
    prompt = await prompts.put("acme", "law", "one")
    index = index_prompt(acme.namespace_key, prompt, list(range(50)), INFO, warmed_at=1.0)
    await prompts.save_index("acme", index)
    later = (await open_room(redis_url)).prompts
    assert await later.newest_index("acme", prompt) == index


async def test_no_index_is_left_of_a_deleted_prompt(
    prompts: SystemPrompts, acme: Tenant, raw: redis.Redis
) -> None:
    prompt = await prompts.put("acme", "law", "one")
    index = index_prompt(acme.namespace_key, prompt, list(range(50)), INFO, warmed_at=1.0)
    await prompts.save_index("acme", index)
    await prompts.delete("acme", "law")
    assert await prompts.newest_index("acme", prompt) is None
    with pytest.raises(PromptNotFound, match="law"):
        await prompts.save_index("acme", index)
    assert not [key for key in everything(raw) if b"index" in key]
