"""Which servers are taken, and what is said of the others."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tenants.errors import InvalidField, StoreUnavailable, StoreUnsupported
from tenants.storage.connection import open_redis


async def test_a_server_that_is_not_there_is_an_error_without_the_password() -> None:
    with pytest.raises(StoreUnavailable) as caught:
        await open_redis("redis://user:hunter2@127.0.0.1:1/0", 0.3)
    assert "127.0.0.1:1" in str(caught.value)
    assert "hunter2" not in str(caught.value)


async def test_a_server_that_lets_nobody_in_without_the_password_says_what_to_correct() -> None:
    for words in (
        b"-WRONGPASS invalid username-password pair",
        b"-NOAUTH Authentication required.",
    ):
        async with refusing(words) as url:
            with pytest.raises(StoreUnavailable, match="correct redis_password_file") as caught:
                await open_redis(url)
        assert "hunter2" not in str(caught.value)


@asynccontextmanager
async def refusing(words: bytes) -> AsyncIterator[str]:
    """A server that answers everything so; the URL has a password."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(4096):
            writer.write(words + b"\r\n")
        writer.close()

    with tempfile.TemporaryDirectory(prefix="pw-") as folder:
        path = str(Path(folder) / "s")
        server = await asyncio.start_unix_server(answer, path)
        try:
            yield f"unix://user:hunter2@{path}"
        finally:
            server.close()


@pytest.mark.parametrize("url", ["", "127.0.0.1:6379", "http://127.0.0.1", "redis://h:port"])
async def test_a_url_that_is_none_is_refused_by_name(url: str) -> None:
    with pytest.raises(InvalidField) as caught:
        await open_redis(url)
    assert caught.value.field == "redis_url"


@asynccontextmanager
async def posing_as(info: str) -> AsyncIterator[str]:
    """A server that only says what it is, as one that nobody can install any more would."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            words = []
            for _ in range(int(line[1:])):
                length = int((await reader.readline())[1:])
                words.append((await reader.readexactly(length + 2))[:-2].upper())
            if words[0] == b"INFO":
                writer.write(f"${len(info)}\r\n{info}\r\n".encode())
            else:
                writer.write(b"-ERR unknown command\r\n")
        writer.close()

    with tempfile.TemporaryDirectory(prefix="pw-") as folder:
        path = str(Path(folder) / "s")
        server = await asyncio.start_unix_server(answer, path)
        try:
            yield f"unix://{path}"
        finally:
            server.close()


@pytest.mark.parametrize(
    ("info", "version"),
    [
        ("# Server\r\nredis_version:6.2.14\r\n", "6.2.14"),
        ("# Server\r\nredis_version:5.0.3\r\nredis_mode:standalone\r\n", "5.0.3"),
        (
            "# Server\r\nredis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:7.2.5\r\n",
            "7.2.5",
        ),
    ],
)
async def test_a_server_that_is_too_old_is_refused_with_its_version(
    info: str, version: str
) -> None:
    async with posing_as(info) as url:
        with pytest.raises(StoreUnsupported, match=version):
            await open_redis(url, 5)


@pytest.mark.parametrize(
    "info",
    [
        "# Server\r\nredis_version:7.0.0\r\n",
        "# Server\r\nredis_version:8.4.0\r\n",
        "# Server\r\nredis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.0.1\r\n",
    ],
)
async def test_a_server_that_is_new_enough_is_taken(info: str) -> None:
    async with posing_as(info) as url:
        await (await open_redis(url, 5)).close()
