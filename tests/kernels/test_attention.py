"""Attention on a CPU against the reference in fp64, and what holds whatever the numbers are.

By the compiled library, and by the reference in the model's types, which serves without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.attention import attend, attend_in_parts, write_kv
from kernels.backends import Backend
from kernels.native import library
from tests.effort import scaled
from tests.kernels.batches import Paged, drawn_sinks, paged

TOLERANCE = {torch.float32: 4e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
"""Of outputs around 1: some fp32 roundings, or one rounding of the result to its own type."""

BACKENDS: list[Backend] = ["reference", "native"] if library.available() else ["reference"]

SPLIT = 256
"""Keys that the library attends to at a time (`PW_SPLIT` in `native/attention/attention.h`)."""

on_every_backend = pytest.mark.parametrize("backend", BACKENDS)

MIXED = [(300, 1), (40, 40), (17, 3), (700, 1), (90, 20), (1, 1)]


@pytest.fixture(autouse=True, scope="module")
def _fresh_memory_holds_nan() -> Iterator[None]:
    """A row that the backend forgets to write comes back as NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def run(
    backend: Backend,
    example: Paged,
    sliding_window: int | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    chunk: int | None = None,
    sinks: torch.Tensor | None = None,
    value_dim: int | None = None,
) -> torch.Tensor:
    return attend(
        example.query,
        example.kv,
        example.batch,
        scale=scale or example.query.shape[-1] ** -0.5,
        sliding_window=sliding_window,
        softcap=softcap,
        chunk=chunk,
        sinks=sinks,
        value_dim=value_dim,
        backend=backend,
    )


def assert_right(
    backend: Backend,
    example: Paged,
    sliding_window: int | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    tolerance: float | None = None,
    chunk: int | None = None,
    sinks: torch.Tensor | None = None,
) -> None:
    actual = run(backend, example, sliding_window, softcap, scale, chunk, sinks)
    assert actual.dtype == example.query.dtype
    wide = replace(example, query=example.query.double())
    expected = run("reference", wide, sliding_window, softcap, scale, chunk, sinks)
    tolerance = tolerance or TOLERANCE[example.query.dtype]
    torch.testing.assert_close(actual.double(), expected, rtol=tolerance, atol=tolerance)


sequences = st.integers(1, 60).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n)))


