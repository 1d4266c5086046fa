"""Measures, at start, what `engine.schedule.swap_or_recompute` predicts from: copies and forward
passes.

Tokens are different ones: each reads experts of its own, where a model has some.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter

import numpy as np
import numpy.typing as npt
import torch

from engine.batch.batch import pack
from engine.draft.worth import RowCosts
from engine.model.layers.paged_model import PagedModel
from engine.model.self_check import sample
from engine.model.step_size import CPU_STEP, cpu_tokens
from engine.schedule.swap_or_recompute import ComputeCost, CopyCost, CostModel
from kernels.types import StateRuns

_PASS_TOKENS = 64
"""Of the pass that shows what a token costs; more where that is quick."""
_STEP_TOKENS = 64
"""Of the pass that shows how long a step of prompts should be."""
_CONTEXT = 1024
"""Tokens in front of the pass that shows what attention to a longer context costs."""
_ROWS = (1, 4, 8, 16, 32)
"""Of the steps that show what rows cost."""
MOST_ROWS = _ROWS[-1]
MOST_KEYS = _CONTEXT
"""Behind which they are timed."""
_FEW_ROWS = 8
_FEW_KEYS = 256
_COPIED_BYTES = 32 << 20
_MAX_COPIED_PAGES = 16
_REPEATS = range(2, 5)
"""The fastest counts; what takes long is repeated less often."""
_LONG_SECONDS = 0.1


def calibrate(model: PagedModel, step_tokens: int, max_context_tokens: int) -> CostModel:
    """Time copies and forward passes on the memory of `model`, which holds nothing of use yet."""
    return CostModel(
        swap_out=_copy_cost(model, model.swap_out),
        swap_in=_copy_cost(model, model.swap_in),
        compute=_compute_cost(model, step_tokens, max_context_tokens),
    )


def calibrate_steps(model: PagedModel, longest: int) -> int:
    """Tokens that suit a step of prompts on a CPU, for sequences of up to `longest` tokens.

    Where one token takes long, or there are no more, nothing is timed. On memory of its own: who
    allocates some afterwards has it alone.
    """
    many_tokens = min(_STEP_TOKENS, longest)
    model.allocate((-(-many_tokens // model.block_size) + 1) * model.pages.num_columns)
    batch = pack([([0], 0, 1, _pages(model, 1))], [0], model.block_size, model.device)
    start = perf_counter()
    model.forward(batch)
    if many_tokens < 2 or perf_counter() - start > _LONG_SECONDS:
        return CPU_STEP.tokens
    alone, many = (_pass_seconds(model, 0, count) for count in (1, many_tokens))
    return cpu_tokens(alone, (many - alone) / (many_tokens - 1))


def calibrate_replay(costs: CostModel, model: PagedModel, replay: Callable[[], object]) -> None:
    """Where decode steps are replayed they cost what `replay` takes, which does one of them."""
    costs.compute = replace(costs.compute, per_decode_step=_fastest(model, replay))


def calibrate_rows(
    model: PagedModel, most_rows: int, most_keys: int, replay: Callable[[int], object] | None
) -> RowCosts:
    """Time steps of a few rows of one sequence, as drafts are, of `most_rows` at most and behind
    `most_keys`; where decode steps are replayed, by `replay`, which does one of so many rows.
    """
    few_keys = min(_FEW_KEYS, most_keys)
    rows = [count for count in _ROWS if count <= most_rows]
    many = min(_FEW_ROWS, rows[-1])
    per_key = 0.0
    if most_keys >= 2 * few_keys:
        more_keys = min(_CONTEXT, most_keys)
        more = _rows_seconds(model, many, more_keys) - _rows_seconds(model, many, few_keys)
        per_key = max(0.0, more / (many * (more_keys - few_keys)))
    points: list[tuple[int, float]] = []
    for count in rows:
        if replay is None:
            seconds = _rows_seconds(model, count, few_keys) - per_key * count * few_keys
        else:
            seconds = _fastest(model, partial(replay, count))
        # More rows take no less: what says so was disturbed.
        points.append((count, max(seconds, points[-1][1] if points else 0.0)))
    return RowCosts(tuple(points), per_key)


def _rows_seconds(model: PagedModel, count: int, context: int) -> float:
    """Time a forward pass over `count` tokens, each in a row of its own, behind a context."""
    pages, context_ids = _pages(model, context), [0] * (context - 1)
    parts = [([*context_ids, token], context - 1, 1, pages) for token in _tokens(model, count)]
    batch = pack(parts, range(count), model.block_size, model.device)
    batch = replace(batch, states=_states(model, count) if model.pages.state_pages else None)
    return _fastest(model, lambda: model.forward(batch))


def _states(model: PagedModel, count: int) -> StateRuns:
    """Of a newest token and drafts behind it: behind that and behind them a state is left, in the
    last pages.
    """
    targets = len(model.memory) - 1 - torch.arange(model.pages.state_pages, dtype=torch.int32)
    targets = targets.remainder(len(model.memory))[None]
    ends = sorted({0, 1, count})
    starts = torch.tensor(ends, dtype=torch.int32)
    targets = targets.repeat(len(ends) - 1, 1)
    before = targets.clone()
    before[0] = -1
    return StateRuns(starts, before, targets)


def _tokens(model: PagedModel, count: int) -> list[int]:
    return sample(model.weights.config.vocab_size, count)


def _pages(model: PagedModel, num_tokens: int) -> npt.NDArray[np.int32]:
    """Pages for so many tokens, [num_columns, num_blocks]. Where there are fewer, values are wrong;
    the time is right.
    """
    num_columns, num_blocks = model.pages.num_columns, -(-num_tokens // model.block_size)
    needed = num_columns * num_blocks
    # Pages never written share one of the system's zeros, read faster than memory is.
    model.memory[: min(needed, len(model.memory))].zero_()
    pages = np.arange(needed, dtype=np.int32) % len(model.memory)
    return pages.reshape(num_columns, num_blocks)


def _copy_cost(model: PagedModel, copy: Callable[[Sequence[tuple[int, int]]], None]) -> CopyCost:
    """From one page, and from as many as are quickly copied, scattered as they are in use."""
    most = min(_MAX_COPIED_PAGES, max(2, _COPIED_BYTES // model.page_bytes))
    count = min(most, len(model.memory), len(model.host_memory))
    moves = list(zip(range(count), reversed(range(count)), strict=True))
    many = _fastest(model, lambda: copy(moves))
    if count == 1:
        return CopyCost(0.0, many)
    one = _fastest(model, lambda: copy(moves[:1]))
    per_page = max(0.0, many - one) / (count - 1)
    return CopyCost(max(0.0, one - per_page), per_page)


def _compute_cost(model: PagedModel, step_tokens: int, max_context_tokens: int) -> ComputeCost:
    """From a pass over one token, over as many as take long, and over so many in a context."""
    most = min(step_tokens, -(-max_context_tokens // 2))
    count, shallow = 1, _pass_seconds(model, 0, 1)
    alone = shallow
    while count < most and shallow < _LONG_SECONDS:
        count = min(max(4 * count, _PASS_TOKENS), most)
        shallow = _pass_seconds(model, 0, count)
    context = min(_CONTEXT, max_context_tokens - count)
    if count == 1 or context < 1:
        return ComputeCost(alone, 0.0, 0.0, step_tokens, alone)
    deeper = _pass_seconds(model, context, count)
    # Once more: had another process disturbed it, a token would seem to cost next to nothing.
    alone = min(alone, _pass_seconds(model, 0, 1))
    per_pair = max(0.0, deeper - shallow) / (context * count)
    rest = shallow - alone - per_pair * count * (count + 1) / 2
    return ComputeCost(alone, max(0.0, rest) / (count - 1), per_pair, step_tokens, alone)


def _pass_seconds(model: PagedModel, start: int, count: int) -> float:
    """Time a forward pass over `count` tokens behind a context of `start`."""
    ids = [0] * start + _tokens(model, count)
    parts = [(ids, start, count, _pages(model, start + count))]
    batch = pack(parts, [count - 1], model.block_size, model.device)
    return _fastest(model, lambda: model.forward(batch))


def _fastest(model: PagedModel, action: Callable[[], object]) -> float:
    seconds: list[float] = []
    while len(seconds) < _REPEATS.start or (
        len(seconds) in _REPEATS and sum(seconds) < 2 * _LONG_SECONDS
    ):
        start = perf_counter()
        action()
        if model.device.type == "cuda":
            torch.cuda.synchronize(model.device)
        seconds.append(perf_counter() - start)
    return min(seconds)
