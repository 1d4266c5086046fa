"""Registered prompts are computed before their first chat, and the pinned ones stay."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from msgspec.structs import replace
from transformers import PreTrainedTokenizerBase

import app.background.warming
from app.background.warming import Warmer
from app.limits.booking import Booking
from app.prompt.system_prompts import RegisteredPrompts
from app.stores import Stores
from engine.api import EngineError, RequestRefused
from tenants.errors import (
    GroupNotFound,
    InvalidField,
    PromptNotFound,
    StoreUnavailable,
    TenantNotFound,
)
from tenants.records import PromptIndex, TenantLimits
from tenants.storage.connection import open_redis
from tenants.storage.embedded import EmbeddedStore
from tests.app.conftest import PEPPER, byte_tokenizer, chat_template, eventually
from tests.app.scripted_engine import ScriptedEngine

LAW = "You are the lawyer of acme, and nobody else's. "
TAX = "You know all about taxes, and nothing else. "


@dataclass
class Backstage:
    """A warmer at work."""

    stores: Stores
    engine: ScriptedEngine
    warmer: Warmer

    def warmed(self, text: str) -> int:
        """How often a prompt has been computed."""
        decode = self.engine.tokenizer.decode
        return sum(
            text in decode(request.prompt)
            for request in self.engine.requests
            if request.sampling.max_tokens == 0
        )

    def pinned(self, pin: str) -> str | None:
        """The text whose blocks are held under `pin`."""
        for request in reversed(self.engine.requests):
            if pin in self.engine.pins and request.pin == pin:
                return str(self.engine.tokenizer.decode(request.prompt))
        return None


def new_warmer(stores: Stores, engine: ScriptedEngine, registered: RegisteredPrompts) -> Warmer:
    booking = Booking(stores.usage)
    return Warmer(engine, stores.tenants, stores.groups, stores.prompts, registered, booking)


@pytest.fixture
async def backstage(
    store_server: EmbeddedStore,
    tokenizer: PreTrainedTokenizerBase,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Backstage]:
    monkeypatch.setattr(app.background.warming, "_RETRY_SECONDS", 0.02)
    redis = await open_redis(store_server.url)
    await redis.execute("FLUSHALL")
    stores, engine = Stores.over(redis, PEPPER), ScriptedEngine(tokenizer)
    for tenant_id in ("acme", "umbra"):
        await stores.tenants.create_tenant(tenant_id)
    registered = RegisteredPrompts(stores.prompts, chat_template(tokenizer))
    warmer = Warmer(
        engine, stores.tenants, stores.groups, stores.prompts, registered, Booking(stores.usage)
    )

    async def listen() -> None:
        async for change in stores.tenants.changes():
            warmer.notice(change)

    loops = (warmer.run(), warmer.watch_engine(), listen())
    tasks = [asyncio.create_task(loop) for loop in loops]
    yield Backstage(stores, engine, warmer)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await redis.close()


async def test_the_active_version_is_warmed_and_no_other(backstage: Backstage) -> None:
    prompts = backstage.stores.prompts
    await prompts.put("acme", "law", LAW)
    await prompts.put("acme", "law", TAX, activate=False)
    await prompts.put("umbra", "last", "The last one of all prompts that are put here.")
    await eventually(lambda: backstage.warmed("The last one") == 1)
    assert backstage.warmed(LAW) == 1
    assert backstage.warmed(TAX) == 0
    await prompts.activate("acme", "law", 2)
    await eventually(lambda: backstage.warmed(TAX) == 1)


async def test_what_is_warm_is_not_computed_again_until_the_engine_comes_back(
    backstage: Backstage,
) -> None:
    prompts = backstage.stores.prompts
    await prompts.put("acme", "law", LAW)
    await prompts.set_pinned("acme", "law", True)
    await eventually(lambda: backstage.pinned("acme/law") is not None)
    before = backstage.warmed(LAW)
    await prompts.put("acme", "tax", TAX)
    await eventually(lambda: backstage.warmed(TAX) == 1)
    assert backstage.warmed(LAW) == before
    await backstage.engine.restart()
    await eventually(lambda: backstage.warmed(TAX) == 2)
    await eventually(lambda: backstage.pinned("acme/law") is not None)


async def test_an_engine_that_starts_is_told_whose_files_may_stay(backstage: Backstage) -> None:
    tenants, engine = backstage.stores.tenants, backstage.engine
    await backstage.stores.groups.create("resellers")
    await tenants.update_tenant("umbra", lambda one: replace(one, cache="off"))
    await engine.restart()
    await eventually(lambda: engine.known.keys() == {"acme", "@resellers"})


async def test_what_lies_under_a_former_secret_is_forgotten(backstage: Backstage) -> None:
    stores, engine = backstage.stores, backstage.engine
    await stores.prompts.put("acme", "law", LAW)
    await stores.prompts.put("umbra", "tax", TAX)
    await stores.prompts.set_pinned("acme", "law", True)
    await eventually(lambda: backstage.pinned("acme/law") is not None)
    await eventually(lambda: backstage.warmed(TAX) == 1)
    before, warmed = dict(engine.known), backstage.warmed(LAW)
    await stores.tenants.rotate_secret("acme")
    await eventually(lambda: engine.known.get("acme") != before["acme"])
    await eventually(lambda: backstage.warmed(LAW) > warmed)
    assert engine.forgotten == ["acme"]
    assert engine.known["umbra"] == before["umbra"]
    assert backstage.warmed(TAX) == 1
    await eventually(lambda: backstage.pinned("acme/law") is not None)


async def test_a_groups_former_secret_takes_what_its_members_have_cached(
    backstage: Backstage,
) -> None:
    stores, engine = backstage.stores, backstage.engine
    await stores.groups.create("resellers")
    await stores.tenants.update_tenant("acme", lambda one: replace(one, share_group="resellers"))
    for owner, name, text in (("@resellers", "law", LAW), ("acme", "tax", TAX)):
        await stores.prompts.put(owner, name, text)
    await eventually(lambda: backstage.warmed(LAW) == backstage.warmed(TAX) == 1)
    before = dict(engine.known)
    assert before.keys() == {"acme", "umbra", "@resellers"}
    await stores.groups.rotate_secret("resellers")
    await eventually(lambda: backstage.warmed(LAW) == backstage.warmed(TAX) == 2)
    assert sorted(engine.forgotten) == ["@resellers", "acme"]  # who is looked at first may vary
    assert engine.known["umbra"] == before["umbra"]
    assert engine.known["acme"] != before["acme"]


async def test_who_joins_a_group_keeps_what_is_in_memory(backstage: Backstage) -> None:
    stores, engine = backstage.stores, backstage.engine
    await eventually(lambda: len(engine.known) == 2)
    before = dict(engine.known)
    await stores.groups.create("resellers")
    await stores.tenants.update_tenant("acme", lambda one: replace(one, share_group="resellers"))
    await eventually(lambda: engine.known.get("acme") != before["acme"])
    assert engine.forgotten == []


async def test_a_pinned_prompt_stays_until_it_is_unpinned(backstage: Backstage) -> None:
    prompts, pins = backstage.stores.prompts, backstage.engine.pins
    await prompts.put("acme", "law", LAW)
    await prompts.put("acme", "tax", TAX)
    await prompts.set_pinned("acme", "law", True)
    await eventually(lambda: "acme/law" in pins)
    await prompts.set_pinned("acme", "tax", True)
    await eventually(lambda: "acme/tax" in pins)
    await prompts.set_pinned("acme", "law", False)
    await eventually(lambda: pins.keys() == {"acme/tax"})


async def test_a_pin_moves_to_the_version_that_becomes_active(backstage: Backstage) -> None:
    prompts = backstage.stores.prompts
    await prompts.put("acme", "law", LAW)
    await prompts.set_pinned("acme", "law", True)
    await eventually(lambda: LAW in (backstage.pinned("acme/law") or ""))
    await prompts.put("acme", "law", TAX)
    await eventually(lambda: TAX in (backstage.pinned("acme/law") or ""))
    assert len(backstage.engine.pins) == 1


async def test_pins_end_with_their_prompt_their_tenant_and_their_group(
    backstage: Backstage,
) -> None:
    stores, engine = backstage.stores, backstage.engine
    group = await stores.groups.create("lawyers")
    for owner, name in (("acme", "law"), ("acme", "tax"), ("umbra", "law"), (group.owner, "law")):
        await stores.prompts.put(owner, name, LAW)
        await stores.prompts.set_pinned(owner, name, True)
    await eventually(lambda: len(engine.pins) == 4)
    await stores.prompts.delete("acme", "tax")
    await eventually(lambda: engine.pins.keys() == {"acme/law", "umbra/law", "@lawyers/law"})
    await stores.groups.delete("lawyers")
    await eventually(lambda: engine.pins.keys() == {"acme/law", "umbra/law"})
    await eventually(lambda: set(engine.forgotten) == {"@lawyers"})
    deletion = asyncio.create_task(stores.tenants.delete_tenant("umbra"))
    await eventually(lambda: engine.pins.keys() == {"acme/law"})
    deletion.cancel()


async def test_warming_on_demand_waits_until_the_blocks_are_there(backstage: Backstage) -> None:
    await backstage.stores.prompts.put("acme", "law", LAW)
    index = await backstage.warmer.warm("acme", "law")
    assert index.version == 1
    assert index.block_hashes
    assert set(index.block_hashes) <= backstage.engine.cached.keys()
    group = await backstage.stores.groups.create("lawyers")
    await backstage.stores.prompts.put(group.owner, "law", LAW)
    shared = await backstage.warmer.warm(group.owner, "law")
    assert set(shared.block_hashes) <= backstage.engine.cached.keys()
    assert not set(shared.block_hashes) & set(index.block_hashes)


async def test_warming_on_demand_says_what_is_not_there(backstage: Backstage) -> None:
    for owner, name, error in (
        ("acme", "law", PromptNotFound),
        ("nobody", "law", TenantNotFound),
        ("@nobody", "law", GroupNotFound),
    ):
        with pytest.raises(error):
            await backstage.warmer.warm(owner, name)


async def test_a_prompt_without_room_stays_cold_and_does_not_hold_up_others(
    backstage: Backstage,
) -> None:
    stores = backstage.stores
    await stores.tenants.update_tenant(
        "acme", lambda tenant: replace(tenant, limits=TenantLimits(pinned_blocks=1))
    )
    await stores.prompts.put("acme", "long", "long " * 600)
    await stores.prompts.put("acme", "law", LAW)
    await stores.prompts.set_pinned("acme", "law", True)
    await stores.prompts.put("umbra", "tax", TAX)
    await eventually(lambda: backstage.warmed(TAX) == 1)
    with pytest.raises(RequestRefused):
        await backstage.warmer.warm("acme", "long")
    with pytest.raises(EngineError, match="no room for the pin"):
        await backstage.warmer.warm("acme", "law")
    await stores.tenants.update_tenant(
        "acme", lambda tenant: replace(tenant, limits=TenantLimits(pinned_blocks=50))
    )
    await eventually(lambda: "acme/law" in backstage.engine.pins)


async def test_a_model_that_takes_no_system_message_refuses_to_be_warmed(
    backstage: Backstage,
) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('no system messages') }}"
    stores = backstage.stores
    registered = RegisteredPrompts(stores.prompts, chat_template(tokenizer))
    warmer = Warmer(
        backstage.engine,
        stores.tenants,
        stores.groups,
        stores.prompts,
        registered,
        Booking(stores.usage),
    )
    await stores.prompts.put("acme", "law", LAW)
    with pytest.raises(RequestRefused, match="no system messages"):
        await warmer.warm("acme", "law")
    assert (await backstage.warmer.warm("acme", "law")).version == 1


async def test_nothing_of_a_tenant_without_cache_is_warmed(backstage: Backstage) -> None:
    stores, engine = backstage.stores, backstage.engine
    await stores.prompts.put("acme", "law", LAW)
    await stores.prompts.set_pinned("acme", "law", True)
    await eventually(lambda: "acme/law" in engine.pins)
    await stores.tenants.update_tenant("acme", lambda tenant: replace(tenant, cache="off"))
    await eventually(lambda: "acme/law" not in engine.pins)
    before = backstage.warmed(LAW)
    with pytest.raises(InvalidField, match="cache"):
        await backstage.warmer.warm("acme", "law")
    assert backstage.warmed(LAW) == before
    await stores.tenants.update_tenant("acme", lambda tenant: replace(tenant, cache="on"))
    await eventually(lambda: "acme/law" in engine.pins)


async def test_an_outage_of_the_store_delays_the_index_and_loses_no_pin(
    backstage: Backstage, store_server: EmbeddedStore
) -> None:
    prompts, engine = backstage.stores.prompts, backstage.engine
    await prompts.put("acme", "law", LAW)
    await prompts.set_pinned("acme", "law", True)
    await eventually(lambda: "acme/law" in engine.pins)
    os.kill(store_server.server_pid, signal.SIGSTOP)
    try:
        with pytest.raises(StoreUnavailable):
            await backstage.warmer.warm("acme", "law")
        await engine.restart()
    finally:
        os.kill(store_server.server_pid, signal.SIGCONT)
    await eventually(lambda: "acme/law" in engine.pins)
    await prompts.delete("acme", "law")
    await eventually(lambda: not engine.pins)


async def test_a_prompt_deleted_while_it_is_warmed_leaves_no_pin(
    backstage: Backstage, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, engine = backstage.stores.prompts, backstage.engine
    await prompts.put("acme", "law", LAW)
    await eventually(lambda: backstage.warmed(LAW) == 1)
    save_index = prompts.save_index

    async def delete_first(owner: str, index: PromptIndex) -> None:
        assert "acme/law" in engine.pins
        await prompts.delete("acme", "law")
        await save_index(owner, index)

    monkeypatch.setattr(prompts, "save_index", delete_first)
    await prompts.set_pinned("acme", "law", True)
    await eventually(lambda: backstage.warmed(LAW) == 2)
    await eventually(lambda: not engine.pins)


async def test_warming_waits_for_an_engine_that_is_down(backstage: Backstage) -> None:
    backstage.engine.down = True
    await backstage.stores.prompts.put("acme", "law", LAW)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.1):
            await eventually(lambda: backstage.warmed(LAW) > 0)
    assert backstage.warmed(LAW) == 0
    backstage.engine.down = False
    await eventually(lambda: backstage.warmed(LAW) == 1)
