"""Weights in groups: what codes stand for, and that products are those of what they stand for."""

from __future__ import annotations

import pytest
import torch

from kernels.linear import pack_groups
from kernels.native import library
from kernels.weight_format import GROUP, Bits, GroupedWeight, concatenate, group
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
WIDTHS: list[Bits] = [4, 8]
CODES = [4, 8, "floats"]


def random_groups(inputs: int, outputs: int, code: Bits | str = 4) -> GroupedWeight:
    """Codes, scales and minima that have nothing to do with each other."""
    generator = torch.Generator().manual_seed(inputs + outputs)
    groups = -(-inputs // GROUP)
    bits: Bits = 8 if code == 8 else 4
    shape = (outputs, groups * GROUP)
    codes = torch.randint(0, 2**bits, shape, generator=generator, dtype=torch.uint8)
    scales, minima = (drawn(outputs, groups, seed=seed).half().float() for seed in (1, 2))
    return GroupedWeight(inputs, bits, codes, scales, minima, code == "floats")


def check(dtype: torch.dtype, code: Bits | str, most: float) -> None:
    for inputs, outputs in SHAPES:
        weight, bias = random_groups(inputs, outputs, code), drawn(outputs)
        product = pack_groups([weight], [bias])
        for rows in (1, 2, 3, 4, 5, 7, 8, 9, 17, 40):
            x = drawn(rows, inputs, dtype=dtype)
            actual = product(x)
            expected = x.double() @ weight.dequantize().double().T + bias.double()
            assert actual.dtype == dtype
            assert relative_error(actual, expected) < most


@needs_library
@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_product_errs_by_no_more_than_its_inputs_are_rounded(
    instruction_set: str, dtype: torch.dtype, code: Bits | str
) -> None:
    check(dtype, code, 0.02)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_without_the_library_inputs_are_not_rounded(
    no_library: None, dtype: torch.dtype, code: Bits | str
) -> None:
    check(dtype, code, 1e-6 if dtype == torch.float32 else 4e-3)


@needs_library
def test_whole_numbers_are_multiplied_exactly(instruction_set: str) -> None:
    """At the extremes, where sums of 16 bits would overflow were they any longer."""
    extremes: list[tuple[Bits, int, int]] = [
        *(
            (4, code, value)
            for code, value in ((15, 127), (15, -127), (0, 127), (7, 127), (7, -127), (7, -1))
        ),
        *((8, code, value) for code, value in ((255, 127), (255, -127), (128, -127), (7, -1))),
    ]
    for bits, code, value in extremes:
        codes = torch.full((16, 64), code, dtype=torch.uint8)
        parts = codes, torch.ones(16, 2), torch.full((16, 2), -8.0)
        for are_floats in {False, bits == 4}:
            check_exactly(GroupedWeight(64, bits, *parts, are_floats), value)


def check_exactly(weight: GroupedWeight, value: int) -> None:
    x = torch.full((3, 64), float(value))
    x[:, ::GROUP] = 127  # what a value of 1 stands for is 1
    assert torch.equal(pack_groups([weight])(x), x @ weight.dequantize().T)


@needs_library
@pytest.mark.parametrize("code", CODES)
def test_all_instruction_sets_round_alike(code: Bits | str) -> None:
    weight, x = random_groups(576, 40, code), drawn(5, 576)
    results = []
    for level in library.LEVELS:
        library.limit_level(level)
        results.append(pack_groups([weight])(x))
    library.limit_level(library.LEVELS[-1])
    for result in results:
        torch.testing.assert_close(result, results[0], rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("bits", WIDTHS)
def test_rounding_keeps_what_has_evenly_spaced_values(bits: Bits) -> None:
    weight = random_groups(96, 20, bits)
    weight.codes[:, ::GROUP], weight.codes[:, 1::GROUP] = 0, 2**bits - 1
    weight.scales.copy_(torch.randint(1, 9, weight.scales.shape) / 8)
    weight.minima.copy_(torch.randint(-64, 9, weight.scales.shape) / 8)
    found = group(weight.dequantize(), bits)
    for name in ("codes", "scales", "minima"):
        assert torch.equal(getattr(found, name), getattr(weight, name))


@pytest.mark.parametrize("bits", WIDTHS)
def test_rounding_is_to_the_nearest_step(bits: Bits) -> None:
    weight = drawn(50, 100)
    found = group(weight, bits)
    steps = found.scales.repeat_interleave(GROUP, 1)[:, :100]
    assert ((found.dequantize() - weight).abs() <= 0.51 * steps + 2e-3).all()


@needs_library
def test_a_product_takes_a_bit_more_than_its_codes() -> None:
    for code in CODES:
        weight = random_groups(512, 64, code)
        assert pack_groups([weight]).nbytes == 512 * 64 * (weight.bits + 1) // 8


def test_floats_of_4_bits_are_those_of_their_standard() -> None:
    codes = torch.arange(32, dtype=torch.uint8)[None] % 16
    weight = GroupedWeight(32, 4, codes, torch.full((1, 1), 0.5), torch.full((1, 1), -6.0), True)
    magnitudes = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    expected = torch.tensor(2 * [*magnitudes, *(-value for value in magnitudes)])
    assert torch.equal(weight.dequantize()[0], expected)
    assert torch.equal(weight.in_bytes().dequantize()[0], expected)


@needs_library
@pytest.mark.parametrize("factor", [1e9, 1e-9])
def test_scales_beyond_the_range_of_half_precision_keep_their_digits(
    instruction_set: str, factor: float
) -> None:
    weight, x = random_groups(64, 16, 8), drawn(3, 64)
    weight.minima.copy_(weight.scales * -128)
    expected = pack_groups([weight])(x) * factor
    weight.scales.mul_(factor)
    weight.minima.mul_(factor)
    assert relative_error(pack_groups([weight])(x), expected.double()) < 1e-3


@needs_library
@pytest.mark.parametrize("code", [8, "floats"])
def test_products_of_different_codes_are_stacked(code: Bits | str) -> None:
    parts, x = [random_groups(96, 20, 4), random_groups(96, 30, code)], drawn(5, 96)
    together = concatenate(parts).dequantize()
    assert torch.equal(together, torch.cat([part.dequantize() for part in parts]))
    expected = torch.cat([pack_groups([part])(x) for part in parts], dim=1)
    torch.testing.assert_close(pack_groups(parts)(x), expected, rtol=1e-6, atol=1e-6)


def test_matrices_of_different_inputs_are_not_stacked() -> None:
    with pytest.raises(ValueError, match="agree in inputs"):
        pack_groups([random_groups(64, 16), random_groups(96, 16)])
