"""A picture's bytes, from what a request has in their place."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final

from app.pictures.picture import FORMATS, BadPicture

_TYPES: Final = tuple(f"image/{name.lower()}" for name in FORMATS)
_DATA_URL: Final = re.compile(
    r"data:([\w.+-]+/[\w.+-]+)?((?:;[\w.+-]+=[^;,]*)*)(;base64)?,", re.ASCII
)


def from_data_url(url: str, most_bytes: int) -> bytes:
    """The bytes of a `data:` URL. Raises `BadPicture`."""
    found = _DATA_URL.match(url)
    if found is None or found[3] is None:
        raise BadPicture("must be a data: URL of base64, such as data:image/png;base64,...")
    return from_base64(found[1] or "", url[found.end() :], most_bytes)


def from_base64(media_type: str, text: str, most_bytes: int) -> bytes:
    """The bytes of a picture of that type. Raises `BadPicture`."""
    if media_type.lower() not in (*_TYPES, "image/jpg"):
        raise BadPicture(f"is of type {media_type[:80]!r}, and of none of {', '.join(_TYPES)}")
    if len(text) > 4 * (most_bytes // 3 + 1):
        raise BadPicture(f"has more than {most_bytes} bytes")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadPicture("is no base64") from None
    if not data:
        raise BadPicture("is empty")
    if len(data) > most_bytes:
        raise BadPicture(f"has more than {most_bytes} bytes")
    return data
