"""Two continuations of one response share its blocks in the engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest
from openai.types.responses import Response
from transformers import PreTrainedTokenizerBase

from app.transport.bounds import Bounds
from engine.api import TokenDelta
from engine.serve.core import EngineCore
from engine.serve.local import LocalEngine
from tenants.storage.embedded import EmbeddedStore
from tests.app.conftest import MODEL, World, living
from tests.engine.simulation import simulated_core

BLOCK_SIZE = 16
NEW_TOKENS = 40


class GatedEngine(LocalEngine):
    """The real engine around a simulated model, which takes steps only while `gate` is open."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__(self._gated_core)
        self.tokenizer = tokenizer
        self.gate = threading.Event()
        self.gate.set()

    def _gated_core(self) -> EngineCore:
        core = simulated_core(num_blocks=256, block_size=BLOCK_SIZE, step_token_budget=64)
        step = core.step

        def gated() -> list[TokenDelta]:
            return step() if self.gate.wait(0.005) else []

        core.step = gated
        return core


@pytest.fixture
async def world(
    tokenizer: PreTrainedTokenizerBase, limits: Bounds, store_server: EmbeddedStore
) -> AsyncIterator[World]:
    engine = GatedEngine(tokenizer)
    await engine.start()
    async with living(engine, limits, store_server.url) as world:
        yield world
    await engine.close()


async def respond(world: World, text: str, previous: str | None = None) -> Response:
    return await world.client().responses.create(
        model=MODEL,
        input=text,
        previous_response_id=previous,
        max_output_tokens=NEW_TOKENS,
        temperature=0,
        extra_body={"ignore_eos": True},
    )


async def test_a_conversation_continued_twice_at_once_holds_its_full_blocks_once(
    world: World,
) -> None:
    engine = world.engine
    first = await respond(world, "x" * 300)
    assert first.usage is not None
    before = await engine.stats()
    # The newest token of an answer is never computed.
    full = (first.usage.total_tokens - 1) // BLOCK_SIZE
    engine.gate.clear()
    turns = [asyncio.create_task(respond(world, text, first.id)) for text in ("one", "two")]
    async with asyncio.timeout(20):
        while (await engine.stats()).waiting < 2:  # noqa: ASYNC110 - it is another process, as a rule
            await asyncio.sleep(0.005)
    engine.gate.set()
    second = await asyncio.gather(*turns)
    own = []
    for response in second:
        assert response.usage is not None
        cached = response.usage.input_tokens_details.cached_tokens
        assert full * BLOCK_SIZE <= cached < (full + 1) * BLOCK_SIZE
        own.append(-(-(response.usage.total_tokens - 1) // BLOCK_SIZE) - full)
    after = await engine.stats()
    assert before.peak_blocks_in_use < full + min(own), "one continuation is more than the start"
    assert after.peak_blocks_in_use == full + sum(own)
    assert (after.blocks_in_use, after.invariant_violations) == (0, 0)
