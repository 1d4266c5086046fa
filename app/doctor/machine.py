"""What computes: processor, kernels, threads, GPU, and whether model and cache fit into memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from app.assembly.check import Check
from app.models.sizes import BESIDE_BYTES, stored_bytes
from app.settings import Settings, option_name
from engine.model.kernel_paths import described
from engine.model.machine import Machine
from engine.model.weights import DEFAULT_MODEL

_MIB = 2**20
_DEFAULT_WEIGHTS = 260 * _MIB
_LEAST_KV = 180 * _MIB
"""Of the default model: for a request of 8,192 tokens."""


def check_machine(machine: Machine, settings: Settings) -> Iterator[Check]:
    """Of each part of the machine that computes."""
    yield _processor(machine)
    yield _kernels(machine)
    yield _threads(machine, settings)
    yield _gpu(machine, settings)
    yield _memory(machine, settings)


def _processor(machine: Machine) -> Check:
    what = f"{machine.processor}, {machine.physical_cores} cores, {machine.level}"
    if machine.is_limited:
        return Check(
            "processor",
            "warn",
            f"the processor has {machine.offered_level}, but {machine.level} is used: the system "
            "or its hypervisor does not keep those registers, or they gave wrong results",
            "choose a newer kernel or another kind of machine, if speed matters",
        )
    if machine.level == "plain" and not machine.library_problem:
        return Check(
            "processor",
            "warn",
            "the kernels have no code for this processor but what every one of its kind runs",
            "choose a machine with AVX2 or more, or a GPU, if speed matters",
        )
    return Check("processor", "ok", what)


def _kernels(machine: Machine) -> Check:
    if machine.library_problem:
        compiler = "" if machine.compiler else "a C compiler, then "
        return Check(
            "kernels",
            "warn",
            f"{machine.library_problem}: plain torch computes, right and several times slower",
            f"install {compiler}the package again",
        )
    source = "kept from an earlier start" if machine.is_choice_kept else "measured just now"
    return Check("kernels", "ok", f"{described(machine.choice)} ({source})")


def _threads(machine: Machine, settings: Settings) -> Check:
    usable = min(machine.logical_processors, machine.cpu_quota or machine.logical_processors)
    if (settings.threads or 0) > usable:
        return Check(
            "threads",
            "warn",
            f"{settings.threads} threads would share the time of {usable} processors, and wait for "
            "each other",
            f"leave {option_name('threads')} at auto",
        )
    threads = settings.threads or machine.choice.threads
    return Check("threads", "ok", f"{threads}, on {usable} processors that may be used")


def _gpu(machine: Machine, settings: Settings) -> Check:
    if machine.gpu is not None:
        used = "is not used" if settings.device == "cpu" else "is used"
        return Check("GPU", "ok", f"{machine.gpu} {used}")
    if settings.device == "cuda":
        return Check(
            "GPU",
            "fail",
            f"{option_name('device')} is cuda, and torch finds no GPU",
            "have a driver and a torch for it, or choose cpu or auto",
        )
    return Check("GPU", "ok", "torch finds none; the processor computes")


def _memory(machine: Machine, settings: Settings) -> Check:
    kv = _LEAST_KV if settings.kv_memory is None else int(settings.kv_memory)
    host = int(settings.host_memory)
    weights = _weights_bytes(settings.model)
    if settings.draft_model is not None:
        weights = (weights or 0) + (_weights_bytes(settings.draft_model) or 0)
    replicas = settings.replicas if settings.ray_address is None else 1
    needed = replicas * (kv + host + (weights or 0) + BESIDE_BYTES)
    may_take = f"{machine.available_bytes // _MIB} MiB of memory may be taken"
    if needed <= machine.available_bytes:
        return Check("memory", "ok", f"{may_take}, {needed // _MIB} MiB are needed at least")
    parts = "" if weights is None else f"weights {weights // _MIB} MiB, "
    parts += f"host memory {host // _MIB} MiB, " if host else ""
    each = f"for each of {replicas} replicas, " if replicas > 1 else ""
    return Check(
        "memory",
        "warn",
        f"{may_take}; {parts}KV cache {kv // _MIB} MiB and what runs beside them, "
        f"{BESIDE_BYTES // _MIB} MiB, {each}need {needed // _MIB} MiB",
        f"free memory, raise the container's limit, or lower {option_name('kv_memory')}; a service "
        "that runs here already has its part of it",
    )


def _weights_bytes(model: str) -> int | None:
    """As they lie on the disk; `None` if they do not."""
    if model == DEFAULT_MODEL:
        return _DEFAULT_WEIGHTS
    path = Path(model).expanduser()
    return (path.stat().st_size if path.is_file() else stored_bytes(path)) or None
