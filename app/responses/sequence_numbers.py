"""The numbers of a stream's events: given as they are written, and named by who reads on."""

from __future__ import annotations

import re
from typing import Final

from app.wire.errors import invalid_request
from app.wire.events import Event, encode_json

_NUMBER: Final = re.compile(r"[0-9]{1,18}")
"""Few enough digits to be read: Python refuses more than 4,300 of them with an error of its own."""


def numbered(event: Event, number: int) -> bytes:
    """An event as JSON, with its number in its stream."""
    event.sequence_number = number
    return encode_json(event)


def read_position(starting_after: str | None) -> int:
    """The last event that a reader has had, -1 where it names none. Raises `ApiError`."""
    if starting_after is None:
        return -1
    if not _NUMBER.fullmatch(starting_after):
        raise invalid_request("'starting_after' is the number of an event.", "starting_after")
    return int(starting_after)


def check_position(after: int, next_number: int) -> None:
    """Raises `ApiError` for the number of an event that has not been yet."""
    if after >= next_number:
        message = f"The last event so far has number {next_number - 1}."
        raise invalid_request(message, "starting_after")
