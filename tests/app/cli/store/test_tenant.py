"""`partywall tenant`: straight on the store of a data directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.cli.options import CommandError
from tests.app.cli.store.test_backup import partywall


def test_what_becomes_of_a_tenants_unknown_fields_is_set_and_left_to_the_service_again(
    tmp_path: Path,
) -> None:
    def word() -> object:
        return json.loads(partywall(tmp_path, "tenant", "show", "acme", "--json"))["unknown_fields"]

    partywall(tmp_path, "tenant", "create", "acme")
    assert word() is None
    partywall(tmp_path, "tenant", "set", "acme", "unknown_fields=ignore")
    assert word() == "ignore"
    with pytest.raises(CommandError, match="unknown_fields"):
        partywall(tmp_path, "tenant", "set", "acme", "unknown_fields=keep")
    partywall(tmp_path, "tenant", "set", "acme", "unknown_fields=none")
    assert word() is None
