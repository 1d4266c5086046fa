"""Bodies of several parts, however they are cut on their way."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from app.transport.multipart import boundary_of, parts_of
from app.wire.errors import ApiError

BODY = (
    b'--x--y\r\nContent-Disposition: form-data; name="one"; filename="a"\r\n\r\n'
    b"first\r\n--x-- not yet\r\n--x--y\r\n"
    b'content-disposition: form-data; name="two"\r\nContent-Type: text/plain\r\n\r\n'
    b"\r\n--x--y--\r\nwhat comes behind"
)
FOUND = [("one", b"first\r\n--x-- not yet"), ("two", b"")]


async def cut(body: bytes, size: int) -> AsyncIterator[bytes]:
    for at in range(0, len(body), size):
        yield body[at : at + size]


async def found(body: bytes, size: int = 1000) -> list[tuple[str, bytes]]:
    return [
        (part.name, b"".join([piece async for piece in part.content]))
        async for part in parts_of(cut(body, size), b"x--y")
    ]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 1000])
async def test_parts_are_found_however_they_come(size: int) -> None:
    assert await found(BODY, size) == FOUND


@pytest.mark.parametrize("size", [1, 1000])
async def test_what_is_not_read_of_a_part_is_passed_over(size: int) -> None:
    parts = [part async for part in parts_of(cut(BODY, size), b"x--y")]
    assert [(one.name, one.filename) for one in parts] == [("one", "a"), ("two", None)]


@pytest.mark.parametrize(
    ("written", "filename"),
    [
        ('filename="Bär.png"', "Bär.png"),
        ('filename="a \\"b\\".png"', 'a "b".png'),
        ("filename*=UTF-8''B%C3%A4r.png", "Bär.png"),
        ('filename=""', ""),
        ("filename=a.png ; size=1", "a.png"),
        ('size=1;FileName="C:\\a;b.png"', "C:\\a;b.png"),
        ("filename=a.png; filename*=utf-8'de'%E2%82%ac%FF", "€\ufffd"),
        ("filename*=iso-8859-1''B%E4r.png", "Bär.png"),
        # in no alphabet that such names have
        ("filename=a; filename*=unicode_escape''%5Cud800", "a"),
        ("filename=a; filename*=idna''b", "a"),
        ("filename*=a\0b''c; filename=a", "a"),
    ],
)
async def test_a_file_has_the_name_that_it_was_sent_with(written: str, filename: str) -> None:
    body = BODY.replace(b'filename="a"', written.encode())
    [first, _] = [part async for part in parts_of(cut(body, 1000), b"x--y")]
    assert first.filename == filename


async def test_a_long_part_comes_while_it_comes() -> None:
    at = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal at
        yield BODY.partition(b"first")[0]
        for _ in range(100):
            at += 1000
            yield b"\r" * 1000
        yield b"\r\n--x--y--"

    async for part in parts_of(body(), b"x--y"):
        size = 0
        async for piece in part.content:
            size += len(piece)
            assert at - size < 1000 + len(b"\r\n--x--y")
        assert size == 100_000


@pytest.mark.parametrize("end", range(0, len(BODY) - len(b"--\r\nwhat comes behind"), 5))
async def test_a_body_that_ends_early_is_refused(end: int) -> None:
    with pytest.raises(ApiError) as refused:
        await found(BODY[:end])
    assert refused.value.status == 400


@pytest.mark.parametrize(
    "body",
    [
        b"before" + BODY,
        BODY.replace(b'name="one"; ', b""),
        BODY.replace(b"Content-Type: text/plain", b"X: " + b"x" * 5000),
        BODY.replace(b"--x--y\r\ncontent", b"--x--yz\r\ncontent"),
    ],
)
async def test_a_body_that_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError) as refused:
        await found(body)
    assert refused.value.status == 400


async def test_headers_are_bounded_however_they_come() -> None:
    long = BODY.replace(b"Content-Type: text/plain", b"X: " + b"x" * 5000)
    with pytest.raises(ApiError, match="4096 bytes"):
        await found(long, len(long))


@pytest.mark.parametrize("wrong", [";" * 500_000, ';a="' * 100_000, ';a="\\"' * 100_000])
def test_what_is_none_is_read_in_no_more_time_than_its_length_takes(wrong: str) -> None:
    with pytest.raises(ApiError, match="boundary"):
        boundary_of(f'multipart/form-data; x="{wrong}')


def test_the_boundary_is_in_the_type() -> None:
    assert boundary_of("multipart/form-data; boundary=abc") == b"abc"
    assert boundary_of('Multipart/Form-Data; charset=utf-8; boundary="a b"') == b"a b"
    for wrong in ("multipart/form-data", f"multipart/form-data; boundary={'x' * 71}"):
        with pytest.raises(ApiError, match="boundary"):
            boundary_of(wrong)
