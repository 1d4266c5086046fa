"""Adapters that requests name: what the engine is told, and what nobody else learns."""

from __future__ import annotations

import random
from typing import Any

import httpx
import pytest
from msgspec.structs import replace
from openai import BadRequestError, NotFoundError

from app.generation.adapters import _last_place
from engine.api import AdapterUse, EngineError
from tests.app.conftest import MODEL, World
from tests.tenants.adapters.putting import CONFIG, Check, Found, chunks, put

WEIGHTS = b"weights" * 300_000


@pytest.fixture
async def world(world: World) -> World:
    world.engine.linears = {"model.q_proj": (8, 8)}
    return world


async def ask(world: World, model: str, tenant: str = "acme", **fields: Any) -> AdapterUse | None:
    """What the engine is told of an adapter for a chat."""
    messages: Any = [{"role": "user", "content": "Hello"}]
    answer = await world.client(tenant).chat.completions.create(
        model=model, messages=messages, **fields
    )
    assert answer.model == model.removesuffix(":")
    return world.engine.requests[-1].adapter


async def files(world: World, use: AdapterUse | None) -> bytes:
    assert use is not None
    return b"".join([piece async for piece in world.engine.source(use.name)])


async def test_the_engine_is_brought_the_adapter_that_a_model_names(world: World) -> None:
    await put(world.stores.adapters, "acme", "rhyme", WEIGHTS)
    use = await ask(world, f"{MODEL}:rhyme")
    assert use is not None
    assert (use.start, use.pin) == (0, None)
    assert await files(world, use) == CONFIG + WEIGHTS
    assert await ask(world, MODEL) is None
    await world.client().completions.create(model=":rhyme", prompt="Hello")
    assert world.engine.requests[-1].adapter == use
    client = world.client()
    response = await client.responses.create(model=f"{MODEL}:rhyme", input="Hello")
    assert response.model == f"{MODEL}:rhyme"
    assert world.engine.requests[-1].adapter == use
    text = await client.completions.create(model=f"{MODEL}:rhyme", prompt="Hello")
    assert text.model == f"{MODEL}:rhyme"
    assert world.engine.requests[-1].adapter == use


async def test_another_version_is_another_adapter(world: World) -> None:
    adapters = world.stores.adapters
    await put(adapters, "acme", "rhyme", b"one")
    first = await ask(world, f"{MODEL}:rhyme")
    await put(adapters, "acme", "rhyme", b"two")
    second = await ask(world, f"{MODEL}:rhyme")
    assert first != second
    await adapters.activate("acme", "rhyme", 1)
    assert await ask(world, f"{MODEL}:rhyme") == first
    assert await files(world, first) == CONFIG + b"one"


async def test_equal_weights_of_two_tenants_are_two_adapters(world: World) -> None:
    for tenant in ("acme", "umbra"):
        await put(world.stores.adapters, tenant, "rhyme", WEIGHTS)
    uses = [await ask(world, f"{MODEL}:rhyme", tenant) for tenant in ("acme", "umbra")]
    assert None not in uses
    assert uses[0] != uses[1]


async def test_anothers_adapter_is_as_unknown_as_one_that_nobody_has(world: World) -> None:
    await put(world.stores.adapters, "umbra", "rhyme")
    told = []
    for name in ("rhyme", "prose"):
        with pytest.raises(NotFoundError) as refused:
            await ask(world, f"{MODEL}:{name}")
        told.append(str(refused.value.body).replace(name, "NAME"))
        for path in (f"models/{MODEL}:{name}",):
            async with httpx.AsyncClient(trust_env=False) as client:
                url = f"{world.base_url}/v1/{path}"
                assert (await client.get(url, headers=world.headers())).status_code == 404
    assert told[0] == told[1]
    assert not world.engine.requests
    with pytest.raises(NotFoundError):
        await ask(world, "another:rhyme")


