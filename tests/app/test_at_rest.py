"""A session through the service, and then every byte of its store: no word of it is there."""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import redis
from transformers import PreTrainedTokenizerBase

from app.stores import Stores
from app.transport.bounds import Bounds
from tenants.at_rest.sealer import Sealer, is_sealed
from tenants.rotation import rotation
from tenants.storage.connection import open_redis
from tenants.storage.embedded import EmbeddedStore
from tests.app.background.restarts import AT_ONCE, another, draining
from tests.app.conftest import ADMIN_TOKEN, MODEL, PEPPER, World, eventually, living
from tests.app.responses.test_responses_ws import socket
from tests.app.responses.test_tools import TOOL
from tests.app.scripted_engine import ScriptedEngine
from tests.tenants.conftest import everything

CANARIES = {
    "prompt": "zebra-in-the-prompt",
    "answer": "walrus-in-the-answer",
    "system": "yak-in-the-system-prompt",
    "instructions": "okapi-in-the-instructions",
    "arguments": "heron-in-the-arguments",
    "result": "ibis-in-the-result",
    "conversation": "lemur-in-the-conversation",
    "metadata": "gecko-in-the-metadata",
    "user": "ann-the-end-user",
}


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def store(data_dir: Path) -> Iterator[EmbeddedStore]:
    with EmbeddedStore(data_dir) as store:
        yield store


@pytest.fixture
async def world(tokenizer: PreTrainedTokenizerBase, store: EmbeddedStore) -> AsyncIterator[World]:
    engine = ScriptedEngine(tokenizer)
    async with living(engine, Bounds(), store.url, cache_seconds=0) as world:
        world.server_pid = store.server_pid
        yield world


async def session(world: World) -> dict[str, str]:
    """Something of everything that is kept; ids of what can be read again."""
    client, said, user = world.client(), CANARIES, CANARIES["user"]
    call = f'<tool_call>\n{{"name": "get_weather", "arguments": {{"city": "{said["arguments"]}"}}}}'
    world.engine.answer = f"{said['answer']}\n{call}\n</tool_call>"
    asked: Any = {"role": "user", "content": said["prompt"]}
    tools: Any = [TOOL]
    first = await client.responses.create(
        model=MODEL,
        input=[asked],
        instructions=said["instructions"],
        tools=tools,
        metadata={"topic": said["metadata"]},
        safety_identifier=user,
    )
    result: Any = {
        "type": "function_call_output",
        "call_id": first.output[-1].call_id,  # type: ignore[union-attr]
        "output": said["result"],
    }
    world.engine.answer = said["answer"]
    second = await client.responses.create(
        model=MODEL, input=[result], previous_response_id=first.id, safety_identifier=user
    )
    item: Any = {"type": "message", "role": "user", "content": said["conversation"]}
    conversation = await client.conversations.create(items=[item])
    await client.responses.create(model=MODEL, input=said["prompt"], conversation=conversation.id)
    chat = await client.chat.completions.create(
        model=MODEL, messages=[asked], store=True, metadata={"topic": said["metadata"]}
    )
    headers = {"authorization": f"Bearer {ADMIN_TOKEN}", "idempotency-key": "put-1"}
    async with httpx.AsyncClient(base_url=world.admin_url, trust_env=False) as operator:
        put = await operator.put(
            "/admin/tenants/acme/prompts/support", json={"text": said["system"]}, headers=headers
        )
        assert put.status_code < 300
    return {"response": second.id, "conversation": conversation.id, "completion": chat.id}


async def interrupted(world: World, store: EmbeddedStore) -> None:
    """Have a response run, be recorded as running, and be suspended by the service's end."""
    world.engine.hold_after = len(CANARIES["answer"]) + 1
    world.engine.answer = CANARIES["answer"] * 2
    recorded = world.stores.running
    async with socket(world) as ws:
        await ws.create(CANARIES["prompt"], instructions=CANARIES["instructions"])
        response_id = (await ws.receive())["response"]["id"]
        async with asyncio.timeout(10):
            while await recorded.find("acme", response_id) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await eventually(lambda: bool(world.engine.active))
        hidden(world, dump(store))
        async with draining(world, AT_ONCE):
            await ws.turn()


def dump(store: EmbeddedStore) -> bytes:
    """All that Redis holds."""
    with redis.Redis.from_url(store.url) as raw:
        return b"\0".join(part for pair in everything(raw).items() for part in pair)


def spellings(world: World, text: str) -> Iterator[bytes]:
    """A text as it could be written: itself, its ids packed, as MessagePack or as JSON."""
    yield text.encode()
    yield text.upper().encode()
    yield json.dumps(text).encode()
    ids = world.engine.tokenizer.encode(text, add_special_tokens=False)
    for width in "BHIQ":
        yield array(width, ids).tobytes()
    yield msgspec.msgpack.encode(ids)[3:]
    yield json.dumps(ids).encode()[1:-1]
    yield json.dumps(ids, separators=(",", ":")).encode()[1:-1]


def found(world: World, held: bytes) -> list[str]:
    """The canaries that can be seen in what is held."""
    return [
        name
        for name, text in CANARIES.items()
        if any(one in held for one in spellings(world, text))
    ]


def hidden(world: World, held: bytes) -> None:
    assert not found(world, held)


def on_disk(data_dir: Path) -> bytes:
    """All files of a data directory."""
    return b"\0".join(path.read_bytes() for path in data_dir.rglob("*") if path.is_file())


