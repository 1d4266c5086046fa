"""Rows through the ranks of their adapters: the compiled library beside plain torch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from kernels.adapters import adapt
from kernels.native import library
from kernels.types import AdaptedRows, Adapter, LowRank

pytestmark = pytest.mark.skipif(not library.available(), reason="there is no compiled library")


@pytest.fixture(params=["plain", "avx2", "avx512"], autouse=True)
def _level(request: pytest.FixtureRequest) -> Iterator[None]:
    whole = library.level()
    library.limit_level(request.param)
    yield
    library.limit_level(whole)


def some(*shape: int, seed: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype) / 4


def part(
    rank: int, inputs: int, width: int, column: int, dtype: torch.dtype, scale: float = 0.5
) -> LowRank:
    down = some(rank, inputs, seed=rank, dtype=dtype)
    return LowRank(down, some(rank, width, seed=column + 1, dtype=dtype), column, scale)


def adapters(dtype: torch.dtype) -> list[Adapter]:
    """Of products from 40 inputs to 70 outputs: one product, several columns, none."""
    first = Adapter(((), (part(1, 40, 70, 0, dtype),)))
    second = Adapter(((), (part(16, 40, 30, 0, dtype), part(7, 40, 33, 37, dtype, 2.0))))
    third = Adapter(((part(3, 40, 70, 0, dtype),), ()))
    fourth = Adapter(((), (part(256, 40, 70, 0, dtype), part(2, 40, 70, 0, dtype))))
    return [first, second, third, fourth]


def rows_of(numbers: list[list[int]], dtype: torch.dtype) -> list[AdaptedRows]:
    pairs = zip(adapters(dtype), numbers, strict=True)
    return [AdaptedRows(adapter, torch.tensor(rows)) for adapter, rows in pairs]


ROWS = [[0, 5, 6, 7, 8, 9, 20], [1, 2], [3], [10, 11, 12, 13, 14, 15, 16, 17, 18]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_rows_get_what_their_adapters_add(dtype: torch.dtype) -> None:
    x, output = some(21, 40, seed=100, dtype=dtype), some(21, 70, seed=101, dtype=dtype)
    expected, found = output.clone(), output.clone()
    adapt(x, expected, rows_of(ROWS, dtype), 1, backend="reference")
    adapt(x, found, rows_of(ROWS, dtype), 1, backend="native")
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    assert torch.equal(found[[3, 4, 19]], output[[3, 4, 19]])
    assert not torch.equal(found[20], output[20])


def test_a_row_has_the_bits_that_it_has_alone() -> None:
    x, output = (some(21, n, seed=n, dtype=torch.bfloat16) for n in (40, 70))
    together = output.clone()
    adapt(x, together, rows_of(ROWS, torch.bfloat16), 1)
    for number, rows in enumerate(ROWS):
        for row in rows:
            alone = output.clone()
            only = [AdaptedRows(adapters(torch.bfloat16)[number], torch.tensor([row]))]
            adapt(x, alone, only, 1)
            assert torch.equal(alone[row], together[row])


def test_rows_may_be_wider_than_the_product() -> None:
    wide, output = some(21, 48, seed=1, dtype=torch.float32), torch.zeros(21, 100)
    expected = torch.zeros(21, 70)
    adapt(wide[:, :40], output[:, 10:80], rows_of(ROWS, torch.float32), 1)
    adapt(wide[:, :40].contiguous(), expected, rows_of(ROWS, torch.float32), 1)
    assert torch.equal(output[:, 10:80], expected)
    assert not output[:, :10].any()
    assert not output[:, 80:].any()
