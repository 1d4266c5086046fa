"""`partywall backup` and `partywall restore`, from one data directory into another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli.options import CommandError
from app.cli.program import app


def partywall(data: Path, *words: str, answer: str | None = None) -> str:
    pepper = data.parent / "pepper"
    pepper.write_text("1" * 64)
    options = ["--data-dir", str(data), "--pepper-file", str(pepper)]
    done = CliRunner().invoke(app, [*words, *options], input=answer)
    if done.exception is not None:
        raise done.exception
    return done.output


def tenants(data: Path) -> list[str]:
    return [one["id"] for one in json.loads(partywall(data, "tenant", "list", "--json"))]


def test_a_store_is_moved_by_its_backup(tmp_path: Path) -> None:
    here, there, file = tmp_path / "here", tmp_path / "there", str(tmp_path / "file")
    partywall(here, "tenant", "create", "acme")
    assert f"records are in {file}" in partywall(here, "backup", file)
    with pytest.raises(CommandError, match="File exists"):
        partywall(here, "backup", file)
    partywall(there, "restore", file)
    assert tenants(there) == ["acme"]
    partywall(there, "tenant", "create", "other")
    with pytest.raises(CommandError, match="--replace"):
        partywall(there, "restore", file)
    with pytest.raises(CommandError, match="nothing was done"):
        partywall(there, "restore", file, "--replace", answer="n\n")
    assert tenants(there) == ["acme", "other"]
    partywall(there, "restore", file, "--replace", "--yes")
    assert tenants(there) == ["acme"]


def test_a_store_that_another_pepper_was_tried_on_is_restored_all_the_same(tmp_path: Path) -> None:
    here, there, file = tmp_path / "here", tmp_path / "there", str(tmp_path / "file")
    partywall(here, "tenant", "create", "acme")
    partywall(here, "backup", file)
    for words in (["tenant", "list"], ["restore", file]):
        done = CliRunner().invoke(app, [*words, "--data-dir", str(there)])  # makes one of its own
    assert "pepper" in str(done.exception)
    partywall(there, "restore", file)
    assert tenants(there) == ["acme"]
    partywall(there, "tenant", "create", "other")


def test_what_is_no_backup_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("something else, long enough to be read")
    with pytest.raises(CommandError, match="no backup"):
        partywall(tmp_path / "data", "restore", str(tmp_path / "file"))
    with pytest.raises(CommandError, match="No such file"):
        partywall(tmp_path / "data", "restore", str(tmp_path / "missing"))


def test_a_restore_says_what_it_brings_back_and_leaves_out_what_it_is_told_to(
    tmp_path: Path,
) -> None:
    data, file = tmp_path / "data", str(tmp_path / "file")
    made = json.loads(partywall(data, "tenant", "create", "acme", "--json"))
    partywall(data, "token", "create", "ci")
    partywall(data, "backup", file)
    (key,) = json.loads(partywall(data, "key", "list", "acme", "--json"))
    partywall(data, "key", "revoke", "acme", key["id"], "--yes")
    told = partywall(data, "restore", file, "--replace", "--yes")
    assert "tenants that were deleted since are back" in told
    assert "--revoke-keys" in told
    assert "--without-tokens" in told
    assert json.loads(partywall(data, "key", "list", "acme", "--json")) == [key]
    words = ["restore", file, "--replace", "--yes", "--revoke-keys", "--without-tokens"]
    assert "no API key is" in partywall(data, *words)
    for listed in (["key", "list", "acme"], ["token", "list"]):
        assert json.loads(partywall(data, *listed, "--json")) == []
    assert made["id"] in tenants(data)
