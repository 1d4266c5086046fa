"""`partywall store ...`: another pepper, step by step; and a store of an earlier version."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from app.cli.options import CommandError
from app.cli.program import app
from app.settings import load_settings
from app.stores import open_stores
from tenants import redis_keys


@pytest.fixture
def peppers(tmp_path: Path) -> tuple[str, str]:
    """Files of an old and a new pepper."""
    for name, digit in (("old", "1"), ("new", "2")):
        (tmp_path / name).write_text(digit * 64)
    return str(tmp_path / "old"), str(tmp_path / "new")


def partywall(
    tmp_path: Path, *words: str, pepper: str, others: str = "", answer: str | None = None
) -> str:
    options = ["--data-dir", str(tmp_path / "data"), "--pepper-file", pepper]
    options += ["--other-pepper-files", others] if others else []
    done = CliRunner().invoke(app, [*words, *options], input=answer)
    if done.exception is not None:
        raise done.exception
    return done.output


async def use(tmp_path: Path, api_key: str, pepper: str, others: str) -> bool:
    """Whether a service would know the key."""
    given: dict[str, Any] = {"pepper_file": pepper, "other_pepper_files": others}
    settings = load_settings(data_dir=tmp_path / "data", **given)
    async with open_stores(settings, owner=False) as stores:
        return await stores.tenants.authenticate(api_key) is not None


def test_a_pepper_is_replaced_step_by_step(tmp_path: Path, peppers: tuple[str, str]) -> None:
    old, new = peppers
    created = json.loads(partywall(tmp_path, "tenant", "create", "acme", "--json", pepper=old))
    (key,) = json.loads(partywall(tmp_path, "key", "list", "acme", "--json", pepper=old))
    with pytest.raises(CommandError, match=r"pepper_file: .*other_pepper_files"):
        partywall(tmp_path, "tenant", "list", pepper=new)
    told = partywall(tmp_path, "store", "rotate", pepper=new, others=old)
    assert f"not used under the new pepper yet: acme/{key['id']}" in told
    assert "other_pepper_files are needed" in told
    with pytest.raises(CommandError, match="pepper_file"):
        partywall(tmp_path, "tenant", "list", pepper=new)
    assert asyncio.run(use(tmp_path, created["api_key"], new, old))
    told = partywall(tmp_path, "store", "rotate", pepper=new, others=old)
    assert "nothing is left" in told
    assert "acme" in partywall(tmp_path, "tenant", "list", pepper=new)
    assert asyncio.run(use(tmp_path, created["api_key"], new, ""))
    with pytest.raises(CommandError, match="pepper_file"):
        partywall(tmp_path, "tenant", "list", pepper=old)


async def leave_keys_in_clear(tmp_path: Path, pepper: str) -> None:
    """Have a store be as an earlier version would have left it."""
    given: dict[str, Any] = {"pepper_file": pepper}
    async with open_stores(
        load_settings(data_dir=tmp_path / "data", **given), owner=False
    ) as stores:
        keys = await stores.tenants.list_keys("acme")
        link = stores.tenants._redis
        await link.execute("SET", redis_keys.keys("acme"), msgspec.msgpack.encode(keys))
        await link.execute("SET", redis_keys.SCHEMA, 1)


def test_a_store_of_an_earlier_version_is_refused_until_it_is_sealed(
    tmp_path: Path, peppers: tuple[str, str]
) -> None:
    pepper, _ = peppers
    made = json.loads(partywall(tmp_path, "tenant", "create", "acme", "--json", pepper=pepper))
    asyncio.run(leave_keys_in_clear(tmp_path, pepper))
    for words in (["tenant", "list"], ["store", "rotate"], ["backup", str(tmp_path / "file")]):
        with pytest.raises(CommandError, match="`partywall store seal`"):
            partywall(tmp_path, *words, pepper=pepper)
    with pytest.raises(CommandError, match="nothing was done"):
        partywall(tmp_path, "store", "seal", pepper=pepper, answer="n\n")
    with pytest.raises(CommandError, match="`partywall store seal`"):
        partywall(tmp_path, "tenant", "list", pepper=pepper)
    told = partywall(tmp_path, "store", "seal", pepper=pepper, answer="y\n")
    assert "to be sealed: pw:{acme}:keys" in told
    assert "sealed: 1" in told
    assert "acme" in partywall(tmp_path, "tenant", "list", pepper=pepper)
    assert asyncio.run(use(tmp_path, made["api_key"], pepper, ""))
    done = json.loads(partywall(tmp_path, "store", "seal", "--json", pepper=pepper))
    assert done == {"sealed": 0, "left": []}
