"""Which sequences verify drafts in a step, and how many tokens of them.

A drafted token is a row more of a step (`engine.sequences.plan`). It takes what is left when all
others have what they need: rows of the batch, tokens of the budget, and blocks for which nobody is
preempted; what is not needed for tokens that were right is given back when the step is taken over
(`engine.schedule.results`). `engine.draft.worth` decides how many rows pay, by what they have cost
(`engine.draft.times`), for as long as drafts gain more than they cost (`engine.draft.balance`).

Where layers keep a state, right drafts count as computed as far as a state was left behind them
(`engine.blocks.rows`). The others are computed again with the next token: rows that drafts cost.

Drafts go behind known tokens, and how many come of them is known when they are verified. So no step
is launched ahead of the tokens of one that verifies drafts, nor where the next one is worth waiting
for: all sequences go on together.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import log1p
from time import perf_counter
from weakref import WeakKeyDictionary

from engine.draft.balance import Balances
from engine.draft.drafter import Acceptance, Draft, Drafter
from engine.draft.times import StepTimes
from engine.draft.worth import Market, RowCosts
from engine.schedule.budget import StepBudget, num_rows
from engine.schedule.lifecycle import Lifecycle
from engine.sequences.plan import ScheduledChunk, StepPlan
from engine.sequences.sequence import Sequence

_WEIGHT = 0.05
"""Of what a new draft costs in rows that are computed again."""
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
        self._times = StepTimes(costs, max(budget.num_tokens, budget.num_sequences))
        self._most_tokens = most_tokens
        self._has_states = any(kind.is_state for kind in lifecycle.pool.kinds)
        self._learned: WeakKeyDictionary[Sequence, Acceptance] = WeakKeyDictionary()
        self._under_way: WeakKeyDictionary[Sequence, Draft] = WeakKeyDictionary()
        """What the step that is planned will tell about."""
        self._awaited: WeakKeyDictionary[Sequence, Draft] = WeakKeyDictionary()
        """Of a token that is waited for: what it is thought to be."""
        self._balances = Balances()
        self._num_compared = 0
        """Sequences of the step that is taken over, if it is known what it took without drafts."""
        self._again = 0.0
        """Rows that are computed again, for each draft."""
        self.num_drafted = 0
        self.num_accepted = 0

    def plan(
        self, decoding: list[Sequence], prefill: list[ScheduledChunk]
    ) -> dict[Sequence, tuple[int, ...]]:
        """The drafts of a step beside `prefill`, with the blocks that they need."""
        self._learn_awaited(decoding)
        start = perf_counter()
        known = [sequence for sequence in decoding if not sequence.num_drawn]
        market = self._market(decoding, sum(chunk.count for chunk in prefill)) if known else None
        if market is None:
            return {}
        planned = self._draft(known, market) if market.is_open else {}
        if not planned:  # else it is a part of what the step takes
            self._looked_in_vain(decoding, market, start)
        return planned

    def _draft(self, known: list[Sequence], market: Market) -> dict[Sequence, tuple[int, ...]]:
        """What pays of the drafts for these, and finds room."""
        wanted = self._wanted(known, 0)
        planned: dict[Sequence, tuple[int, ...]] = {}
        for sequence, draft, length in self._choose(wanted, market):
            count = self._extend(sequence, length) if length else 0
            if count:
                planned[sequence] = draft.token_ids[:count]
                self._under_way[sequence] = Draft(planned[sequence], draft.levels[:count])
        return planned

    def _looked_in_vain(self, decoding: list[Sequence], market: Market, start: float) -> None:
        self._balances.looked_in_vain(len(decoding), (perf_counter() - start) / market.step)

    def _choose(
        self, wanted: list[tuple[Sequence, int]], market: Market
    ) -> Iterable[tuple[Sequence, Draft, int]]:
        """Of each sequence the draft, and how many tokens of it pay."""
        drafts = self._drafter.propose(wanted, market.token)
        sequences = [sequence for sequence, _ in wanted]
        chances = [
            self._acceptance(sequence).chances(draft.levels)
            for sequence, draft in zip(sequences, drafts, strict=True)
        ]
        keys = [market.key * sequence.num_tokens for sequence in sequences]
        return zip(sequences, drafts, market.lengths(chances, keys), strict=True)

    def verified(self, sequence: Sequence, drafts: tuple[int, ...], num_right: int) -> None:
        """So many of the drafts of a step have come true, and are taken over."""
        self.num_drafted += len(drafts)
        self.num_accepted += num_right
        if self._num_compared:
            self._balances.add(self._num_compared, log1p(num_right) / self._num_compared)
        num_again = max(0, sequence.num_uncomputed - 1)
        self._again += _WEIGHT * (num_again / len(drafts) - self._again)
        draft = self._under_way.pop(sequence)
        self._acceptance(sequence).learn(draft.levels, num_right)

    def observe(self, plan: StepPlan, seconds: float, *, ran_dry: bool) -> None:
        """A step has been computed, so long after the one before it: with all that came between.

        `ran_dry`: it could have been launched ahead, and was not. That is what drafts cost, and
        without drafts it is no measure of what they are compared with.
        """
        self._num_compared = 0
        count = plan.num_decoding
        has_more = any(chunk.num_rows > 1 for chunk in plan.chunks[:count])
        if count and not has_more:
            self._balances.allow(count)
        if len(plan.chunks) > count or (ran_dry and not has_more):
            return
        num_keys = sum(chunk.start + 1 for chunk in plan.chunks)
        longer = self._times.observe(count, plan.num_tokens, num_keys, seconds)
        if has_more:
            self._balances.add(count, -log1p(longer))
            self._num_compared = count

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
        start = perf_counter()
        drawn = [sequence for sequence in decoding if sequence.num_drawn]
        market = self._market(decoding, 0) if drawn else None
        if market is None:
            return False
        hidden = self._wanted(drawn, 1) if market.is_open else []
        drafts = self._drafter.propose(hidden, market.token)
        chances = [
            self._acceptance(sequence).chances(draft.levels)[1:]
            for (sequence, _), draft in zip(hidden, drafts, strict=True)
        ]
        keys = [market.key * sequence.num_tokens for sequence, _ in hidden]
        lengths = market.lengths(chances, keys)
        expected = sum(sum(of[:count]) for of, count in zip(chances, lengths, strict=True))
        if expected < _WORTH_WAITING * len(decoding):
            self._looked_in_vain(decoding, market, start)
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

    def _wanted(self, sequences: list[Sequence], more: int) -> list[tuple[Sequence, int]]:
        """Those that may have drafts, with how many tokens each and `more`."""
        counts = ((sequence, self._most(sequence)) for sequence in sequences)
        return [(sequence, most + more) for sequence, most in counts if most > 0]

    def _most(self, sequence: Sequence) -> int:
        """Tokens that may be drafted for a sequence: none behind its last one, none of other KV."""
        if sequence.finish_reason is not None or sequence.request.beam is not None:
            return 0
        left = sequence.sampling.max_tokens - sequence.num_output_tokens - 1
        most = min(self._most_tokens, left)
        if sequence.table.has_outgrown(sequence.num_tokens + most):
            return 0
        return most

    def _market(self, decoding: list[Sequence], num_prefill: int) -> Market | None:
        """What guesses are worth beside what else is computed, as many as there is room for; `None`
        where so many sequences are to have none now."""
        alone = len(decoding)
        if self._times.is_due_without(alone) or not self._balances.may_draft(alone):
            return None
        step = self._times.plain(alone, sum(sequence.num_tokens for sequence in decoding))
        rows = num_rows(decoding) + num_prefill
        most = min(self._budget.num_tokens - rows, self._budget.num_sequences - alone)
        if self._has_states:  # later steps have room for what is computed again
            groups = self._lifecycle.running.values()
            again = sum(num_rows(group.decoding) - len(group.decoding) for group in groups)
            running = sum(group.width for group in groups)
            most = min(most, self._budget.num_tokens - running - again)
        added = [cost * (1 + self._again) for cost in self._times.added(alone, rows, most)]
        return Market(step, step / alone, added, self._times.per_key(alone))

    def _extend(self, sequence: Sequence, count: int) -> int:
        """Take the blocks for `count` drafts; returns for how many there is room."""
        lifecycle, table, num_tokens = self._lifecycle, sequence.table, sequence.num_tokens
        group = lifecycle.running[sequence.request_id]
        while count and (needed := table.held.missing_for_drafts(num_tokens, count)):
            if not lifecycle.is_over_limit(group, needed) and lifecycle.has_pages(group, needed):
                lifecycle.extend(group, sequence, count)
                break
            here = len(table.blocks) * lifecycle.block_size - num_tokens
            count = here if here < count else 0
        return count
