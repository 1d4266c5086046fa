"""How a batch is cut into items that threads share, and how their results become one again.

An item is a part of a run of keys: of one that several sequences share, or of what is a sequence's
own. The functions are compiled by Numba; `kernels.cpu_paged` computes the items.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from numba import njit

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[Any]

SPLIT = 256
"""Keys in a split: never chosen by the batch."""

_KEY_ROWS = 8
"""As many query rows as take the time of fetching a key and its value."""

_ZERO, _LOWEST = np.float32(0), np.float32(-np.inf)


class Groups(NamedTuple):
    """The arrays of `kernels.attention.PrefixGroups`."""

    begins: Integers
    ends: Integers
    member_starts: Integers
    members: Integers
    private_starts: Integers


class Plan(NamedTuple):
    """The batch cut into items: (run of keys, split, KV head), in this order.

    First come the runs of the groups, then one for every sequence: what is its own. The arrays are
    per run, with a total at the end of each `first_...`, where nothing else is said. `cost` counts,
    before each item and in all, pairs of a key and a query row; a key itself is `_KEY_ROWS` more.
    """

    num_groups: int
    begin: Integers
    end: Integers
    table: Integers  # the row of the block tables that leads to the keys
    first_token: Integers
    first_item: Integers
    first_row: Integers  # of partial results
    tokens: Integers  # [first_token[-1]], the packed tokens whose queries read each run
    positions: Integers  # [first_token[-1]], of each in its sequence
    owner: Integers  # [num_items], run
    cost: Integers  # [num_items + 1]


_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(**options: Any) -> Callable[[_Function], _Function]:
    """Compile a function on its first call, to run without the GIL; division does not raise."""
    decorate: Callable[[_Function], _Function] = njit(nogil=True, error_model="numpy", **options)
    return decorate


@compiled(cache=True)
def plan_items(
    query_starts: Integers,
    context_lens: Integers,
    groups: Groups,
    longest: int,
    num_heads: int,
    num_kv_heads: int,
    window: int,
) -> Plan:
    """Cut up the groups' runs and every sequence of at most `longest` queries."""
    num_seqs, num_groups = context_lens.shape[0], groups.begins.shape[0]
    num_runs = num_groups + num_seqs
    begin, end = np.zeros(num_runs, np.int64), np.zeros(num_runs, np.int64)
    table = np.zeros(num_runs, np.int64)
    first_token = np.zeros(num_runs + 1, np.int64)
    tokens = np.empty(groups.members.shape[0] + query_starts[-1], np.int64)
    positions = np.empty(tokens.shape[0], np.int64)
    count = 0
    for run in range(num_groups):
        begin[run], end[run] = groups.begins[run], groups.ends[run]
        for member in groups.members[groups.member_starts[run] : groups.member_starts[run + 1]]:
            tokens[count], positions[count] = query_starts[member], context_lens[member] - 1
            count += 1
        first_token[run + 1] = count
        if begin[run] < end[run]:
            table[run] = groups.members[groups.member_starts[run]]
    for seq in range(num_seqs):
        run = num_groups + seq
        query_len = query_starts[seq + 1] - query_starts[seq]
        table[run] = seq
        if query_len <= longest:
            begin[run], end[run] = groups.private_starts[seq], context_lens[seq]
            if window > 0:
                oldest = max(context_lens[seq] - query_len - window + 1, 0)
                begin[run] = max(begin[run], oldest // SPLIT * SPLIT)
            for query in range(query_len):
                tokens[count] = query_starts[seq] + query
                positions[count] = context_lens[seq] - query_len + query
                count += 1
        first_token[run + 1] = count
    runs = (begin, end, table, first_token)
    first_item, first_row, owner, cost = _cut(
        begin, end, first_token, num_heads // num_kv_heads, num_kv_heads
    )
    return Plan(num_groups, *runs, first_item, first_row, tokens, positions, owner, cost)


@compiled()
def _cut(
    begin: Integers, end: Integers, first_token: Integers, group: int, num_kv_heads: int
) -> tuple[Integers, Integers, Integers, Integers]:
    """Where each run's items and partial rows start, and of each item its run and its cost."""
    num_runs = begin.shape[0]
    first_item, first_row = np.zeros(num_runs + 1, np.int64), np.zeros(num_runs + 1, np.int64)
    for run in range(num_runs):
        rows = (first_token[run + 1] - first_token[run]) * group
        items = (end[run] - begin[run] + SPLIT - 1) // SPLIT * num_kv_heads if rows > 0 else 0
        first_item[run + 1] = first_item[run] + items
        first_row[run + 1] = first_row[run] + items * rows
    owner = np.empty(first_item[-1], np.int64)
    cost = np.zeros(first_item[-1] + 1, np.int64)
    for run in range(num_runs):
        rows = (first_token[run + 1] - first_token[run]) * group
        for item in range(first_item[run], first_item[run + 1]):
            owner[item] = run
            start = begin[run] + (item - first_item[run]) // num_kv_heads * SPLIT
            cost[item + 1] = cost[item] + min(end[run] - start, SPLIT) * (rows + _KEY_ROWS)
    return first_item, first_row, owner, cost


@compiled(cache=True)
def merge_parts(
    plan: Plan, num_kv_heads: int, partial: Floats, statistics: Floats, output: Floats
) -> None:
    """Fold all splits of all runs into the planned rows of `output`, [num_tokens, num_heads,
    head_dim]."""
    num_tokens, num_heads, head_dim = output.shape
    group = num_heads // num_kv_heads
    own = plan.tokens[plan.first_token[plan.num_groups] : plan.first_token[-1]]
    highest = np.empty((num_tokens, num_heads), np.float32)
    total = np.empty((num_tokens, num_heads), np.float32)
    for token in own:
        output[token], highest[token], total[token] = _ZERO, _LOWEST, _ZERO
    for run in range(plan.begin.shape[0]):
        row = plan.first_row[run]
        for item in range(plan.first_item[run + 1] - plan.first_item[run]):
            head = item % num_kv_heads * group
            for token in plan.tokens[plan.first_token[run] : plan.first_token[run + 1]]:
                for h in range(head, head + group):
                    if statistics[row, 1] > _ZERO:
                        top = max(highest[token, h], statistics[row, 0])
                        kept = math.exp(highest[token, h] - top)
                        added = math.exp(statistics[row, 0] - top)
                        for dim in range(head_dim):
                            output[token, h, dim] *= kept
                            output[token, h, dim] += added * partial[row, dim]
                        total[token, h] = kept * total[token, h] + added * statistics[row, 1]
                        highest[token, h] = top
                    row += 1
    for token in own:
        for head in range(num_heads):
            for dim in range(head_dim):
                output[token, head, dim] /= total[token, head]
