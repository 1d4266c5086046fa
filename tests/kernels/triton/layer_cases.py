"""How far a layer's Triton kernels are off: part of what `tests.kernels.triton.cases` prints."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.kv_format import row_size
from kernels.reference import layers as reference
from kernels.triton import layers as triton_layers
from kernels.triton import linear as triton_linear
from kernels.types import Activation

HEADS, KV_HEADS, HEAD_DIM = 6, 2, 32
BLOCK_SIZE, NUM_BLOCKS = 8, 4


def layer_errors(device: torch.device) -> dict[str, float]:
    """The largest difference from the reference of each case, in float32 and in half precision.

    The kernels run on `device`, the reference on a CPU.
    """
    torch.manual_seed(1)
    return {
        f"{name}, {str(dtype).removeprefix('torch.')}": error
        for dtype in (torch.float32, torch.float16)
        for cases in (_norms, _gates, _rotations, _products)
        for name, error in cases(dtype, device)
    }


def _norms(dtype: torch.dtype, device: torch.device) -> Iterator[tuple[str, float]]:
    weight = torch.randn(72)
    for name, update in (("norm", None), ("norm with update", torch.randn(3, 72).to(dtype))):
        theirs = torch.randn(3, 72).to(dtype)
        residual = theirs.clone().to(device)
        added = None if update is None else update.to(device)
        ours = triton_layers.add_rms_norm(residual, added, weight.to(device), 1e-5)
        expected = reference.add_rms_norm(theirs, update, weight, 1e-5)
        yield name, max(_error(ours, expected), _error(residual, theirs))
    bias = torch.randn(72)
    for name, added in (("layer norm", None), ("layer norm with bias", bias)):
        theirs = torch.randn(3, 72).to(dtype) + 2
        place = None if added is None else added.to(device)
        ours = triton_layers.add_rms_norm(
            theirs.to(device), None, weight.to(device), 1e-5, place, True
        )
        yield name, _error(ours, reference.add_rms_norm(theirs, None, weight, 1e-5, added, True))


def _gates(dtype: torch.dtype, device: torch.device) -> Iterator[tuple[str, float]]:
    gate_up = torch.randn(2, 140).to(dtype) * 4
    activations: tuple[Activation, ...] = ("silu", "gelu_tanh", "relu2", "clamped_swiglu")
    for activation in activations:
        for kind, is_plain in (("gated", False), ("alone", True)):
            ours = triton_layers.gate(gate_up.to(device), activation, is_plain)
            error = _error(ours, reference.gate(gate_up, activation, is_plain))
            yield f"{activation} {kind}", error


def _rotations(dtype: torch.dtype, device: torch.device) -> Iterator[tuple[str, float]]:
    qkv = torch.randn(3, (HEADS + 2 * KV_HEADS) * HEAD_DIM).to(dtype)
    positions, slots = torch.tensor([7, 0, 39]), torch.tensor([17, 3, 30])
    for name, half, normed, storage in (
        ("rotation", 16, False, dtype),
        ("rotation of some dimensions, normed", 12, True, dtype),
        ("rotation of none", 0, False, dtype),
        ("rotation, normed, int8", 16, True, torch.int8),
        ("rotation, fp8", 16, False, torch.uint8),
    ):
        angles = torch.randn(40, half)
        weights = [torch.randn(HEAD_DIM) if normed else None for _ in range(2)]
        row = row_size(HEAD_DIM, storage)
        theirs = torch.zeros(NUM_BLOCKS, 2, KV_HEADS, BLOCK_SIZE, row, dtype=storage)
        ours = theirs.clone().to(device)
        query, expected = (
            module.rotate_and_write(
                qkv.to(where),
                angles.cos().to(where),
                angles.sin().to(where),
                positions.to(where),
                kv,
                slots.to(where),
                HEADS,
                KV_HEADS,
                *(None if weight is None else weight.to(where) for weight in weights),
                1e-6,
            )
            for module, kv in ((triton_layers, ours), (reference, theirs))
            for where in [kv.device]
        )
        yield name, _error(query, expected)
        # A code may differ by one where a last bit decided how it is rounded.
        steps = HEAD_DIM if storage == dtype else None
        yield f"{name}, cache", _cache_error(ours, theirs, steps)


def _cache_error(ours: Tensor, theirs: Tensor, exact: int | None) -> float:
    if exact is not None:
        return _error(ours, theirs)
    codes = ((ours.cpu().int() - theirs.int())[..., :HEAD_DIM].abs() > 1).sum().item()
    return codes + _error(_scales(ours), _scales(theirs))


def _scales(rows: Tensor) -> Tensor:
    return rows[..., HEAD_DIM : HEAD_DIM + 4].contiguous().view(torch.float32)


def _products(dtype: torch.dtype, device: torch.device) -> Iterator[tuple[str, float]]:
    x, weight, bias = torch.randn(70, 600), torch.randn(130, 600) / 25, torch.randn(130)
    x, weight, bias = x.to(dtype), weight.to(dtype), bias.to(dtype)
    expected = torch.nn.functional.linear(x.double(), weight.double(), bias.double())
    x, weight, bias = x.to(device), weight.to(device), bias.to(device)
    whole = triton_linear.linear(x, weight, bias)
    yield "product", _error(whole, expected)
    # Few rows have the pieces of their sums added elsewhere than many; the bits are the same.
    alone = triton_linear.linear(x[3:4], weight, bias)
    yield "product of one row of many", 0.0 if torch.equal(alone[0], whole[3]) else 1.0


def _error(actual: Tensor, expected: Tensor) -> float:
    return (actual.cpu().double() - expected.double()).abs().max().item()
