"""Lack of memory, in whatever words a library tells of it, as the error that the loop knows."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TypeVar

import torch

from engine.api import StepOutOfMemory

_T = TypeVar("_T")
_SIGNS = ("can't allocate memory", "not enough memory", "out of memory", "STATUS_ALLOC_FAILED")
"""Of torch's allocator for CPUs, on two systems; of drivers and Triton; of cuBLAS and cuDNN."""


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
