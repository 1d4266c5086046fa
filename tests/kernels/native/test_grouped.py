"""Attention that reads shared runs once equals attention that reads them for every sequence."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.native import library
from tests.effort import scaled

if not library.available():
    pytest.skip("kernels/native is not built", allow_module_level=True)

from kernels.attention import attend
from kernels.backends import Backend
from kernels.prefix_groups import GroupingRule
from tests.kernels.batches import Paged, paged
from tests.kernels.test_attention import SPLIT, TOLERANCE

# A share group's 3 blocks, two tenants' 5 and 4 behind them, and forks of a conversation; beside
# them a sequence that shares nothing and two prompts, one of them on the share group's blocks.
NESTED = [
    (150, 1),
    (200, 1),
    (129, 1),
    (70, 1),
    (141, 1),
    (145, 9),
    (201, 1),
    (100, 60),
    (131, 1),
    (130, 1),
]
FORKS = {
    1: (0, 8),
    2: (0, 8),
    4: (0, 3),
    5: (0, 8),
    6: (1, 12),
    7: (0, 2),
    8: (4, 7),
    9: (8, 8),
}


def run(
    backend: Backend,
    example: Paged,
    softcap: float | None = None,
    sliding_window: int | None = None,
) -> torch.Tensor:
    query = example.query.double() if backend == "reference" else example.query
    return attend(
        query,
        example.kv,
        example.batch,
        scale=example.query.shape[-1] ** -0.5,
        softcap=softcap,
        sliding_window=sliding_window,
        backend=backend,
    )


def assert_right(example: Paged, softcap: float | None = None) -> None:
    """The reference, which knows no groups, and the library with them say the same."""
    expected = run("reference", example, softcap)
    tolerance = TOLERANCE[example.query.dtype]
    actual = run("native", example.grouped(), softcap)
    torch.testing.assert_close(actual.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("softcap", [None, 5.0])
def test_nested_groups_among_strangers_and_prompts(
    dtype: torch.dtype, softcap: float | None
) -> None:
    example = paged(NESTED, dtype=dtype, forks=FORKS)
    groups = example.grouped().batch.groups
    assert groups is not None
    runs = list(zip(groups.begins.tolist(), groups.ends.tolist(), strict=True))
    assert sorted(runs) == [(0, 48), (48, 112), (48, 128), (112, 128), (128, 192)]
    assert_right(example, softcap)


@settings(max_examples=scaled(40))
@given(
    data=st.data(),
    heads=st.sampled_from([(1, 1), (4, 4), (6, 2), (8, 1), (9, 3)]),
    head_dim=st.sampled_from([3, 33, 64, 96, 128]),
    block_size=st.sampled_from([1, 5, 16]),
    dtype=st.sampled_from(list(TOLERANCE)),
    softcap=st.none() | st.floats(0.5, 50),
    seed=st.integers(0, 1000),
)
def test_any_tree_of_shared_blocks(
    data: st.DataObject,
    heads: tuple[int, int],
    head_dim: int,
    block_size: int,
    dtype: torch.dtype,
    softcap: float | None,
    seed: int,
) -> None:
    blocks = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=6))
    seqs, forks = [(1 + blocks[0] * block_size, 1)] * 2, {1: (0, blocks[0])}
    for seq, more in enumerate(blocks[1:], start=2):
        source = data.draw(st.integers(0, seq - 1))
        shared = data.draw(st.integers(0, (seqs[source][0] - 1) // block_size))
        computed = data.draw(st.sampled_from([1, 1, 1, more * block_size]))
        seqs.append(((shared + more) * block_size + computed - 1, computed))
        forks[seq] = (source, shared)
    example = paged(seqs, *heads, head_dim, block_size, dtype, seed, forks)
    assert_right(example, softcap)


@pytest.mark.parametrize("blocks", [15, 16, 17, 33])
def test_runs_of_several_splits(blocks: int) -> None:
    assert blocks * 16 > SPLIT - 17
    seqs = [(blocks * 16 + own, 1) for own in (1, 20, 300)]
    assert_right(paged(seqs, forks={1: (0, blocks), 2: (0, blocks)}))


def test_a_shared_run_is_read_from_its_first_members_row_alone() -> None:
    example = paged([(100, 1), (110, 1), (120, 1)], forks={1: (0, 6), 2: (0, 6)}).grouped()
    expected = run("native", example)
    tables = example.batch.block_tables.clone()
    tables[1:, :6] = -1
    blind = replace(example, batch=replace(example.batch, block_tables=tables))
    assert torch.equal(run("native", blind), expected)


def test_a_sliding_window_leaves_the_groups_aside() -> None:
    example = paged(NESTED, forks=FORKS)
    expected = run("native", example, sliding_window=40)
    assert torch.equal(run("native", example.grouped(), sliding_window=40), expected)


def test_groups_that_a_rule_has_thinned_out() -> None:
    example = paged(NESTED, forks=FORKS)
    expected = run("reference", example)
    thinned = example.grouped(GroupingRule(least_members=3, least_saved_keys=20))
    assert thinned.batch.groups is not None
    assert len(thinned.batch.groups.begins) < len(example.grouped().batch.groups.begins)  # type: ignore[union-attr]
    torch.testing.assert_close(run("native", thinned).double(), expected, rtol=2e-6, atol=2e-6)


def test_a_group_without_a_run_is_padding() -> None:
    example = paged(NESTED, forks=FORKS).grouped()
    groups = example.batch.groups
    assert groups is not None
    padded = replace(
        groups,
        begins=torch.nn.functional.pad(groups.begins, (0, 2)),
        ends=torch.nn.functional.pad(groups.ends, (0, 2)),
        member_starts=torch.nn.functional.pad(
            groups.member_starts, (0, 2), value=len(groups.members)
        ),
    )
    with_padding = replace(example, batch=replace(example.batch, groups=padded))
    assert torch.equal(run("native", with_padding), run("native", example))
