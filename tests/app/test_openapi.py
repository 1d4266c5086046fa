"""What clients are served is what `/openapi.json` says: schemathesis, with all checks on."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import jsonschema_rs
import pytest
from starlette.routing import Route

from app.routes import models
from app.routes.table import tenant_routes
from tests.app.conftest import MODEL, World
from tests.app.schemathesis import schemathesis
from tests.effort import scaled

# Most of the paths lead to something that is there. What a schema cannot say: which model there is,
# what goes with what, and that 1.0 is no integer (400).
CONFIG = """
[parameters]
"body.model" = { dictionary = "models", probability = 0.9 }
"path.response_id" = { dictionary = "responses", probability = 0.7 }
"path.conversation_id" = { dictionary = "conversations", probability = 0.7 }
"path.item_id" = { dictionary = "items", probability = 0.7 }
"path.completion_id" = { dictionary = "completions", probability = 0.7 }

[checks.positive_data_acceptance]
expected-statuses = ["2xx", 400, 404, 409]

[checks.negative_data_rejection]
expected-statuses = ["4xx", "5xx"]

[dictionaries]
"""
BATCHES = "/v1/messages/batches"
LARGE = """
[[operations]]
include-operation-id = [
    "create_response", "count_input", "compact_conversation", "create_completion",
    "create_conversation", "add_items", "tokenize", "create_message", "count_message",
]
phases.coverage.enabled = false
"""
"""Bodies of items or messages, of which coverage has thousands, are left to random ones."""


@pytest.fixture
async def client(world: World) -> AsyncIterator[httpx.AsyncClient]:
    headers = world.headers("acme")
    async with httpx.AsyncClient(base_url=world.base_url, headers=headers, timeout=20) as client:
        yield client


async def made(client: httpx.AsyncClient) -> str:
    """Something of each kind, and the ids of all as dictionaries in schemathesis' configuration."""
    said = {"role": "user", "content": "hello"}
    ids = {"models": [MODEL], "responses": [], "conversations": [], "items": [], "completions": []}
    for _ in range(3):
        for kind, path, body in (
            ("responses", "responses", {"input": "hello", "max_output_tokens": 4}),
            ("conversations", "conversations", {"items": [said]}),
            (
                "completions",
                "chat/completions",
                {"model": MODEL, "messages": [said], "store": True},
            ),
        ):
            answer = await client.post(f"/v1/{path}", json=body)
            assert answer.is_success, answer.text
            ids[kind].append(answer.json()["id"])
        items = await client.get(f"/v1/conversations/{ids['conversations'][-1]}/items")
        ids["items"].append(items.json()["data"][0]["id"])
    return "".join(f"{kind} = {{ values = {found} }}\n" for kind, found in ids.items())


@pytest.mark.scaled
@pytest.mark.parametrize(
    "left_out", [pytest.param(LARGE, id="quick"), pytest.param("", marks=pytest.mark.exhaustive)]
)
async def test_schemathesis_finds_nothing(
    client: httpx.AsyncClient, world: World, tmp_path: Path, left_out: str
) -> None:
    config = CONFIG + await made(client) + left_out
    # Any text is a name, so that hardly any is a wrong one.
    options = ["--suppress-health-check", "filter_too_much", "--max-examples", str(scaled(2))]
    key = world.keys["acme"]
    status, printed = await schemathesis(world.base_url, key, config, tmp_path, *options)
    assert status == 0, printed
    paths = (await client.get("/openapi.json")).json()["paths"]
    assert f"Tested: {sum(map(len, paths.values()))}" in printed


async def test_schemathesis_would_find_an_answer_that_is_not_as_documented(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "_describe", lambda _: {"id": 7})
    options = ["--include-path", "/v1/models", "--phases", "coverage"]
    status, printed = await schemathesis(world.base_url, world.keys["acme"], "", tmp_path, *options)
    assert status == 1
    assert "Response violates schema" in printed


async def test_the_document_is_valid_needs_no_key_and_names_all_that_is_served(
    client: httpx.AsyncClient, world: World
) -> None:
    answer = await client.get("/openapi.json", headers={"authorization": ""})
    document = answer.json()
    assert (answer.status_code, document["openapi"]) == (200, "3.1.0")
    schemas = document["components"]["schemas"]
    for schema in schemas.values():
        jsonschema_rs.meta.validate(schema)
    references = set(re.findall(r'"#/components/schemas/(\w+)"', answer.text))
    assert references == schemas.keys()
    assert not any("__" in name for name in schemas)  # two types of one name
    assert world.keys["acme"] not in answer.text
    served = {
        (method.lower(), re.sub(r":path}", "}", route.path))
        for route in tenant_routes()
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }
    told = {(method, path) for path, methods in document["paths"].items() for method in methods}
    refused = {("post", "/v1/embeddings"), *((one, BATCHES) for one in ("get", "post"))}
    assert served - told == {("get", "/openapi.json"), *refused}
    assert told <= served
