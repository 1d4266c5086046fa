"""What was found out once, kept in the cache folder: without it, it is only found out again."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

_T = TypeVar("_T")


def load(store: Path | None, decode: Callable[[bytes], _T]) -> _T | None:
    """What is kept in a file; `None` where nothing is, or nothing that can be read."""
    if store is not None:
        with suppress(OSError, ValueError, msgspec.DecodeError):
            return decode(store.read_bytes())
    return None


def save(store: Path | None, kept: object) -> None:
    """Keep it as JSON, whole or not at all, if there is a cache that can be written."""
    if store is None:
        return
    with suppress(OSError, UnicodeEncodeError):  # a path need not be a text
        content = msgspec.json.encode(kept)
        store.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=store.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(name, store)
