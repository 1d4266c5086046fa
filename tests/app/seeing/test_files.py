"""`/v1/files`, as OpenAI's client asks for it: what is taken, found, listed and refused."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import openai
import pytest

from app.transport.bounds import Bounds
from tenants.at_rest.sealer import PIECE_BYTES
from tenants.stored.files import StoredFiles
from tests.app.conftest import World, eventually
from tests.app.seeing.conftest import CAT, HELLO, ScriptedEyes, uploaded

LARGE = b"3 large " + bytes(range(256)) * 9000
SMALL_BOUNDS = pytest.mark.parametrize("limits", [Bounds(max_image_bytes=5000)])
DAY = 86_400


def form(**fields: Any) -> dict[str, Any]:
    return {"files": {"file": ("a.png", HELLO)}, "data": {"purpose": "vision"}, **fields}


async def post(world: World, **sent: Any) -> httpx.Response:
    async with httpx.AsyncClient(base_url=world.base_url, headers=world.headers()) as client:
        return await client.post("/v1/files", **sent)


def refusal(answer: httpx.Response) -> tuple[int, str, str | None]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["param"]


async def test_a_file_comes_back_as_it_was_sent(world: World, eyes: ScriptedEyes) -> None:
    assert len(LARGE) > 2 * PIECE_BYTES
    files = world.client().files
    made = await files.create(file=("Bär.png", LARGE), purpose="vision")
    assert made.id.startswith("file-")
    assert (made.object, made.bytes, made.filename) == ("file", len(LARGE), "Bär.png")
    assert (made.purpose, made.status) == ("vision", "processed")
    assert abs(made.created_at - time.time()) < 60
    assert made.expires_at == made.created_at + DAY
    assert await files.retrieve(made.id) == made
    assert await files.wait_for_processing(made.id) == made
    content = await files.content(made.id)
    assert content.read() == LARGE
    assert content.response.headers["content-type"] == "application/octet-stream"
    assert eyes.looks == [(LARGE, "auto")]


async def test_what_is_deleted_is_gone(world: World) -> None:
    files = world.client().files
    file_id = await uploaded(world)
    deleted = await files.delete(file_id)
    assert deleted.to_dict() == {"id": file_id, "object": "file", "deleted": True}
    for ask in (files.retrieve, files.delete, files.content):
        with pytest.raises(openai.NotFoundError) as refused:
            await ask(file_id)
        assert (refused.value.code, refused.value.param) == ("file_not_found", "file_id")
    assert (await files.list()).data == []


async def test_another_tenants_file_is_like_one_that_never_was(world: World) -> None:
    file_id = await uploaded(world)
    theirs = world.client("umbra").files
    for ask in (theirs.retrieve, theirs.delete, theirs.content):
        told = []
        for named in (file_id, "file-none"):
            with pytest.raises(openai.NotFoundError) as refused:
                await ask(named)
            told.append(refused.value.message.replace(named, ""))
        assert told[0] == told[1]
    assert (await theirs.list()).data == []
    with pytest.raises(openai.BadRequestError):
        await theirs.list(after=file_id)
    assert (await world.client().files.content(file_id)).read() == HELLO


async def test_lists_have_pages_orders_and_purposes(world: World) -> None:
    files = world.client().files
    made = [await uploaded(world, purpose=purpose) for purpose in ["vision", "user_data"] * 2]
    assert [one.id async for one in files.list()] == made[::-1]
    first = await files.list(limit=2)
    assert (first.has_more, first.to_dict()["first_id"]) == (True, made[3])
    assert first.to_dict()["last_id"] == made[2]
    assert [one.id async for one in files.list(limit=1, order="asc")] == made
    assert [one.id async for one in files.list(purpose="vision", limit=1)] == [made[2], made[0]]
    last = await files.list(after=made[2])
    assert ([one.id for one in last.data], last.has_more) == ([made[1], made[0]], False)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"limit": 10_001}, "limit"),
        ({"after": "file-none"}, "after"),
        ({"purpose": "batch"}, "purpose"),
        ({"extra_query": {"kind": "x"}}, "kind"),
    ]
    for query, param in refused:
        with pytest.raises(openai.BadRequestError) as error:
            await files.list(**query)
        assert error.value.param == param


async def test_a_long_list_is_read_in_parts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.routes.files._READ_AT_ONCE", 2)
    made = [await uploaded(world, purpose=purpose) for purpose in ["vision", "user_data"] * 3]
    page = await world.client().files.list(purpose="vision", limit=2)
    assert ([one.id for one in page.data], page.has_more) == ([made[4], made[2]], True)
    assert (await world.client().files.list(limit=6)).has_more is False


async def test_a_list_misses_nothing_while_others_delete(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.routes.files._READ_AT_ONCE", 2)
    made = [await uploaded(world) for _ in range(5)]
    listed = StoredFiles.listed

    async def deleting(self: StoredFiles, *place: Any, **fields: Any) -> Any:
        found = await listed(self, *place, **fields)
        if found and found[0][0] == made[0]:
            await self.delete("acme", made[1])
        return found

    monkeypatch.setattr(StoredFiles, "listed", deleting)
    files = (await world.client().files.list(order="asc")).data
    assert [one.id for one in files] == made


async def test_files_expire_when_they_are_to(world: World) -> None:
    files = world.client().files
    made = await files.create(
        file=HELLO, purpose="vision", expires_after={"anchor": "created_at", "seconds": 1}
    )
    assert made.expires_at == made.created_at + 1
    await asyncio.sleep(1.01)
    assert (await files.list()).data == []
    with pytest.raises(openai.NotFoundError):
        await files.retrieve(made.id)


@pytest.mark.parametrize(
    ("sent", "refused"),
    [
        (form(data={}), (400, "missing_required_parameter", "purpose")),
        (form(data={"purpose": "assistants"}), (400, "unsupported_value", "purpose")),
        (form(data={"purpose": "vision", "model": "x"}), (400, "unknown_parameter", "model")),
        (
            form(data={"purpose": "vision", "purpose[a]": "x"}),
            (400, "unknown_parameter", "purpose[a]"),
        ),
        (form(data={"purpose": ["vision", "vision"]}), (400, "invalid_value", "purpose")),
        (form(data={"purpose": "v" * 1025}), (400, "invalid_value", "purpose")),
        (
            form(data={"purpose": "vision"} | {f"f{one}": "" for one in range(16)}),
            (400, "invalid_value", None),
        ),
        (
            form(data={"purpose": "vision", "expires_after[seconds]": "9"}),
            (400, "missing_required_parameter", "expires_after.anchor"),
        ),
        (form(files={"file": ("a", b"no picture")}), (400, "invalid_image", "file")),
        (
            form(files=[("file", ("a", HELLO)), ("file", ("b", CAT))]),
            (400, "invalid_value", "file"),
        ),
        (
            form(files={"image": ("a", HELLO)}),
            (400, "unknown_parameter", "image"),
        ),
        ({"json": {"purpose": "vision"}}, (415, "unsupported_media_type", None)),
        (
            {"content": b"none", "headers": {"content-type": "multipart/form-data; boundary=x"}},
            (400, "invalid_value", None),
        ),
    ],
)
async def test_what_is_no_upload_is_refused_by_its_name(
    world: World, sent: dict[str, Any], refused: tuple[int, str, str | None]
) -> None:
    assert refusal(await post(world, **sent)) == refused
    assert (await world.client().files.list()).data == []


@pytest.mark.parametrize("seconds", ["0", "-1", "x", "1.5", str(DAY + 1)])
async def test_times_that_cannot_be_are_refused(world: World, seconds: str) -> None:
    data = {
        "purpose": "vision",
        "expires_after[anchor]": "created_at",
        "expires_after[seconds]": seconds,
    }
    status, _, param = refusal(await post(world, **form(data=data)))
    assert (status, param) == (400, "expires_after.seconds")


async def test_a_form_without_a_file_names_it(world: World) -> None:
    boundary = {"content-type": "multipart/form-data; boundary=x"}
    body = b'--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nvision\r\n--x--\r\n'
    answer = await post(world, content=body, headers=boundary)
    assert refusal(answer) == (400, "missing_required_parameter", "file")


async def test_a_file_may_come_before_what_it_is_for(world: World) -> None:
    boundary = {"content-type": "multipart/form-data; boundary=x"}
    parts = ('name="file"; filename="a.png"', HELLO.decode()), ('name="purpose"', "user_data")
    body = "".join(
        f"--x\r\nContent-Disposition: form-data; {head}\r\n\r\n{content}\r\n"
        for head, content in parts
    )
    made = (await post(world, content=f"{body}--x--\r\n", headers=boundary)).json()
    assert (made["purpose"], made["bytes"], made["filename"]) == ("user_data", 7, "a.png")


async def test_the_purposes_that_are_served_are_told(world: World) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await world.client().files.create(file=HELLO, purpose="assistants")
    assert "only files of purpose vision and user_data are taken" in refused.value.message


@SMALL_BOUNDS
async def test_a_file_that_is_too_large_is_refused_whether_it_says_so_or_not(
    world: World, eyes: ScriptedEyes
) -> None:
    async def unsaid(size: int) -> Any:
        head = 'content-disposition: form-data; name="file"; filename="a"\r\n\r\n'
        yield b"--x\r\n" + head.encode()
        for _ in range(size // 1000):
            yield b"3" * 1000
        yield b"\r\n--x--\r\n"

    kind = {"content-type": "multipart/form-data; boundary=x"}
    for sent in (
        form(files={"file": ("a", b"3" * 5001)}),
        form(files={"file": ("a", b"3" * 300_000)}),
        {"content": unsaid(6000), "headers": kind},
    ):
        answer = await post(world, **sent)
        assert refusal(answer) == (413, "body_too_large", "file")
        assert answer.headers["connection"] == "close"
    assert eyes.looks == []
    await uploaded(world, b"3" * 5000)


async def test_what_stands_behind_a_form_has_an_end(world: World) -> None:
    boundary = {"content-type": "multipart/form-data; boundary=x"}
    body = b'--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nvision\r\n--x--\r\n'
    answer = await post(world, content=body + bytes(2_000_000), headers=boundary)
    assert refusal(answer) == (413, "body_too_large", "file")


async def test_a_tenant_keeps_so_many_files_and_bytes(world: World) -> None:
    await world.limit("acme", files=2, file_bytes=10_000)
    kept = [await uploaded(world) for _ in range(2)]
    await world.limit("acme", file_bytes=20)
    for refused in (HELLO * 2, HELLO):
        with pytest.raises(openai.BadRequestError) as error:
            await uploaded(world, refused)
        assert (error.value.code, error.value.param) == ("files_exceeded", "file")
    await world.client().files.delete(kept[0])
    await uploaded(world, HELLO)
    await world.limit("acme", files=0)
    with pytest.raises(openai.BadRequestError, match="No files may be kept"):
        await uploaded(world)
    await uploaded(world, tenant="umbra")


async def test_uploads_and_lists_count_as_requests(world: World) -> None:
    await world.limit("acme", requests_per_minute=2)
    file_id = await uploaded(world)
    await world.client().files.list()
    await world.client().files.retrieve(file_id)
    for again in (uploaded(world), world.client().files.content(file_id)):
        with pytest.raises(openai.RateLimitError):
            await again


async def test_a_model_that_sees_nothing_takes_no_files_and_gives_back_what_it_has(
    world: World,
) -> None:
    file_id = await uploaded(world)
    world.app.state.service.generations.sight.eyes = None
    with pytest.raises(openai.BadRequestError) as refused:
        await uploaded(world)
    assert (refused.value.code, refused.value.param) == ("unsupported_value", "file")
    assert "does not see pictures" in refused.value.message
    assert (await world.client().files.content(file_id)).read() == HELLO
    await world.client().files.delete(file_id)


async def test_nothing_is_known_without_a_key(world: World) -> None:
    file_id = await uploaded(world)
    async with httpx.AsyncClient() as client:
        for method, path in (
            ("POST", ""),
            ("GET", ""),
            ("GET", f"/{file_id}"),
            ("DELETE", f"/{file_id}"),
            ("GET", f"/{file_id}/content"),
        ):
            answer = await client.request(method, f"{world.base_url}/v1/files{path}")
            assert answer.status_code == 401


@pytest.mark.parametrize("limits", [Bounds(ignores_unknown_fields=True)])
async def test_fields_that_are_ignored_are_told(world: World) -> None:
    answer = await post(world, **form(data={"purpose": "vision", "model": "x"}))
    assert answer.status_code == 200
    assert answer.headers["x-partywall-ignored-fields"] == "model"


async def test_a_picture_is_in_clear_nowhere_in_the_store(world: World) -> None:
    picture = b"3 " + b"a cat that nobody else is to see" * 100
    await world.client().files.create(file=("private.png", picture), purpose="vision")
    held = b""
    for key in await world.redis.execute("KEYS", "pw:*file*"):
        kind = await world.redis.execute("TYPE", key)
        held += key + (await world.redis.execute("GET", key) if kind == b"string" else b"")
    assert b"file-piece" in held
    assert b"a cat" not in held
    assert b"private" not in held


async def test_a_download_whose_file_goes_is_no_whole_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_id = await uploaded(world, LARGE)
    pieces = f"pw:{{acme}}:file-piece:{file_id}:2"
    await world.redis.execute("DEL", pieces)
    with pytest.raises(httpx.TransportError):
        async with httpx.AsyncClient(base_url=world.base_url, headers=world.headers()) as client:
            await client.get(f"/v1/files/{file_id}/content")


async def test_bodies_of_uploads_are_held_within_the_room_for_bodies(world: World) -> None:
    intake = world.app.state.service.intake
    assert intake.take("acme", 64 * 1024 * 1024 - 100_000)
    with pytest.raises(openai.RateLimitError) as refused:
        await uploaded(world, LARGE)
    assert refused.value.code == "queue_full"
    await uploaded(world, LARGE, tenant="umbra")
    await eventually(lambda: intake._held.total() == 64 * 1024 * 1024 - 100_000)


async def test_a_file_whose_client_has_left_is_not_kept(
    world: World, eyes: ScriptedEyes, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = asyncio.Event()

    async def look(*_: Any) -> Any:
        looks.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(eyes, "look", look)
    sending = asyncio.create_task(post(world, **form(files={"file": ("a.png", LARGE)})))
    await looks.wait()
    held = world.app.state.service.intake._held
    assert held.total() == len(LARGE)
    sending.cancel()
    await eventually(lambda: held.total() == 0)
    assert (await world.client().files.list()).data == []
