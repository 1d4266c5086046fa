"""What was lost is told from what is new, with what keeps it, in words."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Page, expect

from engine.api import ChainBreak, RequestState, Roll
from tests.app.conftest import World
from tests.app.console.signing_in import sign_in
from tests.app.pooled_engine import PooledEngine

ADVICE = (
    "To keep it: pin the prompt, or lease what is asked again; "
    "a pool of twice the size would have found 34.0 % more"
)
BROKE = [
    (
        ChainBreak(tokens=0, why="never_seen"),
        "broke at token 0: the next block is new: as expected",
    ),
    (
        ChainBreak(tokens=16, why="lost_long_ago", seconds_ago=90),
        "broke at token 16: the next block was here, "
        rf"and was evicted more than 9\d s ago. {ADVICE}",
    ),
    (
        ChainBreak(
            tokens=32, why="evicted", evicted_by="expired", evicted_for="bulk", seconds_ago=90
        ),
        "broke at token 32: evicted by pressure, behind the end of its lease, "
        rf"for a request of bulk's, 9\d s ago. {ADVICE}",
    ),
    (
        ChainBreak(tokens=0, why="evicted", evicted_by="deleted", seconds_ago=90),
        r"broke at token 0: evicted by a deletion 9\d s ago.$",
    ),
]


@pytest.mark.exhaustive
async def test_what_was_lost_is_told_from_what_is_new_with_what_keeps_it(
    page: Page, world: World, engine: PooledEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [
        RequestState(
            request_id=f"r{number}",
            tenant="acme",
            state="finished",
            prompt_tokens=100,
            output_tokens=5,
            found_tokens=broke.tokens,
            broke=broke,
            num_blocks=7,
            num_shared=0,
            lines=[[]],
            age_seconds=1.0,
        )
        for number, (broke, _) in enumerate(BROKE)
    ]

    async def roll(_replica: int = 0, _cell: int | None = None) -> Roll:
        return Roll(requests=requests, gain_of_twice=0.34)

    monkeypatch.setattr(engine, "roll", roll)
    await sign_in(page, world.admin_url)
    rows = page.get_by_role("grid", name="Requests").locator("tbody tr")
    await expect(rows).to_have_count(len(BROKE))
    for number, (_, expected) in enumerate(BROKE):
        await rows.filter(has_text=f"r{number}").click()
        await expect(page.locator(".told")).to_contain_text(re.compile(expected))
