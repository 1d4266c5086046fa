"""Lack of memory, in whatever words a library tells of it, and what else an operator can mend."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

from engine.api import EngineError, StepOutOfMemory
from engine.model.weights import ModelUnavailable, in_a_line

_log = logging.getLogger(__name__)

_T = TypeVar("_T")
_SIGNS = ("can't allocate memory", "not enough memory", "out of memory", "STATUS_ALLOC_FAILED")
"""Of torch's allocator for CPUs, on two systems; of drivers and Triton; of cuBLAS and cuDNN."""

BROKEN = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError)
"""What code raises that computes with what cannot be."""


def attempt(action: Callable[[], _T]) -> _T:
    """What `action` returns. Raises `StepOutOfMemory` where it lacks memory, and has let go of it.

    Whatever else it raises is passed on.
    """
    try:
        return action()
    except (RuntimeError, MemoryError) as error:
        if not lacks_memory(error):
            raise
        reason = str(error).partition("\n")[0]
    # Behind the handler: the error's frames, which hold the tensors of the step, are gone.
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    raise StepOutOfMemory(reason)


def lacks_memory(error: Exception) -> bool:
    """Whether that is what an error of a library says."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    return any(sign in str(error) for sign in _SIGNS)


@contextmanager
def reading(folder: str) -> Iterator[None]:
    """Raises `ModelUnavailable` where files cannot be read, or are no model that is known."""
    try:
        yield
    except (OSError, ValueError, SafetensorError, StrictDataclassError) as error:
        if lacks_memory(error):
            raise
        raise ModelUnavailable(
            f"{folder} cannot be read as a model: {_told(error)}; fetch its files again, or "
            "choose another model"
        ) from error


@contextmanager
def building(folder: str) -> Iterator[None]:
    """Raises `ModelUnavailable` where what files say breaks code of `transformers`."""
    try:
        yield
    except BROKEN as error:
        if lacks_memory(error):
            raise
        _log.debug("transformers makes no model of %s", folder, exc_info=error)
        raise ModelUnavailable(
            f"{folder}: transformers makes no model of its config.json and weights "
            f"({type(error).__name__}: {in_a_line(error)}); fetch its files again, or choose "
            "another model"
        ) from error


def _told(error: Exception) -> str:
    """In a line. The first one of a checked field names it, and what is wrong comes behind it."""
    if isinstance(error, StrictDataclassError):
        return " ".join(str(error).split())
    return in_a_line(error)


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
