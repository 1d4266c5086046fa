"""A Redis is asked for all that tenants depend on; an embedded store only for who has it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.assembly.check import Check
from app.doctor.store import StoreState, check_store, judge
from app.settings import Settings
from tenants import redis_keys
from tenants.at_rest import pepper_record
from tenants.at_rest.pepper import load_peppers, pepper_path
from tenants.storage.connection import open_redis
from tenants.storage.embedded import EmbeddedStore
from tenants.storage.schema import SCHEMA
from tests.tenants.server import Server

GOOD = {"server_name": "valkey", "valkey_version": "9.0.0", "role": "master", "aof_enabled": 1}


def wrong(ahead: float = 0.0, milliseconds: float = 0.3, snapshots: str = "", **info: Any) -> Check:
    """The one thing that is not as it should be."""
    state = StoreState("redis://here", milliseconds, ahead, GOOD | info, snapshots)
    (check,) = [check for check in judge(state) if check.grade != "ok"]
    return check


def test_a_good_redis_has_nothing_wrong() -> None:
    checks = list(judge(StoreState("redis://here", 0.3, 0.1, GOOD, "")))
    assert {check.grade for check in checks} == {"ok"}
    assert checks[0].what == "valkey 9.0.0 at redis://here answers in 0.3 ms"


def test_what_would_lose_tenants_or_slow_them_down_is_told() -> None:
    full = {"maxmemory": 100 << 20, "used_memory": 95 << 20}
    assert "noeviction" in wrong(maxmemory=1 << 20, maxmemory_policy="allkeys-lru").remedy
    assert "takes no writes" in wrong(**full, maxmemory_policy="noeviction").what
    assert "goes everything" in wrong(aof_enabled=0).what
    assert "last snapshot" in wrong(aof_enabled=0, snapshots="3600 1").what
    assert "aof_last_write_status" in wrong(aof_last_write_status="err").what
    assert wrong(role="slave").grade == "fail"
    assert "80 ms" in wrong(milliseconds=80.0).what
    assert "30.0 s ahead of" in wrong(ahead=30.0).what
    assert "30.0 s behind" in wrong(ahead=-30.0).what


@pytest.fixture
def server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="pw-") as folder:
        server = Server(Path(folder))
        server.start()
        yield server
        server.kill()


async def test_a_real_server_tells_of_itself(server: Server, tmp_path: Path) -> None:
    checks = await check_store(Settings(redis_url=server.url, data_dir=tmp_path))
    assert [check.part for check in checks] == [
        "Redis",
        "Redis memory",
        "Redis files",
        "Redis clock",
    ]
    assert "valkey" in checks[0].what
    assert checks[2] == Check("Redis files", "ok", "it keeps an append-only file")


async def test_a_redis_under_another_pepper_fails(server: Server, tmp_path: Path) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    link = await open_redis(server.url)
    await pepper_record.join(link, load_peppers(here))
    await link.close()
    checks = await check_store(Settings(redis_url=server.url, data_dir=here))
    assert "fail" not in {check.grade for check in checks}
    for make in (lambda: None, lambda: load_peppers(elsewhere)):
        make()
        *_, check = await check_store(Settings(redis_url=server.url, data_dir=elsewhere))
        assert (check.part, check.grade) == ("Redis pepper", "fail")
        assert "--pepper-file" in check.remedy
    original = Settings(
        redis_url=server.url, data_dir=elsewhere, other_pepper_files=str(pepper_path(here))
    )
    assert "fail" not in {check.grade for check in await check_store(original)}


async def test_records_of_another_version_fail_with_what_to_do(
    server: Server, tmp_path: Path
) -> None:
    link = await open_redis(server.url)
    for version, remedy in ((SCHEMA - 1, "partywall store seal"), (SCHEMA + 1, "update it")):
        await link.execute("SET", redis_keys.SCHEMA, version)
        *_, check = await check_store(Settings(redis_url=server.url, data_dir=tmp_path))
        assert (check.part, check.grade) == ("Redis records", "fail")
        assert remedy in check.remedy
    await link.close()


async def test_a_redis_that_is_not_there_fails_with_a_remedy_and_without_its_password() -> None:
    (check,) = await check_store(Settings(redis_url="redis://:hunter2@127.0.0.1:1"))
    assert check.grade == "fail"
    assert "no Redis at redis://***@127.0.0.1:1" in check.what
    assert check.remedy == "start it there, or correct redis_url"


async def test_an_embedded_store_that_a_process_has_open_is_told(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data")
    (check,) = await check_store(settings)
    assert check.grade == "ok"
    assert not (tmp_path / "data").exists()
    with EmbeddedStore(tmp_path / "data"):
        (check,) = await check_store(settings)
        assert check.grade == "warn"
        assert "has the embedded store" in check.what
    (check,) = await check_store(settings)
    assert check.grade == "ok"
