"""Writes that are safe to send: again after a lost answer, and beside somebody else's."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from app.admin.mount import ROUTES, admin_document
from tenants.errors import StoreUnavailable
from tenants.storage import commits
from tenants.storage.connection import Script
from tests.app.admin.problem import fields, problem
from tests.app.conftest import World

ONCE = {"idempotency-key": "b9c6-1"}


async def test_a_write_sent_again_has_the_same_answer_and_is_not_done_again(
    admin: httpx.AsyncClient,
) -> None:
    first = await admin.post("/tenants", json={"id": "nova"}, headers=ONCE)
    again = await admin.post("/tenants", json={"id": "nova"}, headers=ONCE)
    assert (again.status_code, again.content) == (201, first.content)
    assert again.headers["etag"] == first.headers["etag"]
    assert again.headers["idempotency-replayed"] == "true"
    assert "idempotency-replayed" not in first.headers
    problem(await admin.post("/tenants", json={"id": "nova"}), 409)


async def test_a_key_that_named_another_write_is_refused(admin: httpx.AsyncClient) -> None:
    await admin.post("/tenants", json={"id": "nova"}, headers=ONCE)
    for attempt in (
        admin.post("/tenants", json={"id": "vega"}, headers=ONCE),
        admin.post("/groups", json={"id": "nova"}, headers=ONCE),
        admin.delete("/tenants/acme", headers=ONCE),
    ):
        assert fields(await attempt, 409) == ["Idempotency-Key"]
    problem(await admin.get("/tenants/vega"), 404)
    assert (await admin.get("/tenants/acme")).is_success


async def test_of_many_equal_writes_at_once_one_is_done(admin: httpx.AsyncClient) -> None:
    body = {"name": "ci"}
    answers = await asyncio.gather(
        *(admin.post("/tenants/acme/keys", json=body, headers=ONCE) for _ in range(16))
    )
    done = {answer.content for answer in answers if answer.is_success}
    assert len(done) == 1
    assert {answer.status_code for answer in answers} <= {201, 409}
    assert len((await admin.get("/tenants/acme/keys")).json()["keys"]) == 2


async def test_a_refused_write_may_be_mended_under_the_same_key(admin: httpx.AsyncClient) -> None:
    body = {"id": "nova", "share_group": "law"}
    problem(await admin.post("/tenants", json=body, headers=ONCE), 409)
    await admin.post("/groups", json={"id": "law"})
    assert (await admin.post("/tenants", json=body, headers=ONCE)).status_code == 201


async def test_a_write_whose_reply_timed_out_is_not_made_again_under_its_key(
    admin: httpx.AsyncClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = world.redis.run_script
    lose = True

    async def lost(script: Script, *arguments: Any) -> Any:
        reply = await real(script, *arguments)
        if lose and script is commits._COMMIT:
            raise StoreUnavailable("timeout")
        return reply

    monkeypatch.setattr(world.redis, "run_script", lost)
    answer = await admin.post("/tenants/acme/keys", json={"name": "ci"}, headers=ONCE)
    assert answer.status_code == 503
    lose = False
    for _ in range(2):
        again = await admin.post("/tenants/acme/keys", json={"name": "ci"}, headers=ONCE)
        assert "has made its change" in problem(again, 409)["detail"]
    names = [key["name"] for key in (await admin.get("/tenants/acme/keys")).json()["keys"]]
    assert names.count("ci") == 1


async def test_a_deletion_that_was_cut_off_goes_on_under_its_key(
    admin: httpx.AsyncClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = world.redis.run_script

    async def lost(script: Script, *arguments: Any) -> Any:
        reply = await real(script, *arguments)
        if script is commits._COMMIT:
            raise StoreUnavailable("timeout")
        return reply

    monkeypatch.setattr(world.redis, "run_script", lost)
    assert (await admin.delete("/tenants/acme", headers=ONCE)).status_code == 503
    monkeypatch.undo()
    assert (await admin.delete("/tenants/acme", headers=ONCE)).is_success


@pytest.mark.parametrize("key", ["", "x" * 256, "two words", "ümlaut".encode()])
async def test_a_key_that_is_none_is_refused(admin: httpx.AsyncClient, key: str | bytes) -> None:
    headers = {b"idempotency-key": key.encode() if isinstance(key, str) else key}
    answer = await admin.post("/tenants", json={"id": "nova"}, headers=headers)
    assert fields(answer, 422) == ["Idempotency-Key"]


def test_every_write_takes_a_key_and_every_patch_a_condition() -> None:
    for one in ROUTES:
        operation = admin_document()["paths"][one.path][one.method.lower()]
        names = {parameter["name"] for parameter in operation.get("parameters", [])}
        assert ("Idempotency-Key" in names) == (one.method != "GET")
        assert ("If-Match" in names) == (one.method == "PATCH")


@pytest.mark.parametrize("path", ["/tenants/acme", "/groups/law", "/tenants/acme/keys/{key}"])
async def test_a_patch_is_refused_if_somebody_else_was_faster(
    admin: httpx.AsyncClient, path: str
) -> None:
    await admin.post("/groups", json={"id": "law"})
    key = (await admin.get("/tenants/acme/keys")).json()["keys"][0]["id"]
    url = path.format(key=key)
    seen = (await admin.get(url)).headers["etag"]
    faster = await admin.patch(url, json={"name": "faster"}, headers={"if-match": seen})
    assert faster.json()["name"] == "faster"
    slower = await admin.patch(url, json={"name": "slower"}, headers={"if-match": seen})
    assert problem(slower, 412)["code"] == "changed_meanwhile"
    assert slower.headers["etag"] == faster.headers["etag"] != seen
    assert (await admin.get(url)).json()["name"] == "faster"
    either = {"if-match": f"{seen}, {faster.headers['etag']}"}
    assert (await admin.patch(url, json={"name": "third"}, headers=either)).is_success
    assert (await admin.patch(url, json={"name": "last"}, headers={"if-match": "*"})).is_success


@pytest.mark.parametrize(
    ("path", "body"), [("/tenants", {"id": "nova"}), ("/tenants/acme/keys", {"name": "ci"})]
)
async def test_what_was_just_made_may_be_changed_with_the_etag_of_its_making(
    admin: httpx.AsyncClient, path: str, body: dict[str, str]
) -> None:
    made = await admin.post(path, json=body)
    url = f"{path}/{made.json()['id']}"
    assert (await admin.get(url)).headers["etag"] == made.headers["etag"]
    seen = {"if-match": made.headers["etag"]}
    assert (await admin.patch(url, json={"name": "new"}, headers=seen)).is_success
    problem(await admin.patch(url, json={"name": "newer"}, headers=seen), 412)


async def test_of_many_conditional_patches_at_once_one_is_done(admin: httpx.AsyncClient) -> None:
    seen = {"if-match": (await admin.get("/tenants/acme")).headers["etag"]}
    answers = await asyncio.gather(
        *(
            admin.patch("/tenants/acme", json={"weight": number}, headers=seen)
            for number in range(2, 18)
        )
    )
    assert sorted(answer.status_code for answer in answers) == [200, *[412] * 15]


async def test_the_audit_tells_who_did_what_and_what_changed(
    admin: httpx.AsyncClient, world: World
) -> None:
    await admin.patch("/tenants/acme", json={"weight": 2})
    await admin.patch("/tenants/acme", json={"weight": 2})  # changes nothing
    await admin.put("/tenants/acme/prompts/desk", json={"text": "Be brief."})
    entries = (await admin.get("/audit", params={"owner": "acme"})).json()["entries"]
    put, patched, made = entries
    assert [one["action"] for one in entries] == ["prompt.put", "tenant.update", "tenant.create"]
    assert (put["actor"], put["target"]) == ("admin", "desk")
    assert (patched["before"]["weight"], patched["after"]["weight"]) == (1.0, 2.0)
    assert made["before"] is None
    assert patched["at"] >= made["at"]


async def test_the_audit_is_read_page_by_page(admin: httpx.AsyncClient) -> None:
    for number in range(4):
        await admin.patch("/tenants/acme", json={"weight": number + 2})
    everything = (await admin.get("/audit")).json()["entries"]
    found, after = [], {}
    for _ in range(3):
        page = (await admin.get("/audit", params={"limit": 2} | after)).json()
        found += page["entries"]
        after = {"after": page["next"]}
    assert (found, page["next"]) == (everything, None)
    assert (await admin.get("/audit", params={"after": "0-0"})).json()["entries"] == []


async def test_refused_and_invalid_writes_leave_no_trace(admin: httpx.AsyncClient) -> None:
    before = (await admin.get("/audit")).json()
    await admin.post("/tenants", json={"id": "acme"})
    await admin.patch("/tenants/acme", json={"weight": -1})
    await admin.delete("/tenants/nobody")
    await admin.patch("/tenants/acme", json={"weight": 5}, headers={"if-match": '"x"'})
    assert (await admin.get("/audit")).json() == before
    await admin.patch("/tenants/acme", json={"weight": 5})
    assert (await admin.get("/audit")).json() != before
