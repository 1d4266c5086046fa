"""What one can watch at the wall: blocks copied, moved out and back, and kept from a flood."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from playwright.async_api import Page, expect
from transformers import PreTrainedTokenizerBase

from tests.app.conftest import MODEL, World
from tests.app.console.signing_in import sign_in
from tests.app.pooled_engine import PooledEngine
from tests.engine.clock import at_a_models_pace

pytestmark = pytest.mark.exhaustive
NUM_BLOCKS = 24
SAID = "what does the catalog say of anvils? "
# How many cells are outlined, and told of in words.
OUTLINED = """() => [
  ["found", "own"].flatMap((name) =>
    document.querySelector(`.chain .${name}`).getAttribute("d").split("z").filter(Boolean)).length,
  Number(document.querySelector(".told").textContent.match(/([0-9]+) cells/)[1])]"""


@pytest.fixture
async def engine(tokenizer: PreTrainedTokenizerBase) -> AsyncIterator[PooledEngine]:
    engine = PooledEngine(tokenizer, NUM_BLOCKS, num_host_blocks=NUM_BLOCKS)
    await engine.start()
    at_a_models_pace(engine.cores[-1], 0.05)
    yield engine
    await engine.close()


async def answer(world: World, tenant: str, text: str, tokens: int, **fields: Any) -> Any:
    return await world.client(tenant).chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": text}],
        max_completion_tokens=tokens,
        **fields,
    )


async def test_a_preemption_moves_blocks_out_and_back(page: Page, world: World) -> None:
    await sign_in(page, world.admin_url)
    answers = [
        asyncio.create_task(answer(world, tenant, f"{tenant} asks {SAID}", 160))
        for tenant in ("acme", "umbra")
    ]
    requests, told = page.locator(".requests tbody tr"), page.locator(".told")
    await requests.filter(has_text="preempted").click(timeout=30_000)
    await expect(told).to_contain_text(re.compile(r"preempted: .* [1-9]\d* in host memory"))
    await expect(told).to_contain_text("running")
    await expect(told).not_to_contain_text("in host memory")
    for each in answers:
        assert (await each).usage.completion_tokens == 160


async def test_a_fork_copies_one_block(
    page: Page, world: World, admin: httpx.AsyncClient, engine: PooledEngine
) -> None:
    await sign_in(page, world.admin_url)
    forked = asyncio.create_task(answer(world, "acme", SAID, 60, n=2))
    await page.locator(".requests tbody tr").filter(has_text="running").click()
    told = page.locator(".told")
    await expect(told).to_contain_text(re.compile(r"2 sequences of \d+ blocks, \d+ cells together"))
    while (await engine.stats()).copied_blocks == 0:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    (one,) = (await admin.get("/wall/requests")).json()["requests"]
    first, second = one["lines"]
    num_alike = sum(left == right for left, right in zip(first, second, strict=False))
    assert 0 < num_alike < len(first)
    assert not set(first[num_alike:]) & set(second[num_alike:])
    in_words = 0
    async with asyncio.timeout(20):
        while in_words <= num_alike + 1:  # the page asks once a second
            outlined, in_words = await page.evaluate(OUTLINED)
            assert outlined == in_words
    await forked


async def test_a_flood_does_not_reach_a_reserve(
    page: Page, world: World, admin: httpx.AsyncClient
) -> None:
    assert (await admin.patch("/tenants/acme", json={"reserved_blocks": 8})).is_success
    await sign_in(page, world.admin_url)
    first = await answer(world, "acme", SAID * 3, 2)
    await page.get_by_label("Tenant").select_option("acme")
    summary = page.locator("#wall-summary")
    for number in range(8):
        await answer(world, "umbra", f"{number} floods " * 12, 2)
        await expect(summary).to_contain_text("umbra")
        held = re.search(r"acme (\d+)", await summary.inner_text())
        assert held is not None
        assert int(held[1]) >= 7
    again = await answer(world, "acme", SAID * 3, 2)
    assert again.usage.prompt_tokens_details.cached_tokens > first.usage.prompt_tokens - 17
