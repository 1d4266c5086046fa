"""Attention of a few queries over the blocks of their sequence, compiled for the CPU by Numba.

The kernel walks block tables and reads every key and value once, where it lies. A run of keys that
several sequences share is read for the stacked queries of them all; what is a sequence's own is a
run with one reader. Runs are cut into splits of a fixed length, each with its own softmax, and the
partial results are merged in order (Flash-Decoding, Dao et al. 2023). So all cores share a long
context, and a result depends on the groups of its sequence, but neither on its other batch-mates
nor on the number of threads. The functions start no threads: they run without the GIL, for the
caller to spread (see `kernels.cpu`).

Where many rows see the same keys, as those of a group do, attention is two matrix products. For few
rows it is two loops that hold keys in registers. All of these are LLVM's portable vector code:
Numba's own vectoriser keeps neither a key in registers across query rows nor 16-bit floats from
being widened once a row, and takes four times as long. They stay in this file because Numba's disk
cache notices changes in one file only.
"""
# ruff: noqa: ARG001 (an intrinsic gets the types of its arguments; the values come to `generate`)

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.cpu_plan import SPLIT, Floats, Integers, Plan, compiled

KV = npt.NDArray[Any]
"""A flat view of the KV memory: float32, or the bits of bfloat16 as uint16, or those of float16 as
int16, since Numba has neither."""

_KEYS = 4
"""Keys, or values, that one pass over the query rows handles together."""

_STACK = 24
"""Rows from which on two matrix products pay."""

_LANES = 16
"""Floats in a vector."""

_TILE_ROWS = 8
"""Rows of a product, of two vectors each, that are summed in registers at once."""

_AHEAD = 16
"""How many keys ahead of their use memory is asked for them."""

_CACHE_LINE = 64


class Layout(NamedTuple):
    """Where a token's KV lies in the flat memory: strides in elements, block size in tokens."""

    block: int
    value: int
    head: int
    token: int
    block_size: int


class Options(NamedTuple):
    """How scores are formed. `window` and `softcap` are 0 for none."""

    scale: np.float32
    window: int
    softcap: np.float32


@compiled(cache=True)
def attend_part(
    part: int,
    num_parts: int,
    plan: Plan,
    query: Floats,
    kv: KV,
    layout: Layout,
    num_kv_heads: int,
    tables: Integers,
    options: Options,
    partial: Floats,
    statistics: Floats,
) -> None:
    """Compute one of `num_parts` shares of about equal cost; all of them may run at once.

    `query` is [num_tokens, num_heads, head_dim]. Each item fills its rows of `partial`, [rows,
    head_dim], with sums not yet divided by their weights, and of `statistics`, [rows, 2], with the
    highest score and the sum of weights.
    """
    total = plan.cost[-1]
    for item in range(plan.owner.shape[0]):
        if plan.cost[item] * num_parts < total * part:
            continue
        if plan.cost[item] * num_parts >= total * (part + 1):
            break
        _attend_item(
            item, plan, query, kv, layout, num_kv_heads, tables, options, partial, statistics
        )


@compiled()
def _attend_item(
    item: int,
    plan: Plan,
    query: Floats,
    kv: KV,
    layout: Layout,
    num_kv_heads: int,
    tables: Integers,
    options: Options,
    partial: Floats,
    statistics: Floats,
) -> None:
    run = plan.owner[item]
    split, head = divmod(item - plan.first_item[run], num_kv_heads)
    begin = plan.begin[run] + split * SPLIT
    end = min(begin + SPLIT, plan.end[run])
    tokens = plan.tokens[plan.first_token[run] : plan.first_token[run + 1]]
    positions = plan.positions[plan.first_token[run] : plan.first_token[run + 1]]
    group = query.shape[1] // num_kv_heads
    num_rows = len(tokens) * group
    row = plan.first_row[run] + (item - plan.first_item[run]) * num_rows
    query = query[:, head * group : (head + 1) * group]
    partial, statistics = partial[row : row + num_rows], statistics[row : row + num_rows]
    first = begin
    if options.window > 0:
        first = max(begin, positions[0] - options.window + 1)
    offsets = _key_offsets(tables[plan.table[run]], first, end, head, layout)
    all_see_all = positions[0] >= end - 1
    if options.window > 0:
        all_see_all &= positions[-1] - options.window < first
    if num_rows >= _STACK and all_see_all:
        _attend_stack(query, tokens, kv, offsets, layout.value, options, partial, statistics)
    else:
        _attend_split(
            query,
            tokens,
            positions,
            first,
            end,
            kv,
            offsets,
            layout.value,
            options,
            partial,
            statistics,
        )


