"""`/metrics` is for who may read everything, and for a scraper with a token of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from app.admin.door import Door
from app.admin.ops import Scraping, read_scraping
from app.admin.token import load_admin_token
from app.assembly.service import create_admin_app
from app.settings import SettingsError, load_settings
from tests.app.conftest import ADMIN_TOKEN, World, serving

TOKENS = """
admin  pwadmin_for-tests-only
viewer pwadmin_reads-and-no-more read
acme   pwadmin_for-acme-alone tenant:acme
"""
SCRAPER = "a-token-for-metrics-only"


@asynccontextmanager
async def scraped(world: World, tmp_path: Path, scraping: Scraping) -> AsyncIterator[str]:
    """The operators' port, whose tokens are those above."""
    (tmp_path / "tokens").write_text(TOKENS)
    tokens = load_admin_token(tmp_path, tmp_path / "tokens")
    door = Door(tokens, world.stores.operator_tokens)
    async with serving(create_admin_app(world.app.state.service, door, scraping)) as (url,):
        yield url


async def ask(url: str, token: str | None) -> httpx.Response:
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, trust_env=False) as client:
        return await client.get("/metrics")


@pytest.fixture
def scraping(tmp_path: Path) -> Scraping:
    (tmp_path / "scraper").write_text(SCRAPER + "\n")
    return read_scraping(tmp_path / "scraper", is_open=False)


async def test_it_asks_for_a_token_that_reads_everything(
    world: World, tmp_path: Path, scraping: Scraping
) -> None:
    _, stored = await world.stores.operator_tokens.create("prometheus", "read")
    async with scraped(world, tmp_path, scraping) as url:
        for token in (ADMIN_TOKEN, "pwadmin_reads-and-no-more", stored, SCRAPER):
            assert "partywall_store_up 1.0" in (await ask(url, token)).text
        for wrong in (None, "pwadmin_nobody's", world.keys["acme"], SCRAPER[:-1]):
            refused = await ask(url, wrong)
            assert (refused.status_code, refused.json()["code"]) == (401, "invalid_admin_token")
            assert "partywall_" not in refused.text
        held = await ask(url, "pwadmin_for-acme-alone")
        assert (held.status_code, held.json()["code"]) == (403, "not_for_this_token")


async def test_a_scrapers_token_opens_nothing_else(
    world: World, tmp_path: Path, scraping: Scraping
) -> None:
    headers = {"authorization": f"Bearer {SCRAPER}"}
    async with (
        scraped(world, tmp_path, scraping) as url,
        httpx.AsyncClient(base_url=url, headers=headers, trust_env=False) as client,
    ):
        for path in ("/admin/me", "/admin/tenants", "/admin/live"):
            assert (await client.get(path)).status_code == 401


async def test_it_is_scraped_while_the_store_is_down(
    world: World, tmp_path: Path, scraping: Scraping
) -> None:
    async with scraped(world, tmp_path, scraping) as url:
        with world.outage():
            assert "partywall_store_up 0.0" in (await ask(url, SCRAPER)).text


async def test_it_is_open_where_a_setting_says_so(world: World, tmp_path: Path) -> None:
    async with scraped(world, tmp_path, Scraping(is_open=True)) as url:
        assert "partywall_store_up 1.0" in (await ask(url, None)).text


@pytest.mark.parametrize("text", ["too-short", f"{SCRAPER} another-token-of-this-file"])
def test_a_file_that_holds_no_token_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "scraper").write_text(text)
    with pytest.raises(ValueError, match="metrics_token_file"):
        read_scraping(tmp_path / "scraper", is_open=False)


def test_a_token_and_none_are_not_asked_for_at_once(tmp_path: Path) -> None:
    (tmp_path / "scraper").write_text(SCRAPER)
    with pytest.raises(SettingsError, match="metrics_token_file goes without open_metrics"):
        load_settings(metrics_token_file=str(tmp_path / "scraper"), open_metrics=True)
