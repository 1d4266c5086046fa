"""Which of this machine's ways to multiply is used: measured where it runs, once, and kept.

`vdpbf16ps` does twice the multiplications of float32 a cycle on one processor and half of them on
another, and no flag tells. So every way that the machine has is timed on small examples of a
model's shapes. The way never depends on the number of rows: a token's result would depend on its
batch-mates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from statistics import median
from time import perf_counter
from typing import Final, Literal, get_args

import torch

from kernels.native import library
from kernels.types import AttentionBatch, AttentionShape

Path = Literal["floats", "words", "tiles"]
"""In float32, by words of several elements, by matrix tiles: `pw_path` of `native/cpu.h`."""

Kind = Literal["bfloat16", "int8", "attention"]
"""Products with weights of that type; attention of prompts in bfloat16."""

PATHS: Final[tuple[Path, ...]] = get_args(Path)
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
_TYPES: Final = {"bfloat16": 1, "int8": 2}
_ROWS: Final = (1, 8, 32, 128)
"""Of activations; their times count alike."""
_REPEATS: Final = 7
_MARGIN: Final = 1.05
"""By so much a path must be faster than the one above it: between equals noise does not choose."""


def available(kind: Kind) -> list[Path]:
    """The paths that this machine has, the most capable one last."""
    if not library.available():
        return ["floats"]
    if kind != "attention":
        return [path for path in PATHS if _has_path(_TYPES[kind], PATHS.index(path))]
    level = library.LEVELS.index(library.level())
    first = library.LEVELS.index("avx512_bf16")
    return list(PATHS[: max(1, level - first + 2)])


def use(chosen: Mapping[Kind, Path]) -> None:
    """Compute by these paths from now on, or by the next ones below where there are none such."""
    if not library.available():
        return
    for kind, path in chosen.items():
        if kind == "attention":
            _attention_use_path(PATHS.index(path))
        else:
            _linear_use_path(_TYPES[kind], PATHS.index(path))


def measure() -> dict[Kind, Path]:
    """The fastest path of each kind, on this machine and with as many threads as are set.

    It takes some 0.1 s, and leaves in use what it found.
    """
    chosen: dict[Kind, Path] = {}
    for kind in KINDS:
        examples = _examples(kind) if library.available() else []
        paths = available(kind)  # now that tiles have been tried
        times = _times(kind, paths, examples)
        best = paths[-1]
        for path in reversed(paths[:-1]):
            if times[path] * _MARGIN < times[best]:
                best = path
        chosen[kind] = best
    use(chosen)
    return chosen


def _times(
    kind: Kind, paths: list[Path], examples: list[Callable[[], object]]
) -> dict[Path, float]:
    """The product of the median seconds of all examples, by path; taken in turns."""
    seconds: dict[Path, list[list[float]]] = {path: [[] for _ in examples] for path in paths}
    for _ in range(_REPEATS if len(paths) > 1 else 0):
        for path in paths:
            use({kind: path})
            for compute, taken in zip(examples, seconds[path], strict=True):
                start = perf_counter()
                compute()
                taken.append(perf_counter() - start)
    return {path: prod(map(median, filter(None, seconds[path]))) for path in paths}


def _examples(kind: Kind) -> list[Callable[[], object]]:
    return [_attention_example()] if kind == "attention" else _product_examples(kind)


def _product_examples(kind: Kind) -> list[Callable[[], object]]:
    from kernels.native.linear import pack  # it needs a compiled library

    weight = torch.ones(1536, 576, dtype=torch.bfloat16)
    product = pack(weight, None, "int8" if kind == "int8" else "none", batch_invariant=False)
    inputs = [torch.ones(rows, 576, dtype=torch.bfloat16) for rows in _ROWS]
    return [lambda x=x: product(x) for x in inputs]  # type: ignore[misc]


def _attention_example() -> Callable[[], object]:
    from kernels.native.attention import attend, prepare  # they need a compiled library

    prepare(AttentionShape(6, 2, 64, torch.bfloat16, 16, torch.bfloat16))
    query_len, context_len, block_size, head_dim = 32, 512, 16, 64
    blocks = context_len // block_size
    kv = torch.ones(blocks, 2, 2, block_size, head_dim, dtype=torch.bfloat16)
    query = torch.ones(query_len, 6, head_dim, dtype=torch.bfloat16)
    batch = AttentionBatch(
        block_tables=torch.arange(blocks, dtype=torch.int32)[None],
        query_starts=torch.tensor([0, query_len], dtype=torch.int32),
        context_lens=torch.tensor([context_len], dtype=torch.int32),
        slots=torch.zeros(query_len, dtype=torch.int64),
        max_query_len=query_len,
        max_context_len=context_len,
    )
    return lambda: attend(query, kv, batch, head_dim**-0.5, None, None)


if library.available():
    _has_path = library.function(
        "pw_linear_has_path", library.integer, library.integer, returns=library.integer
    )
    _linear_use_path = library.function("pw_linear_use_path", library.integer, library.integer)
    _attention_use_path = library.function("pw_attention_use_path", library.integer)
