"""Which tokens are computed in the next step: continuous batching under one token budget.

Decoding sequences get one token each, so that a long prompt never makes them wait; prompts follow
in chunks with what is left of the budget. `engine.fairness` decides which tenant is next. When
blocks run out, a running request of the most over-served tenant is preempted: its blocks go back to
the pool (where they stay findable) and it is computed again later, so a full cache slows requests
down and does not fail them. Only a request that would not fit even alone, beside pinned prompts and
other tenants' reserves, ends with an error.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence as Rows

from engine.accounts import Accounts
from engine.block_pool import BlockPool
from engine.block_table import BlockTable
from engine.config import EngineConfig
from engine.fairness import Prices, make_fairness
from engine.pins import Pins
from engine.plan import ScheduledChunk, StepPlan
from engine.request import EngineRequest, FinishReason
from engine.sequence import Sequence


class Scheduler:
    """Owns every live sequence from `add` to its end; the only place that releases its blocks."""

    def __init__(self, pool: BlockPool, config: EngineConfig, hash_extras: bytes = b"") -> None:
        self.pool = pool
        self.pins = Pins(pool)
        self.accounts = Accounts()
        self.running: dict[str, Sequence] = {}
        self.num_preemptions = 0
        assert config.step_token_budget is not None, "the loader has chosen one"
        self._config = config
        self._step_token_budget = config.step_token_budget
        self._extras = hash_extras
        self._prices = Prices(
            config.prompt_token_price, config.cached_token_price, config.output_token_price
        )
        self._fairness = make_fairness(config, self._prices)
        self._live: dict[str, Sequence] = {}
        self._num_arrived = 0
        self._failed: list[Sequence] = []

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to compute."""
        return not self._live

    @property
    def num_waiting(self) -> int:
        """Requests that hold no blocks: new ones and preempted ones."""
        return len(self._live) - len(self.running)

    def add(self, request: EngineRequest) -> Sequence:
        """Queue a request which `engine.admission.check_request` has let through.

        One whose `generated` tokens are all it may generate has ended already.
        """
        lingering = self._live.get(request.request_id)
        if lingering is not None:
            # Its reader has seen the end, and may use the id again.
            assert lingering.finish_reason is not None, "ids of running requests are unique"
            self._end(lingering, lingering.finish_reason)
        cache = self._config.prefix_cache and request.cache
        table = BlockTable(
            self.pool,
            self._config.block_size,
            request.tenant,
            request.namespaces,
            self._extras,
            cache,
        )
        self._num_arrived += 1
        sequence = Sequence(request, table, arrival=self._num_arrived)
        if sequence.finish_reason is None:
            self.accounts.open(request.tenant, request.share)
            self.pool.reserve(request.tenant, request.share.reserved_blocks)
            self._live[request.request_id] = sequence
            self._enqueue(sequence)
        return sequence

    def abort(self, request_id: str, reason: FinishReason = "aborted") -> Sequence | None:
        """End a request now; its blocks are back when this returns. Unknown ids give `None`."""
        sequence = self._live.get(request_id)
        return None if sequence is None else self._abort(sequence, reason)

    def abort_all(self, reason: FinishReason) -> list[Sequence]:
        """End every request; returns those that had not finished before."""
        ended = [self._abort(sequence, reason) for sequence in list(self._live.values())]
        return [sequence for sequence in ended if sequence is not None]

    def forget_tenant(self, tenant: str) -> None:
        """Drop a tenant's pins and reserve, and make its blocks unfindable.

        What others have pinned stays, whoever computed it. Its live requests run on, but leave
        nothing behind.
        """
        for sequence in self._live.values():
            if sequence.request.tenant == tenant:
                sequence.table.cache = False
        self.pins.forget(tenant)
        self.pool.forget_owner(tenant, keep=self.pins.references)
        self.accounts.forget(tenant)

    def plan(self) -> StepPlan:
        """Choose the next step's tokens and take the blocks they need.

        Blocks that the step will fill become findable at once: within a step all KV is written
        before any of it is read, so a request admitted later in the same plan may already share
        what an earlier one is about to compute.
        """
        decoding, prefill = self._plan_prefill(self._grow_decoding())
        return StepPlan([self._schedule(sequence, 1) for sequence in decoding] + prefill)

    def take_failed(self) -> list[Sequence]:
        """The requests that have ended since the last call because they will never fit."""
        failed, self._failed = self._failed, []
        return failed

    def commit(self, plan: StepPlan, token_ids: list[int]) -> list[Sequence]:
        """Take over a computed step. `token_ids` holds one token per sampling chunk, in order.

        Returns the sequences that have news: a new token, or their end.
        """
        sampled = iter(token_ids)
        news: list[Sequence] = []
        for chunk in plan.chunks:
            sequence = chunk.sequence
            if chunk.samplers:
                token_id = next(sampled)
                if sequence.sampling.max_tokens == 0:
                    self._finish_prompt(sequence)
                else:
                    sequence.append(token_id)
                    self.accounts[sequence.request.tenant].charge(self._prices.output)
                news.append(sequence)
            if sequence.finish_reason is not None and not self._fills_a_block_by_lingering(
                sequence
            ):
                self._end(sequence, sequence.finish_reason)
        return news

    def check(self) -> None:
        """Verify the pool, and that its references are those of the running sequences and pins.

        Raises `InvariantError` or `AssertionError`.
        """
        self.pool.check()
        pinned = self.pins.references
        references = [pinned.get(block, 0) for block in range(self.pool.num_blocks)]
        for sequence in self.running.values():
            assert 0 <= sequence.num_cached <= sequence.num_computed <= sequence.num_tokens
            for block in sequence.table.blocks:
                references[block] += 1
        assert references == self.pool.references(), "a block is held by nobody, or not counted"
        waiting, running = 0, 0
        for account in self.accounts.known():
            account.check()
            waiting += len(account.waiting)
            running += len(account.running)
        assert (waiting, running) == (self.num_waiting, len(self.running))

    def _finish_prompt(self, sequence: Sequence) -> None:
        """End a request for a prompt alone, which is to be kept if it names a pin."""
        sequence.finish_reason = "length"
        request, table = sequence.request, sequence.table
        if request.pin is None:
            return
        if not table.cache:
            sequence.fail(f"{request.pin!r} cannot be pinned: nothing is cached")
            return
        blocks = table.findable()
        limit = request.share.max_pinned_blocks
        held = self.pins.would_hold(request.pin, request.tenant, blocks)
        if limit is None or held <= limit:
            self.pins.pin(request.pin, request.tenant, blocks)
        else:
            sequence.fail(
                f"{request.pin!r} cannot be pinned: the tenant's pinned prompts would hold {held} "
                f"blocks, more than its limit of {limit}"
            )

    def _fills_a_block_by_lingering(self, sequence: Sequence) -> bool:
        """Whether one more token's KV completes a block that the conversation's next turn can hit.

        The last generated token is never computed for its own sake. Where it is the last of its
        block, its sequence stays for one more step, which samples nothing.
        """
        return (
            sequence.table.cache
            and sequence.is_decoding
            and sequence.num_tokens % self._config.block_size == 0
        )

    def _grow_decoding(self) -> list[Sequence]:
        """Give every decoding sequence room for its next token, oldest first; returns them."""
        decoding = [sequence for sequence in self.running.values() if sequence.is_decoding]
        for sequence in decoding:
            missing = sequence.table.missing(sequence.num_tokens)
            if missing > 0 and sequence.request_id in self.running:
                self._grow(sequence, missing)
        return self._still_running(decoding)

    def _grow(self, sequence: Sequence, missing: int) -> None:
        """Take blocks for a decoding sequence, preempting whoever has to go before it.

        Over its tenant's limit that is the tenant's newest request, but a request that runs alone
        was found to fit when it came.
        """
        account = self.accounts[sequence.request.tenant]
        while True:
            limit = account.share.max_blocks
            if (
                limit is not None
                and len(account.running) > 1
                and len(account.held) + missing > limit
            ):
                victim = account.running[-1]
            elif self.pool.can_allocate(missing, account.tenant):
                account.hold(sequence.table.grow(sequence.num_tokens))
                return
            elif len(self.running) == 1:
                self._fail(sequence)
                return
            else:
                victim = max(self.running.values(), key=self._priority)
            self._preempt(victim)
            if victim is sequence:
                return

    def _plan_prefill(
        self, decoding: list[Sequence]
    ) -> tuple[list[Sequence], list[ScheduledChunk]]:
        """Spend what `decoding` leaves of the budget on prompts, in the order of their tenants.

        Returns what of `decoding` has not had to make room, and the prompts' chunks.
        """
        budget = self._step_token_budget - len(decoding)
        prefilling = [
            sequence
            for sequence in self.running.values()
            if sequence.num_uncomputed > 0 and not sequence.is_decoding
        ]
        chunks: list[ScheduledChunk] = []
        passed: set[str] = set()
        is_blocked = False
        # Without a budget all slots are decoding, and a new request may still take one's place.
        while budget > 0 or not chunks:
            head = None if is_blocked else self._next_head(passed)
            candidates = prefilling if head is None else [*prefilling, head]
            if not candidates:
                break
            sequence = min(candidates, key=self._prefill_order)
            if sequence is not head:
                prefilling.remove(sequence)
            elif self._admit(sequence, chunks):
                prefilling = self._still_running(prefilling)
                budget += len(decoding)
                decoding = self._still_running(decoding)
                budget -= len(decoding)
            else:
                is_blocked = sequence.finish_reason is None
                continue
            chunks.append(self._schedule(sequence, min(budget, sequence.num_uncomputed)))
            budget -= chunks[-1].count
        return decoding, chunks

    def _still_running(self, sequences: list[Sequence]) -> list[Sequence]:
        return [sequence for sequence in sequences if sequence.request_id in self.running]

    def _next_head(self, passed: set[str]) -> Sequence | None:
        """The request to be admitted next. Tenants at their own limit are `passed` over."""
        while True:
            ranks = {
                account: self._fairness.rank(account)
                for account in self.accounts.waiting.values()
                if account.tenant not in passed
            }
            if not ranks:
                return None
            least = min(ranks.values())
            first = min(
                (account for account, rank in ranks.items() if rank == least),
                key=lambda account: account.head.arrival,
            )
            if self._is_within_limit(first.head):
                return first.head
            passed.add(first.tenant)
            self._fairness.passed_over(first)

    def _is_within_limit(self, sequence: Sequence) -> bool:
        """Whether the tenant may hold the sequence's blocks, and one more for each that it runs."""
        account = self.accounts[sequence.request.tenant]
        if account.share.max_blocks is None or not account.running:
            return True
        hits = sequence.table.hits(sequence.token_ids)
        new = sequence.table.missing(sequence.num_tokens, sum(b in account.held for b in hits))
        return len(account.held) + new + len(account.running) <= account.share.max_blocks

    def _admit(self, sequence: Sequence, chunks: list[ScheduledChunk]) -> bool:
        """Admit a waiting request, if room can be made without those of `chunks`.

        A request that will never find room fails.
        """
        account = self.accounts[sequence.request.tenant]
        hits = sequence.table.hits(sequence.token_ids)
        num_cached = len(hits) * self._config.block_size
        price = self._prices.admission(sequence, num_cached)
        if not self._make_room(sequence, hits, price, chunks):
            if not self._can_ever_fit(sequence, hits):
                self._fail(sequence)
            return False
        self._fairness.admits(account)
        account.charge(price)
        sequence.is_charged = True
        sequence.table.admit(sequence.num_tokens, hits)
        sequence.num_cached = sequence.num_computed = num_cached
        if sequence.first_hit is None:
            sequence.first_hit = num_cached
        self.accounts.start(sequence)
        self.running[sequence.request_id] = sequence
        return True

    def _make_room(
        self, sequence: Sequence, hits: list[int], price: float, chunks: list[ScheduledChunk]
    ) -> bool:
        """Preempt those who have to yield to `sequence`, if it fits then."""
        if self._fits(sequence, hits):
            return True
        account = self.accounts[sequence.request.tenant]
        spared = {chunk.sequence.request_id for chunk in chunks}
        victims = self._fairness.yielding(account, price, self.accounts.running.values(), spared)
        if not victims or not self._fits(sequence, hits, victims):
            return False
        fewest = bisect_left(
            range(len(victims)), True, key=lambda n: self._fits(sequence, hits, victims[:n])
        )
        for victim in victims[:fewest]:
            self._preempt(victim)
        return True

    def _fits(self, sequence: Sequence, hits: list[int], without: Rows[Sequence] = ()) -> bool:
        """Whether there are a slot and blocks, were the sequences `without` not running.

        A block of headroom for each running sequence keeps it from being preempted at once.
        """
        running = len(self.running) - len(without)
        released = [victim.table.blocks for victim in without]
        return running < self._config.max_running_requests and sequence.table.can_admit(
            sequence.num_tokens, hits, running, released
        )

    def _can_ever_fit(self, sequence: Sequence, hits: list[int]) -> bool:
        """Whether the sequence fits once everything that runs now has ended."""
        kept = self.pins.num_blocks + self.pool.num_reserved
        if sequence.table.missing(sequence.num_tokens, 0) + kept <= self.pool.num_blocks:
            return True
        released = [running.table.blocks for running in self.running.values()]
        return sequence.table.can_admit(sequence.num_tokens, hits, 0, released)

    def _priority(self, sequence: Sequence) -> tuple[tuple[float, float], int]:
        """The largest one is preempted first."""
        return self._fairness.rank(self.accounts[sequence.request.tenant]), sequence.arrival

    def _prefill_order(self, sequence: Sequence) -> tuple[tuple[float, float], bool, int]:
        """The smallest one is computed first."""
        account = self.accounts[sequence.request.tenant]
        is_waiting = sequence.request_id not in self.running
        rank = self._fairness.prefill_rank(account, len(account.running) + is_waiting)
        return rank, is_waiting, sequence.arrival

    def _schedule(self, sequence: Sequence, count: int) -> ScheduledChunk:
        start = sequence.num_computed
        sequence.num_computed += count
        sequence.table.seal(sequence.token_ids, sequence.num_computed)
        samples = sequence.num_uncomputed == 0 and sequence.finish_reason is None
        return ScheduledChunk(sequence, start, count, (sequence,) if samples else ())

    def _enqueue(self, sequence: Sequence, *, first: bool = False) -> None:
        account = self.accounts[sequence.request.tenant]
        if not account.waiting:
            self._fairness.begins_to_wait(account, self.accounts.waiting.values())
        self.accounts.enqueue(sequence, first=first)

    def _preempt(self, sequence: Sequence) -> None:
        self.num_preemptions += 1
        if sequence.finish_reason is not None:
            self._end(sequence, sequence.finish_reason)
            return
        self._release(sequence)
        sequence.num_cached = sequence.num_computed = 0
        self._enqueue(sequence, first=True)

    def _fail(self, sequence: Sequence) -> None:
        """End a request for which there will be no room; one that has finished just ends."""
        if sequence.finish_reason is None:
            needed = sequence.table.missing(sequence.num_tokens, 0)
            sequence.fail(
                f"no room for the {needed} blocks of this request: the other blocks of "
                f"{self.pool.num_blocks} are kept by pinned prompts and other tenants' reserves"
            )
            self._failed.append(sequence)
        self._end(sequence, sequence.finish_reason or "error")

    def _abort(self, sequence: Sequence, reason: FinishReason) -> Sequence | None:
        """End a live request early; `None` if it had finished and only its blocks were left."""
        finished = sequence.finish_reason is not None
        self._end(sequence, sequence.finish_reason or reason)
        return None if finished else sequence

    def _end(self, sequence: Sequence, reason: FinishReason) -> None:
        """The one place where a live request ends, whatever ended it."""
        sequence.finish_reason = reason
        del self._live[sequence.request_id]
        if sequence.request_id in self.running:
            self._release(sequence)
        else:
            self.accounts.leave(sequence)

    def _release(self, sequence: Sequence) -> None:
        """The one place where a running request gives its blocks back."""
        del self.running[sequence.request_id]
        self.accounts.stop(sequence)
        sequence.table.release()
