"""Weights of 4 bits: what codes stand for, and that products are those of what they stand for."""

from __future__ import annotations

import pytest
import torch

from kernels.group_format import GROUP, GroupedWeight, group
from kernels.linear import pack_groups
from kernels.native import library
from tests.kernels.test_linear import (
    drawn,
    instruction_set,
    needs_library,
    no_library,
    relative_error,
)

__all__ = ["instruction_set", "no_library"]

SHAPES = [(32, 16), (1, 1), (64, 48), (100, 66), (160, 31), (576, 200)]  # inputs, outputs
DTYPES = [torch.float32, torch.bfloat16]


def random_groups(inputs: int, outputs: int) -> GroupedWeight:
    """Codes, scales and minima that have nothing to do with each other."""
    generator = torch.Generator().manual_seed(inputs + outputs)
    groups = -(-inputs // GROUP)
    codes = torch.randint(0, 16, (outputs, groups * GROUP), generator=generator, dtype=torch.uint8)
    scales, minima = (drawn(outputs, groups, seed=seed).half().float() for seed in (1, 2))
    return GroupedWeight(inputs, codes, scales, minima)


def check(dtype: torch.dtype, most: float) -> None:
    for inputs, outputs in SHAPES:
        weight, bias = random_groups(inputs, outputs), drawn(outputs)
        product = pack_groups([weight], [bias])
        for rows in (1, 2, 3, 4, 5, 7, 8, 9, 17, 40):
            x = drawn(rows, inputs, dtype=dtype)
            actual = product(x)
            expected = x.double() @ weight.dequantize().double().T + bias.double()
            assert actual.dtype == dtype
            assert relative_error(actual, expected) < most


@needs_library
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_product_errs_by_no_more_than_its_inputs_are_rounded(
    instruction_set: str, dtype: torch.dtype
) -> None:
    check(dtype, 0.02)


@pytest.mark.parametrize("dtype", DTYPES)
def test_without_the_library_inputs_are_not_rounded(no_library: None, dtype: torch.dtype) -> None:
    check(dtype, 1e-6 if dtype == torch.float32 else 4e-3)


@needs_library
def test_whole_numbers_are_multiplied_exactly(instruction_set: str) -> None:
    """At the extremes, where sums of 16 bits would overflow were they any longer."""
    for code, value in ((15, 127), (15, -127), (0, 127), (7, -1)):
        codes = torch.full((16, 64), code, dtype=torch.uint8)
        weight = GroupedWeight(64, codes, torch.ones(16, 2), torch.full((16, 2), -8.0))
        x = torch.full((3, 64), float(value))
        x[:, ::GROUP] = 127  # what a value of 1 stands for is 1
        assert torch.equal(pack_groups([weight])(x), x @ weight.dequantize().T)


@needs_library
def test_all_instruction_sets_round_alike() -> None:
    weight, x = random_groups(576, 40), drawn(5, 576)
    results = []
    for level in library.LEVELS:
        library.limit_level(level)
        results.append(pack_groups([weight])(x))
    library.limit_level(library.LEVELS[-1])
    for result in results:
        torch.testing.assert_close(result, results[0], rtol=1e-5, atol=1e-3)


def test_rounding_keeps_what_has_sixteen_evenly_spaced_values() -> None:
    weight = random_groups(96, 20)
    weight.codes[:, ::GROUP], weight.codes[:, 1::GROUP] = 0, 15
    weight.scales.copy_(torch.randint(1, 9, weight.scales.shape) / 8)
    weight.minima.copy_(torch.randint(-64, 9, weight.scales.shape) / 8)
    found = group(weight.dequantize())
    for name in ("codes", "scales", "minima"):
        assert torch.equal(getattr(found, name), getattr(weight, name))


def test_rounding_is_to_the_nearest_step() -> None:
    weight = drawn(50, 100)
    found = group(weight)
    steps = found.scales.repeat_interleave(GROUP, 1)[:, :100]
    assert ((found.dequantize() - weight).abs() <= 0.51 * steps + 2e-3).all()


@needs_library
def test_a_product_takes_five_bits_a_weight() -> None:
    assert pack_groups([random_groups(512, 64)]).nbytes == 512 * 64 * 5 // 8


@needs_library
def test_scales_that_half_precision_cannot_hold_are_refused() -> None:
    weight = random_groups(64, 16)
    weight.scales[3, 1] = 1e6
    with pytest.raises(ValueError, match="half precision"):
        pack_groups([weight])


def test_matrices_of_different_inputs_are_not_stacked() -> None:
    with pytest.raises(ValueError, match="agree in inputs"):
        pack_groups([random_groups(64, 16), random_groups(96, 16)])
