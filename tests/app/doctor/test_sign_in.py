"""The provider that people sign in at: there, away, or of no use."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.assembly.check import Check
from app.doctor.network import check_sign_in
from app.settings import Settings
from tests.app.admin.provider import AUDIENCE, Provider, providing


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    async with providing() as provider:
        yield provider


async def checks(folder: Path, url: str, client: str | None = None) -> list[Check]:
    settings = Settings(
        data_dir=folder, oidc_issuer=url, oidc_audience=AUDIENCE, oidc_client_id=client
    )
    return [one async for one in check_sign_in(settings)]


async def test_without_a_provider_nothing_is_told(tmp_path: Path) -> None:
    assert [one async for one in check_sign_in(Settings(data_dir=tmp_path))] == []


async def test_one_that_tells_its_keys_is_well(tmp_path: Path, provider: Provider) -> None:
    (check,) = await checks(tmp_path, provider.url)
    assert (check.grade, check.what) == ("ok", f"{provider.url} signs with 2 keys")


async def test_one_that_is_away_or_somebody_else_is_named(
    tmp_path: Path, provider: Provider
) -> None:
    (check,) = await checks(tmp_path, provider.url + "/elsewhere")
    assert (check.part, check.grade) == ("sign-in", "warn")
    assert "404" in check.what
    provider.is_down = True
    (check,) = await checks(tmp_path, provider.url)
    assert check.grade == "warn"
    assert "oidc_issuer" in check.remedy


async def test_one_without_keys_or_pages_is_of_no_use(tmp_path: Path, provider: Provider) -> None:
    well, check = await checks(tmp_path, provider.url, "console")
    assert (well.grade, check.grade) == ("ok", "warn")
    assert "no pages" in check.what
    provider.set = []
    (check,) = await checks(tmp_path, provider.url)
    assert "no key" in check.what
