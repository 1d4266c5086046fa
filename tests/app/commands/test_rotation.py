"""`partywall store rotate`, and what leads to it: another pepper, step by step."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.commands.errors import CommandError
from app.commands.program import app
from app.settings import load_settings
from app.stores import open_stores


@pytest.fixture
def peppers(tmp_path: Path) -> tuple[str, str]:
    """Files of an old and a new pepper."""
    for name, digit in (("old", "1"), ("new", "2")):
        (tmp_path / name).write_text(digit * 64)
    return str(tmp_path / "old"), str(tmp_path / "new")


def partywall(tmp_path: Path, *words: str, pepper: str, others: str = "") -> str:
    options = ["--data-dir", str(tmp_path / "data"), "--pepper-file", pepper]
    options += ["--other-pepper-files", others] if others else []
    done = CliRunner().invoke(app, [*words, *options])
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
