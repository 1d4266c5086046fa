"""JSON from clients, bounded before it is parsed.

A body of four megabytes may hold one long text, which is decoded at once, or a million empty lists,
which are not: objects cost time and memory far beyond their bytes, and nothing else runs while they
are made. So what a document is made of is counted in its bytes first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from threading import Lock
from time import perf_counter, sleep
from typing import Any, Final

import msgspec

from app.wire.errors import ApiError, invalid_request

MAX_VALUES: Final = 65_536
"""Members of lists and objects in one document, at most."""
MAX_MEMBERS: Final = 1_024
"""Members of one object, at most."""
_PIECE_BYTES: Final = 65_536
_LONG_BYTES: Final = 262_144
_decoding_long = Lock()
MAX_DEPTH: Final = 64


class _Large(msgspec.Struct):
    """The fields that can be large, as they stand in the document."""

    messages: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    logit_bias: msgspec.Raw = msgspec.Raw()
    stop_token_ids: msgspec.Raw = msgspec.Raw()
    metadata: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()


def decode_json(data: bytes) -> Any:
    """Parse one JSON document: a long one not on an event loop, which would wait for others'.

    Raises `ApiError` with code `invalid_json`, also for what parsers do not agree about (a name
    twice in one object), or `too_many_values`.
    """
    num_names = _check_shape(data)
    document = _decode(data, Any)
    if _count_names(document) != num_names:
        message = f"This is not valid JSON: {_repeated_name(data)!r} stands twice in one object."
        raise invalid_request(message, None, "invalid_json")
    return document


def _check_shape(data: bytes) -> int:
    """How many names the objects of `data` have. Raises `ApiError` for too many values."""
    if b"\\" in data:
        data = b"".join(_without_escapes(data))
    # Every value comes with a name and a text at most, and each of these with two quotes.
    if data.count(b'"') > 4 * MAX_VALUES:
        raise _too_many_values(data)
    outside = b"".join(data.split(b'"')[::2])
    if outside.count(b",") + outside.count(b"[") + outside.count(b"{") > MAX_VALUES:
        raise _too_many_values(data)
    return outside.count(b":")


def _without_escapes(data: bytes) -> Iterator[bytes]:
    """`data` without escaped quotes and backslashes.

    In pieces: a call that replaces lets no other thread run.
    """
    start = 0
    while start < len(data):
        piece = data[start : start + _PIECE_BYTES]
        backslashes = len(piece) - len(piece.rstrip(b"\\"))
        end = start + len(piece) + backslashes % 2  # what the last of them escapes
        yield data[start:end].replace(b"\\\\", b"").replace(b'\\"', b"")
        start = end


def _too_many_values(data: bytes) -> ApiError:
    large = _decode(data, _Large)
    param = max(_Large.__struct_fields__, key=lambda name: len(bytes(getattr(large, name))))
    message = f"A request holds {MAX_VALUES} values at most, lists and objects included."
    if len(bytes(getattr(large, param))) * 2 < len(data):
        return invalid_request(message, None, "too_many_values")
    return invalid_request(f"'{param}' is too long: {message}", param, "too_many_values")


def _decode(data: bytes, kind: Any) -> Any:
    """Decode, a long document as the only one and with a rest behind it.

    Nothing else of this process runs while one is decoded: 12 ms for four megabytes of escapes.
    """
    if len(data) <= _LONG_BYTES:
        return _decoded(data, kind)
    with _decoding_long:
        began = perf_counter()
        try:
            return _decoded(data, kind)
        finally:
            sleep(perf_counter() - began)


def _decoded(data: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError:
        message = "This is not valid JSON: it is nested too deeply."
        raise invalid_request(message, None, "invalid_json") from None
    except (msgspec.DecodeError, UnicodeError, ValueError) as error:
        message = f"This is not valid JSON: {error}"
        raise invalid_request(message, None, "invalid_json") from error


def _count_names(document: Any) -> int:
    """The members of all objects in `document`. Raises `ApiError` where one has too many."""
    count, left = 0, [document]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            if len(value) > MAX_MEMBERS:
                message = f"An object has {MAX_MEMBERS} members at most."
                raise invalid_request(message, _name_of(document, value), "too_many_values")
            count += len(value)
            left.extend(value.values())
        elif isinstance(value, list):
            left.extend(value)
    return count


def _name_of(document: Any, value: Any) -> str | None:
    """The field that holds `value`, where it is one of the document's own."""
    if not isinstance(document, dict):
        return None
    return next((name for name, one in document.items() if one is value), None)


def _repeated_name(data: bytes) -> str:
    found: list[str] = []

    def look(members: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        for name, _ in members:
            if name in seen:
                found.append(name)
            seen.add(name)

    json.loads(data, object_pairs_hook=look)
    return found[0]


def is_too_deep(value: Any) -> bool:
    """Whether a JSON value is nested so deeply that a template might not bear it."""
    level = [value]
    for _ in range(MAX_DEPTH):
        inner = (one.values() if isinstance(one, dict) else one for one in level)
        level = [one for several in inner for one in several if isinstance(one, dict | list)]
        if not level:
            return False
    return True
