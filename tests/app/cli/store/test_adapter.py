"""`partywall adapter`: straight on the store of a data directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.cli.options import CommandError
from app.cli.store.store import with_stores
from app.stores import Stores
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


def test_what_adapters_have_used_is_told_of_their_tenant(data: Path) -> None:
    async def use(stores: Stores) -> None:
        stores.usage.add("acme", requests=2, output_tokens=4)
        for adapter in ("rhyme", "rhyme", "@law/judge"):
            stores.usage.add("acme", requests=1, output_tokens=7, cost_nanos=5, adapter=adapter)
        await stores.usage.flush()

    by_adapter = ("usage", "acme", "--by-adapter")
    assert partywall(data, *by_adapter) == "tenant acme has used no adapter\n"
    with_stores({"data_dir": data, "pepper_file": data.parent / "pepper"}, use)
    told = json.loads(partywall(data, *by_adapter, "--json"))
    figures = ("adapter", "requests", "output_tokens", "cost")
    assert [[line[name] for name in figures] for line in told] == [
        ["@law/judge", 1, 7, "0.000000005"],
        ["rhyme", 2, 14, "0.000000010"],
    ]
    header, *lines = partywall(data, *by_adapter, "--csv").split()
    assert header.startswith("day,adapter,requests,")
    assert lines == [",".join(map(str, line.values())) for line in told]
    assert "@law/judge" in partywall(data, *by_adapter)
    assert json.loads(partywall(data, *by_adapter, "--until", "2020-01-01", "--json")) == []
    (day,) = json.loads(partywall(data, "usage", "acme", "--json"))
    assert (day["requests"], day["output_tokens"], "adapter" in day) == (5, 25, False)
