"""Which tokens are computed in the next step: continuous batching under one token budget.

Decoding sequences come first, one token each, so that a long prompt never makes them wait; prompts
follow in chunks with what is left of the budget. First come, first served. When blocks run out the
newest running request is preempted: its blocks go back to the pool (where they stay findable) and
it is computed again later, so a full cache slows requests down and never fails them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from engine.block_pool import BlockPool
from engine.block_table import BlockTable
from engine.config import EngineConfig
from engine.request import EngineRequest, FinishReason
from engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class ScheduledChunk:
    """Tokens `start ... start + count` of a sequence, to be computed in this step."""

    sequence: Sequence
    start: int
    count: int
    samples: bool
    """Whether the chunk ends at the newest known token, so that the next one is drawn."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step's work, in batch order."""

    chunks: list[ScheduledChunk]

    @property
    def num_tokens(self) -> int:
        """Tokens computed in the step."""
        return sum(chunk.count for chunk in self.chunks)


class Scheduler:
    """Owns every live sequence from `add` to its end; the only place that releases its blocks."""

    def __init__(self, pool: BlockPool, config: EngineConfig, hash_extras: bytes = b"") -> None:
        self.pool = pool
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        assert config.step_token_budget is not None, "the loader has chosen one"
        self._config = config
        self._step_token_budget = config.step_token_budget
        self._extras = hash_extras
        self._live: dict[str, Sequence] = {}

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to compute."""
        return not self._live

    def add(self, request: EngineRequest) -> Sequence:
        """Queue a request which `engine.admission.refusal` has let through."""
        assert request.request_id not in self._live, "request ids are unique"
        table = BlockTable(
            self.pool,
            self._config.block_size,
            request.namespaces,
            self._extras,
            cache=self._config.prefix_cache,
        )
        sequence = Sequence(request, table)
        self._live[request.request_id] = sequence
        self.waiting.append(sequence)
        return sequence

    def abort(self, request_id: str, reason: FinishReason = "aborted") -> Sequence | None:
        """End a request now; its blocks are back when this returns. Unknown ids give `None`."""
        sequence = self._live.get(request_id)
        return None if sequence is None else self._abort(sequence, reason)

    def abort_all(self, reason: FinishReason) -> list[Sequence]:
        """End every request; returns those that had not finished before."""
        ended = [self._abort(sequence, reason) for sequence in list(self._live.values())]
        return [sequence for sequence in ended if sequence is not None]

    def plan(self) -> StepPlan:
        """Choose the next step's tokens and take the blocks they need.

        Blocks that the step will fill become findable at once: within a step all KV is written
        before any of it is read, so a request admitted later in the same plan may already share
        what an earlier one is about to compute.
        """
        self._grow_decoding()
        chunks = [self._schedule(seq, 1) for seq in self.running if seq.is_decoding]
        budget = self._step_token_budget - len(chunks)
        for sequence in self.running:
            if budget > 0 and sequence.num_uncomputed > 0:
                chunks.append(self._schedule(sequence, min(budget, sequence.num_uncomputed)))
                budget -= chunks[-1].count
        while budget > 0 and self._admit_next():
            sequence = self.running[-1]
            chunks.append(self._schedule(sequence, min(budget, sequence.num_uncomputed)))
            budget -= chunks[-1].count
        return StepPlan(chunks)

    def commit(self, plan: StepPlan, token_ids: list[int]) -> list[Sequence]:
        """Take over a computed step. `token_ids` holds one token per sampling chunk, in order.

        Returns the sequences that have news: a new token, or their end.
        """
        sampled = iter(token_ids)
        news: list[Sequence] = []
        for chunk in plan.chunks:
            sequence = chunk.sequence
            if chunk.samples:
                token_id = next(sampled)
                if sequence.sampling.max_tokens == 0:
                    sequence.finish_reason = "length"
                else:
                    sequence.append(token_id)
                news.append(sequence)
            if sequence.finish_reason is not None and not self._fills_a_block_by_lingering(
                sequence
            ):
                self._end(sequence, sequence.finish_reason)
        return news

    def check(self) -> None:
        """Verify the pool and that its references are exactly those of the running sequences.

        Raises `InvariantError`.
        """
        self.pool.check()
        references = [0] * self.pool.num_blocks
        for sequence in self.running:
            assert 0 <= sequence.num_cached <= sequence.num_computed <= sequence.num_tokens
            for block in sequence.table.blocks:
                references[block] += 1
        assert references == self.pool.references(), "a block is held by nobody, or not counted"
        assert not any(sequence.table.blocks for sequence in self.waiting)
        assert len(self._live) == len(self.running) + len(self.waiting)

    def _fills_a_block_by_lingering(self, sequence: Sequence) -> bool:
        """Whether one more token's KV completes a block that the conversation's next turn can hit.

        The last generated token is never computed for its own sake. Where it is the last of its
        block, its sequence stays for one more step, which samples nothing.
        """
        return (
            self._config.prefix_cache
            and sequence.is_decoding
            and sequence.num_tokens % self._config.block_size == 0
        )

    def _grow_decoding(self) -> None:
        """Give every decoding sequence room for its next token, oldest first."""
        index = 0
        while index < len(self.running):
            sequence = self.running[index]
            if sequence.is_decoding:
                while not sequence.table.can_grow(sequence.num_tokens):
                    victim = self.running[-1]
                    self._preempt(victim)
                    if victim is sequence:
                        return
                sequence.table.grow(sequence.num_tokens)
            index += 1

    def _preempt(self, sequence: Sequence) -> None:
        self.num_preemptions += 1
        if sequence.finish_reason is not None:
            self._end(sequence, sequence.finish_reason)
            return
        self.running.remove(sequence)
        sequence.table.release()
        sequence.num_cached = sequence.num_computed = 0
        self.waiting.appendleft(sequence)

    def _admit_next(self) -> bool:
        """Admit the first waiting request if all its known tokens fit.

        A block of headroom for each running sequence keeps it from being preempted at once.
        """
        if not self.waiting or len(self.running) >= self._config.max_running_requests:
            return False
        sequence = self.waiting[0]
        hits = sequence.table.hits(sequence.token_ids)
        if not sequence.table.can_admit(sequence.num_tokens, hits, headroom=len(self.running)):
            return False
        self.waiting.popleft()
        sequence.table.admit(sequence.num_tokens, hits)
        sequence.num_cached = sequence.num_computed = len(hits) * self._config.block_size
        if sequence.first_hit is None:
            sequence.first_hit = sequence.num_cached
        self.running.append(sequence)
        return True

    def _schedule(self, sequence: Sequence, count: int) -> ScheduledChunk:
        start = sequence.num_computed
        sequence.num_computed += count
        sequence.table.seal(sequence.token_ids, sequence.num_computed)
        samples = sequence.num_uncomputed == 0 and sequence.finish_reason is None
        return ScheduledChunk(sequence, start, count, samples)

    def _abort(self, sequence: Sequence, reason: FinishReason) -> Sequence | None:
        """End a live request early; `None` if it had finished and only its blocks were left."""
        finished = sequence.finish_reason is not None
        self._end(sequence, sequence.finish_reason or reason)
        return None if finished else sequence

    def _end(self, sequence: Sequence, reason: FinishReason) -> None:
        """The one place where a live request ends, whatever ended it."""
        sequence.finish_reason = reason
        del self._live[sequence.request.request_id]
        if sequence in self.running:
            self.running.remove(sequence)
            sequence.table.release()
        else:
            self.waiting.remove(sequence)
