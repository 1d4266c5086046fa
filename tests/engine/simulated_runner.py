"""What computes with the model without weights.

It reads a sequence back from "KV memory" (token ids stored in blocks), so a wrong block table, a
stale block or a lost write changes the output, just as it would with a real model.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, count, pairwise
from typing import NamedTuple

import numpy as np

from engine.api import (
    Kind,
    PromptLogprobs,
)
from engine.batch.states import state_runs
from engine.blocks.rows import HOLE
from engine.blocks.table import BlockTable
from engine.blocks.transfers import Transfers
from engine.disk.memory import Fetched, Landing
from engine.sequences.beam import Candidate, num_candidates
from engine.sequences.plan import Sampled, StepPlan
from engine.sequences.sequence import Sequence
from kernels.types import StateRuns
from tests.engine.simulated_model import EOS, candidates, next_token

Columns = list[tuple[Kind, list[int]]]
"""Of the pages of a kind's blocks: the first of each block, the second, ..."""


Written = tuple[Sequence, int, list[int], int, list[int], Columns]


class Work(NamedTuple):
    """What a runner reads of a plan when it is launched; the rest is on the device."""

    transfers: Transfers
    writes: list[Written]
    """Of each chunk: whose it is, where it starts, its known tokens and drafts, how many of them
    come before the drafts, if it has some, those before it, and its pages."""
    draws: list[tuple[Sequence, Sequence, int, list[int], Columns]]
    """Of each sampler: itself, whose row it draws from, behind how many tokens, its known tokens
    and its pages."""
    scores: list[tuple[list[int], Columns]]
    """Of each scored position: the tokens up to the one behind it, and the pages."""
    runs: StateRuns | None
    """Of all tokens, where layers keep a state."""


def _columns(table: BlockTable) -> Columns:
    pages = table.pool.pages
    return [
        (kind, [HOLE if block == HOLE else int(pages[block, page]) for block in row])
        for kind, row in zip(table.pool.kinds, table.rows, strict=True)
        for page in range(kind.pages)
        if not kind.is_state
    ]


def _state(history: list[int]) -> tuple[int, int]:
    return len(history), hash(tuple(history))


def _views(rows: np.ndarray, num_blocks: int) -> list[memoryview]:
    return [memoryview(block).cast("B") for block in rows.reshape(num_blocks, -1)]


