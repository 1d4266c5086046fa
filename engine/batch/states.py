"""Where the tokens of a step find the states of their sequences, and where they leave them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from engine.blocks.rows import HOLE
from engine.sequences.plan import ScheduledChunk
from kernels.types import StateRuns

_Run = tuple[int, int | None, int]
"""Tokens, and the blocks of the states before and behind them; `None`: nothing is before."""


def state_runs(chunks: Sequence[ScheduledChunk], block_size: int) -> StateRuns:
    """The runs of packed chunks. A chunk is cut where its sequence has a block for a state: so it
    is between known tokens and drafts.
    """
    pool = chunks[0].sequence.table.pool
    runs = [run for chunk in chunks for run in _runs(chunk, block_size)]
    counts, sources, targets = zip(*runs, strict=True)
    pages = pool.pages[:, : pool.kinds[-1].pages]
    drawn = [
        np.arange(chunk.start, chunk.start + chunk.num_rows) >= chunk.sequence.num_prompt_tokens
        for chunk in chunks
    ]
    before = np.array([HOLE if one is None else one for one in sources])
    return StateRuns(
        starts=torch.from_numpy(np.cumsum([0, *counts], dtype=np.int32)),
        sources=torch.from_numpy(np.where(before[:, None] == HOLE, -1, pages[before])),
        targets=torch.from_numpy(pages[list(targets)]),
        drawn=torch.from_numpy(np.concatenate(drawn)),
    )


def _runs(chunk: ScheduledChunk, block_size: int) -> Iterator[_Run]:
    held = chunk.sequence.table.held
    row = held.rows[-1]
    start, end = chunk.start, chunk.start + chunk.count
    source = row[(start - 1) // block_size] if start else None
    for index in range(start // block_size, -(-end // block_size)):
        stop = min((index + 1) * block_size, end)
        if stop == end or row[index] != HOLE:
            assert row[index] != HOLE
            assert source != HOLE, "it goes on from a state that it holds"
            yield stop - start, source, row[index]
            start, source = stop, row[index]
    if chunk.drafts:
        for stop, block in held.beside.items():
            yield stop - start, source, block
            start, source = stop, block
        assert start == end + len(chunk.drafts), "a draft without a state behind it"
