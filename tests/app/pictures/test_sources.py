"""Where pictures come from: what is no picture's address, or too large, is told so."""

from __future__ import annotations

import base64

import pytest

from app.pictures.picture import BadPicture
from app.pictures.sources import from_base64, from_data_url

PIXEL = b"\x89PNG..."
TEXT = base64.b64encode(PIXEL).decode()


@pytest.mark.parametrize("kind", ["png", "jpeg", "webp", "gif", "jpg", "PNG"])
def test_a_data_url_has_the_bytes_of_its_picture(kind: str) -> None:
    assert from_data_url(f"data:image/{kind};base64,{TEXT}", 100) == PIXEL
    assert from_data_url(f"data:image/{kind};name=a.b;base64,{TEXT}", 100) == PIXEL


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "must be a data: URL"),
        ("data:image/png,abc", "must be a data: URL of base64"),
        (f"data:image/svg+xml;base64,{TEXT}", "'image/svg\\+xml', and of none of image/png"),
        (f"data:text/html;base64,{TEXT}", "'text/html'"),
        (f"data:;base64,{TEXT}", "of type ''"),
        ("data:image/png;base64,?", "is no base64"),
        ("data:image/png;base64,AAA", "is no base64"),
        ("data:image/png;base64,AAA\nA", "is no base64"),
        ("data:image/png;base64,", "is empty"),
        ("data:image/png;base64," + "A" * 160, "has more than 100 bytes"),
        ("data:image/png;base64," + "A" * 10_000_000, "has more than 100 bytes"),
        ("data:" + ";a=" * 100_000, "must be a data: URL"),
    ],
)
def test_what_is_none_is_refused_in_words(url: str, why: str) -> None:
    with pytest.raises(BadPicture, match=why):
        from_data_url(url, 100)


def test_base64_has_as_many_bytes_as_are_allowed() -> None:
    assert from_base64("image/png", base64.b64encode(bytes(100)).decode(), 100) == bytes(100)
    with pytest.raises(BadPicture, match="more than 99"):
        from_base64("image/png", base64.b64encode(bytes(100)).decode(), 99)