class SimulatedRunner:
    """Writes each token into its slot, then computes from what the block table shows.

    Targets of transfers are poisoned first, so that one that reads another one's target shows.
    """

    def __init__(self, num_pages: int, block_size: int, num_host_pages: int = 0) -> None:
        self.memory = np.full((num_pages, block_size), -1)
        self.host_memory = np.full((num_host_pages, block_size), -1)
        self.block_size = block_size
        self._newest: dict[Sequence, int] = {}

    def execute(self, plan: StepPlan) -> Sampled:
        return self.compute(self.read(plan))

    @property
    def images(self) -> SimulatedRunner:
        return self

    @property
    def page_bytes(self) -> int:
        return self.memory[:1].nbytes

    @property
    def block_layout(self) -> bytes:
        return str(self.memory.dtype).encode()

    def make_ready(self, num_pages: int) -> None:
        assert num_pages <= len(self.memory)

    def fetch(self, blocks: list[list[int]]) -> Fetched:
        return Fetched(_views(self.memory[list(chain(*blocks))], len(blocks)), lambda: True)

    def landing(self, blocks: list[list[int]]) -> Landing:
        """Targets are poisoned; what is written there is in the memory once it has landed."""
        pages = list(chain(*blocks))
        rows = np.full((len(pages), self.block_size), -3)
        self.memory[pages] = -3
        return Landing(_views(rows, len(blocks)), lambda: self.memory.__setitem__(pages, rows))

    def read(self, plan: StepPlan) -> Work:
        writes, draws = [], []
        for chunk in plan.chunks:
            one, end = chunk.sequence, chunk.start + chunk.count
            tokens = [*one.token_ids[chunk.start : end], *chunk.drafts]
            assert tokens or chunk.is_unknown
            count = chunk.count if chunk.drafts else 0
            before = one.token_ids[: chunk.start]
            writes.append((one, chunk.start, tokens, count, before, _columns(one.table)))
            draws += [
                (
                    draw.sequence,
                    one,
                    draw.num_tokens,
                    [*draw.sequence.token_ids, *draw.drafts],
                    _columns(draw.sequence.table),
                )
                for draw in chunk.draws
            ]
            assert not chunk.drafts or (chunk.samplers == (one,) and one.num_uncomputed == 0)
            assert all(sampler.num_tokens == end for sampler in chunk.samplers)
            assert one.num_drawn == end - len(one.token_ids) or end < one.num_tokens
        scores = [
            (chunk.sequence.token_ids[: position + 2], _columns(chunk.sequence.table))
            for chunk in plan.chunks
            for position in chunk.scored
        ]
        has_states = any(kind.is_state for kind in plan.chunks[0].sequence.table.pool.kinds)
        runs = state_runs(plan.chunks, self.block_size) if has_states else None
        return Work(plan.transfers, writes, draws, scores, runs)

    def compute(self, work: Work) -> Sampled:
        """Needs the work alone: sequences tell whose token the step before has drawn, no more."""
        SimulatedRunner.move(self, work.transfers)
        return self.draw(work)

    def move(self, transfers: Transfers) -> None:
        _move(self.memory, self.host_memory, transfers.swap_outs)
        _move(self.host_memory, self.memory, transfers.swap_ins)
        _move(self.memory, self.memory, transfers.copies)
        filled = [block for _, block in transfers.swap_ins + transfers.copies]
        assert len(set(filled)) == len(filled), "two transfers into one block"

    def draw(self, work: Work) -> Sampled:
        for sequence, start, tokens, _, _, columns in work.writes:
            # A chunk without known tokens is the newest token, which the step before has drawn.
            for position, token in enumerate(tokens or [self._newest[sequence]], start):
                index, offset = divmod(position, self.block_size)
                for _, pages in columns:
                    assert pages[index] != HOLE, "a token is written nowhere"
                    self.memory[pages[index], offset] = token
        for _, start, _, _, before, columns in work.writes:
            self._look(before, start, columns)
        if work.runs is not None:
            self._go_on(work.writes, work.runs)
        known = {
            sequence: range(start + (count or len(tokens)), start + len(tokens) + 1)
            for sequence, start, tokens, count, _, _ in work.writes
        }
        drawn: dict[Sequence, int] = {}
        tokens: list[int] = []
        listed: dict[int, list[Candidate]] = {}
        for sampler, sequence, end, token_ids, columns in work.draws:
            newest = [self._newest[sampler]] if len(token_ids) < end else []
            history = token_ids + newest
            # What equals the sequence before it computes nothing, and goes on behind that.
            self._look(history, end - 1 if sampler is sequence else end, columns)
            rows = known[sequence]
            assert end - len(newest) in rows, "it draws from another one's row"
            beam = sampler.request.beam
            if beam is not None:
                listed[len(tokens)] = candidates(history, num_candidates(beam, (EOS,)))
            tokens.append(next_token(history, sampler.index))
            drawn[sampler] = tokens[-1]
        self._newest = drawn
        scores: list[PromptLogprobs] = []
        for known_ids, columns in work.scores:
            history = known_ids[:-1]
            self._look(history, len(history) - 1, columns)
            scores.append(PromptLogprobs(-next_token(history), [], known_ids[-1]))
        return Sampled(tokens, [None] * len(tokens), listed, prompt_logprobs=scores)

    def _go_on(self, writes: list[Written], runs: StateRuns) -> None:
        """The states before each run are those of all tokens up to there; behind it others are."""
        histories = [
            (before + (tokens or [self._newest[sequence]]), start + done)
            for sequence, start, tokens, _, before, _ in writes
            for done in range(len(tokens) or 1)
        ]
        ends = runs.starts.tolist()
        for number, (first, end) in enumerate(pairwise(ends)):
            history, start = histories[first]
            if start:
                state = self.memory[runs.sources[number].numpy(), :2]
                assert (state == _state(history[:start])).all(), "another state"
            else:
                assert (runs.sources[number] == -1).all()
            self.memory[runs.targets[number].numpy()] = -4
            self.memory[runs.targets[number].numpy(), :2] = _state(history[: start + end - first])
        assert ends[-1] == len(histories), "a token in no run"

    def _look(self, history: list[int], position: int, columns: Columns) -> None:
        """Layers of each kind see what they are to see at a position, as far as it is known."""
        for kind, pages in columns:
            for seen in range(kind.first_needed(position), len(history)):
                index, offset = divmod(seen, self.block_size)
                assert pages[index] != HOLE, "what is seen was given back"
                is_seen = self.memory[pages[index], offset] == history[seen]
                assert is_seen, "the KV memory shows other tokens"


