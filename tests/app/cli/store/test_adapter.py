"""`partywall adapter`: straight on the store of a data directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.cli.options import CommandError
from tests.app.adapter_files import config_of, weights_of
from tests.app.cli.store.test_backup import partywall


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A store with the tenant acme and the share group law."""
    data = tmp_path / "data"
    partywall(data, "tenant", "create", "acme")
    partywall(data, "group", "create", "law")
    return data


def saved(folder: Path, value: float = 0.5, **config: Any) -> str:
    """A folder with an adapter."""
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_bytes(config_of(**config))
    (folder / "adapter_model.safetensors").write_bytes(weights_of(value))
    return str(folder)


def read(data: Path, *words: str) -> Any:
    return json.loads(partywall(data, "adapter", *words, "--json"))


@pytest.mark.parametrize("owner", ["acme", "@law"])
def test_an_adapter_is_put_shown_activated_pinned_and_deleted(
    data: Path, tmp_path: Path, owner: str
) -> None:
    folder = saved(tmp_path / "rhyme")
    told = partywall(data, "adapter", "put", owner, "rhyme", folder)
    assert told == f"stored adapter rhyme of {owner}, version 1\n"
    saved(tmp_path / "rhyme", 0.25)
    second = read(data, "put", owner, "rhyme", folder, "--no-activate")
    assert (second["version"], second["active"], second["rank"]) == (2, False, 4)
    assert [one["version"] for one in read(data, "versions", owner, "rhyme")] == [2, 1]
    partywall(data, "adapter", "activate", owner, "rhyme", "2")
    partywall(data, "adapter", "pin", owner, "rhyme")
    assert read(data, "show", owner, "rhyme") == second | {"active": True, "pinned": True}
    assert "q_proj" in partywall(data, "adapter", "show", owner, "rhyme", "--version", "1")
    assert "no longer" in partywall(data, "adapter", "unpin", owner, "rhyme")
    assert "rhyme" in partywall(data, "adapter", "list", owner)
    partywall(data, "adapter", "delete", owner, "rhyme", "--yes")
    assert read(data, "list", owner) == []


def test_what_cannot_be_is_told_in_a_line(data: Path, tmp_path: Path) -> None:
    folder = saved(tmp_path / "rhyme", use_dora=True)
    with pytest.raises(CommandError, match="use_dora"):
        partywall(data, "adapter", "put", "acme", "rhyme", folder)
    saved(tmp_path / "rhyme", float("inf"))
    with pytest.raises(CommandError, match="not finite"):
        partywall(data, "adapter", "put", "acme", "rhyme", folder)
    (tmp_path / "rhyme" / "adapter_model.safetensors").unlink()
    with pytest.raises(CommandError, match="No such file"):
        partywall(data, "adapter", "put", "acme", "rhyme", folder)
    for words in (["show", "acme", "rhyme"], ["pin", "acme", "rhyme"], ["list", "nobody"]):
        with pytest.raises(CommandError, match="there is no"):
            partywall(data, "adapter", *words)


def test_a_prompt_and_a_tenant_say_which_adapter_is_meant(data: Path) -> None:
    words = ["prompt", "put", "acme", "desk", "--text", "Be brief.", "--adapter", "rhyme"]
    partywall(data, *words)
    shown = json.loads(partywall(data, "prompt", "show", "acme", "desk", "--json"))
    assert shown["adapter"] == "rhyme"
    partywall(data, "tenant", "set", "acme", "adapter=rhyme", "limits.adapters=3")
    tenant = json.loads(partywall(data, "tenant", "show", "acme", "--json"))
    assert (tenant["adapter"], tenant["limits"]["adapters"]) == ("rhyme", 3)
