"""Guesses of a small model that runs beside the one that answers (Leviathan, Kalman and Matias,
"Fast inference from transformers via speculative decoding", ICML 2023).

It is computed like any model (`engine.run.steps.Runner`), in blocks of a pool of its own, and knows
nothing but the tokens of running sequences: each has a shadow that follows it. One round guesses a
token for every sequence that is still worth one. What it holds is never needed: where there is no
room, or it has been lost, nothing is guessed, or it is computed again.

No shadow is found by its tokens, so nothing that one tenant's guesses leave behind reaches another.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence as Ordered
from time import perf_counter
from typing import Final

from engine.api import EngineInfo, StepOutOfMemory
from engine.blocks.pool import BlockPool
from engine.blocks.table import BlockTable
from engine.draft.drafter import NO_DRAFT, Draft
from engine.draft.worth import RowCosts
from engine.draft_model.shadow import PRIORS, Shadow
from engine.run.steps import Runner
from engine.sequences.pace import Pace
from engine.sequences.plan import ScheduledChunk, StepPlan
from engine.sequences.sequence import Sequence

_log = logging.getLogger(__name__)

_OWNER: Final = ""
_FEW_TOKENS: Final = 2
"""That a shadow has to compute before its first guess, if all of its last draft were right."""
_LONGEST_REST: Final = 64
"""Times that guesses for a sequence are not worth it before one is made all the same."""
_WEIGHT_LESS: Final = 0.5
_WEIGHT_MORE: Final = 0.1
"""Of a new observation of what a round takes: what took longer may have been disturbed."""


class DraftModel:
    """Guesses with a small model; a `Drafter`."""

    priors: Ordered[float] = PRIORS

    def __init__(
        self,
        runner: Runner,
        info: EngineInfo,
        vocab_size: int,
        costs: RowCosts,
        step_token_budget: int,
        pause_seconds: float,
    ) -> None:
        """`info` is about the small model and its blocks, `costs` what its steps take before any
        was observed, and `vocab_size` that of the model that answers. In a step it computes up to
        `step_token_budget` tokens of prompts, or as many as take about `pause_seconds`; 0 is no
        bound.
        """
        self._runner = runner
        self._pool = BlockPool(info.num_blocks)
        self._block_size = info.block_size
        self._longest = info.max_context_tokens
        self._vocab_size = min(info.vocab_size, vocab_size)
        self._budget = step_token_budget
        self._pace = Pace(pause_seconds)
        most = info.max_running_sequences
        curve = costs.curve(most)
        self._seconds = [
            curve[min((1 << digits) - 1, most)] for digits in range(most.bit_length() + 1)
        ]
        """Of a round, by the binary digits of its number of rows."""
        self._shadows: dict[Sequence, Shadow] = {}
        """The one that was wanted last comes last."""

    def propose(
        self, wanted: Ordered[tuple[Sequence, int]], token_seconds: float, /
    ) -> list[Draft]:
        """See `Drafter`. Guessing ends for a sequence where a guess takes longer than it is likely
        to save.
        """
        goals = self._follow(wanted)
        active = list(goals)
        try:
            while active := self._worthwhile(active, goals, token_seconds):
                active = self._round(active)
        except StepOutOfMemory:
            _log.warning("the draft model lacks memory: nothing is guessed in this step")
            for sequence in list(self._shadows):
                self.ended(sequence)
        return [
            shadow.draft(most) if (shadow := self._shadows.get(sequence)) else NO_DRAFT
            for sequence, most in wanted
        ]

    def ended(self, sequence: Sequence) -> None:
        """See `Drafter`."""
        shadow = self._shadows.pop(sequence, None)
        if shadow is not None:
            shadow.sequence.table.release()

    def forget_tenant(self, tenant: str) -> None:
        """See `Drafter`."""
        for sequence in [one for one in self._shadows if one.request.tenant == tenant]:
            self.ended(sequence)

    def check(self) -> None:
        """Verify that all blocks which count as held are held by a shadow.

        Raises `InvariantError` or `AssertionError`.
        """
        self._pool.check()
        tables = [shadow.sequence.table for shadow in self._shadows.values()]
        blocks = Counter(block for table in tables for block in table.blocks)
        references = enumerate(self._pool.references)
        assert blocks == {block: count for block, count in references if count}, "blocks held"

    def _follow(self, wanted: Ordered[tuple[Sequence, int]]) -> dict[Shadow, int]:
        """Let shadows know what their sequences know; returns how many guesses each may have."""
        sequences = {sequence for sequence, _ in wanted}
        goals: dict[Shadow, int] = {}
        for sequence, wished in wanted:
            shadow = self._shadows.pop(sequence, None) or self._begin(sequence)
            if shadow is None:
                continue
            self._shadows[sequence] = shadow
            known = sequence.token_ids
            most = min(wished, self._longest - len(known))
            if most > 0 and self._make_room(shadow, len(known) + most, sequences):
                shadow.follow(known)
                goals[shadow] = most
            else:
                self.ended(sequence)
        return goals

    def _begin(self, sequence: Sequence) -> Shadow | None:
        """A shadow, with the blocks that another sequence of its request has for their prompt.

        None as long as these are still to be computed.
        """
        siblings = (one for one in self._shadows if one.request is sequence.request)
        sibling = next(siblings, None)
        if sibling is None:
            namespaces = sequence.request.namespaces
            table = BlockTable(self._pool, self._block_size, _OWNER, namespaces, b"", up_to=0)
            return Shadow(sequence, table, self._vocab_size)
        elder = self._shadows[sibling].sequence
        num_common = min(sequence.num_prompt_tokens, len(sequence.token_ids) - 1)
        num_common -= num_common % self._block_size
        if elder.num_computed < num_common:
            return None
        shadow = Shadow(sequence, elder.table.fork(), self._vocab_size)
        shadow.sequence.table.shrink(num_common)
        shadow.sequence.num_computed = num_common
        return shadow

    def _make_room(self, shadow: Shadow, num_tokens: int, wanted: set[Sequence]) -> bool:
        """Take the blocks for so many tokens, at the cost of shadows that are not wanted now."""
        table = shadow.sequence.table
        missing = table.missing(num_tokens)
        if missing <= 0:
            return True
        idle = [sequence for sequence in self._shadows if sequence not in wanted]
        while not self._pool.can_allocate(missing, _OWNER):
            if not idle:
                return False
            self.ended(idle.pop(0))
        table.grow(num_tokens)
        return True

    def _worthwhile(
        self, shadows: list[Shadow], goals: dict[Shadow, int], token_seconds: float
    ) -> list[Shadow]:
        """Those that are to have one guess more: it is likely to save more than its share of a
        round takes, or was not tried for long.
        """
        wanting = [one for one in shadows if one.num_guesses < goals[one] and not one.is_over]
        if not wanting:
            return []
        rows = len(wanting)
        share = self._seconds[rows.bit_length()] / rows
        chosen = []
        for shadow in wanting:
            is_worth = shadow.chance * token_seconds >= share
            if is_worth or shadow.num_rests >= _LONGEST_REST:
                chosen.append(shadow)
                shadow.num_rests = 0
            elif not shadow.num_guesses:
                shadow.num_rests += 1
        return chosen

    def _round(self, shadows: list[Shadow]) -> list[Shadow]:
        """Guess a token for each; returns those that have it.

        For those that are behind by many tokens, these are computed first, in more than one step.
        """
        left = min(self._budget, self._pace.prompt_tokens or self._budget)
        chunks: dict[Shadow, ScheduledChunk] = {}
        num_behind = 0
        for shadow in shadows:
            is_behind = shadow.sequence.num_uncomputed > _FEW_TOKENS
            chunk = shadow.chunk(left if is_behind else _FEW_TOKENS)
            if chunk.count:
                chunks[shadow] = chunk
            if is_behind:
                left -= chunk.count
                num_behind += chunk.count
        start = perf_counter()
        sampled = self._runner.execute(StepPlan(list(chunks.values())))
        self._observe(len(chunks), num_behind, perf_counter() - start)
        drawn = zip(sampled.token_ids, sampled.logprobs, strict=True)
        guessing = []
        for shadow, chunk in chunks.items():
            shadow.sequence.num_computed += chunk.count
            if chunk.samplers:
                token_id, logprobs = next(drawn)
                assert logprobs is not None, "shadows ask for them"
                shadow.guess(token_id, logprobs.logprob)
                guessing.append(shadow)
        return guessing

    def _observe(self, rows: int, num_behind: int, seconds: float) -> None:
        self._pace.observe(rows, num_behind, seconds)
        if not num_behind:
            digits = rows.bit_length()
            more = seconds - self._seconds[digits]
            self._seconds[digits] += (_WEIGHT_MORE if more > 0 else _WEIGHT_LESS) * more
