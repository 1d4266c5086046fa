"""What a model reasons in a conversation, and what of it another tenant can bring along."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from openai import BadRequestError

from tenants.storage.embedded import EmbeddedStore
from tests.app.conftest import MODEL, World
from tests.app.reasoning import KEPT, reasoning_world

ASKED: Any = {"model": MODEL, "store": False, "include": ["reasoning.encrypted_content"]}


@pytest.fixture
async def world(store_server: EmbeddedStore) -> AsyncIterator[World]:
    async with reasoning_world(KEPT, store_server.url) as world:
        world.engine.answer = "<think>\nIs it?\n</think>\n\nIt is."
        yield world


@pytest.mark.parametrize("include", [[], ASKED["include"]])
async def test_a_conversation_keeps_it(world: World, include: Any) -> None:
    client = world.client()
    made = await client.conversations.create()
    for text in ("one", "two"):
        asked = ASKED | {"include": include}
        await client.responses.create(input=text, conversation=made.id, **asked)
    prompt = world.engine.tokenizer.decode(world.engine.requests[-1].prompt)
    assert "<think>\nIs it?\n</think>\n\nIt is.<|im_end|>" in prompt
    listed = [one async for one in client.conversations.items.list(made.id, order="asc")]
    assert [one.type for one in listed[:3]] == ["message", "reasoning", "message"]


async def test_another_tenant_cannot_bring_it_along(world: World) -> None:
    first = await world.client().responses.create(input="one", **ASKED)
    said = [item.model_dump(exclude_none=True) for item in first.output]
    again: Any = [*said, {"role": "user", "content": "two"}]
    await world.client().responses.create(input=again, **ASKED)
    with pytest.raises(BadRequestError) as refused:
        await world.client("umbra").responses.create(input=again, **ASKED)
    assert refused.value.code == "invalid_encrypted_content"
    assert refused.value.param == "input[0].encrypted_content"
