"""What this machine has to compute with, and what the engine makes of it: for whoever looks."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

import msgspec
import torch

from engine.config import EngineConfig
from engine.model.kernel_paths import Choice, known_choice, measured_choice
from engine.system.control_groups import available_memory, cpu_quotas
from engine.system.threads import physical_cores
from kernels.native import library

_CPU_INFO = Path("/proc/cpuinfo")
_LEVEL_FLAGS = {
    "avx2": {"avx2", "fma", "f16c"},
    "avx512": {"avx512f", "avx512dq", "avx512bw", "avx512vl"},
    "avx512_bf16": {"avx512_bf16"},
    "amx": {"amx_tile", "amx_bf16", "amx_int8"},
}
"""What the system calls the instructions that each level of the library needs beyond the last."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What there is, and what is used of it."""

    processor: str
    offered_level: str
    """The library's level for the instructions that the processor says it has."""
    level: str
    """The one that is used."""
    logical_processors: int
    """Of those that this process may use."""
    physical_cores: int
    cpu_quota: int | None
    """Cores whose time a container may use, rounded up."""
    library_problem: str
    """Why the compiled library is not used; empty where it is."""
    compiler: str | None
    """A C compiler's path, which only installing needs."""
    choice: Choice
    is_choice_kept: bool
    """By an earlier start; else it was measured just now, and is not kept."""
    available_bytes: int
    """What may still be taken, in a container of what it may use."""
    gpu: str | None

    @property
    def is_limited(self) -> bool:
        """Whether the processor says it has more than is used."""
        order = library.LEVELS.index
        return order(self.level) < order(self.offered_level)


def examine(config: EngineConfig) -> Machine:
    """Look at this machine, as an engine with this configuration would."""
    usable = os.sched_getaffinity(0)
    kept = known_choice(config)
    name, flags = _processor()
    return Machine(
        processor=name,
        offered_level=_offered(flags),
        level=library.level(),
        logical_processors=len(usable),
        physical_cores=physical_cores(usable),
        cpu_quota=min(cpu_quotas(), default=None),
        library_problem=library.problem(),
        compiler=shutil.which("cc") or shutil.which("gcc") or shutil.which("clang"),
        choice=kept or measured_choice(config),
        is_choice_kept=kept is not None,
        available_bytes=available_memory(),
        gpu=torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    )


def _processor() -> tuple[str, set[str]]:
    """The first processor's name, as far as the system has one, and its flags."""
    name, flags = "unknown", set[str]()
    with suppress(OSError):
        for line in _CPU_INFO.read_text().split("\n\n")[0].splitlines():
            field, _, value = (part.strip() for part in line.partition(":"))
            if field == "model name":
                name = value
            elif field in ("flags", "Features"):
                flags = set(value.split())
    return name, flags


def _offered(flags: set[str]) -> str:
    offered = "plain"
    for level, needed in _LEVEL_FLAGS.items():
        if not needed <= flags:
            break
        offered = level
    return offered
