"""A chat with a model whose layers keep a state: its copies on the wall, and why one was missed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Page, expect
from transformers import PreTrainedTokenizerBase

from engine.api import Kind
from engine.blocks.wall import FINDABLE, HELD, STATE
from tests.app.conftest import MODEL, World
from tests.app.console.signing_in import sign_in
from tests.app.console.wall.test_wall import CELLS, CORNERS, DRAWN
from tests.app.pooled_engine import PooledEngine
from tests.engine.blocks.test_wall import truth
from tests.engine.blocks.watching import Cell

SAID = "what does the catalog say of anvils, and of what they weigh? " * 6
COLOUR = "#0fa3b1"


@pytest.fixture
async def engine(tokenizer: PreTrainedTokenizerBase) -> AsyncIterator[PooledEngine]:
    engine = PooledEngine(tokenizer, kinds=(Kind(), Kind(pages=2, is_state=True)))
    await engine.start()
    yield engine
    await engine.close()


async def test_turns_leave_states_that_are_seen_and_a_missing_one_is_told(
    page: Page, world: World, engine: PooledEngine
) -> None:
    await page.emulate_media(color_scheme="light")
    await sign_in(page, world.admin_url)
    await expect(page.locator(".legend")).to_contain_text("free 480")
    await expect(page.locator(".legend").get_by_text("state")).to_be_hidden()
    client, answer, cached = world.client(), None, []
    for turn in range(3):
        answer = await client.responses.create(
            model=MODEL,
            input=f"{SAID} ({turn})",
            max_output_tokens=40,
            previous_response_id=None if answer is None else answer.id,
        )
        assert answer.usage is not None
        cached.append(answer.usage.input_tokens_details.cached_tokens)
    assert 0 == cached[0] < cached[1] < cached[2]

    await expect(page.locator(".legend")).to_contain_text(re.compile(r"state [1-9]"))
    while (await engine.stats()).running:
        pass
    core = engine.cores[-1]
    async with asyncio.timeout(60):
        while [Cell(*one) for one in await page.evaluate(CELLS)] != truth(core):
            pass
    cells, drawn = truth(core), await page.evaluate(DRAWN)
    states = [at for at, cell in enumerate(cells) if cell.state & STATE]
    assert all(cells[at].state & FINDABLE and not cells[at].state & HELD for at in states)
    assert [at for at, colour in enumerate(drawn) if colour == COLOUR] == states
    left, top = (await page.evaluate(CORNERS, states[-1:]))[0]
    picture = page.get_by_role("img", name="KV blocks")
    await picture.hover(position={"x": left + 3, "y": top + 3})
    detail = page.locator(".detail")
    await expect(detail).to_contain_text(re.compile(r"of acme: state, can be found by its hash"))
    await expect(detail).to_contain_text(re.compile(r"Block \d+ of \d+ of acme's conversation"))

    await client.responses.create(model=MODEL, input=f"{SAID[:300]}?", max_output_tokens=4)
    options = page.get_by_role("grid", name="Requests").locator("tbody tr")
    await expect(options).to_have_count(4)
    await options.first.click()
    told = re.compile(r"broke at token \d+: the keys of [1-9]\d* more were there, but no state")
    await expect(page.locator(".told")).to_contain_text(told)
