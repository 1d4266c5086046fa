"""`partywall token`: admin tokens made, listed and revoked on the store, and moved with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.cli.options import CommandError
from tests.app.cli.store.test_backup import partywall


def test_tokens_are_made_listed_revoked_and_in_a_backup(tmp_path: Path) -> None:
    here, there, file = tmp_path / "here", tmp_path / "there", str(tmp_path / "file")
    assert "has no admin tokens" in partywall(here, "token", "list")
    partywall(here, "tenant", "create", "acme")
    words = ["ann", "--role", "read", "--tenant", "acme", "--expires-in-seconds", "60", "--json"]
    made = json.loads(partywall(here, "token", "create", *words))
    assert made.pop("admin_token").startswith(f"pwadmin_{made['id']}.")
    assert (made["name"], made["role"], made["tenant"]) == ("ann", "read", "acme")
    assert "shown once" in partywall(here, "token", "create", "bob")
    partywall(here, "backup", file)
    partywall(there, "restore", file)
    listed = json.loads(partywall(there, "token", "list", "--json"))
    assert [one["name"] for one in listed] == ["bob", "ann"]
    assert listed[1] == made
    partywall(there, "token", "revoke", made["id"], "--yes")
    assert "ann" not in partywall(there, "token", "list")
    assert "token.revoke" in partywall(there, "audit-log")
    with pytest.raises(CommandError, match="no admin token"):
        partywall(there, "token", "revoke", made["id"], "--yes")
    with pytest.raises(CommandError, match="tenant"):
        partywall(there, "token", "create", "eve", "--tenant", "ACME")
