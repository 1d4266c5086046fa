"""Attention by the compiled library at every level of instructions that this machine has."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels.native import library
from tests.effort import scaled

if not library.available():
    pytest.skip("kernels/native is not built", allow_module_level=True)

from kernels.attention import attend, prepare
from kernels.types import AttentionShape, PrefixGroups
from tests.kernels.batches import Paged, drawn_sinks, paged
from tests.kernels.test_attention import MIXED, TOLERANCE, assert_right, run

LEVELS = library.LEVELS[: library.LEVELS.index(library.level()) + 1]


@pytest.fixture(autouse=True)
def _every_level_afterwards() -> Iterator[None]:
    yield
    library.limit_level(library.LEVELS[-1])


def at_every_level(check: Callable[[], object]) -> None:
    for level in LEVELS:
        library.limit_level(level)
        check()


lengths = st.sampled_from([1, 2, 15, 16, 17, 63, 64, 65, 130, 255, 256, 257, 300, 530])
sequences = lengths.flatmap(
    lambda n: st.tuples(
        st.just(n), st.sampled_from([1, 1, 1, 2, 5, 16, 17, 40]).map(lambda q: min(q, n))
    )
)


@settings(max_examples=scaled(40))
@given(
    seqs=st.lists(sequences, min_size=1, max_size=4),
    heads=st.sampled_from([(1, 1), (4, 4), (6, 2), (8, 1), (9, 3), (16, 1)]),
    head_dim=st.sampled_from([3, 16, 32, 33, 64, 80, 96, 128, 256]),
    block_size=st.sampled_from([1, 5, 8, 16, 64]),
    dtype=st.sampled_from(list(TOLERANCE)),
    sliding_window=st.none() | st.sampled_from([1, 20, 70, 300]),
    softcap=st.none() | st.floats(0.5, 50),
    chunk=st.none() | st.sampled_from([1, 20, 70, 256, 300]),
    with_sinks=st.booleans(),
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
    chunk: int | None,
    with_sinks: bool,
    seed: int,
) -> None:
    example = paged(seqs, *heads, head_dim, block_size, dtype, seed)
    sinks = drawn_sinks(heads[0]) if with_sinks else None
    options = partial(assert_right, chunk=chunk, sinks=sinks)
    at_every_level(lambda: options("native", example, sliding_window, softcap))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    ("window", "softcap", "chunk"),
    [(None, None, None), (1, None, None), (100, 5.0, None), (300, None, 310), (None, None, 90)],
)
@pytest.mark.parametrize("with_sinks", [False, True])
def test_prompts_of_several_tiles_agree_with_the_reference(
    dtype: torch.dtype,
    window: int | None,
    softcap: float | None,
    chunk: int | None,
    with_sinks: bool,
) -> None:
    # Edges of tiles (256 keys), of panels (64) and of strips and blocks of rows (48, 192).
    seqs = [(257, 257), (700, 130), (513, 64), (64, 64), (520, 17)]
    for shape in ((9, 3, 64), (8, 1, 40)):
        example = paged(seqs, *shape, dtype=dtype)
        sinks = drawn_sinks(shape[0]) if with_sinks else None
        check = partial(assert_right, "native", example, window, softcap, chunk=chunk, sinks=sinks)
        at_every_level(check)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_chunk_reads_nothing_older_than_its_window(dtype: torch.dtype) -> None:
    example = paged([(700, 60)], 9, 3, dtype=dtype)
    expected = run("native", example, sliding_window=100)
    example.kv[example.batch.block_tables[0, :33].long()] = torch.nan  # positions 0 to 527
    assert torch.equal(run("native", example, sliding_window=100), expected)


@pytest.mark.parametrize("window", [None, 100])
def test_a_row_has_the_same_bits_in_a_longer_chunk(window: int | None) -> None:
    whole = paged([(900, 500)], 9, 3, dtype=torch.bfloat16)
    last = replace(
        whole.batch,
        query_starts=torch.tensor([0, 120], dtype=torch.int32),
        slots=whole.batch.slots[-120:],
        max_query_len=120,
    )
    part = run("native", replace(whole, query=whole.query[-120:], batch=last), window)
    assert torch.equal(part, run("native", whole, window)[-120:])


def shared(dtype: torch.dtype, num_heads: int, num_kv_heads: int, head_dim: int) -> Paged:
    """Six sequences on one prefix of 20 blocks, the last three of them on one of 30, and one alone;
    the groups say so, and hold a run of no keys besides."""
    contexts = [321, 350, 337, 481, 500, 800, 40]
    seqs = [(context, 1) for context in contexts]
    example = paged(seqs, num_heads, num_kv_heads, head_dim, dtype=dtype)
    tables = example.batch.block_tables.clone()
    tables[:6, :20] = tables[5, :20]
    tables[3:6, :30] = tables[5, :30]

    def ints(*values: int) -> Tensor:
        return torch.tensor(values, dtype=torch.int32)

    groups = PrefixGroups(
        begins=ints(0, 16, 320),
        ends=ints(320, 16, 480),
        member_starts=ints(0, 6, 8, 11),
        members=ints(0, 1, 2, 3, 4, 5, 0, 1, 3, 4, 5),
        private_starts=ints(320, 320, 320, 480, 480, 480, 0),
        max_members=6,
    )
    return replace(example, batch=replace(example.batch, block_tables=tables, groups=groups))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(9, 3, 64), (16, 1, 96), (2, 2, 33)])
@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_nested_groups_agree_with_the_reference(
    dtype: torch.dtype, shape: tuple[int, int, int], softcap: float | None, with_sinks: bool
) -> None:
    example = shared(dtype, *shape)
    sinks = drawn_sinks(shape[0]) if with_sinks else None
    at_every_level(lambda: assert_right("native", example, softcap=softcap, sinks=sinks))


def test_a_groups_run_is_read_from_its_first_members_row_alone() -> None:
    example = shared(torch.float32, 6, 2, 64)
    expected = run("native", example)
    tables = example.batch.block_tables.clone()
    tables[1:6, :20] = -1
    tables[4:6, :30] = -1
    blind = replace(example, batch=replace(example.batch, block_tables=tables))
    assert torch.equal(run("native", blind), expected)


@pytest.mark.parametrize("options", [{"sliding_window": 30}, {"chunk": 30}])
def test_a_window_or_chunk_leaves_the_groups_aside(options: dict[str, int]) -> None:
    example = shared(torch.float32, 6, 2, 64)
    alone = replace(example, batch=replace(example.batch, groups=None))
    grouped = run("native", example, **options)  # type: ignore[arg-type]
    assert torch.equal(grouped, run("native", alone, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_the_number_of_threads_changes_no_bit(dtype: torch.dtype) -> None:
    examples = [paged(MIXED, 9, 3, dtype=dtype), shared(dtype, 9, 3, 64)]
    examples.append(paged([(30_000, 1), (17, 3), (9_000, 1)], 2, 1, dtype=dtype))
    examples.append(paged([(800, 500), (90, 70)], 9, 3, dtype=dtype))
    results = []
    for count in (1, 2, 3):
        library.set_threads(count)
        results.append([run("native", example) for example in examples])
        results[-1].append(run("native", examples[-1], sliding_window=100))
        results[-1] += [run("native", one, sinks=drawn_sinks(9)) for one in examples[:2]]
    library.set_threads(torch.get_num_threads())
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))


def test_an_empty_batch_is_no_work() -> None:
    example = paged([(5, 1)])
    nobody = replace(
        example.batch,
        block_tables=example.batch.block_tables[:0],
        query_starts=example.batch.query_starts[:1],
        context_lens=example.batch.context_lens[:0],
    )
    assert run("native", Paged(example.query[:0], example.kv, nobody)).shape == (0, 6, 64)


def test_tiles_are_tried_before_they_attend(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Callable[[], Tensor]] = []
    monkeypatch.setattr(library, "trust_tiles", tried.append)
    for dtype in TOLERANCE:
        prepare(torch.device("cpu"), AttentionShape(6, 2, 64, dtype, 16, dtype))
    assert [compute().dtype for compute in tried] == [torch.bfloat16]


def test_attention_goes_without_a_library_that_was_not_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    example = paged(MIXED)
    with_library = attend(example.query, example.kv, example.batch, scale=0.1)
    assert torch.equal(run("native", example, scale=0.1), with_library)
    monkeypatch.setattr(library, "_library", None)
    without = attend(example.query, example.kv, example.batch, scale=0.1)
    assert torch.equal(run("reference", example, scale=0.1), without)
    torch.testing.assert_close(without, with_library, rtol=4e-6, atol=4e-6)


def test_triton_stays_out_where_there_is_no_gpu() -> None:
    program = (
        "import sys, torch\n"
        "from kernels.attention import prepare\n"
        "from kernels.types import AttentionShape\n"
        "shape = AttentionShape(6, 2, 64, torch.float32, 16, torch.float32)\n"
        "prepare(torch.device('cpu'), shape)\n"
        "assert 'triton' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=240)