async def test_models_are_the_base_and_the_tenants_own(world: World) -> None:
    await put(world.stores.adapters, "acme", "rhyme")
    await put(world.stores.adapters, "umbra", "prose")
    found = (await world.client().models.list()).data
    assert [(one.id, one.owned_by) for one in found] == [
        (MODEL, "partywall"),
        (f"{MODEL}:rhyme", "acme"),
    ]
    assert (found[1].model_extra or {})["parent"] == MODEL
    one = await world.client().models.retrieve(f"{MODEL}:rhyme")
    assert one.id == f"{MODEL}:rhyme"


async def test_a_tenant_or_its_prompt_may_mean_one(world: World) -> None:
    adapters, tenants = world.stores.adapters, world.stores.tenants
    for name in ("rhyme", "prose"):
        await put(adapters, "acme", name, name.encode())
    rhyme, prose = [await ask(world, f"{MODEL}:{name}") for name in ("rhyme", "prose")]
    await tenants.update_tenant("acme", lambda one: replace(one, adapter="rhyme"))
    assert await ask(world, MODEL) == rhyme
    assert await ask(world, f"{MODEL}:prose") == prose
    assert await ask(world, f"{MODEL}:") is None
    await world.prompts.put("acme", "law", "You know the law.", adapter="prose")
    await world.client().responses.create(model=MODEL, input="Hello", prompt={"id": "law"})
    assert world.engine.requests[-1].adapter == prose


async def test_an_adapter_that_is_invoked_acts_from_there_on(world: World) -> None:
    ids = world.engine.tokenizer.encode("assistant", add_special_tokens=False)

    class Invoked(Check):
        def finish(self) -> Found:
            found = super().finish()
            found.invocation = tuple(ids)
            return found

    await world.stores.adapters.put("acme", "judge", CONFIG, chunks(b"weights"), Invoked())
    use = await ask(world, f"{MODEL}:judge")
    assert use is not None
    prompt = world.engine.requests[-1].prompt
    assert prompt[use.start : use.start + len(ids)] == ids
    assert ids not in (prompt[at : at + len(ids)] for at in range(use.start + 1, len(prompt)))
    with pytest.raises(BadRequestError, match="invocation"):
        await world.client().completions.create(model=f"{MODEL}:judge", prompt="Hello")


@pytest.mark.parametrize("alphabet", [(0, 1, 256, 65536), (1, 257, 1 << 24)])
def test_an_invocation_stands_where_tokens_begin(alphabet: tuple[int, ...]) -> None:
    rng = random.Random(1)
    for _ in range(2000):
        prompt = rng.choices(alphabet, k=rng.randrange(1, 30))
        size = rng.randrange(1, 4)
        invocation = rng.choices(alphabet, k=size)
        places = [at for at in range(len(prompt)) if prompt[at : at + size] == invocation]
        assert _last_place(invocation, prompt) == (places[-1] if places else None)


async def test_a_pinned_adapter_says_so_until_it_is_let_go(world: World) -> None:
    adapters = world.stores.adapters
    await put(adapters, "acme", "rhyme")
    await adapters.set_pinned("acme", "rhyme", True)
    use = await ask(world, f"{MODEL}:rhyme")
    assert use is not None
    assert use.pin == "adapter acme rhyme"


async def test_what_is_gone_is_told_to_the_engine(world: World) -> None:
    await put(world.stores.adapters, "acme", "rhyme", WEIGHTS)
    use = await ask(world, f"{MODEL}:rhyme")
    await world.stores.adapters.delete("acme", "rhyme")
    with pytest.raises(EngineError, match="deleted"):
        await files(world, use)
    with pytest.raises(EngineError, match="no such"):
        await files(world, AdapterUse(b"unheard of"))


async def test_an_engine_without_adapters_refuses_them(world: World) -> None:
    world.engine.linears = {}
    await put(world.stores.adapters, "acme", "rhyme")
    with pytest.raises(BadRequestError, match="no adapters"):
        await ask(world, f"{MODEL}:rhyme")
