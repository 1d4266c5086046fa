"""Adapters over HTTP: files as they come or from a folder, versions, pins, and who may."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.transport import large_bodies
from engine.api import AdapterState
from engine.questions import ADAPTERS_AT_ONCE
from tests.app.adapter_files import LINEARS, config_of, weights_of
from tests.app.admin.problem import fields, problem
from tests.app.conftest import MODEL, World
from tests.tenants.adapters.putting import put as kept

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


@pytest.fixture(autouse=True)
def linears(world: World) -> None:
    world.engine.linears = LINEARS


@pytest.fixture(params=["/tenants/acme", "/groups/law"])
async def owner(request: pytest.FixtureRequest, admin: httpx.AsyncClient) -> str:
    """Whose adapters: all that holds for a tenant's holds for a group's."""
    await admin.post("/groups", json={"id": "law"})
    return str(request.param)


UNUSED = {
    "where": [],
    "bytes": 0,
    "uses": 0,
    "used_at": None,
    "fetch_seconds": None,
    "load_seconds": None,
}


def form(weights: bytes, config: bytes | None = None) -> dict[str, Any]:
    return {CONFIG: config_of() if config is None else config, WEIGHTS: weights}


async def put(
    admin: httpx.AsyncClient, owner: str = "/tenants/acme", value: float = 0.5, **query: Any
) -> dict[str, Any]:
    url = f"{owner}/adapters/rhyme"
    answer = await admin.put(url, files=form(weights_of(value)), params=query)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


async def nothing_is_kept(world: World) -> bool:
    return not [key async for keys in world.redis.scan("pw:*:adapter*", 100) for key in keys if key]


async def test_an_adapter_is_kept_shown_and_deleted(
    admin: httpx.AsyncClient, owner: str, world: World
) -> None:
    made = await put(admin, owner)
    assert made == {
        "name": "rhyme",
        "version": 1,
        "active": True,
        "pinned": False,
        "digest": made["digest"],
        "bytes": len(weights_of()),
        "rank": 4,
        "targets": ["q_proj", "up_proj"],
        "invocation": [],
        "created_at": made["created_at"],
    }
    url = f"{owner}/adapters/rhyme"
    shown = made | {"engine": UNUSED}
    assert (await admin.get(url)).json() == shown
    assert (await admin.get(f"{owner}/adapters")).json() == {"adapters": [shown], "next": None}
    kept = await world.stores.adapters.get(owner.replace("/groups/", "@").split("/")[-1], "rhyme")
    assert kept is not None
    assert await world.stores.adapters.read_config(kept) == config_of()
    read = [piece async for piece in world.stores.adapters.read_weights(kept)]
    assert b"".join(read) == weights_of()
    assert (await admin.delete(url)).status_code == 204
    problem(await admin.get(url), 404)
    assert (await admin.get(f"{owner}/adapters")).json() == {"adapters": [], "next": None}


async def test_versions_are_activated_pinned_and_listed(
    admin: httpx.AsyncClient, owner: str
) -> None:
    url = f"{owner}/adapters/rhyme"
    await put(admin, owner, 0.5)
    assert (await put(admin, owner, 0.5))["version"] == 1
    second = await put(admin, owner, 0.25, activate="false")
    assert (second["version"], second["active"]) == (2, False)
    assert (await admin.get(url)).json()["version"] == 1
    assert (await admin.post(f"{url}/activate", json={"version": 2})).json()["active"]
    assert (await admin.get(url)).json()["version"] == 2
    assert (await admin.get(url, params={"version": 1})).json()["active"] is False
    problem(await admin.post(f"{url}/activate", json={"version": 3}), 404)
    assert (await admin.post(f"{url}/pin")).json()["pinned"]
    assert not (await admin.post(f"{url}/unpin")).json()["pinned"]
    page = (await admin.get(f"{url}/versions", params={"limit": 1})).json()
    assert ([one["version"] for one in page["versions"]], page["next"]) == ([2], "2")
    page = (await admin.get(f"{url}/versions", params={"after": 2})).json()
    assert ([one["version"] for one in page["versions"]], page["next"]) == ([1], None)


async def test_what_the_engine_says_of_an_adapter_is_told_of_its_owners_alone(
    admin: httpx.AsyncClient, owner: str, world: World
) -> None:
    await admin.patch("/tenants/acme", json={"share_group": "law"})
    first = await put(admin, owner)
    await put(admin, owner, 0.25, activate="false")
    await put(admin, "/tenants/umbra")  # the same files
    for _ in range(2):
        await world.client().responses.create(model=f"{MODEL}:rhyme", input="Hello")
    url = f"{owner}/adapters/rhyme"
    told = (await admin.get(url)).json()
    used_at = datetime.fromisoformat(told["engine"].pop("used_at"))
    assert abs((datetime.now(UTC) - used_at).total_seconds()) < 30
    assert told == first | {
        "engine": {
            "where": ["device"],
            "bytes": 4096,
            "uses": 2,
            "fetch_seconds": 0.25,
            "load_seconds": 0.002,
        }
    }
    (listed,) = (await admin.get(f"{owner}/adapters")).json()["adapters"]
    assert listed["engine"]["uses"] == 2
    versions = (await admin.get(f"{url}/versions")).json()["versions"]
    assert [one["engine"]["uses"] for one in versions] == [0, 2]
    others = (await admin.get("/tenants/umbra/adapters/rhyme")).json()
    assert others["digest"] == first["digest"]
    assert others["engine"] == UNUSED
    world.engine.down = True
    for where in (url, f"{owner}/adapters", f"{url}/versions"):
        answer = (await admin.get(where)).json()
        (*_, last) = answer.get("adapters") or answer.get("versions") or [answer]
        assert (last["version"], last["engine"]) == (1, None)


async def test_many_adapters_are_asked_about_in_turns(
    admin: httpx.AsyncClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    real = world.engine.adapter_states

    async def states(names: Sequence[bytes]) -> list[AdapterState | None]:
        asked.append(len(names))
        return await real(names)

    monkeypatch.setattr(world.engine, "adapter_states", states)
    await admin.patch("/tenants/acme", json={"limits": {"adapters": "unlimited"}})
    for number in range(ADAPTERS_AT_ONCE + 1):
        await kept(world.stores.adapters, "acme", f"a{number:03}", b"%d" % number)
    found = (await admin.get("/tenants/acme/adapters", params={"limit": 1000})).json()
    assert [one["engine"] for one in found["adapters"]] == [UNUSED] * (ADAPTERS_AT_ONCE + 1)
    assert asked == [ADAPTERS_AT_ONCE, 1]


@pytest.mark.parametrize(
    ("config", "weights", "named"),
    [
        (config_of(use_dora=True), weights_of(), "use_dora"),
        (config_of(rank=8), weights_of(), "model.layers.0.mlp.up_proj"),
        (config_of(), weights_of(float("nan")), WEIGHTS),
        (config_of(), weights_of()[:-1], WEIGHTS),
        (config_of(), b"\x80\x04pickled", WEIGHTS),
        (config_of(), (1 << 32).to_bytes(8, "little") + b"{}", WEIGHTS),
        (config_of(), bytes(3 << 20), WEIGHTS),
        (b"{", weights_of(), CONFIG),
        (b" " * 70_000, weights_of(), CONFIG),
    ],
)
async def test_what_is_not_served_is_refused_by_name_and_leaves_nothing(
    admin: httpx.AsyncClient, world: World, config: bytes, weights: bytes, named: str
) -> None:
    answer = await admin.put("/tenants/acme/adapters/rhyme", files=form(weights, config))
    assert fields(answer, 422) == [named]
    assert await nothing_is_kept(world)


@pytest.mark.parametrize(
    ("sent", "named"),
    [
        ({WEIGHTS: weights_of(), CONFIG: config_of()}, WEIGHTS),
        ({CONFIG: config_of()}, WEIGHTS),
        ({CONFIG: config_of(), "other": b"x"}, "other"),
        ({CONFIG: config_of(), WEIGHTS: weights_of(), "other": b"x"}, "other"),
        ({"other": b"x"}, "other"),
    ],
)
async def test_the_configuration_comes_first_then_the_weights_and_nothing_else(
    admin: httpx.AsyncClient, world: World, sent: dict[str, bytes], named: str
) -> None:
    answer = await admin.put("/tenants/acme/adapters/rhyme", files=sent)
    assert fields(answer, 422) == [named]
    assert await nothing_is_kept(world)


async def test_other_bodies_are_refused(admin: httpx.AsyncClient) -> None:
    url = "/tenants/acme/adapters/rhyme"
    text = {"content-type": "text/plain"}
    assert problem(await admin.put(url, content=b"x", headers=text), 415)
    zipped = {"content-encoding": "gzip"}
    assert problem(await admin.put(url, files=form(weights_of()), headers=zipped), 415)
    problem(await admin.put(url, content=b"{", headers={"content-type": "application/json"}), 400)
    assert fields(await admin.put(url, json={}), 422) == ["folder"]
    assert fields(await admin.put(url, json={"folder": "x"}), 422) == ["folder"]


async def test_a_file_larger_than_any_message_is_kept(
    admin: httpx.AsyncClient, world: World
) -> None:
    world.engine.linears = {"model.up_proj": (8192, 8192)}
    tensors = weights_of(rank=256, linears=world.engine.linears)
    answer = await admin.put(
        "/tenants/acme/adapters/rhyme", files=form(tensors, config_of(rank=256))
    )
    assert (
        answer.json()["bytes"]
        == len(tensors)
        > 4 * world.app.state.service.bounds.max_body_bytes - 1
    )


async def test_a_body_that_stops_coming_is_refused_in_time_and_leaves_nothing(
    admin: httpx.AsyncClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_bodies, "_SILENCE_SECONDS", 0.2)
    whole = admin.build_request("PUT", "/x", files=form(weights_of()))
    body = whole.read()

    async def half() -> AsyncIterator[bytes]:
        yield body[: len(body) // 2]
        await asyncio.sleep(2)

    answer = await admin.put(
        "/tenants/acme/adapters/rhyme",
        content=half(),
        headers={"content-type": whole.headers["content-type"]},
    )
    assert problem(answer, 408)["code"] == "request_timeout"
    assert await nothing_is_kept(world)


async def test_a_tenant_has_no_more_than_its_limits(admin: httpx.AsyncClient) -> None:
    size = len(weights_of()) + len(config_of())
    await admin.patch("/tenants/acme", json={"limits": {"adapters": 1, "adapter_bytes": size}})
    await put(admin)
    other = await admin.put("/tenants/acme/adapters/other", files=form(weights_of()))
    assert problem(other, 409)["code"] == "adapters_exceeded"
    second = await admin.put("/tenants/acme/adapters/rhyme", files=form(weights_of(1.0)))
    assert problem(second, 409)["code"] == "adapters_exceeded"
    await admin.patch("/tenants/acme", json={"limits": {"adapters": 0}})
    await admin.delete("/tenants/acme/adapters/rhyme")
    problem(await admin.put("/tenants/acme/adapters/rhyme", files=form(weights_of())), 409)


async def test_a_put_sent_again_under_its_key_is_not_done_again(
    admin: httpx.AsyncClient, world: World
) -> None:
    url, once = "/tenants/acme/adapters/rhyme", {"idempotency-key": "b9c6-1"}
    first = await admin.put(url, files=form(weights_of()), headers=once)
    again = await admin.put(url, files=form(weights_of()), headers=once)
    assert (again.status_code, again.content) == (200, first.content)
    assert again.headers["idempotency-replayed"] == "true"
    longer = form(weights_of(rank=8), config_of(rank=8))
    assert fields(await admin.put(url, files=longer, headers=once), 409) == ["Idempotency-Key"]


async def test_nobodys_adapters_are_not_found(admin: httpx.AsyncClient) -> None:
    for url in ("/tenants/nobody", "/groups/nobody"):
        problem(await admin.get(f"{url}/adapters"), 404)
        problem(await admin.put(f"{url}/adapters/rhyme", files=form(weights_of())), 404)
    for what in ("", "/versions"):
        problem(await admin.get(f"/tenants/acme/adapters/rhyme{what}"), 404)
    answer = await admin.put("/tenants/acme/adapters/no%20name", files=form(weights_of()))
    assert fields(answer, 422) == ["name"]


@pytest.fixture
def folder(tmp_path: Path, world: World) -> Path:
    """`adapter_dir`, with the folder `rhyme`."""
    base = tmp_path / "adapters"
    (base / "deep" / "rhyme").mkdir(parents=True)
    (base / "deep" / "rhyme" / CONFIG).write_bytes(config_of())
    (base / "deep" / "rhyme" / WEIGHTS).write_bytes(weights_of())
    service = world.app.state.service
    bounds = dataclasses.replace(service.bounds, adapter_dir=base)
    object.__setattr__(service, "bounds", bounds)
    return base


async def test_an_adapter_may_lie_in_a_folder_of_the_service(
    admin: httpx.AsyncClient, folder: Path
) -> None:
    answer = await admin.put("/tenants/acme/adapters/rhyme", json={"folder": "deep/rhyme"})
    assert answer.json()["digest"] == (await put(admin))["digest"]


async def test_no_way_leads_out_of_the_folder(
    admin: httpx.AsyncClient, world: World, folder: Path
) -> None:
    inside, outside = folder / "deep" / "rhyme", folder.parent / "outside"
    inside.rename(outside)
    (folder / "link").symlink_to(outside)
    files = folder / "files"
    files.mkdir()
    for name in (CONFIG, WEIGHTS):
        (files / name).symlink_to(outside / name)
    pipes = folder / "pipes"
    pipes.mkdir()
    os.mkfifo(pipes / CONFIG)
    (folder / "folders" / CONFIG).mkdir(parents=True)
    names = ["../outside", str(outside), "link", "deep/../../outside", "files", "pipes", "folders"]
    for name in [*names, "nothing", ".", "a\0b", "\ud800"]:
        answer = await admin.put(
            "/tenants/acme/adapters/rhyme",
            content=json.dumps({"folder": name}),
            headers={"content-type": "application/json"},
        )
        assert answer.status_code in (400, 422), name
        if answer.status_code == 422:
            assert fields(answer, 422) == ["folder"]
    assert await nothing_is_kept(world)


async def test_a_tenants_own_token_puts_its_adapters_but_from_no_folder(
    admin: httpx.AsyncClient, folder: Path
) -> None:
    made = await admin.post(
        "/tokens", json={"name": "ci", "role": "admin", "tenant": "acme", "expires_in_seconds": 60}
    )
    own = {"authorization": f"Bearer {made.json()['admin_token']}"}
    files = form(weights_of())
    for tenant, status in (("acme", 200), ("umbra", 403)):
        url = f"/tenants/{tenant}/adapters/rhyme"
        assert (await admin.put(url, files=files, headers=own)).status_code == status
    named = await admin.put(
        "/tenants/acme/adapters/other", json={"folder": "deep/rhyme"}, headers=own
    )
    assert problem(named, 403)["code"] == "not_for_this_token"
