"""Picture files that are not what they seem: cut off, changed, huge, of other kinds, or none."""

from __future__ import annotations

import io
import random
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import Image

Hostile = tuple[str, bytes]
"""What it is, and its bytes."""


def hostile(count: int, seed: int = 0) -> Iterator[Hostile]:
    """So many: first all of the kinds that are known, then others with random damage."""
    rng = random.Random(seed)
    known = [*_made(), *_broken()]
    yield from known[:count]
    whole = [data for _, data in _good()]
    for number in range(count - len(known)):
        data = bytearray(rng.choice(whole))
        for _ in range(rng.choice((1, 2, 8, 64))):
            kind = rng.randrange(4)
            place = rng.randrange(len(data))
            if kind == 0:
                data[place] = rng.randrange(256)
            elif kind == 1:
                del data[place : place + rng.randrange(1, 40)]
            elif kind == 2:
                data[place:place] = rng.randbytes(rng.randrange(1, 40))
            else:
                end = min(len(data), place + 4)
                data[place:end] = rng.choice((b"\xff", b"\x00", b"\x7f")) * (end - place)
            if len(data) < 8:
                break
        yield f"random damage {number}", bytes(data)


def drawn(seed: int = 0, width: int = 40, height: int = 30) -> Image.Image:
    """A random one."""
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(values, "RGB")


def file_of(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """Its bytes in a file."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def _good() -> Iterator[Hostile]:
    """What is no harm, in all formats."""
    for name, kind, options in (
        ("PNG", "PNG", {}),
        ("JPEG", "JPEG", {"quality": 80}),
        ("progressive JPEG", "JPEG", {"progressive": True}),
        ("WEBP", "WEBP", {"lossless": True}),
        ("lossy WEBP", "WEBP", {"quality": 50}),
        ("GIF", "GIF", {}),
    ):
        yield name, file_of(drawn(1), kind, **options)


def _made() -> Iterator[Hostile]:
    """Files that a client may send, and that a decoder may choke on."""
    yield from _good()
    yield "one pixel", file_of(Image.new("RGB", (1, 1)))
    yield "one row", file_of(Image.new("RGB", (5000, 1)))
    yield "CMYK", file_of(drawn().convert("CMYK"), "JPEG")
    yield (
        "a palette with a transparent colour",
        file_of(drawn().convert("P"), "PNG", transparency=3),
    )
    yield "grey of 16 bits", file_of(Image.new("I;16", (20, 20), 40_000))
    yield (
        "an animated GIF",
        file_of(drawn(), "GIF", save_all=True, append_images=[drawn(seed) for seed in range(9)]),
    )
    yield (
        "an animated PNG",
        file_of(drawn(), "PNG", save_all=True, append_images=[drawn(seed) for seed in range(3)]),
    )
    yield (
        "an animated WebP",
        file_of(drawn(), "WEBP", save_all=True, append_images=[drawn(seed) for seed in range(3)]),
    )
    yield "a hundred megapixels of nothing", _png(10_000, 10_000, rows=10_000)
    yield "a header of two billion pixels", _png(65_500, 32_767, rows=1)
    yield "the largest header", _png(2**31 - 1, 2**31 - 1, rows=0)
    yield "no width", _png(0, 10, rows=10)
    yield (
        "a profile of colours that is a bomb",
        _png(20, 20, rows=20, extra=_chunk(b"iCCP", b"p\0\0" + zlib.compress(bytes(64 << 20), 9))),
    )
    yield (
        "a text that is a bomb",
        _png(20, 20, rows=20, extra=_chunk(b"zTXt", b"t\0\0" + zlib.compress(bytes(64 << 20), 9))),
    )
    yield "a wrong sum", _png(20, 20, rows=20)[:-20] + b"\0" * 20


def _broken() -> Iterator[Hostile]:
    """What is no picture at all."""
    yield "nothing", b""
    yield "one byte", b"\x89"
    yield "zeros", bytes(10_000)
    yield "SVG", b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
    yield (
        "SVG that names a file",
        (
            b'<?xml version="1.0"?><!DOCTYPE svg [<!ENTITY x SYSTEM "file:///etc/passwd">]>'
            b'<svg xmlns="http://www.w3.org/2000/svg"><text>&x;</text></svg>'
        ),
    )
    yield "PDF", b"%PDF-1.7\n1 0 obj\n<<>>\nendobj\n"
    yield "PostScript", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\nshowpage\n"
    yield "TIFF", file_of(drawn(), "TIFF")
    yield "BMP", file_of(drawn(), "BMP")
    yield "ICO", file_of(drawn(), "ICO", sizes=[(16, 16)])
    yield "a program", b"\x7fELF" + bytes(2000)
    yield "a PNG's beginning before a JPEG", b"\x89PNG\r\n\x1a\n" + file_of(drawn(), "JPEG")
    for name, data in _good():
        for part in (12, 40, len(data) // 2, len(data) - 3):
            yield f"{name}, {part} bytes of it", data[:part]


def _png(width: int, height: int, rows: int, extra: bytes = b"") -> bytes:
    """A grey one that says it is so large, and has so many rows."""
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    squeezed = zlib.compressobj(9)
    row = bytes(1 + min(width, 1 << 20))
    data = b"".join(squeezed.compress(row) for _ in range(rows)) + squeezed.flush()
    end = _chunk(b"IDAT", data) + _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + header + extra + end


def _chunk(kind: bytes, data: bytes) -> bytes:
    check = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)