@on_every_backend
@settings(max_examples=scaled(60))
@given(
    seqs=st.lists(sequences, min_size=1, max_size=5),
    heads=st.sampled_from([(1, 1), (4, 4), (6, 2), (8, 1), (9, 3)]),
    head_dim=st.sampled_from([3, 16, 33, 64, 80, 96, 128, 256]),
    block_size=st.sampled_from([1, 5, 8, 16, 64, 256]),
    dtype=st.sampled_from(list(TOLERANCE)),
    sliding_window=st.none() | st.integers(1, 70),
    softcap=st.none() | st.floats(0.5, 50),
    chunk=st.none() | st.integers(1, 70),
    with_sinks=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_batch_agrees_with_the_reference(
    backend: Backend,
    seqs: list[tuple[int, int]],
    heads: tuple[int, int],
    head_dim: int,
    block_size: int,
    dtype: torch.dtype,
    sliding_window: int | None,
    softcap: float | None,
    chunk: int | None,
    with_sinks: bool,
    seed: int,
) -> None:
    example = paged(seqs, *heads, head_dim, block_size, dtype, seed)
    sinks = drawn_sinks(heads[0]) if with_sinks else None
    assert_right(backend, example, sliding_window, softcap, chunk=chunk, sinks=sinks)


@on_every_backend
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("sliding_window", [None, 30, 300])
def test_contexts_of_several_splits_agree_with_the_reference(
    backend: Backend, dtype: torch.dtype, sliding_window: int | None
) -> None:
    edges = [(SPLIT * n + extra, 1) for n in (1, 2) for extra in (-1, 0, 1)]
    runs = [(SPLIT + 2, 5), (700, 16), (600, 60)]
    example = paged(edges + runs, dtype=dtype)
    assert_right(backend, example, sliding_window)
    assert_right(backend, example, sliding_window, sinks=drawn_sinks(6))


@on_every_backend
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("chunk", [30, SPLIT, 300])
def test_chunks_over_several_splits_agree_with_the_reference(
    backend: Backend, dtype: torch.dtype, chunk: int
) -> None:
    edges = [(chunk * n + extra, 1) for n in (1, 2) for extra in (-1, 0, 1)]
    runs = [(chunk + 2, 5), (700, 16), (600, 60), (610, 610)]
    example = paged(edges + runs, dtype=dtype)
    assert_right(backend, example, chunk=chunk)
    assert_right(backend, example, 40, 5.0, chunk=chunk, sinks=drawn_sinks(6))


@on_every_backend
@pytest.mark.parametrize("size", [-200.0, 200.0])
def test_a_sink_far_from_the_scores_takes_nothing_or_all(backend: Backend, size: float) -> None:
    example = paged(MIXED)
    found = run(backend, example, sinks=torch.full((6,), size))
    if size > 0:
        assert found.abs().max() < 1e-30
    else:
        assert torch.equal(found, run(backend, example))


@on_every_backend
def test_scores_far_apart_neither_overflow_nor_lose_the_largest(backend: Backend) -> None:
    # Scores reach 1000, where fp32 steps by 6e-5.
    assert_right(backend, paged([(500, 1), (30, 30)]), scale=50.0, tolerance=1e-3)


@on_every_backend
def test_a_sequence_gets_the_same_bits_alone_and_among_others(backend: Backend) -> None:
    example = paged(MIXED)
    together = run(backend, example)
    for seq in range(len(MIXED)):
        start, end = example.batch.query_starts[seq : seq + 2].tolist()
        assert torch.equal(run(backend, example.only(seq)), together[start:end])


@on_every_backend
def test_a_chunk_agrees_with_its_queries_one_by_one(backend: Backend) -> None:
    context_len = 50
    whole = run(backend, paged([(context_len, context_len)]))
    example = paged([(context_len, context_len)])
    single = paged([(context_len, 1)]).batch
    for position in (0, 7, 49):
        batch = type(single)(
            block_tables=example.batch.block_tables,
            query_starts=single.query_starts,
            context_lens=torch.tensor([position + 1], dtype=torch.int32),
            slots=single.slots,
            max_query_len=1,
            max_context_len=position + 1,
        )
        alone = run(backend, Paged(example.query[position : position + 1], example.kv, batch))
        torch.testing.assert_close(alone[0], whole[position], rtol=2e-6, atol=2e-6)


@on_every_backend
def test_decode_reads_nothing_older_than_its_window(backend: Backend) -> None:
    example = paged([(100, 1)], block_size=16)
    expected = run(backend, example, sliding_window=20)
    assert torch.equal(run(backend, example.poisoned(0, 80), sliding_window=20), expected)


LOCAL = [
    ({"sliding_window": 17}, lambda position: position - 16),
    ({"chunk": 37}, lambda position: position // 37 * 37),
    ({"chunk": 300}, lambda position: position // 300 * 300),
    ({"sliding_window": 18, "chunk": 300}, lambda position: position - 17),
]
"""Options, and the first key that a query sees which is so far on."""


@on_every_backend
@pytest.mark.parametrize("batch_invariant", [False, True])
@pytest.mark.parametrize(("context", "count"), [(500, 1), (500, 40), (600, 9), (330, 12)])
@pytest.mark.parametrize(("block_size", "head_dim"), [(1, 64), (8, 33), (16, 64)])
def test_nothing_is_read_in_front_of_a_window_or_chunk(
    backend: Backend,
    batch_invariant: bool,
    context: int,
    count: int,
    block_size: int,
    head_dim: int,
) -> None:
    example = paged([(context, count)], head_dim=head_dim, block_size=block_size)
    example = replace(example, batch=replace(example.batch, batch_invariant=batch_invariant))
    for options, first_seen in LOCAL:
        expected = run(backend, example, **options)
        poisoned = example.poisoned(0, first_seen(context - count))
        assert torch.equal(run(backend, poisoned, **options), expected), options


@on_every_backend
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("head_dim", [16, 72, 80, 128])
@pytest.mark.parametrize(("num_keys", "most"), [(5, 3), (16, 16), (301, 100), (600, 1000)])
def test_queries_in_parts_see_all_keys(
    backend: Backend, dtype: torch.dtype, head_dim: int, num_keys: int, most: int
) -> None:
    random = torch.Generator().manual_seed(0)
    query = torch.randn(301, 4, head_dim, generator=random).to(dtype)
    key, value = (
        torch.randn(2, num_keys, head_dim, generator=random).to(dtype).transpose(0, 1)
        for _ in range(2)
    )
    parts = list(attend_in_parts(query, key, value, most, scale=0.2, backend=backend))
    assert [len(part) for part in parts] == [
        min(most, 301 - start) for start in range(0, 301, most)
    ]
    query, key, value = (one.double().transpose(0, 1) for one in (query, key, value))
    weights = (query @ key.repeat_interleave(2, 0).mT * 0.2).softmax(-1)
    expected = (weights @ value.repeat_interleave(2, 0)).transpose(0, 1)
    found = torch.cat(parts).double()
    torch.testing.assert_close(found, expected, rtol=0, atol=2 * TOLERANCE[dtype])


@on_every_backend
def test_several_threads_may_attend_at_once(backend: Backend) -> None:
    example = paged(MIXED)
    expected = run(backend, example)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: run(backend, example), range(12)))
    assert all(torch.equal(result, expected) for result in results)


@on_every_backend
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_write_equals_the_references(backend: Backend, dtype: torch.dtype) -> None:
    example = paged([(20, 20), (33, 1), (9, 4)], dtype=dtype)
    num_tokens = len(example.batch.slots)
    # Heads before tokens, and a value that is part of a wider tensor, as a fused projection gives.
    key = torch.randn(2, num_tokens, 64).to(dtype).transpose(0, 1)
    value = torch.randn(num_tokens, 2, 128).to(dtype)[:, :, 64:]
    expected, actual = example.kv.clone(), example.kv.clone()
    write_kv(key, value, expected, example.batch.slots, backend="reference")
    write_kv(key, value, actual, example.batch.slots, backend=backend)
    assert torch.equal(actual.nan_to_num(9.0), expected.nan_to_num(9.0))
    assert not torch.equal(actual.nan_to_num(9.0), example.kv.nan_to_num(9.0))


@on_every_backend
def test_a_layers_write_leaves_the_other_layers_alone(backend: Backend) -> None:
    memory = torch.zeros(2, 3, 2, 1, 4, 8)
    one = torch.ones(1, 1, 8)
    write_kv(one, one, memory[:, 1], torch.tensor([6]), backend=backend)
    assert memory[1, 1, :, 0, 2].eq(1).all()
    assert memory.sum() == 16
