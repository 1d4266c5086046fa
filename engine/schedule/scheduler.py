"""Which tokens are computed in the next step: continuous batching under one token budget.

Decoding sequences get one token each, so that a long prompt never makes them wait; prompts follow
in chunks with what is left of the budget. `engine.schedule.fairness` decides which tenant is next.
When blocks run out, a running request of the most over-served tenant is preempted, with all of its
sequences: its blocks go back to the pool (where they stay findable), and it comes back later as
`engine.schedule.swap_or_recompute` decides, swapped or computed again; then it runs for a while
before it can be preempted again. So a full cache slows requests down and does not fail them. Only a
request that would not fit even alone, beside pinned prompts and other tenants' reserves, ends with
an error.

A step may be planned while the one before it is under way (`launched`): everything is known of what
that one computes but its tokens. Steps are carried out in the order of their plans, so blocks can
be handed on at once.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial

from engine.api import EngineRequest
from engine.blocks.eviction.leases import LeaseTerms
from engine.blocks.pins import Pins
from engine.blocks.table import BlockTable
from engine.blocks.tiers import Tiers
from engine.config import EngineConfig
from engine.draft.drafter import Drafter
from engine.draft.worth import FREE_ROWS, RowCosts
from engine.grammar.compiled import CompiledGrammar
from engine.schedule.budget import StepBudget
from engine.schedule.decode import DecodePlanner, Turns
from engine.schedule.fairness import Prices, make_fairness
from engine.schedule.lifecycle import Lifecycle
from engine.schedule.prefill import Prefill, PrefillPlanner
from engine.schedule.results import Results, undo
from engine.schedule.speculation import Speculation
from engine.schedule.swap_or_recompute import SwapOrRecompute
from engine.sequences.group import SequenceGroup
from engine.sequences.pace import Pace
from engine.sequences.plan import News, Sampled, ScheduledChunk, StepPlan
from engine.sequences.sequence import Sequence
from engine.sequences.uncut import NOTHING_UNCUT, Uncut

_CHECKED_BLOCKS = 1024
"""By one call: about a millisecond."""


class Scheduler:
    """Plans steps and takes over what they have computed, from a request's `add` to its end."""

    def __init__(
        self,
        tiers: Tiers,
        recovery: SwapOrRecompute,
        config: EngineConfig,
        hash_extras: bytes = b"",
        rotary_switch: int | None = None,
        drafter: Drafter | None = None,
        row_costs: RowCosts = FREE_ROWS,
        turns: Turns = list,
        uncut: Uncut = NOTHING_UNCUT,
    ) -> None:
        """A `drafter`'s drafts are verified where `row_costs` let them pay; `turns` decode."""
        budget, most_sequences = config.step_token_budget, config.max_running_requests
        assert budget is not None, "the loader has chosen one"
        assert most_sequences is not None, "the loader has chosen a number"
        prices = Prices(
            config.prompt_token_price, config.cached_token_price, config.output_token_price
        )
        self.tiers = tiers
        self.pool = tiers.pool
        self.pins = Pins(tiers.pool)
        fairness = make_fairness(config, prices)
        self.pace = Pace(config.itl_target_ms / 1000, recovery.costs.compute.doubling)
        least = config.min_run_tokens
        self.lifecycle = Lifecycle(tiers, recovery, fairness, prices, least, budget, self.pace)
        self.running = self.lifecycle.running
        """The groups that hold blocks, by their requests' ids."""
        self.accounts = self.lifecycle.accounts
        self.decode = DecodePlanner(self.lifecycle, turns)
        self.budget = StepBudget(budget, most_sequences)
        self.prefill = PrefillPlanner(self.lifecycle, self.pins, self.budget, self.pace, uncut)
        self.speculation: Speculation | None = None
        if drafter is not None:
            self.speculation = Speculation(
                self.lifecycle, self.budget, drafter, row_costs, config.speculation_tokens
            )
        self._results = Results(self.lifecycle, self.pins, self.speculation)
        self._config = config
        self._extras = hash_extras
        self._rotary_switch = rotary_switch
        self._num_arrived = 0
        self._num_checked = 0
        """Of the blocks and slots, by `check_some`."""
        self._under_way: deque[StepPlan] = deque()

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to compute."""
        return not self.lifecycle.live

    @property
    def queue_seconds(self) -> float:
        """To compute what is left of all that was accepted; 0 while it is unknown what that takes.

        What waiting ones will find in the cache is not known yet, and counts.
        """
        return sum(
            self.pace.seconds(one.num_computed, one.num_uncomputed) or 0.0
            for group in self.lifecycle.live.values()
            for one in group.unfinished[:1]
        )

    def add(
        self,
        request: EngineRequest,
        grammar: CompiledGrammar | None = None,
        adapter: Collection[bytes] = (),
    ) -> list[Sequence]:
        """Queue a request which `engine.validation.check_request` has let through, its grammar, and
        the hashes of its adapter. Returns the sequences that have generated all they may.
        """
        lingering = self.lifecycle.live.get(request.request_id)
        if lingering is not None:
            # Its reader has seen the end, and may use the id again.
            assert not lingering.unfinished, "ids of running requests are unique"
            self.lifecycle.end(lingering, "aborted")
        self._num_arrived += 1
        group = SequenceGroup.of(request, self.new_table(request), self._num_arrived, grammar)
        ended = [sequence for sequence in group.sequences if sequence.finish_reason is not None]
        group.sequences, group.adapter = group.unfinished, tuple(adapter)
        if group.sequences:
            self.accounts.open(request.tenant, request.share)
            reserved = request.share.reserved_blocks * self.pool.block_pages
            self.pool.reserve(request.tenant, reserved)
            self.lifecycle.enqueue(group)
        return ended

    def abort(self, request_id: str, index: int | None = None) -> list[Sequence]:
        """End a request now, or only its sequence `index`; returns what ends by it.

        The blocks are back when this returns, but for those on which other sequences of the request
        are still to build. What is unknown or has ended is left alone, and so are single outputs of
        a beam search, which come and end together.
        """
        group = self.lifecycle.live.get(request_id)
        if group is None or (index is not None and group.search is not None):
            return []
        if index is None:
            return self._over(self.lifecycle.end(group, "aborted"))
        chosen = [sequence for sequence in group.unfinished if sequence.index == index]
        for sequence in chosen:
            self.lifecycle.end_one(group, sequence, "aborted")
        return self._over(chosen)

    def fail_all(self, error: str) -> list[Sequence]:
        """End every request because a step has failed; returns what ends by it."""
        ended: list[Sequence] = []
        for group in list(self.lifecycle.live.values()):
            ended += self._over(self.lifecycle.end(group, "error", error))
        self.lifecycle.transfers.abandon()
        for plan in self._under_way:
            self.tiers.host.forget(page for _, page in plan.transfers.swap_outs)
        self._under_way.clear()
        # Blocks became findable when the failed step was planned; their contents never came.
        # Pinned blocks are older: the step that computed them has succeeded.
        self.pool.forget_all(keep=self.pins.references)
        return ended

    def retry_smaller(self, plans: list[StepPlan]) -> bool:
        """Undo steps that were too large for the memory; the next ones are half as large.

        `plans` are all that have been made and not taken over. Returns whether a step can be any
        smaller: if not, nothing is undone.
        """
        if not self.budget.halve(max(plan.num_tokens for plan in plans)):
            return False
        self._undo(plans)
        return True

    def fail_these(self, plans: list[StepPlan], error: str) -> list[Sequence]:
        """Undo steps, and end the requests that they were to compute; returns what ends by it.

        `plans` are all that have been made and not taken over.
        """
        self._undo(plans)
        names = {chunk.sequence.request_id for plan in plans for chunk in plan.chunks}
        groups = [group for name, group in self.lifecycle.live.items() if name in names]
        ended = [one for group in groups for one in self.lifecycle.end(group, "error", error)]
        return self._over(ended)

    def served_elsewhere(self, tenants: Mapping[str, float]) -> None:
        """Other engines have served tenants so much; it counts for those with requests here."""
        for tenant, amount in tenants.items():
            account = self.accounts.get(tenant)
            if account.waiting or account.running:
                self.lifecycle.fairness.served_elsewhere(account, amount)

    def forget_tenant(self, tenant: str) -> None:
        """Drop a tenant's pins and reserve, and make its blocks unfindable.

        What others have pinned stays, whoever computed it, and adapters that are computed with.
        Its live requests run on, but leave nothing behind.
        """
        for group in self.lifecycle.live.values():
            if group.tenant == tenant:
                for sequence in group.sequences:
                    sequence.table.up_to = 0
        if self.speculation is not None:
            self.speculation.forget_tenant(tenant)
        self.pins.forget(tenant)
        self.pool.forget_owner(tenant, self.lifecycle.adapters_in_use.union(self.pins.references))
        self.tiers.host.forget_owner(tenant)
        self.accounts.forget(tenant)
        self.lifecycle.chains.forget(tenant)

    def unsettled(self) -> set[int]:
        """The blocks that can be found already, and that are yet to be computed."""
        return set(self.tiers.fresh).union(*(plan.findable for plan in self._under_way))

    def plan(self) -> StepPlan:
        """Choose the next step's tokens and take the blocks they need.

        Blocks that the step will fill become findable at once: within a step all KV is written
        before any of it is read, so a request admitted later in the same plan may already share
        what an earlier one is about to compute.

        Nobody is preempted whose tokens are under way: what comes back is laid out by its tokens.
        """
        if self._under_way and self._awaits_drafts(self._under_way[-1]):
            return StepPlan([], awaits_tokens=True)
        may_preempt = not self._under_way
        growth = self.decode.plan(may_preempt=may_preempt)
        if growth.awaits_tokens:
            return StepPlan([], awaits_tokens=True)
        prefill = self.prefill.plan(growth.sequences, may_preempt=may_preempt)
        chunks = self._decoding_chunks(prefill) + prefill.chunks
        plan = StepPlan(
            chunks,
            num_decoding=len(prefill.decoding),
            failed=self._over(growth.failed + prefill.failed),
            awaits_tokens=prefill.awaits_tokens,
            is_preparing=prefill.is_preparing,
        )
        if not chunks:
            return plan  # there is no step; what is to be moved waits for the next one
        transfers, findable = self.lifecycle.transfers.take(), self.tiers.take_fresh()
        return replace(plan, transfers=transfers, findable=findable)

    def launched(self, plan: StepPlan) -> None:
        """A step is under way: what is planned from now on comes after it.

        Its tokens are not known before `commit`. Beams cannot do without theirs.
        """
        self._under_way.append(plan)
        for sampler in plan.samplers:
            sampler.num_drawn += 1
        self.lifecycle.transfers.settle()
        self.tiers.partial_hits.settle()

    def commit(self, plan: StepPlan, sampled: Sampled) -> list[News]:
        """Take over a computed step. `sampled` has a token for each of the plan's draws, in order.

        Steps are taken over in the order of their plans. Tokens of sequences that have ended while
        the step was under way mean nothing. Returns what is new: tokens, or ends.
        """
        if self._under_way:
            self._land(plan)
        else:
            self.lifecycle.transfers.settle()
        news = self._results.take(plan, sampled)
        self.tiers.partial_hits.settle()
        self.budget.succeeded()
        return news

    def check(self) -> None:
        """Verify pool and host tier, and that all they count as held is held by somebody.

        Raises `InvariantError` or `AssertionError`.
        """
        self.tiers.check()
        self.lifecycle.chains.check()
        transfers = self.lifecycle.transfers
        blocks = Counter(self.pins.references) + Counter(transfers.held_blocks)
        blocks.update(self.tiers.arriving)
        slots = Counter(transfers.held_slots)
        for group in self.lifecycle.live.values():
            blocks.update(group.beside)
            assert group.saved is None or group.request_id not in self.running
            slots.update(group.saved.slots.values() if group.saved is not None else ())
        for group in self.running.values():
            group.check()
            for row in group.blocks:
                blocks.update(row)
        references = enumerate(self.pool.references)
        assert blocks == {block: count for block, count in references if count}, "blocks held"
        assert all(blocks[source] for source in transfers.sources), "a copy of nobody's block"
        references = enumerate(self.tiers.host.references)
        assert slots == {slot: count for slot, count in references if count}, "slots held"
        waiting, running = 0, 0
        for account in self.accounts.known():
            account.check()
            waiting += len(account.waiting)
            running += len(account.running)
        assert (waiting, running) == (self.lifecycle.num_waiting, len(self.running))

    def check_some(self) -> None:
        """Verify, of an idle scheduler, that nothing but pins is held, and some blocks and slots.

        But for what is read from disk.

        Every call takes the next ones, always as many, however many there are. Raises
        `InvariantError` or `AssertionError`.
        """
        transfers, host = self.lifecycle.transfers, self.tiers.host
        held = self.pins.references.keys() | set(transfers.held_blocks) | set(self.tiers.arriving)
        assert self.pool.num_in_use == self.pool.count(held), "an idle engine holds blocks"
        held_slots = host.count(set(transfers.held_slots))
        assert host.num_in_use == held_slots, "an idle engine holds slots"
        assert not self.accounts.waiting, "a tenant waits for nothing"
        assert not self.accounts.running, "a tenant runs nothing"
        first, end = self._num_checked, self._num_checked + _CHECKED_BLOCKS
        self._num_checked = end if end < max(self.pool.num_pages, host.num_pages) else 0
        self.pool.check_some(first, end)
        host.check_some(first, end)

    def _decoding_chunks(self, prefill: Prefill) -> list[ScheduledChunk]:
        """What decodes in a step, beside its prompts: newest tokens, and drafts where they pay."""
        if self.speculation is None:
            return [_next_token(sequence, ()) for sequence in prefill.decoding]
        drafts = self.speculation.plan(prefill.decoding, prefill.chunks)
        return [_next_token(sequence, drafts.get(sequence, ())) for sequence in prefill.decoding]

    def _awaits_drafts(self, newest: StepPlan) -> bool:
        """Whether the newest step under way is to be known before another one is planned.

        So it is where it verifies drafts: how many tokens come of them is not known. And where the
        next one may verify so many that nothing is lost by the wait.
        """
        if self.speculation is None:
            return False
        if any(chunk.drafts for chunk in newest.chunks):
            return True
        groups = self.running.values()
        return self.speculation.is_worth_waiting(
            [one for group in groups for one in group.decoding]
        )

    def _over(self, ended: list[Sequence]) -> list[Sequence]:
        """`ended`, of which the drafter is told: not of beams, for which nothing is drafted."""
        if self.speculation is not None:
            self.speculation.ended(one for one in ended if one.request.beam is None)
        return ended

    def new_table(self, request: EngineRequest) -> Callable[[], BlockTable]:
        """Makes tables of blocks for the sequences of a request."""
        return partial(
            BlockTable,
            self.pool,
            self._config.block_size,
            request.tenant,
            request.namespaces,
            self._extras,
            request.cache.up_to if self._config.prefix_cache else 0,
            self._rotary_switch,
            self.lease_terms(request),
            *(request.cache.ends, request.adapter, request.pictures),
        )

    def lease_terms(self, request: EngineRequest) -> LeaseTerms:
        """How a request leases what it uses."""
        share, most = request.share, int(self._config.lease_share * self.pool.num_pages)
        if share.max_leased_blocks is not None:
            most = share.max_leased_blocks * self.pool.block_pages
        return LeaseTerms(request.tenant, request.cache.lease_s, most, share.weight)

    def _undo(self, plans: list[StepPlan]) -> None:
        undo(plans, self.lifecycle, keep=self.pins.references)
        self._under_way.clear()

    def _land(self, plan: StepPlan) -> None:
        """The tokens of the oldest step that is under way are known."""
        assert self._under_way[0] is plan, "steps are taken over in order"
        self._under_way.popleft()
        for sampler in plan.samplers:
            if sampler.finish_reason is None:
                sampler.num_drawn -= 1


def _next_token(sequence: Sequence, drafts: tuple[int, ...]) -> ScheduledChunk:
    """The newest token of a decoding sequence, which goes on unless it has finished, and right
    drafts before it that have no state behind them.
    """
    count = sequence.num_uncomputed
    start = sequence.compute(count)
    samplers = () if sequence.finish_reason is not None else (sequence,)
    return ScheduledChunk(sequence, start, count, samplers, drafts)
