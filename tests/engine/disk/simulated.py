"""Engines of the simulated model that keep blocks on disk, and come and go."""

from __future__ import annotations

import os
import time
from pathlib import Path

from engine.disk.keeper import Keeper
from engine.serve.core import EngineCore
from tests.engine.simulation import make_request, run_to_end, simulated_core


def start(folder: Path, always_reads: bool = True, **fields: object) -> EngineCore:
    """An engine that keeps its blocks in `folder`.

    The simulated model computes in less time than reading takes; that is not to matter.
    """
    core = simulated_core(kept_dir=folder, **fields)
    if always_reads:
        core.scheduler.pace.seconds = lambda start, count: None
    return core


def keeper(core: EngineCore) -> Keeper:
    assert core.arrivals.keeper is not None
    return core.arrivals.keeper


def pin(core: EngineCore, prompt: list[int], tenant: str = "a", **fields: object) -> None:
    """Compute a prompt and pin it, and wait until nothing is to be computed."""
    name = f"{tenant}/{len(prompt)}"
    core.submit(make_request(f"pin {name}", prompt, 0, tenant, pin=name, **fields))
    run_to_end(core)


def save(core: EngineCore) -> None:
    """Let everything be written that is to be kept."""
    saver = keeper(core)._saver
    for _ in range(2):  # a look that was under way, and one behind it
        saver.begin()
        deadline = time.monotonic() + 20
        while saver.is_busy:
            core.step()
            core.scheduler.check()
            keeper(core).shelf.check()
            assert time.monotonic() < deadline, "it does not come to an end"


def spoil(path: Path, content: bytes) -> None:
    """Let a file hold something else, as if it had never been touched."""
    stat = path.stat()
    path.write_bytes(content)
    os.utime(path, (stat.st_atime, stat.st_mtime))


def kept_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.kept"))
