"""Triton: store the keys and values of new tokens in their slots of the KV memory."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels import kv_format
from kernels.triton.arguments import KvMemory, Rows, memory_of, rows_of

SMALLEST = tl.constexpr(kv_format.SMALLEST)
_ELEMENTS_PER_PROGRAM = 2048


def heads_per_program(num_heads: int, head_dim: int) -> int:
    """How many heads of a token one program takes, so that it has work and enough registers."""
    most = max(1, _ELEMENTS_PER_PROGRAM // int(triton.next_power_of_2(head_dim)))
    return min(int(triton.next_power_of_2(num_heads)), most)


def write_kv(key: Tensor, value: Tensor | None, kv: Tensor, slots: Tensor) -> None:
    """See `kernels.attention.write_kv`."""
    num_tokens, num_kv_heads, head_dim = key.shape
    heads = heads_per_program(num_kv_heads, head_dim)
    write_slots[num_tokens, triton.cdiv(num_kv_heads, heads)](
        rows_of(key),
        None if value is None else rows_of(value),
        memory_of(kv),
        slots,
        num_kv_heads,
        BLOCK_SIZE=kv.shape[3],
        HEAD_DIM=head_dim,
        HEADS=heads,
    )


@triton.jit
def write_slots(
    key: Rows,
    value: Rows | None,
    kv: KvMemory,
    slots_ptr,
    num_kv_heads,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEADS: tl.constexpr,
):
    """One program stores `HEADS` heads of one token."""
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    dims = tl.arange(0, triton.next_power_of_2(HEAD_DIM))
    real = heads < num_kv_heads
    inside = real[:, None] & (dims < HEAD_DIM)[None, :]
    to = first_head(kv, tl.load(slots_ptr + token), BLOCK_SIZE) + heads * kv.head_stride
    keys = key.ptr + token * key.token_stride + heads * key.head_stride
    rows = tl.load(keys[:, None] + dims[None, :], mask=inside, other=0.0)
    store_rows(to, rows, real, HEAD_DIM)
    if value is not None:
        values = value.ptr + token * value.token_stride + heads * value.head_stride
        rows = tl.load(values[:, None] + dims[None, :], mask=inside, other=0.0)
        store_rows(to + kv.value_stride, rows, real, HEAD_DIM)


@triton.jit
def first_head(kv: KvMemory, slot, BLOCK_SIZE: tl.constexpr):
    """Where the key of the first head in a slot lies."""
    return kv.ptr + (slot // BLOCK_SIZE) * kv.block_stride + (slot % BLOCK_SIZE) * kv.token_stride


@triton.jit
def store_rows(
    to,  # [heads] pointers to the rows
    values,  # [heads, dims], zero behind HEAD_DIM
    real,  # [heads]
    HEAD_DIM: tl.constexpr,
):
    """Store rows of the KV memory, quantized as `kernels.kv_format` says if it is."""
    dims = tl.arange(0, values.shape[1])
    at = to[:, None] + dims[None, :]
    inside = real[:, None] & (dims < HEAD_DIM)[None, :]
    element = to.dtype.element_ty
    if element.primitive_bitwidth > 8:
        tl.store(at, values.to(element), mask=inside)
    else:
        largest_code = 127.0
        if element == tl.uint8:
            largest_code = 448.0
        wide = values.to(tl.float32)
        largest = tl.max(tl.abs(wide), axis=1)
        factor = tl.where(largest > SMALLEST, tl.div_rn(largest_code, largest), 0.0)
        scaled = wide * factor[:, None]
        if element == tl.uint8:
            tl.store(at, to_e4m3(scaled), mask=inside)
        else:
            # Adding 1.5 * 2^23 leaves the nearest integer, ties to even, in the last bits.
            tl.store(at, ((scaled + 12582912.0) - 12582912.0).to(tl.int8), mask=inside)
        scales = (to + HEAD_DIM).to(tl.pointer_type(tl.float32))
        tl.store(scales, tl.div_rn(largest, largest_code), mask=real)


@triton.jit
def to_e4m3(x):
    """The nearest eight-bit floats, ties to even, as bytes; magnitudes are at most 448.

    By bits, since hardware converts only from sm_89 on: the multiplication moves the exponent's
    bias from 127 to 7, so that the upper bits are the code, and its subnormals come out as well.
    """
    bits = (x * 7.52316384526264e-37).to(tl.int32, bitcast=True)  # 2^-120
    magnitude = bits & 0x7FFFFFFF
    magnitude = (magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20
    return (magnitude | ((bits >> 24) & 0x80)).to(tl.uint8)
