"""What anybody can send without a key: it is bounded, answered, and ended."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedError
from websockets.frames import Frame, Opcode

from tests.app.transport.raw import (
    GET,
    HANDSHAKE,
    POST,
    Reader,
    frame,
    resident_bytes,
    stranger,
    until_a_place_is_free,
)
from tests.app.transport.test_server import running, settings

# Bytes


@pytest.mark.parametrize(
    "head",
    [
        pytest.param([GET, b"X: ", *[b"a" * 65_536] * 960], id="one header of 60 MiB"),
        pytest.param([GET, *[b"a: b\r\n" * 10_000] * 1000], id="10 million headers"),
        pytest.param([GET, b"a: b\r\n" * 200, b"\r\n"], id="200 headers"),
        pytest.param([b"GET /", *[b"a" * 65_536] * 960], id="a request line of 60 MiB"),
    ],
)
async def test_a_head_that_is_too_large_is_refused_and_costs_no_memory(
    reader: Reader, head: list[bytes]
) -> None:
    async with running(reader, settings()) as url, stranger(url) as peer:
        before = resident_bytes()
        for piece in head:
            peer.send(piece)
            await peer.drained()
            assert resident_bytes() - before < 30_000_000
        assert await peer.status() == 431
        await peer.rest()


async def test_what_surrounds_the_content_of_chunks_is_bounded_too(reader: Reader) -> None:
    chunked = [POST, b"Transfer-Encoding: chunked\r\n\r\n"]
    async with running(reader, settings()) as url:
        for tricks in (
            [b"1;", *[b"x=" + b"y" * 10_000 + b";"] * 100],
            [b"1\r\nx\r\n" * 50_000],
            [b"1\r\nx\r\n0\r\n", *[b"a: b\r\n"] * 50_000],
            [b"1\r\nx\r\n0\r\nlong: ", b"y" * 1_000_000],
        ):
            async with stranger(url) as peer:
                peer.send(*chunked, *tricks)
                assert await peer.status() == 431
                await peer.rest()


async def test_trailers_do_not_become_headers(reader: Reader) -> None:
    async with running(reader, settings()) as url, stranger(url) as peer:
        reader.hold.clear()
        peer.send(POST, b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nLate: yes\r\n\r\n")
        assert await reader.bodies.get() == b"x"
        reader.hold.set()
        assert await peer.status() == 200
        assert b"late" not in dict(reader.headers)


async def test_a_large_body_in_many_chunks_is_taken(reader: Reader) -> None:
    body = b"".join(b"8\r\nabcdefgh\r\n" for _ in range(100_000))
    async with running(reader, settings()) as url, stranger(url) as peer:
        peer.send(POST, b"Transfer-Encoding: chunked\r\n\r\n", body, b"0\r\n\r\n")
        assert await peer.status() == 200
        taken = await reader.bodies.get()
        assert taken is not None
        assert len(taken) == 800_000


async def test_few_requests_may_wait_for_earlier_answers(reader: Reader) -> None:
    reader.hold.clear()
    async with running(reader, settings()) as url, stranger(url) as peer:
        peer.send((GET + b"\r\n") * 10_000)
        await reader.bodies.get()
        reader.hold.set()
        answers = (await peer.rest()).count(b"HTTP/1.1 200")
    assert 1 < answers < 20


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (GET + b"Host: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400),
        (b"GET / HTTP/1.0\r\n\r\n", 200),
        (b"GET /\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (GET + b"X: \xff\xfe\r\n\r\n", 200),
        (POST + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), 400),
    ],
)
async def test_a_request_that_is_none_is_refused_without_a_line_in_the_log(
    reader: Reader, caplog: pytest.LogCaptureFixture, request_bytes: bytes, status: int
) -> None:
    async with running(reader, settings()) as url, stranger(url) as peer:
        peer.send(request_bytes)
        assert await peer.status() == status
    assert caplog.records == []


async def test_what_is_no_request_behind_a_request_does_not_disturb_its_answer(
    reader: Reader,
) -> None:
    reader.hold.clear()
    async with running(reader, settings()) as url, stranger(url) as peer:
        peer.send(GET, b"\r\n")
        await reader.bodies.get()
        peer.send(b"\0garbage")
        await asyncio.sleep(0.05)
        reader.hold.set()
        answer = await peer.rest()
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.count(b"HTTP/1.1") == 1


# Time


@pytest.mark.parametrize("drip", [b"X: y\r\n", b"a", b"\r\n"])
async def test_a_head_that_drips_is_given_up(reader: Reader, drip: bytes) -> None:
    async with (
        running(reader, settings(header_deadline_seconds=0.3)) as url,
        stranger(url) as peer,
    ):
        peer.send(GET if drip != b"\r\n" else drip)

        async def go_on() -> None:
            while True:
                peer.send(drip)
                await asyncio.sleep(0.05)

        dripping = asyncio.create_task(go_on())
        answer = await peer.rest()
        dripping.cancel()
    assert answer.startswith(b"HTTP/1.1 408") or drip == b"\r\n"


@pytest.mark.parametrize("sent", [b"", GET])
async def test_a_peer_that_sends_no_request_is_dropped(reader: Reader, sent: bytes) -> None:
    async with (
        running(reader, settings(header_deadline_seconds=0.2)) as url,
        stranger(url) as peer,
    ):
        peer.send(sent)
        await peer.rest()


async def test_a_body_that_drips_is_given_up_and_its_request_ends(reader: Reader) -> None:
    async with (
        running(reader, settings(body_deadline_seconds=0.3)) as url,
        stranger(url) as peer,
    ):
        peer.send(POST, b"Content-Length: 1000\r\n\r\nsome")
        assert await peer.status() == 408
        assert await reader.bodies.get() is None
        await peer.rest()


async def test_a_message_that_drips_ends_its_socket(reader: Reader) -> None:
    quick = settings(body_deadline_seconds=0.3)
    async with (
        running(reader, quick) as url,
        connect(url.replace("http", "ws"), proxy=None) as socket,
    ):
        long = Frame(Opcode.TEXT, b"x" * 100_000).serialize(mask=True)
        socket.transport.write(long)
        await asyncio.sleep(0.5)
        assert await (await socket.ping()) >= 0
        socket.transport.write(long[:-1])
        with pytest.raises(ConnectionClosedError):
            await socket.recv()
        assert socket.close_code == 1008


async def test_an_answer_may_take_longer_than_its_request_might(reader: Reader) -> None:
    reader.hold.clear()
    quick = settings(header_deadline_seconds=0.1, body_deadline_seconds=0.1)
    async with running(reader, quick) as url, stranger(url) as peer:
        peer.send(POST, b"Content-Length: 1\r\n\r\nx", b"\r\n")
        await reader.bodies.get()
        await asyncio.sleep(0.4)
        reader.hold.set()
        assert await peer.status() == 200


@pytest.mark.parametrize("then", [b"close", b"keep-alive"])
async def test_a_peer_that_does_not_read_its_answer_is_dropped(reader: Reader, then: bytes) -> None:
    alone = settings(send_deadline_seconds=0.1, max_connections=1)
    async with running(reader, alone) as url, stranger(url) as peer:
        peer.stop_reading()
        peer.send(b"GET /large HTTP/1.1\r\nHost: a\r\nConnection: ", then, b"\r\n\r\n")
        await reader.bodies.get()
        await until_a_place_is_free(url)


# Connections


async def test_connections_are_bounded_in_all(reader: Reader) -> None:
    few = settings(max_connections=2)
    async with running(reader, few) as url, stranger(url) as first, stranger(url) as second:
        async with stranger(url) as third:
            assert await third.rest() == b""
        for one in (first, second):
            one.send(GET, b"\r\n")
            assert await one.status() == 200


async def test_connections_are_bounded_by_address(reader: Reader) -> None:
    few = settings(max_connections_per_address=1, trusted_proxies="127.0.0.3/32")
    async with running(reader, few) as url, stranger(url, "127.0.0.1") as first:
        async with stranger(url, "127.0.0.1") as second:
            assert await second.rest() == b""
        for source in ("127.0.0.2", "127.0.0.3", "127.0.0.3"):
            other = await asyncio.create_task(_asked(url, source))
            assert other == 200
        first.send(GET, b"\r\n")
        assert await first.status() == 200


async def _asked(url: str, source: str) -> int:
    async with stranger(url, source) as peer:
        peer.send(GET, b"\r\n")
        return await peer.status()


async def test_a_proxy_speaks_for_many(reader: Reader) -> None:
    few = settings(max_connections_per_address=1)
    async with running(reader, few) as url, stranger(url) as first, stranger(url) as second:
        for one in (first, second):
            one.send(GET, b"\r\n")
            assert await one.status() == 200


async def test_an_accepted_socket_does_not_count_for_its_address(reader: Reader) -> None:
    few = settings(max_connections_per_address=1, trusted_proxies="")
    async with running(reader, few) as url:
        async with connect(url.replace("http", "ws"), proxy=None):
            assert await _asked(url, "127.0.0.1") == 200
        assert await _asked(url, "127.0.0.1") == 200


# The end


async def test_the_service_stops_in_good_order_whatever_connections_are_open(
    reader: Reader, caplog: pytest.LogCaptureFixture
) -> None:
    reader.hold.clear()
    beginnings = [
        b"",
        GET,
        POST + b"Content-Length: 5\r\n\r\nab",
        GET + b"\r\n",
        HANDSHAKE,
        HANDSHAKE + b"Content-Length: 0\r\n\r\n",
        HANDSHAKE + b"Cookie: " + b"c" * 9000 + b"\r\n\r\n",
        HANDSHAKE.replace(b"GET", b"POST") + b"\r\n",
        HANDSHAKE.replace(b"13", b"14") + b"\r\n",
        HANDSHAKE + b"\r\n" + frame(8, b"\x03\xe8"),
        HANDSHAKE.replace(b"/socket", b"/flood") + b"\r\n",
        b"\x16\x03\x01",
    ]
    async with contextlib.AsyncExitStack() as stack, running(reader, settings()) as url:
        for beginning in beginnings:
            peer = await stack.enter_async_context(stranger(url))
            peer.stop_reading()
            peer.send(beginning)
        closing = await stack.enter_async_context(stranger(url))
        closing.send(HANDSHAKE.replace(b"/socket", b"/flood"), b"\r\n")
        await closing.status()
        closing.stop_reading()
        closing.send(frame(8, b"\x03\xe8"))
        await asyncio.sleep(0.2)
        reader.hold.set()
    assert [record for record in caplog.records if record.exc_info] == []
