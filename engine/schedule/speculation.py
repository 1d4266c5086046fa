"""Which sequences verify drafts in a step, and how many tokens of them.

A drafted token is a row more of a step (`engine.schedule.plan`). It takes what is left when all
others have what they need: rows of the batch, tokens of the budget, and blocks for which nobody is
preempted; what is not needed for tokens that were right is given back when the step is taken over
(`engine.schedule.results`). `engine.draft.worth` decides how many rows pay.

Drafts go behind known tokens, and how many come of them is known when they are verified. So no step
is launched ahead of the tokens of one that verifies drafts, nor where the next one is worth waiting
for: all sequences go on together.
"""

from __future__ import annotations

from collections.abc import Iterable
from weakref import WeakKeyDictionary

from engine.draft.acceptance import Acceptance
from engine.draft.drafter import Draft, Drafter
from engine.draft.worth import Market, RowCosts
from engine.schedule.lifecycle import Lifecycle
from engine.schedule.plan import ScheduledChunk
from engine.schedule.sequence import Sequence
from engine.schedule.step_budget import StepBudget

_WORTH_WAITING = 0.5
"""Tokens that drafts must be expected to gain, for each sequence that decodes, if the pipeline is
to run dry for them: what the host does between two steps is not hidden then."""


class Speculation:
    """Plans the drafts of steps, and learns how often they are right."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        budget: StepBudget,
        drafter: Drafter,
        costs: RowCosts,
        most_tokens: int,
    ) -> None:
        """`most_tokens` are drafted for a sequence and step."""
        self._lifecycle = lifecycle
        self._budget = budget
        self._drafter = drafter
        self._per_key = costs.per_key
        self._curve = costs.curve(max(budget.num_tokens, budget.num_sequences))
        self._most_tokens = most_tokens
        self._learned: WeakKeyDictionary[Sequence, Acceptance] = WeakKeyDictionary()
        self._under_way: WeakKeyDictionary[Sequence, Draft] = WeakKeyDictionary()
        """What the step that is planned will tell about."""
        self._awaited: WeakKeyDictionary[Sequence, Draft] = WeakKeyDictionary()
        """Of a token that is waited for: what it is thought to be."""
        self.num_drafted = 0
        self.num_accepted = 0

    def plan(
        self, decoding: list[Sequence], prefill: list[ScheduledChunk]
    ) -> dict[Sequence, tuple[int, ...]]:
        """The drafts of a step beside `prefill`, with the blocks that they need."""
        self._learn_awaited(decoding)
        wanted = [
            (sequence, most)
            for sequence in decoding
            if not sequence.num_drawn and (most := self._most(sequence)) > 0
        ]
        if not wanted:
            return {}
        market = self._market(decoding, sum(chunk.count for chunk in prefill))
        if not market.is_open:
            return {}
        drafts = self._drafter.propose(wanted, market.token)
        sequences = [sequence for sequence, _ in wanted]
        chances = [
            self._acceptance(sequence).chances(draft.levels)
            for sequence, draft in zip(sequences, drafts, strict=True)
        ]
        keys = [self._per_key * sequence.num_tokens for sequence in sequences]
        planned: dict[Sequence, tuple[int, ...]] = {}
        for sequence, draft, length in zip(
            sequences, drafts, market.lengths(chances, keys), strict=True
        ):
            count = self._extend(sequence, length) if length else 0
            if count:
                planned[sequence] = draft.token_ids[:count]
                self._under_way[sequence] = Draft(planned[sequence], draft.levels[:count])
        return planned

    def verified(self, sequence: Sequence, drafts: tuple[int, ...], num_right: int) -> None:
        """So many of the drafts of a step have come true."""
        self.num_drafted += len(drafts)
        self.num_accepted += num_right
        draft = self._under_way.pop(sequence)
        self._acceptance(sequence).learn(draft.levels, num_right)

    def ended(self, sequences: Iterable[Sequence]) -> None:
        """These are over, whatever ended them."""
        for sequence in sequences:
            self._drafter.ended(sequence)

    def forget_tenant(self, tenant: str) -> None:
        """See `Drafter`."""
        self._drafter.forget_tenant(tenant)

    def is_worth_waiting(self, decoding: list[Sequence]) -> bool:
        """Whether drafts are in sight behind tokens that are under way, enough to wait for these.

        The first guess for a sequence is what that token is thought to be.
        """
        hidden = [
            (sequence, most + 1)
            for sequence in decoding
            if sequence.num_drawn and (most := self._most(sequence)) > 0
        ]
        if not hidden:
            return False
        market = self._market(decoding, 0)
        if not market.is_open:
            return False
        drafts = self._drafter.propose(hidden, market.token)
        chances = [
            self._acceptance(sequence).chances(draft.levels)[1:]
            for (sequence, _), draft in zip(hidden, drafts, strict=True)
        ]
        keys = [self._per_key * sequence.num_tokens for sequence, _ in hidden]
        lengths = market.lengths(chances, keys)
        expected = sum(sum(of[:count]) for of, count in zip(chances, lengths, strict=True))
        if expected < _WORTH_WAITING * len(decoding):
            return False
        for (sequence, _), draft in zip(hidden, drafts, strict=True):
            if draft.levels:
                self._awaited[sequence] = Draft(draft.token_ids[:1], draft.levels[:1])
        return True

    def _learn_awaited(self, decoding: list[Sequence]) -> None:
        """See whether tokens that were waited for have been what they were thought to be."""
        if not self._awaited:
            return
        for sequence in decoding:
            if not sequence.num_drawn and (draft := self._awaited.pop(sequence, None)):
                is_right = sequence.token_ids[-1:] == list(draft.token_ids)
                self._acceptance(sequence).learn(draft.levels, int(is_right))

    def _acceptance(self, sequence: Sequence) -> Acceptance:
        learned = self._learned.get(sequence)
        if learned is None:
            learned = self._learned[sequence] = Acceptance(self._drafter.priors)
        return learned

    def _most(self, sequence: Sequence) -> int:
        """Tokens that may be drafted for a sequence: none behind its last one, none of other KV."""
        if sequence.finish_reason is not None or sequence.request.beam is not None:
            return 0
        left = sequence.sampling.max_tokens - sequence.num_output_tokens - 1
        most = min(self._most_tokens, left)
        if sequence.table.has_outgrown(sequence.num_tokens + most):
            return 0
        return most

    def _market(self, decoding: list[Sequence], num_prefill: int) -> Market:
        """What guesses are worth beside what else is computed, as many as there is room for."""
        alone = len(decoding)
        num_keys = sum(sequence.num_tokens for sequence in decoding)
        step = self._curve[alone] + self._per_key * num_keys
        rows = alone + num_prefill
        most = min(self._budget.num_tokens - rows, self._budget.num_sequences - alone)
        added = [seconds - self._curve[rows] for seconds in self._curve[rows + 1 :][: max(0, most)]]
        return Market(step, step / alone, added)

    def _extend(self, sequence: Sequence, count: int) -> int:
        """Take the blocks for `count` drafts; returns for how many there is room."""
        lifecycle, table, num_tokens = self._lifecycle, sequence.table, sequence.num_tokens
        needed = table.missing(num_tokens + count)
        if needed <= 0:
            return count
        group = lifecycle.running[sequence.request_id]
        if lifecycle.is_over_limit(group, needed) or not lifecycle.has_blocks(group, needed):
            return min(count, len(table.blocks) * lifecycle.block_size - num_tokens)
        lifecycle.extend(group, sequence, num_tokens + count)
        return count
