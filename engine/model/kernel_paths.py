"""How this machine computes: which way kernels multiply, in tiles and steps of which size, with
how many threads, and what more rows add to a step.

All are as configured, as kept, or as measured. What was measured is kept in the cache folder with
all it depends on: the processor, the threads that it may run, and the library. So the engine that
follows a crash computes as the one before it did.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from time import perf_counter

import msgspec
import torch
from msgspec import structs

from engine.config import EngineConfig
from engine.draft.worth import RowCosts
from engine.system import cache_files
from engine.system.threads import thread_counts
from kernels.native import library, measuring, paths
from kernels.native.paths import TileSize

_KEPT = "kernel_paths.json"
_log = logging.getLogger(__name__)


class Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What computes fastest."""

    paths: dict[paths.Kind, paths.Path]
    tiles: TileSize
    threads: int
    step_tokens: dict[str, int] = {}
    """Of steps of prompts, by model: its fingerprint."""
    row_costs: dict[str, RowCosts] = {}
    """Of steps that decode, by model: the same, and what else they hang on."""


_decode = msgspec.json.Decoder(dict[str, Choice]).decode
_measured: dict[str, Choice] = {}
"""By this process, which may load several models."""


def choose_kernel_paths(config: EngineConfig) -> Choice:
    """Compute by the paths and with the threads of the configuration, or by the fastest ones.

    A configured path that the machine lacks stands for the best one below it.
    """
    counts = thread_counts(config.threads)
    if config.kernel_paths != "auto" and len(counts) == 1:
        choice, source = measured_choice(config), "as configured"
    else:
        choice, source = _kept_or_measured(config)
    use_choice(choice)
    _log.info("%s (%s)", described(choice), source)
    return choice


def use_choice(choice: Choice) -> None:
    """Compute so in this process."""
    paths.use(choice.paths)
    paths.use_tiles(choice.tiles)
    _use_threads(choice.threads)


def measured_step_tokens(config: EngineConfig, model: str, measure: Callable[[], int]) -> int:
    """Tokens of a step of prompts: as found before for the model, or by `measure`; then kept."""
    choice, _ = _kept_or_measured(config)
    source = "as measured before"
    if model not in choice.step_tokens:
        found = choice.step_tokens | {model: measure()}
        choice = structs.replace(choice, step_tokens=found)
        _keep(config, choice)
        source = "measured"
    tokens = choice.step_tokens[model]
    _log.info("prompts by %d tokens a step (%s)", tokens, source)
    return tokens


def measured_row_costs(
    config: EngineConfig, model: str, measure: Callable[[], RowCosts]
) -> RowCosts:
    """What rows of steps that decode with `model` take: as found before, or by `measure`; then
    kept, unless it was disturbed.
    """
    choice, _ = _kept_or_measured(config)
    known = choice.row_costs.get(model)
    if known is not None:
        return known
    costs = measure()
    if costs.is_plausible:
        _keep(config, structs.replace(choice, row_costs=choice.row_costs | {model: costs}))
    return costs


def described(choice: Choice) -> str:
    """In words."""
    listed = ", ".join(f"{kind} by {path}" for kind, path in choice.paths.items())
    threads = f"{choice.threads} thread" + "s" * (choice.threads > 1)
    return f"{library.level()} with {threads}: {listed}, {choice.tiles} tiles"


def rounding(choice: Choice) -> str:
    """What the last bits of a batch-invariant result hang on, beside the model, in words."""
    products = ", ".join(f"{kind} by {choice.paths[kind]}" for kind in ("bfloat16", "int8"))
    others = f"torch {torch.__version__} {torch.backends.cpu.get_cpu_capability()}"
    return f"batch-invariant {library.level()} {library.sources()}, {others}: {products}"


def known_choice(config: EngineConfig) -> Choice | None:
    """What was measured before, on this machine and for this configuration."""
    return _load(_store(config)).get(machine_name(config))


def machine_name(config: EngineConfig) -> str:
    """What the choice depends on, as one short word."""
    processor = ""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
        kept = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU part")
        processor = "\n".join(line for line in lines if line.startswith(kept))
    counts = thread_counts(config.threads)
    way = f"{library.level()} {counts} {config.kernel_paths} {library.sources()}"
    return blake2b(f"{processor}\n{way}".encode(), digest_size=12).hexdigest()


def measured_choice(config: EngineConfig) -> Choice:
    """What is fastest now, as far as it is not configured; it is in use from now on."""
    counts = thread_counts(config.threads)
    _use_threads(max(counts))
    if config.kernel_paths == "auto":
        chosen = measuring.fastest_paths()
        tiles = measuring.fastest_tiles()
    else:
        tiles = paths.TILE_SIZES[0]
        wanted = config.kernel_paths
        chosen = {kind: _at_most(wanted, paths.available(kind)) for kind in paths.KINDS}
        paths.use(chosen)
    # With more threads than cores the paths may differ in speed, but not in their order.
    choice = Choice(chosen, tiles, measuring.fastest_threads(counts))
    _use_threads(choice.threads)
    return choice


def _kept_or_measured(config: EngineConfig) -> tuple[Choice, str]:
    """The choice, and where it comes from; what is new is kept."""
    machine = machine_name(config)
    known = _load(_store(config)).get(machine)
    if known is not None:
        return known, "as measured before"
    start = perf_counter()
    choice = _measured.get(machine) or measured_choice(config)
    seconds = perf_counter() - start
    _keep(config, choice)
    return choice, f"measured in {seconds:.2f} s"


def _keep(config: EngineConfig, choice: Choice) -> None:
    """For this process, and for later ones if there is a cache."""
    machine = machine_name(config)
    _measured[machine] = choice
    store = _store(config)
    cache_files.save(store, _load(store) | {machine: choice})


def _store(config: EngineConfig) -> Path | None:
    return None if config.cache_dir is None else Path(config.cache_dir) / _KEPT


def _use_threads(count: int) -> None:
    torch.set_num_threads(count)
    library.set_threads(count)


def _at_most(path: paths.Path, available: list[paths.Path]) -> paths.Path:
    order = paths.PATHS.index
    return max((one for one in available if order(one) <= order(path)), key=order)


def _load(store: Path | None) -> dict[str, Choice]:
    return {
        machine: structs.replace(choice, row_costs=_plausible(choice.row_costs))
        for machine, choice in (cache_files.load(store, _decode) or {}).items()
        if choice.paths.keys() == set(paths.KINDS)
    }


def _plausible(row_costs: dict[str, RowCosts]) -> dict[str, RowCosts]:
    return {model: costs for model, costs in row_costs.items() if costs.is_plausible}