async def check_known(world: World, kept: dict[str, str]) -> None:
    """That the service itself can still read what it keeps."""
    client = world.client()
    response = await client.responses.retrieve(kept["response"])
    assert response.output_text == CANARIES["answer"]
    items = await client.conversations.items.list(kept["conversation"])
    assert CANARIES["conversation"] in items.model_dump_json()
    listed = await client.chat.completions.list()
    assert [one.id for one in listed.data] == [kept["completion"]]
    went_on = await client.responses.create(
        model=MODEL, input="and?", previous_response_id=kept["response"], store=False
    )
    assert went_on.output_text.startswith(CANARIES["answer"])


async def test_no_word_of_a_session_is_in_the_store_or_on_its_disk(
    world: World, store: EmbeddedStore, data_dir: Path
) -> None:
    kept = await session(world)
    await interrupted(world, store)
    held = dump(store)
    for kind in ("response", "conversation", "completion", "suspended", "prompt", "idempotency"):
        assert f":{kind}".encode() in held
    hidden(world, held)
    hidden(world, on_disk(data_dir))
    for tenant in world.tenants.values():
        assert tenant.namespace_secret not in held
        assert tenant.namespace_key not in held
    async with another(world, store) as after:
        await check_known(after, kept)


async def test_the_search_would_find_what_was_not_encrypted(
    world: World, store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Sealer._open

    def in_clear(_: Sealer, content: bytes, __: tuple[str, ...]) -> Iterator[bytes]:
        yield content

    def either(sealer: Sealer, record: bytes, place: tuple[str, ...]) -> Iterator[bytes]:
        return (opened if is_sealed(record) else in_clear)(sealer, record, place)

    monkeypatch.setattr(Sealer, "_seal", in_clear)
    monkeypatch.setattr(Sealer, "_open", either)
    kept = await session(world)
    ids = world.engine.requests[-1].prompt
    turn = array("I", ids).tobytes()
    assert set(found(world, dump(store))) == set(CANARIES)
    assert any(one in turn for one in list(spellings(world, CANARIES["prompt"]))[3:7])
    await check_known(world, kept)


async def test_streams_and_conversations_go_on_while_all_secrets_are_replaced(
    world: World, store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rotation, "SETTLE_SECONDS", -1.0)
    kept = await session(world)
    world.engine.hold_after = 3
    async with socket(world) as ws:
        await ws.create("go on")
        await eventually(lambda: bool(world.engine.active))
        operator = await open_redis(store.url)
        stores = Stores.over(operator, PEPPER)
        before = await stores.tenants.get_tenant("acme")
        await stores.tenants.rotate_secret("acme")
        left = await stores.rotation.run()
        assert (left.unreadable, left.former_secrets, left.api_keys) == ([], [], [])
        world.engine.release()
        assert (await ws.turn())[-1]["type"] == "response.completed"
    await check_known(world, kept)
    assert (await stores.tenants.get_tenant("acme")).former_secrets == ()
    new = await stores.tenants.get_tenant("acme")
    used, user = world.engine.requests[-1].namespaces.private_key, CANARIES["user"]
    assert used == new.user_key(user) != before.user_key(user)
    hidden(world, dump(store))
    await operator.close()


async def test_a_record_in_the_place_of_another_kinds_is_not_found(
    world: World, store: EmbeddedStore, caplog: pytest.LogCaptureFixture
) -> None:
    kept = await session(world)
    keys = {kind: f"pw:{{acme}}:{kind}:{one}" for kind, one in kept.items()}
    keys["prompt"] = "pw:{acme}:prompt:support"
    with redis.Redis.from_url(store.url) as raw:
        texts = raw.hgetall(keys["prompt"])
        records = {kind: raw.get(keys[kind]) for kind in kept} | {"prompt": texts[b"1"]}
        for kind in kept:
            for other in records.keys() - {kind}:
                raw.set(keys[kind], records[other], keepttl=True)
                raw.hset(keys["prompt"], "1", records[kind])
                await check_unreadable(world, kept)
                assert "a stored record is not read" in caplog.text
                caplog.clear()
            raw.set(keys[kind], records[kind], keepttl=True)
        raw.set(f"pw:{{acme}}:running:{kept['response']}", records["conversation"], ex=60)
        await check_known(world, kept)


async def check_unreadable(world: World, kept: dict[str, str]) -> None:
    """That each thing is read, or is as good as gone; one of them at least is."""
    world.app.state.service.history.forget("acme", kept["response"])
    headers, admin = world.headers(), {"authorization": f"Bearer {ADMIN_TOKEN}"}
    body = {"model": MODEL, "input": "and?"}
    async with httpx.AsyncClient(base_url=world.base_url, trust_env=False, headers=headers) as user:
        answers = [
            await user.get(f"/v1/responses/{kept['response']}"),
            await user.post(
                "/v1/responses", json=body | {"previous_response_id": kept["response"]}
            ),
            await user.get(f"/v1/conversations/{kept['conversation']}"),
            await user.post("/v1/responses", json=body | {"conversation": kept["conversation"]}),
            await user.get(f"/v1/chat/completions/{kept['completion']}"),
        ]
        listed = await user.get("/v1/chat/completions")
        prompt = await user.get(
            f"{world.admin_url}/admin/tenants/acme/prompts/support", headers=admin
        )
    statuses = {answer.status_code for answer in answers}
    assert statuses & {400, 404}
    assert statuses <= {200, 400, 404}
    assert (listed.status_code, prompt.status_code) == (200, 404)
