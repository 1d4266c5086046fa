"""Vector code for Numba: the inner loops of paged attention, written in LLVM's portable vectors.

Numba's own loop vectoriser keeps neither a key in registers across query rows nor the rows' partial
sums out of memory; spelled out like this the same work runs three to four times faster. LLVM lowers
the vectors to whatever registers the processor has.

`kv` is a flat view of the KV memory: float32, float16, or the bits of bfloat16 as uint16. Arrays are
C-contiguous and `lanes` is a compile-time constant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

KEYS = 4
"""Keys (or values) that one pass over the query rows handles together."""

_REGISTER_LANES = 16
_INT32, _INT64, _FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()
_CONTRACT = ("contract",)

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _vector_code(function: _Function) -> _Function:
    typed: _Function = intrinsic(prefer_literal=True)(function)
    return typed


@_vector_code
def add_scores(  # type: ignore[no-untyped-def]  # Numba reads the parameters as types, then values
    typing, query, num_rows, dim, head_dim, kv, offsets, index, scores, row_stride, lanes
):
    """`scores[row, index + i] += query[row, dim : dim + lanes] . key` for `KEYS` keys i.

    Key i lies at `kv[offsets[index + i]]`; `query` is [num_rows, head_dim].
    """
    int64 = types.int64
    signature = types.void(query, int64, int64, int64, kv, offsets, int64, scores, int64, int64)
    width = min(lanes.literal_value, _REGISTER_LANES)
    parts = range(0, lanes.literal_value, width)

    def generate(context: Any, build: ir.IRBuilder, signature: Any, args: Any) -> Any:
        query, _, _, _, kv, offsets, _, scores, _, _ = _pointers(context, build, signature, args)
        _, num_rows, dim, head_dim, _, _, index, _, row_stride, _ = args
        starts = [build.add(_element(build, offsets, index, i), dim) for i in range(KEYS)]
        keys = [
            [_load_kv(build, kv, start, part, signature.args[4].dtype, width) for part in parts]
            for start in starts
        ]
        with cgutils.for_range(build, num_rows, intp=_INT64) as loop:
            start = build.add(build.mul(loop.index, head_dim), dim)
            rows = [
                build.load(_vector_at(build, query, start, part, width), align=4) for part in parts
            ]
            products = [_multiply_add(build, rows, key) for key in keys]
            target = _vector_at(
                build, scores, build.add(build.mul(loop.index, row_stride), index), 0, KEYS
            )
            sums = _sum_each(build, products)
            build.store(build.fadd(build.load(target, align=4), sums), target, align=4)
        return context.get_dummy_value()

    return signature, generate


@_vector_code
def add_values(  # type: ignore[no-untyped-def]
    typing, weights, num_rows, row_stride, dim, head_dim, kv, offsets, index, output, lanes
):
    """`output[row, dim : dim + lanes] += weights[row, index + i] * value` for `KEYS` values i.

    Value i lies at `kv[offsets[index + i]]`; `output` is [num_rows, head_dim].
    """
    int64 = types.int64
    signature = types.void(weights, int64, int64, int64, int64, kv, offsets, int64, output, int64)
    count = lanes.literal_value

    def generate(context: Any, build: ir.IRBuilder, signature: Any, args: Any) -> Any:
        weights, _, _, _, _, kv, offsets, _, output, _ = _pointers(context, build, signature, args)
        _, num_rows, row_stride, dim, head_dim, _, _, index, _, _ = args
        starts = [build.add(_element(build, offsets, index, i), dim) for i in range(KEYS)]
        values = [_load_kv(build, kv, start, 0, signature.args[5].dtype, count) for start in starts]
        with cgutils.for_range(build, num_rows, intp=_INT64) as loop:
            start = build.add(build.mul(loop.index, head_dim), dim)
            target = _vector_at(build, output, start, 0, count)
            total = build.load(target, align=4)
            first = build.add(build.mul(loop.index, row_stride), index)
            for i, value in enumerate(values):
                weight = _spread(build, _element(build, weights, first, i), count)
                total = build.fadd(total, build.fmul(weight, value, _CONTRACT), _CONTRACT)
            build.store(total, target, align=4)
        return context.get_dummy_value()

    return signature, generate


@_vector_code
def power_of_two(typing, exponent):  # type: ignore[no-untyped-def]
    """2 ** `exponent` for a whole float32 between -126 and 127, by its bits."""

    def generate(context: Any, build: ir.IRBuilder, signature: Any, args: Any) -> Any:
        biased = build.add(build.fptosi(args[0], _INT32), ir.Constant(_INT32, 127))
        return build.bitcast(build.shl(biased, ir.Constant(_INT32, 23)), _FLOAT)

    return types.float32(types.float32), generate


def _pointers(context: Any, build: ir.IRBuilder, signature: Any, args: Any) -> list[Any]:
    """The data pointer of every array argument, `None` for the others."""
    return [
        context.make_array(kind)(context, build, value).data
        if isinstance(kind, types.Array)
        else None
        for kind, value in zip(signature.args, args, strict=True)
    ]


def _element(build: ir.IRBuilder, array: Any, index: Any, shift: int) -> Any:
    return build.load(build.gep(array, [build.add(index, ir.Constant(_INT64, shift))]))


def _vector_at(build: ir.IRBuilder, array: Any, index: Any, shift: int, lanes: int) -> Any:
    start = build.gep(array, [build.add(index, ir.Constant(_INT64, shift))])
    return build.bitcast(start, ir.VectorType(_FLOAT, lanes).as_pointer())


def _load_kv(build: ir.IRBuilder, kv: Any, index: Any, shift: int, element: Any, lanes: int) -> Any:
    """`lanes` elements of the KV memory, widened to float32."""
    if element == types.float32:
        return build.load(_vector_at(build, kv, index, shift, lanes), align=4)
    start = build.gep(kv, [build.add(index, ir.Constant(_INT64, shift))])
    bits = ir.VectorType(ir.IntType(16), lanes)
    loaded = build.load(build.bitcast(start, bits.as_pointer()), align=2)
    floats = ir.VectorType(_FLOAT, lanes)
    if element == types.float16:
        return build.fpext(build.bitcast(loaded, ir.VectorType(ir.HalfType(), lanes)), floats)
    wide = ir.VectorType(_INT32, lanes)
    high = build.shl(build.zext(loaded, wide), ir.Constant(wide, [16] * lanes))
    return build.bitcast(high, floats)


def _multiply_add(build: ir.IRBuilder, left: list[Any], right: list[Any]) -> Any:
    """The lane-wise sum of the products of two lists of vectors."""
    total = build.fmul(left[0], right[0], _CONTRACT)
    for a, b in zip(left[1:], right[1:], strict=True):
        total = build.fadd(total, build.fmul(a, b, _CONTRACT), _CONTRACT)
    return total


def _sum_each(build: ir.IRBuilder, vectors: list[Any]) -> Any:
    """One vector with the sum over each of `vectors`: a transposing tree of shuffles.

    `group` lanes of every vector in the list belong to one sum; each round halves the groups, and
    joins two vectors to one as long as there are several.
    """
    group = vectors[0].type.count
    while len(vectors) > 1 or group > 1:
        if len(vectors) > 1:
            lanes = range(2 * vectors[0].type.count)
            vectors = [
                _shuffle(build, a, b, list(lanes))
                for a, b in zip(vectors[::2], vectors[1::2], strict=True)
            ]
        if group > 1:
            lanes = range(vectors[0].type.count)
            low = [lane for lane in lanes if lane % group < group // 2]
            high = [lane for lane in lanes if lane % group >= group // 2]
            vectors = [
                build.fadd(_shuffle(build, v, v, low), _shuffle(build, v, v, high)) for v in vectors
            ]
            group //= 2
    return vectors[0]


def _shuffle(build: ir.IRBuilder, a: Any, b: Any, lanes: list[int]) -> Any:
    return build.shuffle_vector(a, b, ir.Constant(ir.VectorType(_INT32, len(lanes)), lanes))


def _spread(build: ir.IRBuilder, scalar: Any, lanes: int) -> Any:
    empty = ir.Constant(ir.VectorType(_FLOAT, lanes), ir.Undefined)
    first = build.insert_element(empty, scalar, ir.Constant(_INT32, 0))
    return _shuffle(build, first, first, [0] * lanes)
