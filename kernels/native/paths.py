"""Which of this machine's ways to multiply is used; `kernels.native.measuring` tells the fastest.

The way never depends on the number of rows: a token's result would depend on its batch-mates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, get_args

from kernels.native import library

Path = Literal["floats", "words", "tiles"]
"""In float32, by words of several elements, by matrix tiles: `pw_path` of `processor/cpu.h`."""

Kind = Literal["bfloat16", "int8", "attention"]
"""Products with weights of that type; attention of prompts in bfloat16."""

TileSize = Literal["small", "large"]
"""Of tiles of rows and keys, to attend to prompts by: `tile_sizes` of `attention/attention.c`."""

TILE_SIZES: Final[tuple[TileSize, ...]] = get_args(TileSize)
PATHS: Final[tuple[Path, ...]] = get_args(Path)
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
_TYPES: Final = {"bfloat16": 1, "int8": 2}


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


def use_tiles(size: TileSize) -> None:
    """Attend to prompts by tiles of this size from now on."""
    if library.available():
        _attention_use_tiles(TILE_SIZES.index(size))


if library.available():
    _has_path = library.function(
        "pw_linear_has_path", library.integer, library.integer, returns=library.integer
    )
    _linear_use_path = library.function("pw_linear_use_path", library.integer, library.integer)
    _attention_use_path = library.function("pw_attention_use_path", library.integer)
    _attention_use_tiles = library.function("pw_attention_use_tiles", library.integer)
