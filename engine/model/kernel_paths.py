"""Which way the compiled kernels multiply on this machine: as configured, as kept, or as measured.

What was measured is kept in the cache folder with all it depends on: the processor, the number of
threads, and the library. So the engine that follows a crash computes as the one before it did.
"""

from __future__ import annotations

import logging
import os
import tempfile
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from time import perf_counter

import msgspec

from engine.config import EngineConfig
from kernels.native import library, paths

_KEPT = "kernel_paths.json"
_decode = msgspec.json.Decoder(dict[str, dict[paths.Kind, paths.Path]]).decode
_log = logging.getLogger(__name__)
_measured: dict[str, dict[paths.Kind, paths.Path]] = {}
"""By this process, which may load several models."""


def choose_kernel_paths(config: EngineConfig, threads: int) -> dict[paths.Kind, paths.Path]:
    """Let kernels use the paths of the configuration, or the fastest ones; returns which.

    A configured path that the machine lacks stands for the best one below it.
    """
    if config.kernel_paths != "auto":
        chosen = {
            kind: _at_most(config.kernel_paths, paths.available(kind)) for kind in paths.KINDS
        }
        source = "as configured"
    else:
        store = None if config.cache_dir is None else Path(config.cache_dir) / _KEPT
        machine = _machine(threads)
        kept = _load(store)
        found = kept.get(machine)
        source = "as measured before"
        if found is None:
            start = perf_counter()
            if machine not in _measured:
                _measured[machine] = paths.measure()
            found = kept[machine] = _measured[machine]
            source = f"measured in {perf_counter() - start:.2f} s"
            _save(store, kept)
        chosen = found
    paths.use(chosen)
    listed = ", ".join(f"{kind} by {path}" for kind, path in chosen.items())
    _log.info("products on %s: %s (%s)", library.level(), listed, source)
    return chosen


def _at_most(path: paths.Path, available: list[paths.Path]) -> paths.Path:
    order = paths.PATHS.index
    return max((one for one in available if order(one) <= order(path)), key=order)


def _machine(threads: int) -> str:
    """What the choice depends on, as one short word."""
    described = ""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
        kept = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU part")
        described = "\n".join(line for line in lines if line.startswith(kept))
    identity = f"{described}\n{library.level()} {threads} {library.sources()}"
    return blake2b(identity.encode(), digest_size=12).hexdigest()


def _load(store: Path | None) -> dict[str, dict[paths.Kind, paths.Path]]:
    if store is not None:
        with suppress(OSError, msgspec.DecodeError):
            return {
                machine: chosen
                for machine, chosen in _decode(store.read_bytes()).items()
                if chosen.keys() == set(paths.KINDS)
            }
    return {}


def _save(store: Path | None, kept: dict[str, dict[paths.Kind, paths.Path]]) -> None:
    """A cache that cannot be written only costs the time to measure again."""
    if store is None:
        return
    with suppress(OSError):
        store.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=store.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.json.encode(kept))
        os.replace(name, store)