class LateRunner(SimulatedRunner):
    """Computes a step when its result is wanted, as late as can be, but in the order of launches.

    `launches` tells of each launch how many steps before it were not computed yet.
    """

    def __init__(self, num_pages: int, block_size: int, num_host_pages: int = 0) -> None:
        super().__init__(num_pages, block_size, num_host_pages)
        self.queue: list[LateStep | LateMoves] = []
        self.launches: list[int] = []

    def move(self, transfers: Transfers) -> None:
        """Between two steps; those of a step are its own."""
        self.queue.append(LateMoves(lambda: super(LateRunner, self).move(transfers)))

    def landing(self, blocks: list[list[int]]) -> Landing:
        """They land behind all steps launched so far."""
        pages = list(chain(*blocks))
        rows = np.full((len(pages), self.block_size), -3)
        moves = LateMoves(lambda: self.memory.__setitem__(pages, rows))
        return Landing(_views(rows, len(blocks)), lambda: self.queue.append(moves))

    def fetch(self, blocks: list[list[int]]) -> Fetched:
        """Copied behind all that was launched so far: what has landed may still be in the queue."""
        pages = list(chain(*blocks))
        rows = np.full((len(pages), self.block_size), -5)
        moves = LateMoves(lambda: rows.__setitem__(slice(None), self.memory[pages]))
        self.queue.append(moves)
        looks = count()
        return Fetched(_views(rows, len(blocks)), lambda: self._is_done(moves, next(looks)))

    def _is_done(self, moves: LateMoves, looks: int) -> bool:
        """Moves that no step is before are done without anybody waiting for them; others after some
        looks, as steps come to their end if nobody wants their results, too.
        """
        while moves in self.queue and (looks > 2 or isinstance(self.queue[0], LateMoves)):
            self.queue.pop(0).compute()
        return moves not in self.queue

    def launch(self, plan: StepPlan) -> LateStep:
        self.launches.append(len(self.queue))
        self.queue.append(LateStep(self, self.read(plan)))
        return self.queue[-1]


class LateMoves:
    """Moves of blocks between two steps."""

    def __init__(self, compute: Callable[[], None]) -> None:
        self.compute = compute


class LateStep:
    def __init__(self, runner: LateRunner, work: Work) -> None:
        self._runner = runner
        self._work = work
        self._sampled: Sampled | None = None

    def compute(self) -> None:
        self._sampled = self._runner.compute(self._work)

    def result(self) -> Sampled:
        while self._sampled is None:
            self._runner.queue.pop(0).compute()
        return self._sampled


def _move(source: np.ndarray, target: np.ndarray, moves: list[tuple[int, int]]) -> None:
    """One batched call: everything is read from where nothing has been written yet."""
    if not moves:
        return
    sources, targets = [one for one, _ in moves], [other for _, other in moves]
    assert len(set(targets)) == len(targets), "two transfers to one place"
    target[targets] = -2
    target[targets] = source[sources]
