"""Rows beside a step's tokens, with which torch computes a token alike whatever else there is.

torch computes a tensor in vectors of elements, and those behind the last whole vector in another
way, which gives other bits; so it does wherever its threads part. Here rows are added until any
tensor of a pass is whole vectors, and one thread computes them. Products leave these rows out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import pad

from engine.batch.batch import Batch

_ROWS: Final = 64
"""Elements that torch computes at once, at most: two vectors of narrow ones."""

_num_tokens: ContextVar[int | None] = ContextVar("num_tokens", default=None)


@contextmanager
def filled(batch: Batch) -> Iterator[Batch]:
    """The batch with more rows, which are no sequence's, for a pass that is computed within."""
    num_tokens, threads = len(batch.token_ids), torch.get_num_threads()
    rows = batch.token_ids, batch.positions, batch.is_long
    token_ids, positions, is_long = (
        None if one is None else pad(one, (0, -num_tokens % _ROWS)) for one in rows
    )
    assert token_ids is not None
    assert positions is not None
    token = _num_tokens.set(num_tokens)
    torch.set_num_threads(1)
    try:
        yield replace(batch, token_ids=token_ids, positions=positions, is_long=is_long)
    finally:
        torch.set_num_threads(threads)
        _num_tokens.reset(token)


def of_tokens(compute: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """What `compute` makes of each row by itself; nothing of those that are no token's."""
    num_tokens = _num_tokens.get()
    if num_tokens is None or len(rows) != num_tokens + -num_tokens % _ROWS:
        return compute(rows)
    return pad(compute(rows[:num_tokens]), (0, 0, 0, len(rows) - num_tokens))
