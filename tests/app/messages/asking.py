"""What speaks to the Messages API: Anthropic's client, unmodified."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anthropic

from tests.app.conftest import MODEL, World

ASKED = {"role": "user", "content": "hello"}
Create = Callable[..., Any]


def client(world: World, tenant: str = "acme") -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(
        api_key=world.keys[tenant], base_url=world.base_url, max_retries=0
    )


async def create(world: World, **fields: Any) -> Any:
    """A message; a question alone unless told otherwise."""
    arguments = {"model": MODEL, "max_tokens": 200, "messages": [ASKED], **fields}
    async with client(world) as asking:
        return await asking.messages.create(**arguments)


async def stream(world: World, **fields: Any) -> tuple[list[Any], Any]:
    """The events of one, and the message that the client puts together of them."""
    arguments = {"model": MODEL, "max_tokens": 200, "messages": [ASKED], **fields}
    async with client(world) as asking, asking.messages.stream(**arguments) as running:
        events = [event async for event in running]
        return events, await running.get_final_message()


def prompt(world: World) -> str:
    """What the engine was asked last."""
    return str(world.engine.tokenizer.decode(world.engine.requests[-1].prompt))
