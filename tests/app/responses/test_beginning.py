"""Responses that do not come to their start leave nothing behind."""

from __future__ import annotations

import httpx
import pytest

from app.responses.store import ResponseStore
from tests.app.conftest import World


async def test_a_bug_behind_the_admission_gives_back_what_was_taken(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.limit("acme", concurrent_streams=1)
    service = world.app.state.service

    def broken(*_: object) -> None:
        raise TypeError

    async with httpx.AsyncClient(base_url=world.base_url, headers=world.headers()) as http:
        with monkeypatch.context() as patch:
            patch.setattr(ResponseStore, "note_begin", broken)
            for _ in range(2):
                assert (await http.post("/v1/responses", json={"input": "x"})).status_code == 500
        assert not service.responses._runs
        assert not service.connections.snapshot()
        assert (await http.post("/v1/responses", json={"input": "x"})).status_code == 200
