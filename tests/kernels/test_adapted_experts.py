"""What adapters change in experts: the compiled library beside plain torch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from kernels.experts import pack_experts
from kernels.native import library
from kernels.types import AdaptedRows
from tests.kernels.adapted_experts import (
    BACK,
    INTO,
    Experts,
    Ranks,
    adapted_experts,
    routed,
    widened,
)

pytestmark = pytest.mark.skipif(not library.available(), reason="there is no compiled library")
EXPERTS = Experts(count=6, hidden_size=40, inter=24)
RANKS = [Ranks(3, 5), Ranks(16, 0), Ranks(0, 7), Ranks(9, 130), Ranks(4, 4)]
"""Of the fourth a page is too small for all of an expert's, the last one has no token."""
CPU = torch.device("cpu")
PAGE_BYTES = 1 << 13


@pytest.fixture(params=["plain", "avx2", "avx512"], autouse=True)
def _level(request: pytest.FixtureRequest) -> Iterator[None]:
    whole = library.level()
    library.limit_level(request.param)
    torch.manual_seed(0)
    yield
    library.limit_level(whole)


def weights(dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
    hidden, inter = EXPERTS.hidden_size, EXPERTS.inter
    gate_up = torch.randn(EXPERTS.count, 2 * inter, hidden) / hidden**0.5
    down = torch.randn(EXPERTS.count, hidden, inter) / inter**0.5
    return list(gate_up.to(dtype)), list(down.to(dtype))


def owners_of(count: int) -> list[int]:
    return [(0, -1, 1, 2, 0, 3, -1)[token % 7] for token in range(count)]


def adapted_of(count: int, dtype: torch.dtype) -> list[AdaptedRows]:
    return adapted_experts(EXPERTS, RANKS, owners_of(count), dtype, CPU, PAGE_BYTES)


@pytest.mark.parametrize("count", [1, 30, 3000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_tokens_get_what_their_adapters_change_in_experts(dtype: torch.dtype, count: int) -> None:
    both, adapted = weights(dtype), adapted_of(count, dtype)
    x = torch.randn(count, EXPERTS.hidden_size).to(dtype)
    chosen, shares = routed(count, EXPERTS, 3)
    ours = pack_experts(*both, "silu", backend="native")
    theirs = pack_experts(*([one.double() for one in part] for part in both), "silu")
    found = ours(x, chosen, shares, adapted, (INTO, BACK))
    expected = theirs(x.double(), chosen, shares, widened(adapted), (INTO, BACK))
    error = (found.double() - expected).abs().max() / expected.abs().max()
    assert error < (1e-6 if dtype == torch.float32 else 0.01)
    plain = ours(x, chosen, shares)
    nobodys = torch.tensor(owners_of(count)) < 0
    assert torch.equal(found[nobodys], plain[nobodys])
    assert not torch.isclose(found[0], plain[0]).all()


def test_a_token_has_the_bits_that_it_has_alone() -> None:
    ours = pack_experts(*weights(torch.bfloat16), "silu", backend="native")
    adapted = adapted_of(30, torch.bfloat16)
    x = torch.randn(30, EXPERTS.hidden_size).bfloat16()
    chosen, shares = routed(30, EXPERTS, 3)
    together = ours(x, chosen, shares, adapted, (INTO, BACK))
    for token in (0, 2, 3, 5, 28):
        adapter = adapted[owners_of(30)[token]].adapter
        one = slice(token, token + 1)
        alone = [AdaptedRows(adapter, torch.tensor([0]))]
        found = ours(x[one], chosen[one], shares[one], alone, (INTO, BACK))
        assert torch.equal(found[0], together[token])


def test_ranks_of_an_expert_are_cut_where_a_page_is_too_small_for_them() -> None:
    [*_, (adapter, _), _] = adapted_of(30, torch.float32)
    for product, rank in ((INTO, 9), (BACK, 130)):
        held = dict.fromkeys(range(EXPERTS.count), 0)
        for part in adapter.changes[product]:
            assert part.experts is not None
            for expert in part.experts:
                held[expert] += len(part.down) // len(part.experts)
        assert set(held.values()) == {rank}
        assert len(adapter.changes[product]) > EXPERTS.count or product == INTO
