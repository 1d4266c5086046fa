"""Triton: an even cut of attention over keys into the programs of a fixed grid.

Contexts differ, and a captured graph's grid cannot follow them. So the grid is what fills the
device, and the programs cut the work among themselves (Stream-K, Osama et al. 2023; FlashInfer's
planner, Ye et al. 2025, without the host): all units of all items in a row, an equal share for each
program. An item is a tile of query rows with the keys that they attend to; a unit is some keys of
it. What a program computes of a part of an item is a partial result: an output, normalised, and the
logarithm (base 2) of the sum behind it, in a slot of its own. An item's slots are neighbours.

`fixed` cuts do not depend on the rest of the batch: then every unit has a slot.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.arguments import Slots

SPLIT = 512
"""Keys of a part where results must not depend on batch-mates; a multiple of every tile."""

_MERGED = tl.constexpr(4096)
"""Numbers of partial results that a program reads at a time, if one result is not more."""
_FEWEST_ARRIVALS = 1 << 16

_INTERPRETED_PROGRAMS = 2
_FEWEST_LANES = 64


@dataclass(frozen=True, slots=True)
class Partials:
    """Partial results: a slot holds those of one item's rows."""

    slots: Slots
    num_programs: int  # that compute them
    rows: int  # of a slot
    unit: int  # keys
    fixed: bool


@cache
def num_processors(device: torch.device) -> int:
    """Of the device, each of which runs a few programs at a time."""
    if device.type != "cuda":  # interpreted, where a few show the cut as well as many
        return _INTERPRETED_PROGRAMS
    return torch.cuda.get_device_properties(device).multi_processor_count


@cache
def capability(device: torch.device) -> int:
    """The device's compute capability (90: sm_90); 0 in the interpreter."""
    if device.type != "cuda":
        return 0
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def shared_kib(arch: int) -> int:
    """Shared memory of a processor of that compute capability, in KiB.

    What data centres have holds twice as much as its contemporaries elsewhere.
    """
    if 90 <= arch < 120:
        return 228
    return 164 if arch in (80, 87) else 100


def partials(
    num_items: int,
    rows: int,
    head_dim: int,
    programs_per_processor: int,
    unit: int,
    device: torch.device,
    most_units: int = 0,
) -> Partials:
    """Room for the partial results of `num_items` items.

    With `most_units` the cut is fixed, and an item has that many units at most.
    """
    num_programs = programs_per_processor * num_processors(device)
    num_slots = num_items * most_units or num_items + num_programs
    slots = new_slots(num_slots, rows, head_dim, device)
    return Partials(slots, num_programs, rows, unit, fixed=most_units > 0)


def new_slots(num_slots: int, rows: int, head_dim: int, device: torch.device) -> Slots:
    """Room for so many partial results of `rows` rows."""
    return Slots(
        torch.empty((num_slots, rows, head_dim), dtype=torch.float32, device=device),
        torch.empty((num_slots, rows), dtype=torch.float32, device=device),
    )


def arrivals(num_items: int, device: torch.device) -> Tensor:
    """How many units of each item have arrived: zeros, which whoever counts them leaves as zeros.

    They are the same from call to call, since a memory that were cleared each time would cost the
    launch that counting saves. So kernels that count must not run beside each other.
    """
    return _zeros(max(_FEWEST_ARRIVALS, int(triton.next_power_of_2(num_items))), device)


@cache
def _zeros(count: int, device: torch.device) -> Tensor:
    return torch.zeros(count, dtype=torch.int32, device=device)


def padded(count: int) -> int:
    """The lanes that a program looks through `count` sequences or groups with.

    At least 64, so that a growing batch does not wait for a compiler at every power of two.
    """
    return max(_FEWEST_LANES, int(triton.next_power_of_2(count)))


@triton.jit
def slots_of(item, first_unit, num_units, share, FIXED: tl.constexpr):
    """The first slot and the last of an item whose units are `first_unit` and those behind it."""
    last_unit = first_unit + num_units - 1
    if FIXED:
        return first_unit, last_unit
    # Items and programs both ascend along the units, so that no two pairs have the same sum.
    return first_unit // share + item, last_unit // share + item


@triton.jit
def share_of_program(num_units):
    """How many units a program has, the first of this one's, and where they end."""
    share = tl.cdiv(num_units, tl.num_programs(0))
    first = tl.program_id(0) * share
    return share, first, tl.minimum(first + share, num_units)


@triton.jit
def store_partial(
    parts: Slots,
    slot,
    seen,
    real,  # [rows]
    SLOT_ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """Store what a walk returned; of a row that saw no key, zeros that weigh nothing."""
    output, top, total = seen
    rows = slot.to(tl.int64) * SLOT_ROWS + tl.arange(0, output.shape[0])
    dims = tl.arange(0, output.shape[1])
    inside = real[:, None] & (dims < HEAD_DIM)[None, :]
    to = parts.outputs_ptr + rows[:, None] * HEAD_DIM + dims[None, :]
    tl.store(to, output / tl.where(total > 0.0, total, 1.0)[:, None], mask=inside)
    tl.store(parts.sums_ptr + rows, top + tl.log2(total), mask=real)


@triton.jit
def add_partials(
    seen,  # as in `kernels.triton.walk`
    parts: Slots,
    first,
    last,
    rows,  # [rows], of a slot
    real,  # [rows]
    slot_rows,
    HEAD_DIM: tl.constexpr,
):
    """Returns `seen` with the slots `first` to `last` merged in."""
    output, top, total = seen
    SIZE: tl.constexpr = output.shape[0] * output.shape[1]
    SLOTS: tl.constexpr = _MERGED // SIZE if SIZE < _MERGED else 1
    dims = tl.arange(0, output.shape[1])
    inside = real[:, None] & (dims < HEAD_DIM)[None, :]
    for start in range(first, last + 1, SLOTS):
        slots = start + tl.arange(0, SLOTS)
        filled = slots <= last
        at = slots.to(tl.int64)[:, None] * slot_rows + rows[None, :]
        stored = filled[:, None] & real[None, :]
        sums = tl.load(parts.sums_ptr + at, mask=stored, other=float("-inf"))
        outputs = tl.load(
            parts.outputs_ptr + at[:, :, None] * HEAD_DIM + dims[None, None, :],
            mask=filled[:, None, None] & inside[None, :, :],
            other=0.0,
        )
        new_top = tl.maximum(top, tl.max(sums, axis=0))
        shrink = tl.exp2(top - new_top)
        weights = tl.exp2(sums - new_top[None, :])
        output = output * shrink[:, None] + tl.sum(outputs * weights[:, :, None], axis=0)
        total = total * shrink + tl.sum(weights, axis=0)
        top = new_top
    return output, top, total
