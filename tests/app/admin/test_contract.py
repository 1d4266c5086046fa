"""The admin interface does what its OpenAPI document says: schemathesis, with all checks on."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import jsonschema_rs
import pytest

from app.admin.documents import TenantDocument
from app.transport.bounds import Bounds
from tenants.records import Tenant
from tenants.storage.embedded import EmbeddedStore
from tests.app.conftest import ADMIN_TOKEN, World, living
from tests.app.schemathesis import schemathesis
from tests.app.scripted_engine import ScriptedEngine
from tests.effort import scaled

# Most of the paths lead to something that is there. What a schema cannot say: that an ETag is the
# current one (412), that a token is held to a tenant that is there, and that a day does not come
# before another one (422).
CONFIG = """
[dictionaries.ids]
values = ["acme", "umbra", "nova"]
[dictionaries.names]
values = ["desk"]

[parameters]
"path.tenant" = { dictionary = "ids", probability = 0.7 }
"path.group" = { dictionary = "ids", probability = 0.7 }
"path.name" = { dictionary = "names", probability = 0.7 }

[checks.positive_data_acceptance]
expected-statuses = ["2xx", 404, 409]
[[operations]]
include-method = "PATCH"
[operations.checks.positive_data_acceptance]
expected-statuses = ["2xx", 404, 409, 412]
# The files of an adapter are made of more than a schema can say.
[[operations]]
include-path-regex = "/adapters/{name}$"
include-method = "PUT"
[operations.checks.positive_data_acceptance]
expected-statuses = ["2xx", 400, 404, 409, 422]
[[operations]]
include-path = ["/tokens", "/usage", "/tenants/{tenant}/usage"]
[operations.checks.positive_data_acceptance]
expected-statuses = ["2xx", 404, 409, 422]
"""


@pytest.fixture
async def world(engine: ScriptedEngine, store_server: EmbeddedStore) -> AsyncIterator[World]:
    """A world in which a deletion does not wait for other services, and writes are not counted."""
    bounds = Bounds(admin_writes_per_minute=None)
    async with living(engine, bounds, store_server.url, flush_grace_seconds=0.0) as world:
        yield world


async def found(admin_url: str, folder: Path, *options: str) -> tuple[int, str]:
    """The exit status of a run over the document at `admin_url`, and what it printed."""
    # A stream that does not end by itself.
    options = ("--exclude-path", "/wall", *options)
    return await schemathesis(f"{admin_url}/admin", ADMIN_TOKEN, CONFIG, folder, *options)


@pytest.mark.scaled
async def test_schemathesis_finds_nothing(
    admin: httpx.AsyncClient, world: World, tmp_path: Path
) -> None:
    await admin.post("/tenants", json={"id": "nova"})
    for one in ("acme", "umbra", "nova"):
        await admin.post("/groups", json={"id": one})
        for kind in ("tenants", "groups"):
            url = f"/{kind}/{one}/prompts/desk"
            assert (await admin.put(url, json={"text": "You are the support desk."})).is_success
    examples = str(scaled(2))
    status, printed = await found(world.admin_url, tmp_path, "--max-examples", examples)
    assert status == 0, printed
    paths = (await admin.get("/openapi.json")).json()["paths"]
    count = sum(len(methods) for path, methods in paths.items() if path != "/wall")
    assert f"Tested: {count}" in printed


async def test_schemathesis_would_find_an_answer_that_is_not_as_documented(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = TenantDocument.of

    def wrong(tenant: Tenant) -> TenantDocument:
        return right(tenant).model_copy(update={"weight": -1.0})

    monkeypatch.setattr(TenantDocument, "of", wrong)
    options = ["--include-path", "/tenants", "--phases", "coverage"]
    status, printed = await found(world.admin_url, tmp_path, *options)
    assert status == 1
    assert "Response violates schema" in printed


async def test_the_document_is_valid_needs_no_token_and_tells_no_secret(
    admin: httpx.AsyncClient, world: World
) -> None:
    answer = await admin.get("/openapi.json", headers={"authorization": ""})
    document = answer.json()
    assert (answer.status_code, document["openapi"]) == (200, "3.1.0")
    for schema in document["components"]["schemas"].values():
        jsonschema_rs.meta.validate(schema)
    references = set(re.findall(r'"#/components/schemas/(\w+)"', answer.text))
    assert references == document["components"]["schemas"].keys()
    assert document["security"] == [{"token": []}]
    assert world.keys["acme"] not in answer.text


async def test_the_page_needs_nothing_from_elsewhere(admin: httpx.AsyncClient) -> None:
    answer = await admin.get("/docs", headers={"authorization": ""})
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert not re.findall(r"""(?:src|href)=["'](?!#)""", answer.text)
    assert "http" not in answer.text.replace("http://www.w3.org/2000/svg", "")
