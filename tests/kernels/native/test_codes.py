"""Keys and values in 8 bits by the compiled library, at every level of instructions there is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.native import library
from tests.effort import scaled

if not library.available():
    pytest.skip("kernels/native is not built", allow_module_level=True)

from kernels.attention import prepare, write_kv
from kernels.backends import Backend
from kernels.kv_format import SCALE_BYTES, quantize
from kernels.native.layers import rotate_and_write
from kernels.types import AttentionShape
from tests.kernels.batches import Paged, paged
from tests.kernels.native.test_attention import at_every_level, sequences, shared
from tests.kernels.test_attention import MIXED, TOLERANCE, run
from tests.kernels.test_attention import assert_right as assert_right_within


def assert_right(backend: Backend, example: Paged, *masking: float | None) -> None:
    # Tiles are widened to the queries' type, so that keys and values are rounded once more.
    tolerance = 2 * TOLERANCE[example.query.dtype]
    assert_right_within(backend, example, *masking, tolerance=tolerance)


@pytest.fixture(autouse=True)
def _every_level_afterwards() -> Iterator[None]:
    yield
    library.limit_level(library.LEVELS[-1])


def codes(
    seqs: list[tuple[int, int]], num_heads: int = 9, num_kv_heads: int = 3, **options: object
) -> Paged:
    return paged(seqs, num_heads, num_kv_heads, **options).quantized()  # type: ignore[arg-type]


@settings(max_examples=scaled(30))
@given(
    seqs=st.lists(sequences, min_size=1, max_size=4),
    heads=st.sampled_from([(1, 1), (4, 4), (6, 2), (8, 1), (9, 3), (16, 1)]),
    head_dim=st.sampled_from([16, 32, 48, 64, 80, 96, 128, 256]),
    block_size=st.sampled_from([1, 5, 16, 64]),
    dtype=st.sampled_from(list(TOLERANCE)),
    sliding_window=st.none() | st.sampled_from([1, 20, 70, 300]),
    softcap=st.none() | st.floats(0.5, 50),
    seed=st.integers(0, 1000),
)
def test_any_batch_agrees_with_the_reference(
    seqs: list[tuple[int, int]],
    heads: tuple[int, int],
    head_dim: int,
    block_size: int,
    dtype: torch.dtype,
    sliding_window: int | None,
    softcap: float | None,
    seed: int,
) -> None:
    example = paged(seqs, *heads, head_dim, block_size, dtype, seed).quantized()
    at_every_level(lambda: assert_right("native", example, sliding_window, softcap))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("window", [None, 100])
def test_prompts_of_several_tiles_agree_with_the_reference(
    dtype: torch.dtype, window: int | None
) -> None:
    example = codes([(257, 257), (700, 130), (513, 64), (520, 17)], dtype=dtype)
    at_every_level(partial(assert_right, "native", example, window))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(9, 3, 64), (16, 1, 96), (2, 2, 32)])
def test_nested_groups_agree_with_the_reference(
    dtype: torch.dtype, shape: tuple[int, int, int]
) -> None:
    example = shared(dtype, *shape).quantized()
    at_every_level(lambda: assert_right("native", example))


@pytest.mark.parametrize("size", [1e-6, 1e4])
def test_the_size_of_keys_and_values_does_not_matter(size: float) -> None:
    example = paged([(300, 1), (70, 20)], 9, 3, dtype=torch.bfloat16)
    large = replace(example, kv=(example.kv.float() * size).bfloat16()).quantized()
    scale = 64**-0.5 / size
    expected = run("reference", large, scale=scale).float() / size

    def check() -> None:
        actual = run("native", large, scale=scale).float() / size
        torch.testing.assert_close(actual, expected, rtol=1.6e-2, atol=1.6e-2)

    at_every_level(check)


def test_a_key_of_zeros_and_a_value_of_zeros_are_none_of_a_rows_business() -> None:
    example = paged([(40, 1)], 2, 1, dtype=torch.bfloat16)
    example.kv[...] = 0.0
    zeros = example.quantized()
    at_every_level(lambda: torch.testing.assert_close(run("native", zeros), 0 * example.query))


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_row_has_the_same_bits_alone_among_others_and_in_a_longer_chunk(
    dtype: torch.dtype,
) -> None:
    example = codes(MIXED, dtype=dtype)
    together = run("native", example)
    for seq in range(len(MIXED)):
        start, end = example.batch.query_starts[seq : seq + 2].tolist()
        assert torch.equal(run("native", example.only(seq)), together[start:end])
    whole = codes([(900, 500)], dtype=dtype)
    last = replace(
        whole.batch,
        query_starts=torch.tensor([0, 120], dtype=torch.int32),
        slots=whole.batch.slots[-120:],
        max_query_len=120,
    )
    part = run("native", replace(whole, query=whole.query[-120:], batch=last))
    assert torch.equal(part, run("native", whole)[-120:])


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_the_number_of_threads_changes_no_bit(dtype: torch.dtype) -> None:
    examples = [codes(MIXED, dtype=dtype), shared(dtype, 9, 3, 64).quantized()]
    results = []
    for count in (1, 2, 3):
        library.set_threads(count)
        results.append([run("native", example) for example in examples])
    library.set_threads(torch.get_num_threads())
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_write_has_the_bits_of_the_references(dtype: torch.dtype) -> None:
    sizes = torch.tensor([1.0, 0.0, 1e-3, 1e3, 1e-39, 1e-6, 30.0])[:, None, None]
    key, value = ((torch.randn(7, 2, 48) * sizes).to(dtype) for _ in range(2))
    slots, empty = (
        torch.tensor([5, 0, 17, 3, 30, 9, 31]),
        quantize(torch.zeros(4, 2, 2, 8, 48), torch.int8),
    )
    expected = empty.clone()
    write_kv(key, value, expected, slots, backend="reference")

    def check() -> None:
        actual = empty.clone()
        write_kv(key, value, actual, slots, backend="native")
        assert torch.equal(actual, expected)

    at_every_level(check)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_turned_keys_are_rounded_as_they_would_have_been_stored(dtype: torch.dtype) -> None:
    num_tokens, num_heads, num_kv_heads, head_dim = 9, 6, 2, 64
    qkv = torch.randn(num_tokens, (num_heads + 2 * num_kv_heads) * head_dim).to(dtype)
    angles, positions = torch.randn(50, head_dim // 2), torch.randint(50, (num_tokens,))
    slots, weights = torch.randperm(24)[:num_tokens], (torch.randn(head_dim), torch.randn(head_dim))
    plain = torch.zeros(6, 3, 2, num_kv_heads, 4, head_dim, dtype=dtype)
    rounded = torch.zeros(6, 3, 2, num_kv_heads, 4, head_dim + SCALE_BYTES, dtype=torch.int8)

    def check() -> None:
        queries = [
            rotate_and_write(
                qkv,
                angles.cos(),
                angles.sin(),
                positions,
                memory.zero_()[:, 1],
                slots,
                num_heads,
                num_kv_heads,
                *weights,
                eps=1e-6,
            )
            for memory in (plain, rounded)
        ]
        assert torch.equal(*queries)
        assert torch.equal(rounded, quantize(plain, torch.int8)), "other slots hold zeros in both"

    at_every_level(check)


def test_tiles_are_tried_before_they_attend_to_what_was_codes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[object] = []
    monkeypatch.setattr(library, "trust_tiles", tried.append)
    for dtype in TOLERANCE:
        prepare(torch.device("cpu"), AttentionShape(6, 2, 64, dtype, 16, torch.int8))
    assert len(tried) == 1
