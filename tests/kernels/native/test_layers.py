"""The compiled small operations against plain torch, at every level of instructions there is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernels.native import library

if not library.available():
    pytest.skip("kernels/native is not built", allow_module_level=True)

from kernels.native import layers as native_layers

TOLERANCE = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
DTYPES = list(TOLERANCE)


@pytest.fixture(params=library.LEVELS, autouse=True)
def _level(request: pytest.FixtureRequest) -> Iterator[None]:
    library.limit_level(request.param)
    yield
    library.limit_level(library.LEVELS[-1])


def assert_close(actual: Tensor, expected: Tensor) -> None:
    tolerance = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual.double(), expected.double(), rtol=tolerance, atol=tolerance)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return functional.rms_norm(x.double(), x.shape[-1:], weight.double(), eps)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [1, 7, 64, 100])
@pytest.mark.parametrize("weights_are_wide", [False, True])
def test_a_norm_adds_in_place_and_normalises_what_is_stored(
    dtype: torch.dtype, dim: int, weights_are_wide: bool
) -> None:
    residual = torch.randn(5, 2 * dim).to(dtype)[:, dim:]  # rows lie apart
    update, weight = torch.randn(5, dim).to(dtype), torch.randn(dim)
    weight = weight if weights_are_wide else weight.to(dtype)
    total = residual + update
    untouched = native_layers.add_rms_norm(residual, None, weight, 1e-5)
    assert_close(untouched, rms_norm(residual, weight, 1e-5))
    normed = native_layers.add_rms_norm(residual, update, weight, 1e-5)
    assert torch.equal(residual, total)
    assert_close(normed, rms_norm(total, weight, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [2, 7, 64, 100])
@pytest.mark.parametrize("weights_are_wide", [False, True])
def test_a_norm_that_centres_is_a_layer_norm(
    dtype: torch.dtype, dim: int, weights_are_wide: bool
) -> None:
    residual = (torch.randn(5, 2 * dim) + 3).to(dtype)[:, dim:]
    weight, bias = torch.randn(2, dim).to(torch.float32 if weights_are_wide else dtype)
    wide = (residual.double(), (dim,), weight.double())
    centred = native_layers.add_rms_norm(residual, None, weight, 1e-2, None, True)
    assert_close(centred, functional.layer_norm(*wide, eps=1e-2))
    biased = native_layers.add_rms_norm(residual, None, weight, 1e-2, bias, True)
    assert_close(biased, functional.layer_norm(*wide, bias.double(), eps=1e-2))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("head_dim", "half"), [(64, 32), (16, 4), (33, 7), (80, 40), (64, 0)])
@pytest.mark.parametrize("normed", [False, True])
def test_queries_and_keys_are_turned_and_stored(
    dtype: torch.dtype, head_dim: int, half: int, normed: bool
) -> None:
    num_tokens, num_heads, num_kv_heads, eps = 9, 6, 2, 1e-6
    qkv = torch.randn(num_tokens, (num_heads + 2 * num_kv_heads) * head_dim).to(dtype)
    angles = torch.randn(50, half)
    positions, slots = torch.randint(50, (num_tokens,)), torch.randperm(24)[:num_tokens]
    memory = torch.zeros(6, 3, 2, num_kv_heads, 4, head_dim, dtype=dtype)
    weights = (torch.randn(head_dim), torch.randn(head_dim).to(dtype)) if normed else (None, None)
    query = native_layers.rotate_and_write(
        qkv,
        angles.cos(),
        angles.sin(),
        positions,
        memory[:, 1],
        slots,
        num_heads,
        num_kv_heads,
        *weights,
        eps=eps,
    )
    heads = qkv.double().view(num_tokens, -1, head_dim)
    expected_query, key, value = heads.split((num_heads, num_kv_heads, num_kv_heads), dim=1)
    if weights[0] is not None and weights[1] is not None:
        expected_query = rms_norm(expected_query, weights[0], eps)
        key = rms_norm(key, weights[1], eps)
    angle = angles[positions][:, None].double()
    assert_close(query, turned(expected_query, angle))
    stored = memory[slots // 4, 1, :, :, slots % 4]  # [num_tokens, 2, num_kv_heads, head_dim]
    assert_close(stored[:, 0], turned(key, angle))
    assert_close(stored[:, 1], value)
    memory[slots // 4, 1, :, :, slots % 4] = 0
    assert not memory.any(), "nothing but the slots is written"


def turned(x: Tensor, angle: Tensor) -> Tensor:
    half = angle.shape[-1]
    first, second, rest = x.tensor_split((half, 2 * half), dim=-1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inter", [3, 64, 100])
def test_a_gate_equals_torchs(dtype: torch.dtype, inter: int) -> None:
    gate_up = (torch.randn(5, 2 * inter) * 10).to(dtype)
    first, second = gate_up.double().chunk(2, dim=-1)
    silu = functional.silu(first) * second
    assert_close(native_layers.gate(gate_up, "silu"), silu)
    gelu = functional.gelu(first, approximate="tanh") * second
    assert_close(native_layers.gate(gate_up, "gelu_tanh"), gelu)
    square = functional.relu(first).square() * second
    assert_close(native_layers.gate(gate_up, "relu2"), square)


@pytest.mark.parametrize("inter", [3, 64, 100])
def test_an_activation_alone_equals_torchs(inter: int) -> None:
    x = torch.randn(5, inter) * 10
    assert_close(native_layers.gate(x, "silu", True), functional.silu(x.double()))
    assert_close(native_layers.gate(x, "relu2", True), functional.relu(x.double()).square())


def test_a_gate_of_extreme_values_is_finite() -> None:
    gate_up = torch.tensor([[-1e4, -90.0, 0.0, 90.0, 1e4, 1.0, 1.0, 1.0, 1.0, 1.0]])
    expected = torch.tensor([[0.0, 0.0, 0.0, 90.0, 1e4]])
    for activation in ("silu", "gelu_tanh"):
        torch.testing.assert_close(native_layers.gate(gate_up, activation), expected)


def test_threads_change_no_bit() -> None:
    gate_up = torch.randn(64, 6000).bfloat16()
    results = []
    for count in (1, 2, 3):
        library.set_threads(count)
        results.append(native_layers.gate(gate_up, "silu"))
    library.set_threads(torch.get_num_threads())
    assert all(torch.equal(results[0], other) for other in results[1:])
