"""The console's page and its parts, as browsers ask for them."""

from __future__ import annotations

import re
from posixpath import dirname, join, normpath

import httpx
import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from app.console.pages import console_routes

_IMPORTED = re.compile(r'^(?:import|export)\s[^;]*?["\'](\.{1,2}/[^"\']+)["\'];', re.MULTILINE)
_MOST_BYTES = 120 * 1024


@pytest.fixture
def client() -> TestClient:
    return TestClient(Starlette(routes=console_routes()))


def on_the_wire(answer: httpx.Response) -> int:
    return int(answer.headers["content-length"])


def parts_of(page: httpx.Response) -> list[str]:
    return re.findall(r'(?:src|href)="([0-9a-f]+/[^"]+)"', page.text)


def test_the_chat_comes_with_little_and_again_with_nothing(client: TestClient) -> None:
    page = client.get("/console/")
    style, script = parts_of(page)
    num_bytes, known = on_the_wire(page), set[str]()
    folder = dirname(script)
    left = [style, script, join(folder, "chat/chat.css"), join(folder, "chat/view.js")]
    while left:
        name = left.pop()
        if name in known:
            continue
        known.add(name)
        part = client.get(f"/console/{name}")
        assert part.status_code == 200, name
        assert part.headers["content-encoding"] == "gzip", name
        assert "immutable" in part.headers["cache-control"], "a browser never asks again"
        num_bytes += on_the_wire(part)
        left += [normpath(join(dirname(name), one)) for one in _IMPORTED.findall(part.text)]
    assert num_bytes <= _MOST_BYTES
    assert not any("uPlot" in name or "wall" in name for name in known)
    again = client.get("/console/", headers={"if-none-match": page.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_who_cannot_unzip_is_told_the_same(client: TestClient) -> None:
    zipped, plain = (
        client.get("/console/", headers={"accept-encoding": coding})
        for coding in ("gzip", "identity")
    )
    assert "content-encoding" not in plain.headers
    assert zipped.headers["content-encoding"] == "gzip"
    assert zipped.content == plain.content
    assert zipped.headers["vary"] == "accept-encoding"


def test_no_page_may_use_what_it_does_not_need(client: TestClient) -> None:
    page = client.get("/console/")
    for name in (*parts_of(page), ""):
        headers = client.get(f"/console/{name}").headers
        assert headers["cross-origin-opener-policy"] == "same-origin"
        assert "camera=()" in headers["permissions-policy"]
        assert "default-src 'none'" in headers["content-security-policy"]


def test_parts_of_another_version_are_not_there(client: TestClient) -> None:
    assert client.get("/console/0123456789abcdef/app.js").status_code == 404
