"""Server-sent streams while there is nothing to tell."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from app.transport.bounds import Bounds
from tests.app.conftest import MODEL, World

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "stream": True}


@pytest.mark.parametrize("limits", [Bounds(keep_alive_seconds=0.05)])
@pytest.mark.parametrize(
    ("path", "body"),
    [("responses", {"input": "x", "stream": True}), ("chat/completions", CHAT)],
)
async def test_a_stream_that_waits_for_its_first_token_is_kept_alive_by_comments(
    world: World, path: str, body: dict[str, Any]
) -> None:
    world.engine.hold_after = 0
    lines: list[str] = []
    async with (
        httpx.AsyncClient(
            base_url=world.base_url, headers=world.headers(), trust_env=False, timeout=10
        ) as http,
        http.stream("POST", f"/v1/{path}", json=body) as answer,
    ):
        async for line in answer.aiter_lines():
            lines.append(line)
            if lines.count(": queued") == 3:
                world.engine.release()
    assert lines.count(": queued") >= 3
    assert lines[-2:] == ["data: [DONE]", ""]
