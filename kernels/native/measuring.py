"""Which way to compute is fastest on this machine: timed where it runs, on small examples.

`vdpbf16ps` does twice the multiplications of float32 a cycle on one processor and half of them on
another, and no flag tells; two threads of one core are sometimes faster than one, and often not.
So whatever a machine has is tried on shapes of a small model.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from statistics import geometric_mean, median
from time import perf_counter
from typing import Final, TypeVar

import torch

from kernels.native import library, paths
from kernels.native.paths import Kind, Path, TileSize
from kernels.types import AttentionBatch, AttentionShape

Way = TypeVar("Way", bound=Hashable)

_ROWS: Final = (1, 8, 32, 128)
"""Of activations; however long they take, they count alike."""
_TILED_QUERIES: Final = 256
_TILED_CONTEXTS: Final = (256, 2048)
"""A prompt, and the end of a long one: of several tiles of any size."""
_REPEATS: Final = 7
_MARGIN: Final = 1.05
"""By so much a way must be faster than one before it: between equals noise does not choose."""


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
    """Of attention to prompts, by the paths in use; it leaves in use what it found."""
    examples = []
    if library.available():
        examples = [_attention_example(_TILED_QUERIES, context) for context in _TILED_CONTEXTS]
    chosen = _fastest(paths.TILE_SIZES, paths.use_tiles, examples)
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
    ways: Sequence[Way], use: Callable[[Way], None], examples: Sequence[Callable[[], object]]
) -> Way:
    """The first of `ways` that no later one is faster than, but for noise."""
    times = _times(ways, use, examples) if len(ways) > 1 and examples else {}
    best = ways[0]
    for way in ways[1:]:
        if times and times[way] * _MARGIN < times[best]:
            best = way
    return best


def _times(
    ways: Sequence[Way], use: Callable[[Way], None], examples: Sequence[Callable[[], object]]
) -> dict[Way, float]:
    """The mean of the median seconds of all examples, by way; taken in turns."""
    seconds: dict[Way, list[list[float]]] = {way: [[] for _ in examples] for way in ways}
    for _ in range(_REPEATS):
        for way in ways:
            use(way)
            for compute, taken in zip(examples, seconds[way], strict=True):
                start = perf_counter()
                compute()
                taken.append(perf_counter() - start)
    return {way: geometric_mean(map(median, seconds[way])) for way in ways}


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