@compiled()
def _attend_split(
    query: Floats,  # [num_tokens, group, head_dim], the heads that share a KV head
    tokens: Integers,  # [num_queries], which of the tokens attend here
    positions: Integers,  # [num_queries]
    begin: int,  # positions of the keys
    end: int,
    kv: KV,
    offsets: Integers,  # of the keys
    value: int,  # from a key to its value
    options: Options,
    output: Floats,  # [num_queries * group, head_dim], unnormalised
    statistics: Floats,  # [num_queries * group, 2] maximum and sum
) -> None:
    """Attend a few rows, each to the keys that it sees."""
    _, group, head_dim = query.shape
    num_rows = tokens.shape[0] * group
    rows, scores = _aligned(num_rows, head_dim), _aligned(num_rows, SPLIT)
    for row in range(num_rows):
        rows[row] = query[tokens[row // group], row % group]
    scores[:] = _ZERO
    _add_scores(rows, num_rows, head_dim, kv, offsets, end - begin, scores)
    for row in range(num_rows):
        position = positions[row // group]
        first = begin
        if options.window > 0:
            first = min(max(begin, position - options.window + 1), end)
        last = min(position + 1, end)
        statistics[row, 0], statistics[row, 1] = np.float32(-np.inf), _ZERO
        if first < last:
            statistics[row, 0], statistics[row, 1] = _softmax(
                scores[row, first - begin : last - begin], options
            )
        scores[row, : first - begin] = _ZERO
        scores[row, max(last - begin, 0) :] = _ZERO
    output[:] = _ZERO
    _add_values(scores, num_rows, head_dim, kv[value:], offsets, end - begin, output)


@compiled()
def _attend_stack(
    query: Floats,  # as for `_attend_split`
    tokens: Integers,
    kv: KV,
    offsets: Integers,
    value: int,
    options: Options,
    output: Floats,
    statistics: Floats,
) -> None:
    """Attend many rows, which all see all of the keys: two matrix products around a softmax.

    Rows are columns here, so that a vector holds one element of several rows, and nothing is summed
    across its lanes.
    """
    _, group, head_dim = query.shape
    num_rows, num_keys = output.shape[0], offsets.shape[0] - _KEYS - _AHEAD
    width = _round_up(num_rows, _LANES)
    keys, dims = _round_up(num_keys, _TILE_ROWS), _round_up(head_dim, _TILE_ROWS)
    rows, weights = _aligned(head_dim, width), _aligned(keys, width)
    tile, attended = _aligned(keys + _TILE_ROWS, head_dim), _aligned(dims, width)
    rows[:, num_rows:] = _ZERO
    for row in range(num_rows):
        for dim in range(head_dim):
            rows[dim, row] = query[tokens[row // group], row % group, dim] * options.scale
    _widen(kv, offsets, num_keys, head_dim, tile)
    _multiply(tile, head_dim, 1, rows, weights, keys, width, head_dim)
    highest, total = _softmax_columns(weights[:num_keys], options.softcap)
    _widen(kv[value:], offsets, num_keys, head_dim, tile)
    _multiply(tile, 1, head_dim, weights, attended, dims, width, num_keys)
    for row in range(num_rows):
        statistics[row, 0], statistics[row, 1] = highest[row], total[row]
        for dim in range(head_dim):
            output[row, dim] = attended[dim, row]


@compiled(fastmath={"contract", "nnan", "nsz"})
def _softmax_columns(scores: Floats, softcap: np.float32) -> tuple[Floats, Floats]:
    """Turn the scores [num_keys, width] of each column into unnormalised weights, in place; returns
    the columns' maxima and sums."""
    num_keys, width = scores.shape
    if softcap > _ZERO:
        for key in range(num_keys):
            for row in range(width):
                scores[key, row] = softcap * np.float32(math.tanh(scores[key, row] / softcap))
    highest, total = scores[0].copy(), np.zeros(width, np.float32)
    for key in range(1, num_keys):
        for row in range(width):
            highest[row] = max(highest[row], scores[key, row])
    for key in range(num_keys):
        for row in range(width):
            weight = _exp(scores[key, row] - highest[row])
            scores[key, row] = weight
            total[row] += weight
    return highest, total


@compiled()
def _round_up(number: int, unit: int) -> int:
    return (number + unit - 1) // unit * unit


@compiled()
def _aligned(num_rows: int, num_columns: int) -> Floats:
    """An empty [num_rows, num_columns] at the start of a cache line: no vector straddles two."""
    size = num_rows * num_columns
    buffer = np.empty(size + _CACHE_LINE // 4, np.float32)
    start = (-buffer.ctypes.data % _CACHE_LINE) // 4
    return buffer[start : start + size].reshape(num_rows, num_columns)


@compiled()
def _key_offsets(table: Integers, begin: int, end: int, head: int, layout: Layout) -> Integers:
    """Where keys `begin` to `end` of a sequence lie; the last is repeated for reads beyond it."""
    offsets = np.empty(end - begin + _KEYS + _AHEAD, np.int64)
    position = begin
    while position < end:
        block = position // layout.block_size
        block_start = block * layout.block_size
        start = table[block] * layout.block + head * layout.head - block_start * layout.token
        block_end = min(end, block_start + layout.block_size)
        for key in range(position, block_end):
            offsets[key - begin] = start + key * layout.token
        position = block_end
    offsets[end - begin :] = offsets[end - begin - 1]
    return offsets


@compiled(fastmath={"contract", "reassoc", "nnan", "nsz"})
def _softmax(scores: Floats, options: Options) -> tuple[Any, Any]:
    """Turn scores into unnormalised weights, in place; returns their maximum and their sum."""
    for key in range(scores.shape[0]):
        scores[key] *= options.scale
    highest = _highest(scores, scores.shape[0])
    softcap = options.softcap
    if softcap > _ZERO:
        for key in range(scores.shape[0]):
            scores[key] = softcap * np.float32(math.tanh(scores[key] / softcap))
        highest = softcap * np.float32(math.tanh(highest / softcap))
    total = _ZERO
    for key in range(scores.shape[0]):
        weight = _exp(scores[key] - highest)
        scores[key] = weight
        total += weight
    return highest, total


_ZERO, _HALF, _ONE = np.float32(0), np.float32(0.5), np.float32(1)
_LOWEST = np.float32(-87)
_LOG2_E = np.float32(1.44269504)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_TAYLOR = tuple(np.float32(1 / math.factorial(order)) for order in range(8))


@compiled(fastmath={"contract", "nnan", "nsz"})
def _exp(x: Any) -> Any:
    """e ** x for x <= 0 to a unit or two in the last place; unlike `math.exp` it vectorises."""
    x = max(x, _LOWEST)
    power = np.floor(x * _LOG2_E + _HALF)
    rest = x - power * _LN2_HIGH
    rest = rest - power * _LN2_LOW
    series = _TAYLOR[7]
    series = series * rest + _TAYLOR[6]
    series = series * rest + _TAYLOR[5]
    series = series * rest + _TAYLOR[4]
    series = series * rest + _TAYLOR[3]
    series = series * rest + _TAYLOR[2]
    return (series * rest * rest + rest + _ONE) * _power_of_two(power)


_INT32, _INT64, _FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()
_SPLIT_LENGTH = ir.Constant(_INT64, SPLIT)
_CONTRACT = ("contract",)


@intrinsic
def _add_scores(  # type: ignore[no-untyped-def]
    typing, query, num_rows, head_dim, kv, offsets, num_keys, scores
):
    """`scores[row, key] += query[row] . kv[offsets[key]]` for all rows and keys.

    `query` is [num_rows, head_dim], `scores` [num_rows, SPLIT]; keys are rounded up to `_KEYS`.
    """
    int64 = types.int64
    signature = types.void(query, int64, int64, kv, offsets, int64, scores)

    def generate(context: Any, build: ir.IRBuilder, signature: Any, args: Any) -> Any:
        query, _, _, kv, offsets, _, scores = _pointers(context, build, signature, args)
        _, num_rows, head_dim, _, _, num_keys, _ = args
        element = signature.args[3].dtype

        def add(index: Any, starts: list[Any], dim: Any, lanes: int) -> None:
            width = min(lanes, _LANES)
            parts = range(0, lanes, width)
            keys = [
                [_load_kv(build, kv, start, part, element, width) for part in parts]
                for start in starts
            ]
            with cgutils.for_range(build, num_rows, intp=_INT64) as loop:
                first = build.add(build.mul(loop.index, head_dim), dim)
                row = [
                    build.load(_vector_at(build, query, first, part, width), align=4)
                    for part in parts
                ]
                sums = _sum_each(build, [_multiply_add(build, row, key) for key in keys])
                column = build.add(build.mul(loop.index, _SPLIT_LENGTH), index)
                target = _vector_at(build, scores, column, 0, _KEYS)
                build.store(build.fadd(build.load(target, align=4), sums), target, align=4)

        _visit(build, kv, offsets, num_keys, head_dim, add)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def _add_values(  # type: ignore[no-untyped-def]
    typing, weights, num_rows, head_dim, kv, offsets, num_keys, output
):
    """`output[row] += weights[row, key] * kv[offsets[key]]` for all rows and keys.

    `weights` is [num_rows, SPLIT], `output` [num_rows, head_dim]; keys are rounded up to `_KEYS`.
    """
    int64 = types.int64
    signature = types.void(weights, int64, int64, kv, offsets, int64, output)

    def generate(context: Any, build: ir.IRBuilder, signature: Any, args: Any) -> Any:
        weights, _, _, kv, offsets, _, output = _pointers(context, build, signature, args)
        _, num_rows, head_dim, _, _, num_keys, _ = args
        element = signature.args[3].dtype

        def add(index: Any, starts: list[Any], dim: Any, lanes: int) -> None:
            values = [_load_kv(build, kv, start, 0, element, lanes) for start in starts]
            with cgutils.for_range(build, num_rows, intp=_INT64) as loop:
                first = build.add(build.mul(loop.index, head_dim), dim)
                target = _vector_at(build, output, first, 0, lanes)
                total = build.load(target, align=4)
                column = build.add(build.mul(loop.index, _SPLIT_LENGTH), index)
                for i, value in enumerate(values):
                    weight = _spread(build, _element(build, weights, column, i), lanes)
                    product = build.fmul(weight, value, flags=_CONTRACT)
                    total = build.fadd(total, product, flags=_CONTRACT)
                build.store(total, target, align=4)

        _visit(build, kv, offsets, num_keys, head_dim, add)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def _widen(typing, kv, offsets, num_keys, head_dim, tile):  # type: ignore[no-untyped-def]
    """`tile[key] = kv[offsets[key]]` in float32; `tile` is [num_keys, head_dim], and keys are
    rounded up to `_KEYS`."""
    int64 = types.int64
    signature = types.void(kv, offsets, int64, int64, tile)

    def generate(context: Any, build: ir.IRBuilder, signature: Any, args: Any) -> Any:
        kv, offsets, _, _, tile = _pointers(context, build, signature, args)
        _, _, num_keys, head_dim, _ = args
        element = signature.args[0].dtype

        def copy(index: Any, starts: list[Any], dim: Any, lanes: int) -> None:
            for i, start in enumerate(starts):
                row = build.add(index, ir.Constant(_INT64, i))
                first = build.add(build.mul(row, head_dim), dim)
                values = _load_kv(build, kv, start, 0, element, lanes)
                build.store(values, _vector_at(build, tile, first, 0, lanes), align=4)

        _visit(build, kv, offsets, num_keys, head_dim, copy)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def _multiply(  # type: ignore[no-untyped-def]
    typing, left, row_stride, step_stride, right, product, num_rows, width, num_steps
):
    """`product[row] = sum of left[row * row_stride + step * step_stride] * right[step]`.

    `right` is [num_steps, width], `product` [num_rows, width]; `num_rows` is a multiple of
    `_TILE_ROWS`, `width` of `_LANES`. `left` is read by its strides, so it may be transposed. A
    tile of the product stays in registers over all steps.
    """
    int64 = types.int64
    signature = types.void(left, int64, int64, right, product, int64, int64, int64)

    def generate(context: Any, build: ir.IRBuilder, signature: Any, args: Any) -> Any:
        left, _, _, right, product, _, _, _ = _pointers(context, build, signature, args)
        _, row_stride, step_stride, _, _, num_rows, width, num_steps = args

        def tile(row: Any, column: Any, vectors: int) -> None:
            parts = range(0, vectors * _LANES, _LANES)
            kind = ir.VectorType(_FLOAT, _LANES)
            sums = [[cgutils.alloca_once(build, kind) for _ in parts] for _ in range(_TILE_ROWS)]
            for row_sums in sums:
                for total in row_sums:
                    build.store(ir.Constant(kind, None), total)
            with cgutils.for_range(build, num_steps, intp=_INT64) as loop:
                first = build.add(build.mul(loop.index, width), column)
                columns = [
                    build.load(_vector_at(build, right, first, part, _LANES), align=4)
                    for part in parts
                ]
                start = build.mul(loop.index, step_stride)
                for i, row_sums in enumerate(sums):
                    at = build.mul(build.add(row, ir.Constant(_INT64, i)), row_stride)
                    scalar = _element(build, left, build.add(at, start), 0)
                    factor = _spread(build, scalar, _LANES)
                    for total, vector in zip(row_sums, columns, strict=True):
                        added = build.fmul(factor, vector, flags=_CONTRACT)
                        build.store(build.fadd(build.load(total), added, flags=_CONTRACT), total)
            for i, row_sums in enumerate(sums):
                first = build.mul(build.add(row, ir.Constant(_INT64, i)), width)
                first = build.add(first, column)
                for part, total in zip(parts, row_sums, strict=True):
                    to = _vector_at(build, product, first, part, _LANES)
                    build.store(build.load(total), to, align=4)

        for column, vectors in _pieces(build, width, _LANES, (2, 1)):
            for row, _ in _pieces(build, num_rows, _TILE_ROWS, (1,)):
                tile(row, column, vectors)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def _highest(typing, scores, count):  # type: ignore[no-untyped-def]
    """The largest of the first `count` scores; LLVM would compare them one by one."""
    signature = types.float32(scores, types.int64)

    def generate(context: Any, build: ir.IRBuilder, signature: Any, args: Any) -> Any:
        scores, _ = _pointers(context, build, signature, args)
        kind = ir.VectorType(_FLOAT, _LANES)
        lowest = ir.Constant(kind, [float("-inf")] * _LANES)
        highest = cgutils.alloca_once(build, kind)
        build.store(lowest, highest)
        for index, lanes in _pieces(build, args[1], 1, (_LANES, 1)):
            if lanes == 1:
                found = _spread(build, build.load(build.gep(scores, [index])), _LANES)
            else:
                found = build.load(_vector_at(build, scores, index, 0, _LANES), align=4)
            build.store(_larger(build, found, build.load(highest)), highest)
        found = build.load(highest)
        for half in (8, 4, 2, 1):
            low = _shuffle(build, found, found, list(range(half)))
            high = _shuffle(build, found, found, list(range(half, 2 * half)))
            found = _larger(build, low, high)
        return build.extract_element(found, ir.Constant(_INT32, 0))

    return signature, generate


@intrinsic
def _power_of_two(typing, exponent):  # type: ignore[no-untyped-def]
    """2 ** `exponent` for a whole float32 between -126 and 127, by its bits."""

    def generate(context: Any, build: ir.IRBuilder, signature: Any, args: Any) -> Any:
        biased = build.add(build.fptosi(args[0], _INT32), ir.Constant(_INT32, 127))
        return build.bitcast(build.shl(biased, ir.Constant(_INT32, 23)), _FLOAT)

    return types.float32(types.float32), generate


def _pieces(
    build: ir.IRBuilder, length: Any, unit: int, sizes: tuple[int, ...]
) -> Iterator[tuple[Any, int]]:
    """Loops that cover `length` in pieces of the first of `sizes` units, then of the next: yields
    where a piece begins and its size, for the caller to emit the loop's body."""
    first: Any = ir.Constant(_INT64, 0)
    for size in sizes:
        piece = ir.Constant(_INT64, size * unit)
        end = build.mul(build.sdiv(length, piece), piece)
        with cgutils.for_range_slice(build, first, end, piece, intp=_INT64) as (index, _):
            yield index, size
        first = end


def _visit(
    build: ir.IRBuilder,
    kv: Any,
    offsets: Any,
    num_keys: Any,
    head_dim: Any,
    emit: Callable[[Any, list[Any], Any, int], None],
) -> None:
    """Loop over the head in parts of 64, then 16 lanes, then one, so that any length fits, and
    within a part over the keys: `emit(first key, where each of _KEYS starts, dim, lanes)`."""
    zero = ir.Constant(_INT64, 0)
    step = ir.Constant(_INT64, _KEYS)
    for dim, lanes in _pieces(build, head_dim, 1, (64, 16, 1)):
        with cgutils.for_range_slice(build, zero, num_keys, step, intp=_INT64) as (index, _):
            for key in range(_AHEAD, _AHEAD + _KEYS):
                start = build.add(_element(build, offsets, index, key), dim)
                _prefetch(build, kv, start, lanes)
            starts = [build.add(_element(build, offsets, index, key), dim) for key in range(_KEYS)]
            emit(index, starts, dim, lanes)


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
    if element == types.int16:
        return build.fpext(build.bitcast(loaded, ir.VectorType(ir.HalfType(), lanes)), floats)
    wide = ir.VectorType(_INT32, lanes)
    high = build.shl(build.zext(loaded, wide), ir.Constant(wide, [16] * lanes))
    return build.bitcast(high, floats)


def _prefetch(build: ir.IRBuilder, kv: Any, index: Any, lanes: int) -> None:
    """Ask for `lanes` elements of the KV memory: where a block ends the hardware cannot guess."""
    byte = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [byte, _INT32, _INT32, _INT32])
    prefetch = cgutils.get_or_insert_function(build.module, kind, "llvm.prefetch.p0")
    step = _CACHE_LINE * 8 // (32 if kv.type.pointee == _FLOAT else 16)
    read, keep, data = (ir.Constant(_INT32, value) for value in (0, 3, 1))
    for part in range(0, lanes, step):
        line = build.gep(kv, [build.add(index, ir.Constant(_INT64, part))])
        build.call(prefetch, [build.bitcast(line, byte), read, keep, data])


def _multiply_add(build: ir.IRBuilder, left: list[Any], right: list[Any]) -> Any:
    """The lane-wise sum of the products of two lists of vectors."""
    total = build.fmul(left[0], right[0], flags=_CONTRACT)
    for a, b in zip(left[1:], right[1:], strict=True):
        total = build.fadd(total, build.fmul(a, b, flags=_CONTRACT), flags=_CONTRACT)
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


def _larger(build: ir.IRBuilder, a: Any, b: Any) -> Any:
    return build.select(build.fcmp_ordered(">", a, b), a, b)


def _shuffle(build: ir.IRBuilder, a: Any, b: Any, lanes: list[int]) -> Any:
    return build.shuffle_vector(a, b, ir.Constant(ir.VectorType(_INT32, len(lanes)), lanes))


def _spread(build: ir.IRBuilder, scalar: Any, lanes: int) -> Any:
    empty = ir.Constant(ir.VectorType(_FLOAT, lanes), ir.Undefined)
    first = build.insert_element(empty, scalar, ir.Constant(_INT32, 0))
    return _shuffle(build, first, first, [0] * lanes)
