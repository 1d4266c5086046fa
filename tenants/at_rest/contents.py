"""What a record holds, read as what it is to be."""

from __future__ import annotations

import logging
from typing import TypeVar

import msgspec

_log = logging.getLogger(__name__)
Content = TypeVar("Content")


def decoded(content: bytes, kind: type[Content], name: str) -> Content | None:
    """The content of the record of that name; `None` where it is of no such kind.

    One in clear may be anything, and one of another kind may be sealed for the same place. That is
    as good as gone, and the log says so.
    """
    try:
        return msgspec.msgpack.decode(content, type=kind)
    except (msgspec.DecodeError, ValueError) as error:
        _log.error("a stored record is not read: %s is no %s: %s", name, kind.__name__, error)
        return None
