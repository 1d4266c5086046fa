"""Which way to compute is fastest on this machine: timed where it runs, on small examples.

`vdpbf16ps` does twice the multiplications of float32 a cycle on one processor and half of them on
another, and no flag tells; two threads of one core are sometimes faster than one, and often not.
So whatever a machine has is tried on shapes of a small model.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from heapq import nsmallest
from itertools import chain
from statistics import geometric_mean
from time import perf_counter, thread_time
from typing import Final, TypeVar

import torch

from kernels.native import library, paths
from kernels.native.paths import Kind, Path, TileSize
from kernels.types import AttentionBatch, AttentionShape

Way = TypeVar("Way", bound=Hashable)

_ROWS: Final = (1, 8, 32, 128)
"""Of activations; however long they take, they count alike."""
_TILED_QUERIES: Final = 256
_TILED_CONTEXTS: Final = (1024, 4096)
"""Of several tiles of any size; where fewer keys are attended to, products take the time."""
_REPEATS: Final = range(7, 29)
"""Until the fewest seconds were met three times: else they may all have been disturbed."""
_SPREAD: Final = 1.03
"""By so much these may differ."""
_MARGIN: Final = 1.05
"""By so much a way must be faster than one before it: between equals noise does not choose."""
_TILES_MARGIN: Final = 1.02
"""There is less noise in the time of one thread's own processor."""


def fastest_paths() -> dict[Kind, Path]:
    """The fastest path of each kind, with as many threads as are set.

    It takes some 0.1 s, and leaves in use what it found.
    """
    chosen: dict[Kind, Path] = {}
    for kind in paths.KINDS:
        examples = _examples(kind) if library.available() else []
        ways = paths.available(kind)[::-1]  # now that tiles have been tried

        def try_path(path: Path, kind: Kind = kind) -> None:
            paths.use({kind: path})

        chosen[kind] = _fastest(ways, try_path, examples)
    paths.use(chosen)
    return chosen


def fastest_tiles() -> TileSize:
    """Of attention to prompts, by the paths in use; it leaves in use what it found.

    Each thread computes tiles of its own, in the caches of its own core: so one thread is timed, by
    the time that it has had, which other programs draw out by little.
    """
    examples = []
    if library.available():
        examples = [_attention_example(_TILED_QUERIES, context) for context in _TILED_CONTEXTS]
    library.set_threads(1)
    chosen = _fastest(paths.TILE_SIZES, paths.use_tiles, examples, thread_time, _TILES_MARGIN)
    library.set_threads(torch.get_num_threads())
    paths.use_tiles(chosen)
    return chosen


def fastest_threads(counts: Sequence[int]) -> int:
    """One of `counts`, by the paths in use; a smaller one unless a larger one is clearly faster.

    It leaves in use what it found, in the library alone.
    """
    examples = [*_examples("bfloat16"), *_examples("attention")] if len(counts) > 1 else []
    chosen = _fastest(sorted(counts), library.set_threads, examples)
    library.set_threads(chosen)
    return chosen


def _fastest(
    ways: Sequence[Way],
    use: Callable[[Way], None],
    examples: Sequence[Callable[[], object]],
    clock: Callable[[], float] = perf_counter,
    margin: float = _MARGIN,
) -> Way:
    """The first of `ways` that no later one is faster than, but for noise."""
    times = _times(ways, use, examples, clock) if len(ways) > 1 and examples else {}
    best = ways[0]
    for way in ways[1:]:
        if times and times[way] * margin < times[best]:
            best = way
    return best


def _times(
    ways: Sequence[Way],
    use: Callable[[Way], None],
    examples: Sequence[Callable[[], object]],
    clock: Callable[[], float],
) -> dict[Way, float]:
    """The mean of the fewest seconds of all examples, by way; taken in turns.

    While another process computes, too, it takes several times as long, up to half a second.
    """
    seconds: dict[Way, list[list[float]]] = {way: [[] for _ in examples] for way in ways}
    for repeat in range(_REPEATS.stop):
        if repeat >= _REPEATS.start and all(map(_is_settled, chain(*seconds.values()))):
            break
        for way in ways:
            use(way)
            for compute, taken in zip(examples, seconds[way], strict=True):
                start = clock()
                compute()
                taken.append(clock() - start)
    return {way: geometric_mean(map(min, seconds[way])) for way in ways}


def _is_settled(seconds: list[float]) -> bool:
    """Whether the fewest seconds are no accident."""
    fewest, _, third = nsmallest(3, seconds)
    return third <= _SPREAD * fewest


def _examples(kind: Kind) -> list[Callable[[], object]]:
    return [_attention_example()] if kind == "attention" else _product_examples(kind)


def _product_examples(kind: Kind) -> list[Callable[[], object]]:
    from kernels.native.linear import pack  # it needs a compiled library

    weight = torch.ones(1536, 576, dtype=torch.bfloat16)
    product = pack(weight, None, "int8" if kind == "int8" else "none", batch_invariant=False)
    inputs = [torch.ones(rows, 576, dtype=torch.bfloat16) for rows in _ROWS]
    return [lambda x=x: product(x) for x in inputs]  # type: ignore[misc]


def _attention_example(query_len: int = 32, context_len: int = 512) -> Callable[[], object]:
    from kernels.native.attention import attend, prepare  # they need a compiled library

    prepare(AttentionShape(6, 2, 64, torch.bfloat16, 16, torch.bfloat16))
    block_size, head_dim = 16, 64
    blocks = context_len // block_size
    kv = torch.ones(blocks, 2, 2, block_size, head_dim, dtype=torch.bfloat16)
    query = torch.ones(query_len, 6, head_dim, dtype=torch.bfloat16)
    batch = AttentionBatch.of_one(query_len, context_len, block_size)
    return lambda: attend(query, kv, batch, head_dim**-0.5, None, None)
