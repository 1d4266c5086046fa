"""What is wrong with a machine, and what to do about it: the rules of `partywall doctor`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from app.models.sizes import BESIDE_BYTES
from app.settings import Settings, option_name
from engine.model.machine import Machine
from engine.model.weights import DEFAULT_MODEL

_MIB = 2**20
_DEFAULT_WEIGHTS = 260 * _MIB
_LEAST_KV = 180 * _MIB
"""Of the default model: for a request of 8,192 tokens."""
_SLOW_MILLISECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be."""

    what: str
    remedy: str
    is_grave: bool = False
    """Whether a service would not start, or would not serve."""


@dataclass(frozen=True, slots=True)
class StoreState:
    """What came of asking the Redis of the settings."""

    place: str
    """Its address; the folder of the embedded store where none is set."""
    milliseconds: float | None
    """Of a round trip."""
    error: str


def findings_of(machine: Machine, store: StoreState, settings: Settings) -> list[Finding]:
    """All that is wrong, the grave first."""
    found = [
        *_of_kernels(machine),
        *_of_threads(machine, settings),
        *_of_memory(machine, settings),
        *_of_store(store),
        *_of_folders(settings),
    ]
    return sorted(found, key=lambda finding: not finding.is_grave)


def _of_kernels(machine: Machine) -> Iterator[Finding]:
    if machine.library_problem:
        compiler = "" if machine.compiler else "a C compiler, then "
        yield Finding(
            f"{machine.library_problem}. Plain torch computes, right and several times slower.",
            f"Install {compiler}the package again.",
        )
    elif machine.is_limited:
        yield Finding(
            f"The processor has {machine.offered_level}, but {machine.level} is used: the system "
            "or its hypervisor does not keep those registers, or they gave wrong results.",
            "Choose a newer kernel or another kind of machine, if speed matters.",
        )
    elif machine.level == "plain":
        yield Finding(
            "The kernels have no code for this processor but what every one of its kind runs.",
            "Choose a machine with AVX2 or more, or a GPU, if speed matters.",
        )


def _of_threads(machine: Machine, settings: Settings) -> Iterator[Finding]:
    usable = min(machine.logical_processors, machine.cpu_quota or machine.logical_processors)
    if (settings.threads or 0) > usable:
        yield Finding(
            f"{settings.threads} threads would share the time of {usable} processors, and wait for "
            "each other.",
            f"Leave {option_name('threads')} at auto.",
        )


def _of_memory(machine: Machine, settings: Settings) -> Iterator[Finding]:
    kv = _LEAST_KV if settings.kv_memory is None else int(settings.kv_memory)
    weights = _weights_bytes(settings.model)
    if settings.draft_model is not None:
        weights = (weights or 0) + (_weights_bytes(settings.draft_model) or 0)
    needed = kv + (weights or 0) + BESIDE_BYTES
    if needed > machine.available_bytes:
        of_weights = "" if weights is None else f"weights {weights // _MIB} MiB, "
        yield Finding(
            f"{machine.available_bytes // _MIB} MiB of memory may be taken; {of_weights}"
            f"KV cache {kv // _MIB} MiB and what runs beside them, {BESIDE_BYTES // _MIB} MiB, "
            f"need {needed // _MIB} MiB.",
            f"Free memory, raise the container's limit, or lower {option_name('kv_memory')}. A "
            "service that runs here already has its part of it.",
        )


def _weights_bytes(model: str) -> int | None:
    """As they lie on the disk; `None` if they do not."""
    if model == DEFAULT_MODEL:
        return _DEFAULT_WEIGHTS
    path = Path(model).expanduser()
    files = [path] if path.is_file() else path.glob("*.safetensors")
    return sum(file.stat().st_size for file in files) or None


def _of_store(store: StoreState) -> Iterator[Finding]:
    if store.error:
        yield Finding(
            f"{store.error}.",
            f"Start Redis there, or correct {option_name('redis_url')} and "
            f"{option_name('redis_password_file')}.",
            is_grave=True,
        )
    elif (store.milliseconds or 0.0) > _SLOW_MILLISECONDS:
        yield Finding(
            f"Redis takes {store.milliseconds} ms for a round trip, and every request asks it.",
            "Run it nearer to the service.",
        )


def _of_folders(settings: Settings) -> Iterator[Finding]:
    folders = {"cache_dir": settings.cache_dir}
    if settings.redis_url is None:
        folders["data_dir"] = settings.data_dir
    for field, folder in folders.items():
        if not _may_write(folder):
            yield Finding(
                f"{folder} cannot be written.",
                f"Give it to user {os.geteuid()}, or {option_name(field)} another folder.",
                is_grave=True,
            )


def _may_write(folder: Path) -> bool:
    """Whether files may be made in it, or it may be made."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
