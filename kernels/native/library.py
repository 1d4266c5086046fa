"""The compiled library of `kernels/native/`: found, checked and loaded, where it was built.

It is called through ctypes with raw pointers, so that it needs the headers of neither torch nor
Python, and one build serves every version of both. Every user has another way for where it is
missing: see `available`.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from hashlib import blake2b
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_FOLDER = Path(__file__).parent
_log = logging.getLogger(__name__)

address = ctypes.c_void_p
"""As `pointer` returns it."""
integer = ctypes.c_int64
real = ctypes.c_float
text = ctypes.c_char_p
"""Packed bytes, read during the call only."""

TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""`pw_type` of `processor/cpu.h`: the element types that it computes with."""


def available() -> bool:
    """Whether the library was built, from the sources that lie here, and could be loaded."""
    return _library is not None


def problem() -> str:
    """Why it is not available, in words; empty where it is."""
    return "" if available() else _problem


def function(
    name: str, *arguments: type[Any], returns: type[Any] | None = None
) -> Callable[..., Any]:
    """The library's function `name` with its argument types; it runs with the GIL released.

    Raises `AttributeError` where the library is missing, or has no such function.
    """
    if _library is None:
        raise AttributeError(f"kernels/native is not built: no {name}")
    found = getattr(_library, name)
    found.argtypes = arguments
    found.restype = returns
    bound: Callable[..., Any] = found
    return bound


def pointer(tensor: Tensor | None) -> int:
    """Where its elements lie; 0 for none."""
    return 0 if tensor is None else tensor.data_ptr()


def set_threads(count: int) -> None:
    """Compute with `count` threads, the caller's included, from the next call on."""
    if _library is not None:
        _library.pw_set_threads(count)


LEVELS = ("plain", "avx2", "avx512", "avx512_bf16", "amx")
"""The instruction sets that have code of their own, from the least to the most."""


def level() -> str:
    """The instruction set that is used."""
    found: int = 0 if _library is None else _library.pw_cpu_level()
    return LEVELS[found]


def limit_level(level: str) -> None:
    """Use at most `level`, whatever the processor offers: for tests of the others."""
    if _library is not None:
        _library.pw_limit_level(LEVELS.index(level))


def sources() -> str:
    """What the library was built from, as one short word; empty where it is missing."""
    return "" if _library is None else str(_library.pw_sources().decode())


def trust_tiles(compute: Callable[[], Tensor]) -> None:
    """Go on without AMX, and say so, if `compute` gives something else with it, but for roundings.

    Tile registers need more than the processor: a system and a hypervisor that keep them. So
    whoever computes with them tries them first, on a small example.
    """
    if level() != "amx":
        return
    limit_level("avx512_bf16")
    expected = compute().float()
    limit_level("amx")
    if not torch.allclose(compute().float(), expected, rtol=0.02, atol=0.005):
        _log.warning("AMX gives wrong results on this machine: it is not used")
        limit_level("avx512_bf16")


def sources_digest(folder: Path) -> str:
    """What the library is built from, as one short word; empty where there are no sources."""
    digest = blake2b(digest_size=8)
    sources = sorted(folder.rglob("*.[ch]"))
    for source in sources:
        digest.update(source.read_bytes())
    return digest.hexdigest() if sources else ""


def _load() -> ctypes.CDLL | None:
    for suffix in EXTENSION_SUFFIXES:
        path = _FOLDER / f"_library{suffix}"
        if path.exists():
            return _checked(path, _FOLDER)
    return None


def _checked(path: Path, sources: Path) -> ctypes.CDLL | None:
    global _problem
    try:
        library = ctypes.CDLL(str(path))
        library.pw_sources.restype = ctypes.c_char_p
        built_from = library.pw_sources().decode()
    except (OSError, AttributeError) as error:
        _problem = f"{path} cannot be used: {error}"
        _log.warning("%s", _problem)
        return None
    if sources_digest(sources) not in ("", built_from):  # an installed wheel has no sources
        _problem = f"{path} is older than its sources: install the package again"
        _log.warning("%s", _problem)
        return None
    library.pw_set_threads(torch.get_num_threads())
    return library


_problem = f"{_FOLDER} has no compiled library"
_library = _load()
