"""Batch-invariant attention at every level of instructions: a row has the same bits wherever its
queries are cut, whoever else is in the batch, and whether it attends to whole splits in a group.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels.native import library
from tests.effort import scaled

if not library.available():
    pytest.skip("kernels/native is not built", allow_module_level=True)

from kernels.native import paths
from kernels.prefix_groups import GroupingRule
from kernels.types import AttentionBatch
from tests.kernels.batches import Paged, drawn_sinks, paged
from tests.kernels.test_attention import TOLERANCE, run

LEVELS = library.LEVELS[: library.LEVELS.index(library.level()) + 1]
WHOLE_SPLITS = GroupingRule(whole=256)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    library.limit_level(library.LEVELS[-1])
    library.set_threads(torch.get_num_threads())
    paths.use_tiles("small")


def attended(
    example: Paged,
    window: int | None,
    softcap: float | None,
    chunk: int | None,
    with_sinks: bool,
    value_dim: int | None = None,
) -> Tensor:
    sinks = drawn_sinks(example.query.shape[1]) if with_sinks else None
    batch = replace(example.batch, batch_invariant=True)
    invariant = replace(example, batch=batch)
    return run("native", invariant, window, softcap, chunk=chunk, sinks=sinks, value_dim=value_dim)


def rows_of(example: Paged, seq: int, first: int, last: int) -> Paged:
    """Queries `first` up to `last` of a sequence, as a chunk that is alone in its step."""
    batch = example.batch
    start, end = batch.query_starts[seq : seq + 2].tolist()
    context = int(batch.context_lens[seq]) - (end - start) + last
    chunk = AttentionBatch(
        block_tables=batch.block_tables[seq : seq + 1],
        query_starts=torch.tensor([0, last - first], dtype=torch.int32),
        context_lens=torch.tensor([context], dtype=torch.int32),
        slots=batch.slots[start + first : start + last],
        max_query_len=last - first,
        max_context_len=context,
    )
    return Paged(example.query[start + first : start + last], example.kv, chunk)


@settings(max_examples=scaled(40), deadline=None)
@given(
    context=st.sampled_from([1, 17, 255, 256, 257, 300, 530, 800]),
    counts=st.lists(st.sampled_from([1, 1, 2, 3, 16, 17, 48, 70]), min_size=1, max_size=5),
    beside=st.sampled_from([(1, 1), (300, 1), (290, 40), (70, 70)]),
    heads=st.sampled_from([(1, 1), (4, 4), (6, 2), (9, 3), (16, 1)]),
    head_dim=st.sampled_from([8, 16, 20, 32, 48, 64, 80, 128]),
    block_size=st.sampled_from([1, 8, 16, 64]),
    dtype=st.sampled_from(list(TOLERANCE)),
    is_quantized=st.booleans(),
    window=st.none() | st.sampled_from([1, 20, 70, 300]),
    softcap=st.none() | st.just(5.0),
    chunk=st.none() | st.sampled_from([20, 70, 256, 300]),
    with_sinks=st.booleans(),
    are_latents=st.booleans(),
    threads=st.integers(1, 3),
    tiles=st.sampled_from(paths.TILE_SIZES),
    level=st.sampled_from(LEVELS),
)
def test_chunks_of_any_lengths_among_any_others_have_the_same_bits(
    context: int,
    counts: list[int],
    beside: tuple[int, int],
    heads: tuple[int, int],
    head_dim: int,
    block_size: int,
    dtype: torch.dtype,
    is_quantized: bool,
    window: int | None,
    softcap: float | None,
    chunk: int | None,
    with_sinks: bool,
    are_latents: bool,
    threads: int,
    tiles: paths.TileSize,
    level: str,
) -> None:
    library.limit_level(level)
    library.set_threads(threads)
    paths.use_tiles(tiles)
    total = sum(counts)
    example = paged([beside, (context + total, total), beside], *heads, head_dim, block_size, dtype)
    if is_quantized:
        example = example.quantized()
    value_dim = None
    if are_latents:
        example, value_dim = example.latents(), head_dim // 4 * 3
    options = window, softcap, chunk, with_sinks, value_dim
    together = attended(example, *options)[beside[1] : beside[1] + total]
    first = 0
    for count in counts:
        part = attended(rows_of(example, 1, first, first + count), *options)
        assert torch.equal(part, together[first : first + count])
        first += count


@settings(max_examples=scaled(30), deadline=None)
@given(
    shared=st.lists(st.sampled_from([0, 100, 256, 300, 512, 600]), min_size=1, max_size=5),
    own=st.sampled_from([1, 20, 256, 300]),
    heads=st.sampled_from([(1, 1), (6, 2), (9, 3), (16, 1)]),
    head_dim=st.sampled_from([20, 32, 48, 64, 80]),
    block_size=st.sampled_from([1, 4]),
    dtype=st.sampled_from(list(TOLERANCE)),
    is_quantized=st.booleans(),
    softcap=st.none() | st.just(5.0),
    with_sinks=st.booleans(),
    are_latents=st.booleans(),
    tiles=st.sampled_from(paths.TILE_SIZES),
    level=st.sampled_from(LEVELS),
)
def test_groups_of_whole_splits_have_the_bits_of_their_members_alone(
    shared: list[int],
    own: int,
    heads: tuple[int, int],
    head_dim: int,
    block_size: int,
    dtype: torch.dtype,
    is_quantized: bool,
    softcap: float | None,
    with_sinks: bool,
    are_latents: bool,
    tiles: paths.TileSize,
    level: str,
) -> None:
    """Forks of a sequence of 700 keys, two of each length, and a chunk that shares nothing."""
    library.limit_level(level)
    paths.use_tiles(tiles)
    lengths = [700, *(keys for keys in (512, *shared) for _ in range(2))]
    seqs = [(700, 1), *((keys + own, 1) for keys in lengths[1:]), (40, 30)]
    forks = {seq: (0, keys // block_size) for seq, keys in enumerate(lengths) if seq and keys}
    example = paged(seqs, *heads, head_dim, block_size, dtype, forks=forks)
    if is_quantized:
        example = example.quantized()
    value_dim = None
    if are_latents:
        example, value_dim = example.latents(), head_dim // 4 * 3
    grouped = example.grouped(WHOLE_SPLITS)
    groups = grouped.batch.groups
    assert groups is not None
    assert not (groups.begins % 256).any()
    assert not (groups.ends % 256).any()
    options = None, softcap, None, with_sinks, value_dim
    together = attended(grouped, *options)
    alone = [attended(example.only(seq), *options) for seq in range(len(seqs))]
    assert torch.equal(together, torch.cat(alone))
