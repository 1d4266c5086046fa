"""What keeps an engine from starting and an operator can mend: cause and remedy in a line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from safetensors import SafetensorError

from engine.api import EngineError
from engine.model.memory_errors import lacks_memory
from engine.model.weights import ModelUnavailable, in_a_line


@contextmanager
def reading(folder: str) -> Iterator[None]:
    """Raises `ModelUnavailable` where files cannot be read, or are no model that is known."""
    try:
        yield
    except (OSError, ValueError, SafetensorError) as error:
        if lacks_memory(error):
            raise
        raise ModelUnavailable(
            f"{folder} cannot be read as a model: {in_a_line(error)}; fetch its files again, or "
            "choose another model"
        ) from error


@contextmanager
def memory_for(what: str, remedy: str) -> Iterator[None]:
    """Raises `EngineError` where there is not enough of it."""
    try:
        yield
    except (RuntimeError, MemoryError, OSError) as error:
        if not lacks_memory(error):
            raise
        raise EngineError(
            f"there is not enough memory for {what} ({in_a_line(error)}); {remedy}"
        ) from error
