"""Handshakes and frames as anybody can send them without a key."""

from __future__ import annotations

import asyncio
import struct

import pytest

from tests.app.transport.raw import GET, HANDSHAKE, POST, Reader, frame, resident_bytes, stranger
from tests.app.transport.test_server import running, settings

# Upgrades


async def test_a_wish_to_speak_http_2_is_ignored(reader: Reader) -> None:
    """As the JDK's client and `curl --http2` send it."""
    wish = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    async with running(reader, settings()) as url, stranger(url) as peer:
        for _ in range(2):
            peer.send(POST, wish, b"Content-Length: 4\r\n\r\nbo", b"dy")
            assert await peer.status() == 200
            assert await reader.bodies.get() == b"body"
        peer.send(GET, wish, b"\r\n")
        assert (await peer.answer()).endswith(b"GET ")


@pytest.mark.parametrize(
    ("handshake", "status"),
    [
        pytest.param(HANDSHAKE + b"Content-Length: 0\r\n\r\n", 101, id="JDK 17"),
        pytest.param(
            HANDSHAKE + b"Cookie: " + b"c" * 9000 + b"\r\n\r\n", 101, id="a cookie of 9 kB"
        ),
        pytest.param(HANDSHAKE + b"X: \xff\xfe\r\n\r\n", 101, id="no UTF-8"),
        pytest.param(
            HANDSHAKE.replace(b"GET", b"POST") + b"Content-Length: 0\r\n\r\n", 200, id="a POST"
        ),
        pytest.param(HANDSHAKE + b"Content-Length: 2\r\n\r\nhi", 200, id="a GET with a body"),
        pytest.param(HANDSHAKE.replace(b"1.1", b"1.0") + b"\r\n", 200, id="HTTP/1.0"),
        pytest.param(HANDSHAKE.replace(b"13", b"14") + b"\r\n", 400, id="another version"),
        pytest.param(HANDSHAKE.replace(b"dGhl", b"\xff\xff") + b"\r\n", 400, id="a broken key"),
        pytest.param(HANDSHAKE + b"\r\n\x81\x80abcd", 400, id="frames before the answer"),
    ],
)
async def test_every_handshake_is_answered(
    reader: Reader, caplog: pytest.LogCaptureFixture, handshake: bytes, status: int
) -> None:
    async with running(reader, settings()) as url, stranger(url) as peer:
        peer.send(handshake)
        assert await peer.status() == status
        if status >= 400:
            await peer.rest()
    assert caplog.records == []


async def test_a_handshake_that_the_library_cannot_read_is_answered(reader: Reader) -> None:
    async with running(reader, settings()) as url, stranger(url) as peer:
        peer.send(HANDSHAKE.replace(b"/socket", b"/" + b"s" * 9000), b"\r\n")
        assert await peer.status() in (400, 414)
        await peer.rest()


async def test_the_application_sees_all_headers_of_a_handshake_as_they_were_sent(
    reader: Reader,
) -> None:
    cookie = b"c" * 9000 + b"\xff"
    async with running(reader, settings()) as url, stranger(url) as peer:
        peer.send(HANDSHAKE, b"Cookie: ", cookie, b"\r\n\r\n")
        assert await peer.status() == 101
        assert (b"cookie", cookie) in reader.headers


# Frames


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        pytest.param(frame(1, b"\xff\xfe"), 1007, id="a text that is no UTF-8"),
        pytest.param(
            frame(1, b"a\xc3", fin=False) + frame(0, b"("), 1007, id="the same in two fragments"
        ),
        pytest.param(frame(8, b"\x03\xe8\xff"), 1007, id="a reason that is no UTF-8"),
        pytest.param(
            frame(1, b"", fin=False) + frame(0, b"", fin=False) * 5000, 1009, id="empty fragments"
        ),
        pytest.param(frame(3, b""), 1002, id="an opcode that there is not"),
        pytest.param(frame(0, b""), 1002, id="the end of no message"),
        pytest.param(frame(9, bytes(200)), 1002, id="a long ping"),
    ],
)
async def test_what_is_no_message_closes_the_socket_without_a_line_in_the_log(
    reader: Reader, caplog: pytest.LogCaptureFixture, frames: bytes, code: int
) -> None:
    async with running(reader, settings()) as url, stranger(url) as peer:
        peer.send(HANDSHAKE, b"\r\n")
        assert await peer.status() == 101
        peer.send(frames)
        last = await peer.rest()
        assert last[0] == 0x88
        assert struct.unpack("!H", last[2:4]) == (code,)
    assert caplog.records == []


async def test_a_peer_that_pings_and_reads_nothing_costs_no_memory(reader: Reader) -> None:
    async with running(reader, settings(send_deadline_seconds=5)) as url, stranger(url) as peer:
        peer.send(HANDSHAKE.replace(b"/socket", b"/flood"), b"\r\n")
        await peer.status()
        peer.stop_reading()
        pings = frame(9, bytes(125)) * 2000
        before = resident_bytes()
        for _ in range(150):
            peer.send(pings)
            await peer.drained()
        grown = resident_bytes() - before
    assert grown < 20_000_000, "of 38 MB of pongs"


@pytest.mark.parametrize("opcode", [1, 9])
async def test_others_run_while_thousands_of_frames_are_taken(reader: Reader, opcode: int) -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with running(reader, settings()) as url, stranger(url) as peer:
        peer.send(HANDSHAKE, b"\r\n")
        assert await peer.status() == 101
        beside = asyncio.create_task(others())
        last = b"\x03\xe8the last"
        peer.send(frame(opcode, b"") * 40_000, frame(8, last))
        assert (await peer.rest()).endswith(last)
        beside.cancel()
    assert turns > 100
