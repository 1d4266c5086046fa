"""Bytes that nobody would send: every connection ends, and nothing is logged, kept or broken."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import psutil
import pytest

from app.transport.bounds import ConnectionBounds
from tests.app.transport.raw import HANDSHAKE, Reader, stranger
from tests.app.transport.test_server import running, settings

SEED = 5
CONNECTIONS = 400
AT_ONCE = 50
MEBIBYTE = 2**20

GET = b"GET /a?b=c HTTP/1.1\r\nHost: a\r\nAccept: */*\r\nCookie: a=b\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3;a=b\r\nabc\r\n2\r\nde\r\n0\r\nTrailer: x\r\n\r\n"
)
H2C = (
    b"POST / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    b"HTTP2-Settings: AAMAAABk\r\nContent-Length: 2\r\n\r\nok"
)
FRAMES = b"\x81\x85abcd\x09\x07\x0f\x08\x0e\x89\x80abcd\x01\x81abcd\x09\x80\x81abcd\x09\x88\x80abcd"
TLS = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
WHOLE = [GET, POST, CHUNKED, H2C, HANDSHAKE + b"\r\n", TLS]
SPICE = [b"\0", b"\r", b"\n", b"\r\n", b"\r\n\r\n", b" ", b"\t", b":", b"\xff\xfe", b"%00", b"%ff"]
SPICE += [b"Host: b\r\n", b"Upgrade: websocket\r\n", b"Content-Length: 99999999999999999999\r\n"]
SPICE += [b"Transfer-Encoding: chunked\r\n", b"Expect: 100-continue\r\n", b"\r\n folded", b"-1"]

Mutation = Callable[[random.Random, bytes], bytes]


def cut(chance: random.Random, data: bytes) -> bytes:
    """Leave the end out."""
    return data[: chance.randrange(len(data) + 1)]


def flip(chance: random.Random, data: bytes) -> bytes:
    """Change some bytes to any others."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        if changed:
            changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)


def spice(chance: random.Random, data: bytes) -> bytes:
    """Put in something that means something."""
    at = chance.randrange(len(data) + 1)
    return data[:at] + chance.choice(SPICE) + data[at:]


def swell(chance: random.Random, data: bytes) -> bytes:
    """Repeat a part, up to a megabyte of it."""
    at = chance.randrange(len(data) + 1)
    part = data[at : at + chance.randint(1, 40)]
    count = min(chance.choice([2, 100, 10_000, 1_000_000]), MEBIBYTE // max(1, len(part)))
    return data[:at] + part * count + data[at:]


def follow(chance: random.Random, data: bytes) -> bytes:
    """Let something else come behind it."""
    return data + chance.choice([*WHOLE, FRAMES, chance.randbytes(chance.randrange(3000))])


MUTATIONS: list[Mutation] = [cut, flip, spice, swell, follow]


def nonsense(chance: random.Random) -> list[bytes]:
    """What one connection sends, in the pieces in which it is sent."""
    if chance.random() < 0.1:
        data = chance.randbytes(chance.choice([1, 100, 10_000, 300_000]))
    else:
        data = chance.choice(WHOLE)
        for _ in range(chance.randint(1, 4)):
            data = chance.choice(MUTATIONS)(chance, data)
    pieces = chance.choice([1, 1, 2, 5])
    size = len(data) // pieces + 1
    sent = [data[at : at + size] for at in range(0, len(data), size)]
    if chance.random() < 0.3:
        frames = flip(chance, FRAMES) if chance.random() < 0.7 else chance.randbytes(200)
        sent = [HANDSHAKE + b"\r\n", frames]
    return sent


async def play(url: str, pieces: list[bytes]) -> None:
    """Send, and read until the service closes, which it must."""
    async with stranger(url) as peer:
        for piece in pieces:
            peer.send(piece)
            await asyncio.sleep(0.005)
        await peer.rest()


async def test_nonsense_ends_every_connection_and_leaves_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bounds = ConnectionBounds(
        idle_seconds=0.3,
        header_deadline_seconds=0.3,
        body_deadline_seconds=0.3,
        send_deadline_seconds=0.3,
        max_connections=AT_ONCE,
    )
    hasty = settings(ping_interval_seconds=0.3, ping_timeout_seconds=0.3)
    chance = random.Random(SEED)
    reader = Reader()
    async with running(reader, hasty, bounds) as url:
        everything = [nonsense(chance) for _ in range(CONNECTIONS)]
        await asyncio.gather(*(play(url, pieces) for pieces in everything[:AT_ONCE]))
        before = psutil.Process().memory_info().rss
        for start in range(AT_ONCE, CONNECTIONS, AT_ONCE):
            batch = everything[start : start + AT_ONCE]
            await asyncio.gather(*(play(url, pieces) for pieces in batch))
        grown = psutil.Process().memory_info().rss - before
        async with stranger(url) as peer:
            peer.send(GET)
            assert await peer.status() == 200
    assert grown < 60 * MEBIBYTE
    assert caplog.records == []
