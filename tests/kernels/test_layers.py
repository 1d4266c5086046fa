"""A decoder layer's small operations: each backend against its definition, in every float type."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernels.backends import Backend
from kernels.layers import add_rms_norm, gate, rotate_and_write
from kernels.native import library
from kernels.types import Activation

BACKENDS: list[Backend] = ["reference", "native"] if library.available() else ["reference"]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
on_each = pytest.mark.parametrize(
    ("backend", "dtype"), [(b, d) for b in BACKENDS for d in TOLERANCE]
)


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x = x.double()
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight.double()


def assert_close(actual: Tensor, expected: Tensor) -> None:
    tolerance = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual.double(), expected.double(), rtol=tolerance, atol=tolerance)


@on_each
@pytest.mark.parametrize("wide_weight", [False, True])
def test_the_update_is_added_in_place_and_the_sum_is_normed(
    backend: Backend, dtype: torch.dtype, wide_weight: bool
) -> None:
    residual, update = random(5, 72, dtype=dtype), random(5, 72, dtype=dtype, seed=1)
    weight = random(72, dtype=torch.float32 if wide_weight else dtype, seed=2)
    total = residual + update
    actual = add_rms_norm(residual, update, weight, 1e-5, backend=backend)
    assert torch.equal(residual, total)
    assert actual.dtype == dtype
    assert_close(actual, rms_norm(total, weight, 1e-5))
    again = add_rms_norm(residual, None, weight, 1e-5, backend=backend)
    assert torch.equal(residual, total)
    assert torch.equal(again, actual)


@on_each
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_norm_that_centres_is_a_layer_norm(
    backend: Backend, dtype: torch.dtype, has_bias: bool
) -> None:
    residual = random(5, 72, dtype=dtype) + 3
    weight, bias = random(72, dtype=dtype, seed=2), random(72, dtype=dtype, seed=3)
    actual = add_rms_norm(
        residual, None, weight, 1e-5, bias if has_bias else None, True, backend=backend
    )
    wide = residual.double(), (72,), weight.double(), bias.double() if has_bias else None
    assert_close(actual, functional.layer_norm(*wide, eps=1e-5))


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "relu2": lambda x: functional.relu(x).square(),
}


def clamped_swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """As the experts of gpt-oss have it."""
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    return (up + 1) * (gate * torch.sigmoid(gate * 1.702))


@on_each
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_first_half_gates_the_second_where_there_is_one(
    backend: Backend, dtype: torch.dtype, activation: Activation
) -> None:
    gate_up = random(3, 70, dtype=dtype)
    first, second = gate_up.double().chunk(2, dim=-1)
    activate = ACTIVATIONS[activation]
    assert_close(gate(gate_up, activation, backend=backend), activate(first) * second)
    assert_close(gate(gate_up, activation, True, backend=backend), activate(gate_up.double()))


@on_each
def test_clamped_swiglu_clamps_both_halves(backend: Backend, dtype: torch.dtype) -> None:
    gate_up = random(9, 70, dtype=dtype) * 6
    gate_up[0, [0, 1, 2, 40]] = torch.tensor([7.0, -100.0, torch.inf, -torch.inf], dtype=dtype)
    first, second = gate_up.double().chunk(2, dim=-1)
    actual = gate(gate_up, "clamped_swiglu", backend=backend)
    assert_close(actual, clamped_swiglu(first, second))
    gate_up[0, 3], gate_up[1, 50] = torch.nan, torch.nan
    lost = gate(gate_up, "clamped_swiglu", backend=backend).isnan()
    assert lost.nonzero().tolist() == [[0, 3], [1, 15]]


@on_each
@pytest.mark.parametrize("rotary_dim", [16, 8, 0])
@pytest.mark.parametrize("normed", [False, True])
def test_heads_are_normed_and_turned_and_keys_and_values_land_in_their_slots(
    backend: Backend, dtype: torch.dtype, rotary_dim: int, normed: bool
) -> None:
    heads, kv_heads, head_dim, block_size = 4, 2, 16, 8
    qkv = random(3, (heads + 2 * kv_heads) * head_dim, dtype=dtype)
    angles = random(40, rotary_dim // 2, seed=1)
    positions, slots = torch.tensor([7, 0, 39]), torch.tensor([17, 3, 30])
    memory = torch.full((4, 3, 2, kv_heads, block_size, head_dim), torch.nan, dtype=dtype)
    weights = [random(head_dim, seed=seed) if normed else None for seed in (2, 3)]
    query = rotate_and_write(
        qkv,
        angles.cos(),
        angles.sin(),
        positions,
        memory[:, 1],
        slots,
        heads,
        kv_heads,
        *weights,
        eps=1e-6,
        backend=backend,
    )
    parts = qkv.view(3, -1, head_dim).double().split([heads, kv_heads, kv_heads], dim=1)
    expected = []
    for part, weight in zip(parts[:2], weights, strict=True):
        wide = part if weight is None else rms_norm(part, weight, 1e-6)
        pairs = torch.complex(*wide[..., :rotary_dim].chunk(2, dim=-1))
        turned = pairs * torch.polar(torch.ones(()).double(), angles.double())[positions, None]
        expected.append(torch.cat([turned.real, turned.imag, wide[..., rotary_dim:]], dim=-1))
    assert_close(query, expected[0])
    written = memory[slots // block_size, 1, :, :, slots % block_size]
    assert_close(written[:, 0], expected[1])
    assert torch.equal(written[:, 1], parts[2].to(dtype))
    memory[slots // block_size, 1, :, :, slots % block_size] = torch.nan
    assert memory.isnan().all(), "no other slot is touched"
