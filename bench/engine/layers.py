"""What memory by kinds of layers is worth: sequences that fit, and prompt tokens that are found.

The first table has the shapes of models that mix attention to everything with windows or chunks, or
have latents: how many sequences of a length fit into `MEMORY`, by the product's own pool and page
layout, beside one layout for all layers and the ideal, in which each layer keeps what it may still
read and nothing else. The second replays a trace's prompts, one at a time, in equal bytes: beside
one layout for all stands the rule that a hit needs all blocks of every kind, though windows give
theirs back.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from rich.table import Table

from bench.common.traces import (
    MOONCAKE_TRACE,
    TOKENS_PER_ID,
    Prompt,
    load_conversations,
)
from bench.registry import BenchError, Result
from engine.api import Kind
from engine.blocks.lookup import Found, Lookup
from engine.blocks.pool import BlockPool
from engine.blocks.rows import HOLE, Rows
from engine.model.layers.layout import AttentionCall, AttentionLayout, PageLayout

MEMORY: Final = 20 << 30
LENGTHS: Final = (1_024, 8_192, 32_768)
BLOCK: Final = 16
_STEP: Final = 512
_OWNER: Final = "tenant"
_STORAGE: Final = torch.bfloat16


def _call(
    kv_heads: int,
    head_dim: int,
    window: int | None = None,
    chunk: int | None = None,
    value_dim: int | None = None,
) -> AttentionCall:
    return AttentionCall(
        kv_heads, kv_heads, head_dim, 1.0, window, None, chunk, value_dim=value_dim
    )


def _mixed(layers: int, every: int, few: AttentionCall, many: AttentionCall) -> AttentionLayout:
    """Of each `every` layers the last one is of the `few`."""
    calls = tuple(few if (one + 1) % every == 0 else many for one in range(layers))
    return AttentionLayout(calls, by_kinds=True)


SHAPES: Final[Mapping[str, AttentionLayout]] = {
    "Gemma 3 27B": _mixed(62, 6, _call(16, 128), _call(16, 128, 1024)),
    "Gemma 4": _mixed(30, 6, _call(4, 512), _call(4, 256, 512)),
    "gpt-oss-20b": _mixed(24, 2, _call(8, 64), _call(8, 64, 128)),
    "Llama 4 Scout": _mixed(48, 4, _call(8, 128), _call(8, 128, chunk=8192)),
    "DeepSeek V3": AttentionLayout(61 * (_call(1, 576, value_dim=512),), by_kinds=True),
}
"""As the families' configurations in transformers and the models' cards have them."""
_REPLAYED: Final = {"gemma3": "Gemma 3 27B", "gpt_oss": "gpt-oss-20b"}

FIGURES: Final[Mapping[str, str]] = {
    "capacity_over_ideal_min": "sequences that fit, over those that the ideal has room for: least "
    "of all shapes and lengths",
    "capacity_over_uniform_max": "the same over one layout for all layers: the most",
    **{
        f"found_ratio_{name}": f"prompt tokens found with the shape of {shape}, over those found "
        "with one layout for all in as many bytes"
        for name, shape in _REPLAYED.items()
    },
    **{
        f"found_ratio_{name}_all_blocks": "the same where a hit needs all blocks of every kind"
        for name in _REPLAYED
    },
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--trace",
        type=Path,
        default=MOONCAKE_TRACE,
        help="prompts in Mooncake's format; where there is no such file, synthetic ones",
    )
    parser.add_argument(
        "--ids",
        type=int,
        default=3_000,
        help="of the trace, each of 512 tokens, for which one layout for all has room",
    )
    parser.add_argument("--block-size", type=int, default=64, help="tokens of a replayed block")
    parser.add_argument("--seed", type=int, default=0, help="of synthetic prompts")


def run(options: argparse.Namespace) -> Result:
    """Fill memory with sequences of every shape, then replay the trace for some shapes."""
    if options.block_size < 1 or TOKENS_PER_ID % options.block_size:
        raise BenchError(f"--block-size: must divide {TOKENS_PER_ID}, the tokens of an id")
    fits = [_fit(name, layout, length) for name, layout in SHAPES.items() for length in LENGTHS]
    found = load_conversations(options.trace, options.seed)
    replays = {
        name: _replay(SHAPES[shape], found.prompts, options.ids, options.block_size)
        for name, shape in _REPLAYED.items()
    }
    figures = {
        "capacity_over_ideal_min": min(one.over_ideal for one in fits),
        "capacity_over_uniform_max": max(one.sequences / one.uniform for one in fits),
        **{f"found_ratio_{name}": one.ours / one.uniform for name, one in replays.items()},
        **{
            f"found_ratio_{name}_all_blocks": one.all_blocks / one.uniform
            for name, one in replays.items()
        },
    }
    tables = [_fit_table(fits), _replay_table(replays, f"trace: {found.source}")]
    return Result(
        figures, tables, {"source": found.source, "requests": len(found.prompts), "bytes": MEMORY}
    )


@dataclass(frozen=True, slots=True)
class _Fit:
    """Sequences of one length in `MEMORY`."""

    shape: str
    length: int
    filled: int
    """As many were put there by the pool, one after the other, and fit."""
    sequences: float
    """As many as what the last of them holds would allow."""
    uniform: float
    ideal: float

    @property
    def over_ideal(self) -> float:
        return self.sequences / self.ideal


def _fit(name: str, layout: AttentionLayout, length: int) -> _Fit:
    pages = layout.pages(BLOCK, _STORAGE)
    page_bytes = pages.page_size * _STORAGE.itemsize
    pool = BlockPool(MEMORY // page_bytes, kinds=pages.kinds)
    filled, held = 0, 0
    while (count := _put(pool, length)) is not None:
        filled, held = filled + 1, count
    pool.check()
    uniform = AttentionLayout(layout.calls).block_bytes(BLOCK, _STORAGE) * -(-length // BLOCK)
    ideal = sum(_still_read(call, length) for call in layout.calls)
    rest = held * page_bytes
    return _Fit(name, length, filled, MEMORY / rest, MEMORY / uniform, MEMORY / ideal)


def _put(pool: BlockPool, length: int) -> int | None:
    """Compute a sequence that stays; returns the pages that it holds, or `None` without room."""
    rows = Rows(pool, BLOCK, _OWNER)
    rows.admit(0, [[] for _ in pool.kinds], [range(0)] * len(pool.kinds))
    for end in (*range(_STEP, length, _STEP), length):
        blocks = -(-end // BLOCK)
        if not pool.can_allocate(rows.missing(blocks), _OWNER):
            rows.release()
            return None
        rows.grow(blocks)
        rows.forget(end)
    return pool.count(rows.blocks)


def _still_read(call: AttentionCall, length: int) -> int:
    """Bytes of what a layer may still read of so many tokens."""
    kind = Kind(window=call.sliding_window, chunk=call.chunk)
    row = call.rows_per_token * call.num_kv_heads * call.head_dim * _STORAGE.itemsize
    return row * (length - kind.first_needed(length))


@dataclass(frozen=True, slots=True)
class _Replayed:
    """Of all tokens of prompts, the part that was found."""

    ours: float
    uniform: float
    all_blocks: float


_Longest = Callable[[BlockPool, Sequence[bytes], int], Found]


def _replay(
    layout: AttentionLayout, prompts: Sequence[Prompt], ids: int, block_size: int
) -> _Replayed:
    pages = layout.pages(block_size, _STORAGE)
    uniform = AttentionLayout(layout.calls).pages(block_size, _STORAGE)
    num_blocks = ids * TOKENS_PER_ID // block_size
    num_bytes = num_blocks * uniform.page_size
    systems: list[tuple[PageLayout, _Longest]] = [
        (pages, _longest),
        (uniform, _longest),
        (pages, _all_blocks),
    ]
    parts = []
    for system, find in systems:
        pool = BlockPool(num_bytes // system.page_size, kinds=system.kinds)
        asked = found = 0
        for chain in _chains(prompts, block_size):
            asked += len(chain)
            found += _serve(pool, chain, block_size, find)
        pool.check()
        parts.append(found / asked)
    return _Replayed(*parts)


def _chains(prompts: Sequence[Prompt], block_size: int) -> Iterator[list[bytes]]:
    """In place of the block hashes: an id says what is before it already."""
    each = TOKENS_PER_ID // block_size
    for prompt in prompts:
        yield [(one * each + index).to_bytes(16) for one in prompt for index in range(each)]


def _longest(pool: BlockPool, hashes: Sequence[bytes], block_size: int) -> Found:
    return Lookup(pool).longest(hashes, 0, block_size)


def _all_blocks(pool: BlockPool, hashes: Sequence[bytes], _: int) -> Found:
    found = [pool.find(hashes, number) for number in range(len(pool.kinds))]
    count = min(map(len, found))
    return Found([row[:count] for row in found], [], count)


def _serve(pool: BlockPool, chain: list[bytes], block_size: int, find: _Longest) -> int:
    """What the scheduler does with the blocks of one prompt; returns how many it found."""
    rows = Rows(pool, block_size, _OWNER)
    hits, _, alike = find(pool, chain[:-1], block_size)
    pool.acquire([block for row in hits for block in row if block != HOLE])
    found, length = len(hits[0]), len(chain)
    rows.admit(length, hits, [range(0)] * len(hits))
    rows.ends = {(one * block_size, one * block_size) for one in (found, alike)}
    for start in range(found, length, step := max(1, _STEP // block_size)):
        rows.forget(start * block_size)
        end = min(start + step, length)
        if not pool.can_allocate(rows.missing(end), _OWNER):
            raise BenchError(f"--ids: {pool.num_blocks} blocks do not hold a prompt of {length}")
        rows.grow(end)
        for number, row in enumerate(rows.rows):
            for index in range(start, end):
                pool.register(row[index], chain[index], kind=number)
    rows.keep_near(chain)
    rows.release()
    return found


def _fit_table(fits: Sequence[_Fit]) -> Table:
    table = Table(
        "shape",
        "tokens",
        "pages a block",
        "sequences",
        "filled",
        "one layout",
        "ideal",
        "of ideal",
        title=f"sequences in {MEMORY >> 30} GiB, bfloat16, blocks of {BLOCK} tokens",
    )
    for one in fits:
        kinds = SHAPES[one.shape].pages(BLOCK, _STORAGE).kinds
        table.add_row(
            one.shape,
            f"{one.length:,}",
            " + ".join(str(kind.pages) for kind in kinds),
            f"{one.sequences:.1f}",
            str(one.filled),
            f"{one.uniform:.1f}",
            f"{one.ideal:.1f}",
            f"{one.over_ideal * 100:.1f} %",
        )
    return table


def _replay_table(replays: Mapping[str, _Replayed], title: str) -> Table:
    table = Table("shape", "ours", "one layout", "all blocks needed", title=title)
    table.caption = "prompt tokens found, of all, in as many bytes"
    for name, one in replays.items():
        parts = (one.ours, one.uniform, one.all_blocks)
        table.add_row(_REPLAYED[name], *(f"{part * 100:.1f} %" for part in parts))
    return table
