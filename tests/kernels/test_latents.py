"""Attention over latents on a CPU: one row a token, of which the first part is the value.

What stands for the values of other layers holds NaN in every memory here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.attention import attend, write_kv
from kernels.backends import Backend
from kernels.native import library
from tests.effort import scaled
from tests.kernels.batches import Paged, drawn_sinks, paged
from tests.kernels.test_attention import (
    BACKENDS,
    LOCAL,
    MIXED,
    TOLERANCE,
    on_every_backend,
    sequences,
)

LEVELS = library.LEVELS[: library.LEVELS.index(library.level()) + 1]


@pytest.fixture(autouse=True)
def _every_level_afterwards() -> Iterator[None]:
    yield
    library.limit_level(library.LEVELS[-1])


def latents(seqs: list[tuple[int, int]], num_heads: int, dim: int, **options: object) -> Paged:
    example = paged(seqs, num_heads, 1, dim, **options)  # type: ignore[arg-type]
    example.kv[:, 1] = torch.nan
    return example.latents()


def run(backend: Backend, example: Paged, value_dim: int, **options: object) -> torch.Tensor:
    scale = example.query.shape[2] ** -0.5
    return attend(
        example.query,
        example.kv,
        example.batch,
        scale=scale,
        value_dim=value_dim,
        backend=backend,
        **options,  # type: ignore[arg-type]
    )


def assert_right(backend: Backend, example: Paged, value_dim: int, **options: object) -> None:
    """Like attention to keys whose values are zeros behind their first dimensions, in fp64."""
    dtype, dim = example.query.dtype, example.query.shape[2]
    keys = example.kv.double()
    values = torch.cat([keys[..., :value_dim], torch.zeros_like(keys[..., value_dim:])], dim=-1)
    expected = attend(
        example.query.double(),
        torch.cat([keys, values], dim=1),
        example.batch,
        scale=dim**-0.5,
        backend="reference",
        **options,  # type: ignore[arg-type]
    )[..., :value_dim]
    actual = run(backend, example, value_dim, **options)
    assert actual.dtype == dtype
    tolerance = 1.5 * TOLERANCE[dtype]
    torch.testing.assert_close(actual.double(), expected, rtol=tolerance, atol=tolerance)


@settings(max_examples=scaled(40))
@given(
    seqs=st.lists(sequences, min_size=1, max_size=4),
    num_heads=st.sampled_from([1, 4, 16, 40]),
    dims=st.sampled_from([(24, 16), (33, 20), (80, 64), (96, 64), (576, 512)]),
    block_size=st.sampled_from([1, 5, 16]),
    dtype=st.sampled_from(list(TOLERANCE)),
    window=st.none() | st.integers(1, 70),
    softcap=st.none() | st.floats(0.5, 50),
    chunk=st.none() | st.integers(1, 70),
    with_sinks=st.booleans(),
    invariant=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_batch_is_right_at_every_level(
    seqs: list[tuple[int, int]],
    num_heads: int,
    dims: tuple[int, int],
    block_size: int,
    dtype: torch.dtype,
    window: int | None,
    softcap: float | None,
    chunk: int | None,
    with_sinks: bool,
    invariant: bool,
    seed: int,
) -> None:
    dim, value_dim = dims
    example = latents(seqs, num_heads, dim, block_size=block_size, dtype=dtype, seed=seed)
    example = replace(example, batch=replace(example.batch, batch_invariant=invariant))
    sinks = drawn_sinks(num_heads) if with_sinks else None
    options = {"sliding_window": window, "softcap": softcap, "chunk": chunk, "sinks": sinks}
    for backend in BACKENDS:
        for level in LEVELS if backend == "native" else LEVELS[:1]:
            library.limit_level(level)
            assert_right(backend, example, value_dim, **options)


@on_every_backend
@pytest.mark.parametrize("num_heads", [4, 16])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_contexts_of_several_splits_and_groups_are_right(
    backend: Backend, dtype: torch.dtype, num_heads: int
) -> None:
    long = latents([(600, 1), (257, 1), (700, 40)], num_heads, 80, dtype=dtype)
    forks = {1: (0, 17), 2: (0, 9)}
    seqs = [(300, 1), (290, 1), (200, 1)]
    shared = latents(seqs, num_heads, 80, dtype=dtype, forks=forks).grouped()
    sinks = drawn_sinks(num_heads)
    for example in (long, shared):
        assert_right(backend, example, 64)
        assert_right(backend, example, 64, sinks=sinks)
        assert_right(backend, example, 64, sinks=sinks, sliding_window=290)
        assert_right(backend, example, 64, chunk=300)


@on_every_backend
@pytest.mark.parametrize("batch_invariant", [False, True])
@pytest.mark.parametrize(("context", "count"), [(500, 1), (500, 40)])
def test_nothing_is_read_in_front_of_a_window_or_chunk(
    backend: Backend, batch_invariant: bool, context: int, count: int
) -> None:
    example = latents([(context, count)], 16, 80)
    example = replace(example, batch=replace(example.batch, batch_invariant=batch_invariant))
    for options, first_seen in LOCAL:
        poisoned = example.poisoned(0, first_seen(context - count))
        expected, actual = (run(backend, batch, 64, **options) for batch in (example, poisoned))
        assert torch.equal(actual, expected), options


@on_every_backend
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_codes_are_keys_and_values_at_once(backend: Backend, dtype: torch.dtype) -> None:
    for num_heads in (4, 16):
        example = latents([*MIXED, (600, 1)], num_heads, 96, dtype=dtype).quantized()
        wide = replace(example, query=example.query.double())
        for level in LEVELS if backend == "native" else LEVELS[:1]:
            library.limit_level(level)
            actual, expected = run(backend, example, 64), run("reference", wide, 64)
            tolerance = 2.5 * TOLERANCE[dtype]
            torch.testing.assert_close(actual.double(), expected, rtol=tolerance, atol=tolerance)


@on_every_backend
def test_a_write_stores_one_row(backend: Backend) -> None:
    memory = torch.zeros(2, 3, 1, 1, 4, 8)
    write_kv(torch.ones(1, 1, 8), None, memory[:, 1], torch.tensor([6]), backend=backend)
    assert memory[1, 1, :, 0, 2].eq(1).all()
    assert memory.sum() == 8
