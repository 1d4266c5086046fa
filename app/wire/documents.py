"""JSON documents of bounded shape, decoded.

A body of four megabytes may hold one long text, which is decoded at once, or a million empty lists,
which are not: objects cost time and memory far beyond their bytes, and nothing else runs while they
are made. So what a document is made of is counted in its bytes first.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from app.wire.errors import ApiError, invalid_request

MAX_VALUES: Final = 65_536
"""Members of lists and objects in one document, at most."""
MAX_MEMBERS: Final = 1_024
"""Members of one object, at most."""


class _Large(msgspec.Struct):
    """The fields that can be large, as they stand in the document."""

    messages: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    logit_bias: msgspec.Raw = msgspec.Raw()
    stop_token_ids: msgspec.Raw = msgspec.Raw()
    metadata: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()


def decode_json(data: bytes) -> Any:
    """Parse one JSON document.

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
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Every value comes with a name and a text at most, and each of these with two quotes.
    if data.count(b'"') > 4 * MAX_VALUES:
        raise _too_many_values(data)
    outside = b"".join(data.split(b'"')[::2])
    if outside.count(b",") + outside.count(b"[") + outside.count(b"{") > MAX_VALUES:
        raise _too_many_values(data)
    return outside.count(b":")


def _too_many_values(data: bytes) -> ApiError:
    large = _decode(data, _Large)
    param = max(_Large.__struct_fields__, key=lambda name: len(bytes(getattr(large, name))))
    message = f"A request holds {MAX_VALUES} values at most, lists and objects included."
    if len(bytes(getattr(large, param))) * 2 < len(data):
        return invalid_request(message, None, "too_many_values")
    return invalid_request(f"'{param}' is too long: {message}", param, "too_many_values")


def _decode(data: bytes, kind: Any) -> Any:
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
