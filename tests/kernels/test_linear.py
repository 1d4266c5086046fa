"""Packed products: the right sums in every type, and the same bits whatever is computed beside."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from kernels.linear import pack
from kernels.native import library
from kernels.types import Quantization

needs_library = pytest.mark.skipif(not library.available(), reason="kernels/native is not built")

SCHEMES: list[tuple[torch.dtype, Quantization]] = [
    (torch.float32, "none"),
    (torch.bfloat16, "none"),
    (torch.float32, "int8"),
    (torch.bfloat16, "int8"),
    (torch.float32, "int4"),
    (torch.bfloat16, "int4"),
]
SHAPES = [(1, 1), (15, 17), (64, 48), (66, 100), (129, 31), (200, 145)]  # inputs, outputs


@pytest.fixture(params=["plain", "avx2", "avx512", "avx512_bf16", "amx"])
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    """The kernels of that instruction set, or of the best one that this machine has below it."""
    library.limit_level(request.param)
    yield request.param
    library.limit_level(library.LEVELS[-1])


@pytest.fixture(params=["int8 instructions", "none"])
def no_library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "available", lambda: False)
    if request.param == "none":
        monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator).to(dtype)


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return float((actual.double() - expected).norm() / expected.norm())


def tolerance(dtype: torch.dtype, quantization: Quantization) -> float:
    """int8: two values of n bits rounded apart lose about 2 / 127 / sqrt(12) of 3 deviations.

    int4: weights between the ends of 32 of them lose about 4 / 15 / sqrt(12) of a deviation.
    """
    rounding = 1e-6 if dtype == torch.float32 else 4e-3
    return rounding + {"none": 0.0, "int8": 2e-2, "int4": 0.15}[quantization]


def check_products(dtype: torch.dtype, quantization: Quantization) -> None:
    for inputs, outputs in SHAPES:
        weight, bias = drawn(outputs, inputs, dtype=dtype), drawn(outputs, dtype=dtype)
        product = pack([weight], [bias], quantization=quantization)
        for rows in (1, 2, 3, 5, 8, 9, 16, 17, 40):
            x = drawn(rows, inputs, dtype=dtype)
            expected = x.double() @ weight.double().T + bias.double()
            actual = product(x)
            assert actual.shape == (rows, outputs)
            assert actual.dtype == dtype
            assert relative_error(actual, expected) < tolerance(dtype, quantization)


@needs_library
@pytest.mark.parametrize(("dtype", "quantization"), SCHEMES)
def test_a_product_is_right_for_all_shapes_and_instruction_sets(
    instruction_set: str, dtype: torch.dtype, quantization: Quantization
) -> None:
    check_products(dtype, quantization)


@pytest.mark.parametrize(("dtype", "quantization"), SCHEMES)
def test_a_product_is_right_without_the_library(
    no_library: None, dtype: torch.dtype, quantization: Quantization
) -> None:
    check_products(dtype, quantization)


@needs_library
@pytest.mark.parametrize(("dtype", "quantization"), SCHEMES)
def test_a_row_has_the_same_bits_in_every_batch_and_with_any_number_of_threads(
    instruction_set: str, dtype: torch.dtype, quantization: Quantization
) -> None:
    product = pack([drawn(720, 832, dtype=dtype)], quantization=quantization)
    x = drawn(50, 832, dtype=dtype)
    alone = torch.cat([product(row) for row in x.split(1)])
    try:
        for threads in (1, 2, 3):
            library.set_threads(threads)
            for rows in (2, 7, 8, 9, 16, 17, 31, 32, 33, 50):
                assert torch.equal(product(x[:rows]), alone[:rows])
                assert torch.equal(product(x[-rows:]), alone[-rows:])
    finally:
        library.set_threads(torch.get_num_threads())


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_a_row_has_the_same_bits_in_every_batch_without_the_library(
    no_library: None, quantization: Quantization
) -> None:
    product = pack([drawn(96, 160)], quantization=quantization, batch_invariant=True)
    x = drawn(9, 160)
    together = product(x)
    for row in range(9):
        assert torch.equal(product(x[row : row + 1]), together[row : row + 1])


@needs_library
@pytest.mark.parametrize(("dtype", "quantization"), SCHEMES)
def test_stacked_matrices_give_what_each_of_them_gives(
    dtype: torch.dtype, quantization: Quantization
) -> None:
    weights = [drawn(outputs, 96, dtype=dtype) for outputs in (40, 7, 33)]
    biases = [drawn(40, dtype=dtype), None, drawn(33, dtype=dtype)]
    stacked = pack(weights, biases, quantization=quantization)
    x = drawn(5, 96, dtype=dtype)
    apart = [
        pack([weight], [bias], quantization=quantization)(x)
        for weight, bias in zip(weights, biases, strict=True)
    ]
    assert stacked.out_features == 80
    assert torch.equal(stacked(x), torch.cat(apart, dim=1))


def rotated(matrix: Tensor) -> Tensor:
    """Blocks of 64 columns times the Hadamard matrix over 8: its own inverse."""
    signs = [[(-1.0) ** (i & j).bit_count() for i in range(64)] for j in range(64)]
    blocks = matrix.double().view(len(matrix), -1, 64) @ torch.tensor(signs).double() / 8
    return blocks.view(matrix.shape).float()


@needs_library
def test_quantized_sums_are_exact_in_whole_numbers(instruction_set: str) -> None:
    """At the extremes of int8, where the sum of two products would not fit 16 bits."""
    weight = 127 * torch.where(drawn(32, 256) > 0, 1.0, -1.0)
    x = torch.full((3, 256), 127.0)
    x[1] = -127
    x[2, 1::2] = 0
    product = pack([rotated(weight)], quantization="int8")
    expected = x.double() @ weight.double().T
    assert relative_error(product(rotated(x)), expected) < 1e-6


@needs_library
def test_an_outlier_does_not_round_away_the_rest_of_its_row(instruction_set: str) -> None:
    weight, x = drawn(96, 512), drawn(4, 512)
    x[:, 7] *= 20
    expected = x.double() @ weight.double().T
    rest = expected - x[:, 7:8].double() @ weight[:, 7:8].double().T
    actual = pack([weight], quantization="int8")(x)
    assert (actual - expected).norm() / rest.norm() < 3e-2


def test_an_outlier_in_one_row_costs_other_rows_nothing() -> None:
    product = pack([drawn(64, 128)], quantization="int8")
    x = drawn(4, 128)
    before = product(x)
    x[0, 5] = 1e4
    assert torch.equal(product(x)[1:], before[1:])


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_rows_and_weights_of_zeros_give_the_bias(quantization: Quantization) -> None:
    bias = drawn(20)
    weight = drawn(20, 30)
    weight[3] = 0
    product = pack([weight], [bias], quantization=quantization)
    assert torch.equal(product(torch.zeros(2, 30)), bias.expand(2, -1))
    assert torch.equal(product(drawn(2, 30))[:, 3], bias[3].expand(2))


def test_no_rows_give_no_outputs() -> None:
    assert pack([drawn(20, 30)])(torch.empty(0, 30)).shape == (0, 20)


@needs_library
def test_the_product_keeps_its_own_weights_and_says_how_large_they_are() -> None:
    weight, x = drawn(96, 128), drawn(2, 128)
    products = [pack([weight]), pack([weight.bfloat16()]), pack([weight], quantization="int8")]
    before = [product(x) for product in products]
    assert [product.nbytes for product in products] == [4 * 96 * 128, 2 * 96 * 128, 96 * (128 + 8)]
    weight.zero_()
    assert all(torch.equal(p(x), y) for p, y in zip(products, before, strict=True))


@needs_library
def test_tiles_are_tried_once_before_they_multiply(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels.native import linear

    tried: list[Callable[[], Tensor]] = []
    monkeypatch.setattr(library, "trust_tiles", tried.append)
    linear._try_tiles.cache_clear()
    for _ in range(2):
        pack([drawn(8, 16)])
    linear._try_tiles.cache_clear()
    assert [compute().dtype for compute in tried] == [torch.bfloat16] * 2  # bfloat16, int8


def test_a_transposed_view_of_activations_is_multiplied_like_its_copy() -> None:
    product, x = pack([drawn(24, 40)]), drawn(40, 6).T
    assert torch.equal(product(x), product(x.contiguous()))


def test_matrices_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="weights"):
        pack([drawn(8, 16), drawn(8, 17)])
    with pytest.raises(ValueError, match="weights"):
        pack([drawn(8, 16), drawn(8, 16).bfloat16()])
    with pytest.raises(ValueError, match="quantize"):
        pack([torch.empty(8, 16, device="meta")], quantization="int8")


@needs_library
def test_activations_that_do_not_fit_are_refused() -> None:
    product = pack([drawn(8, 16)])
    with pytest.raises(ValueError, match="width 17"):
        product(drawn(2, 17))
    with pytest.raises(ValueError, match="float16"):
        product(drawn(2, 16).half())


def test_float16_is_multiplied_too() -> None:
    weight, x = drawn(20, 30).half(), drawn(4, 30).half()
    expected = x.double() @ weight.double().T
    assert relative_error(pack([weight])(x), expected) < 1e-3
