"""The engine loop: schedule, run, commit; and the messages in between.

`engine.run.steps` says when a step is planned: after the one before it, or while that is computed.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from math import ceil
from typing import TYPE_CHECKING

from msgspec import structs

from engine.api import (
    EngineBroken,
    EngineInfo,
    EngineRequest,
    EngineStats,
    FinishReason,
    Roll,
    StepOutOfMemory,
    TenantStats,
    TokenDelta,
)
from engine.blocks.listeners import Changes
from engine.blocks.pool import InvariantError
from engine.blocks.tiers import Tiers
from engine.blocks.wall import Wall
from engine.config import EngineConfig
from engine.disk.keeper import Keeper
from engine.disk.memory import BlockMemory
from engine.draft.drafter import Drafter
from engine.draft.lookup import PromptLookup
from engine.draft.worth import FREE_ROWS, RowCosts
from engine.grammar.compiled import CompiledGrammar
from engine.grammar.grammars import Grammars
from engine.run.steps import Failure, Grouping, Runner, Steps
from engine.schedule.decode import Turns
from engine.schedule.scheduler import Scheduler
from engine.schedule.swap_or_recompute import FREE_COPIES, CostModel, SwapOrRecompute
from engine.sequences.plan import News, Sampled, StepPlan
from engine.sequences.sequence import Sequence
from engine.serve.messages import (
    Abort,
    AskChains,
    AskFates,
    AskRoll,
    AskWall,
    ChainsReply,
    Deltas,
    FatesReply,
    ForgetOthers,
    ForgetTenant,
    KeepUnder,
    Probe,
    ProbeReply,
    Ready,
    RollReply,
    ServedElsewhere,
    Submit,
    ToEngine,
    Unpin,
    Unwatch,
    WallReply,
    decode_to_engine,
    encode,
)

if TYPE_CHECKING:  # whoever drives a core without a socket needs no messages
    import zmq

    from engine.serve.kv_events import KVEventPublisher

_log = logging.getLogger(__name__)
_PATIENCE_SECONDS = 0.002
"""For a grammar, while nothing else is to be done: messages are looked for as often."""
_SAVING_SECONDS = 4.0
"""For blocks that are to be kept, at the end: less than who ends the engine waits for it."""
_MOST_FAILURES = 3
"""Failed steps of one kind, without a good one of that kind between them, after which the process
is to be started anew."""


class EngineCore:
    """One model, one block pool, one scheduler; advanced by `step`."""

    def __init__(
        self,
        config: EngineConfig,
        info: EngineInfo,
        runner: Runner,
        costs: CostModel = FREE_COPIES,
        row_costs: RowCosts = FREE_ROWS,
        drafter: Drafter | None = None,
        grammars: Grammars | None = None,
        clock: Callable[[], float] = time.monotonic,
        turns: Turns = list,
    ) -> None:
        """A `drafter` takes the place of the one that `config` asks for. Requests have grammars
        only where there are `grammars`, and decode in `turns`. `clock` tells the seconds by which
        leases end.
        """
        self.config = config
        self.info = info
        tiers = Tiers(
            info.num_blocks,
            info.num_host_blocks,
            info.block_size,
            config.eviction,
            clock,
            None if config.kv_events is None else Changes(),
        )
        recovery = SwapOrRecompute(config.recovery, costs)
        if drafter is None and config.speculation == "lookup":
            drafter = PromptLookup()
        assert drafter is not None or config.speculation != "draft", "who loads the model gives it"
        self.scheduler = Scheduler(
            tiers, recovery, config, info.hash_extras, info.rotary_switch, drafter, row_costs, turns
        )
        self.wall = Wall(tiers, self.scheduler.pins)
        self._name = secrets.token_hex(8)
        self._runner = runner
        self._grammars = grammars
        self._keeper = _make_keeper(config, info, self.scheduler, runner)
        self._order = Steps(self.scheduler)
        self._steps = 0
        self._output_tokens = 0
        self._commit_seconds = 0.0
        self._violations = 0
        self._failures: Counter[str] = Counter()
        """Steps that have failed since the last good one, by what they did."""

    @property
    def is_idle(self) -> bool:
        """Whether `step` would have nothing to do."""
        return (
            self.scheduler.is_idle and not self._order and not self._grammars and not self._keeper
        )

    @property
    def rest_seconds(self) -> float | None:
        """How long `step` would have nothing to do if nothing is submitted; `None`: for ever."""
        if not self.is_idle:
            return 0.0
        return None if self._keeper is None else self._keeper.rest_seconds

    def submit(self, request: EngineRequest) -> list[TokenDelta]:
        """Queue a request that `engine.validation.check_request` has let through.

        Returns the terminal deltas of sequences that have nothing left to generate. One with a
        grammar waits for that first, and then for what is read of its prompt's blocks from disk.
        """
        if request.grammar is None:
            return self._enter(request)
        assert self._grammars is not None, "the door has refused it"
        self._grammars.submit(request)
        return []

    def abort(self, request_id: str, index: int | None = None) -> list[TokenDelta]:
        """End a request now, or one sequence of it. Returns the terminal deltas of what ends."""
        waiting = None if self._grammars is None else self._grammars.abort(request_id, index)
        if waiting is None and self._keeper is not None:
            waiting = self._keeper.abort(request_id, index)
        if waiting is not None:
            return _terminal(waiting, "aborted", index=index)
        return list(map(_last_delta, self.scheduler.abort(request_id, index)))

    def step(self) -> list[TokenDelta]:
        """Take over one step, computed now or launched before. Starts the next one if it can.

        A step that fails ends every running request with an error, and those that come after may
        fare better; one that lacks memory is tried again, smaller. Raises `EngineBroken` if step
        after step of one kind fails, or the runner does: running requests have not ended then.
        """
        if self.wall.is_watched:
            self.wall.lapse()
        refused = self._take_compiled() + self._take_entering()
        progress = self._order.advance(self._runner)
        self._steps += progress.computed is not None
        news = refused + list(map(_last_delta, progress.ended))
        if progress.computed is not None:
            news += self._take_over(*progress.computed)
        if progress.failure is not None:
            return news + self._recover(progress.failure)
        if progress.computed is not None:  # a round that only hashes shows nothing of the device
            for kind in (*_kinds([progress.computed[0]]), "planning"):
                self._failures[kind] = 0
        return news

    def check(self) -> None:
        """Verify some of the books, when idle; the next call takes others.

        A violation is logged and counted, it never stops the engine.
        """
        try:
            self.scheduler.check_some()
        except (InvariantError, AssertionError):
            self._violations += 1
            _log.exception("block accounting is broken")

    def stats(self) -> EngineStats:
        """A snapshot of the books."""
        tiers, lifecycle = self.scheduler.tiers, self.scheduler.lifecycle
        pool, speculation = tiers.pool, self.scheduler.speculation
        leases, tenants = pool.leases.totals(), self._tenant_stats()
        return EngineStats(
            engine=self._name,
            running=len(self.scheduler.running),
            waiting=lifecycle.num_waiting,
            queue_seconds=self.scheduler.queue_seconds,
            prefill_tokens_per_s=self.scheduler.pace.tokens_per_second or 0.0,
            blocks_total=pool.num_blocks,
            blocks_in_use=pool.num_in_use,
            blocks_cached=pool.num_cached,
            peak_blocks_in_use=pool.peak_in_use,
            steps=self._steps,
            prompt_tokens=lifecycle.num_prompt_tokens,
            cached_tokens=lifecycle.num_cached_tokens,
            output_tokens=self._output_tokens,
            preemptions=lifecycle.num_preemptions,
            forks=lifecycle.num_forks,
            copied_blocks=lifecycle.num_copied_blocks,
            invariant_violations=self._violations,
            blocks_pinned=self.scheduler.pins.num_blocks,
            blocks_leased=pool.leases.num_blocks,
            lease_block_seconds=leases.block_seconds,
            leases_broken=leases.num_broken,
            leases_cut=leases.num_cut,
            host_blocks_total=tiers.host.num_blocks,
            host_blocks_used=tiers.host.num_used,
            recomputed=lifecycle.num_recomputed,
            swapped_out=tiers.transfers.num_swapped_out,
            swapped_in=tiers.transfers.num_swapped_in,
            host_hit_blocks=lifecycle.num_host_hits,
            in_block_tokens=lifecycle.num_in_block_tokens,
            spared_keys=self._runner.num_spared_keys if isinstance(self._runner, Grouping) else 0,
            drafted_tokens=0 if speculation is None else speculation.num_drafted,
            accepted_tokens=0 if speculation is None else speculation.num_accepted,
            kept_files=0 if self._keeper is None else self._keeper.num_files,
            kept_bytes=0 if self._keeper is None else self._keeper.num_bytes,
            restored_blocks=0 if self._keeper is None else self._keeper.num_restored,
            tenants=tenants,
            reuse=list(lifecycle.reuse.points()),
            plan_seconds=self._order.plan_seconds,
            compute_seconds=self._order.compute_seconds,
            commit_seconds=self._commit_seconds,
        )

    def roll(self, cell: int | None = None) -> Roll:
        """See `EngineClient.roll`."""
        roll = self.scheduler.lifecycle.roll.roll(cell)
        if self._keeper is None:
            return roll
        return structs.replace(roll, on_disk=self._keeper.blocks_by_owner())

    def forget_tenant(self, tenant: str) -> None:
        """See `EngineClient.forget_tenant`."""
        self.scheduler.forget_tenant(tenant)
        if self._grammars is not None:
            self._grammars.forget_tenant(tenant)
        if self._keeper is not None:
            self._keeper.forget_tenant(tenant)

    def forget_others(self, tenants: Mapping[str, str]) -> None:
        """See `EngineClient.forget_others`."""
        if self._keeper is not None:
            self._keeper.forget_others(tenants)

    def keep_under(self, tenant: str, secret: str) -> None:
        """See `EngineClient.keep_under`."""
        if self._keeper is not None:
            self._keeper.keep_under(tenant, secret)

    def close(self, patience_seconds: float = 0.0) -> None:
        """Save what is to be kept, as far as there is time. No step is to follow."""
        if self._keeper is not None:
            self._keeper.close(patience_seconds)

    def _enter(
        self, request: EngineRequest, grammar: CompiledGrammar | None = None
    ) -> list[TokenDelta]:
        """Let a request come to the scheduler, behind its blocks where these are on disk."""
        if self._keeper is not None and self._keeper.submit(request, grammar):
            return []
        return self._add(request, grammar)

    def _add(
        self, request: EngineRequest, grammar: CompiledGrammar | None = None
    ) -> list[TokenDelta]:
        """See `submit`."""
        ended = self.scheduler.add(request, grammar)
        return list(map(_last_delta, ended))

    def _take_compiled(self) -> list[TokenDelta]:
        """Queue the requests that have waited for their grammars; the answer is that of `submit`.

        With nothing else to do, it waits a moment for the next one.
        """
        if not self._grammars:
            return []
        has_steps = self._order or not self.scheduler.is_idle
        deltas: list[TokenDelta] = []
        for one in self._grammars.ready(0.0 if has_steps else _PATIENCE_SECONDS):
            if one.error is None:
                deltas += self._enter(one.request, one.grammar)
            else:
                deltas += _terminal(one.request, "error", one.error)
        return deltas

    def _take_entering(self) -> list[TokenDelta]:
        """Let the keeper do what is due, and queue the requests that have waited for it.

        With nothing else to do, it waits a moment for what it does in threads.
        """
        if self._keeper is None:
            return []
        has_steps = self._order or not self.scheduler.is_idle
        deltas: list[TokenDelta] = []
        for one in self._keeper.advance(0.0 if has_steps else _PATIENCE_SECONDS):
            deltas += self._add(one.request, one.grammar)
        return deltas

    def _take_over(self, plan: StepPlan, sampled: Sampled) -> list[TokenDelta]:
        """What a computed step means to readers."""
        began = time.perf_counter()
        deltas = [self._delta(news, sampled) for news in self.scheduler.commit(plan, sampled)]
        self._commit_seconds += time.perf_counter() - began
        return deltas

    def _recover(self, failure: Failure) -> list[TokenDelta]:
        """Go on behind a failed step; returns the terminal deltas of what ends by it."""
        error, plans = failure.error, failure.plans
        if isinstance(error, EngineBroken):
            raise error
        lacks_memory = isinstance(error, StepOutOfMemory)
        if lacks_memory and self.scheduler.retry_smaller(plans):
            limit = self.scheduler.budget.num_tokens
            _log.warning("step %d lacks memory: %d tokens at most now", self._steps, limit)
            return []
        _log.error("step %d failed", self._steps, exc_info=error)
        # A device may compute prompts, and yet no token behind them.
        self._failures.update(_kinds(plans))
        for kind, count in self._failures.items():
            if count >= _MOST_FAILURES:
                raise EngineBroken(f"{count} times in a row {kind} has failed") from error
        message = f"{type(error).__name__} in the engine"
        if lacks_memory:
            ended = self.scheduler.fail_these(plans, message)
        else:
            ended = self.scheduler.fail_all(message)
        return list(map(_last_delta, ended))

    def _delta(self, news: News, sampled: Sampled) -> TokenDelta:
        """What is new to a reader, and how long that had to wait."""
        delta, waited = self._result(news, sampled), news.sequence.take_waited()
        return structs.replace(delta, waited_seconds=waited) if waited else delta

    def _result(self, news: News, sampled: Sampled) -> TokenDelta:
        """What sampled tokens, or what a beam search has come to, are to their reader, counted."""
        sequence = news.sequence
        if news.scored:
            return TokenDelta(
                request_id=sequence.request_id,
                index=sequence.index,
                prompt_logprobs=[sampled.prompt_logprobs[row] for row in news.scored],
                cached_tokens=sequence.first_hit or 0,
                cache_write_tokens=sequence.num_written,
            )
        if sequence.sampling.max_tokens == 0:
            return _last_delta(sequence)
        if sequence.request.beam is not None and sequence.finish_reason is None:
            return TokenDelta(
                request_id=sequence.request_id,
                searched_tokens=sequence.num_searched,
                cached_tokens=sequence.first_hit or 0,
                cache_write_tokens=sequence.num_written,
            )
        # Tokens of this step, or with a score whole hypotheses.
        count = len(news.rows) if sequence.score is None else len(sequence.token_ids)
        first = max(sequence.num_prompt_tokens, len(sequence.token_ids) - count)
        token_ids = sequence.token_ids[first:]
        self._output_tokens += len(token_ids)
        logprobs = [sampled.logprobs[row] for row in news.rows]
        return TokenDelta(
            request_id=sequence.request_id,
            index=sequence.index,
            token_ids=token_ids,
            logprobs=[one for one in logprobs if one is not None] or None,
            finish_reason=sequence.finish_reason,
            score=sequence.score,
            searched_tokens=sequence.num_searched,
            cached_tokens=sequence.first_hit or 0,
            cache_write_tokens=sequence.num_written,
            error=sequence.error,
        )

    def _tenant_stats(self) -> dict[str, TenantStats]:
        scheduler = self.scheduler
        pinned = {
            tenant: len(scheduler.pins.blocks_of(tenant)) for tenant in scheduler.pins.tenants
        }
        stats, leases = {}, scheduler.pool.leases
        known = {account.tenant for account in scheduler.accounts.known()}
        for tenant in known.union(pinned, leases.tenants):
            account, leased = scheduler.accounts.get(tenant), leases.of(tenant)
            stats[tenant] = TenantStats(
                running=len(account.running),
                waiting=len(account.waiting),
                blocks_held=len(account.held),
                blocks_shared=sum(scheduler.pool.references[one] > 1 for one in account.held),
                blocks_cached=scheduler.pool.num_cached_of(tenant),
                blocks_pinned=pinned.get(tenant, 0),
                served=account.served,
                blocks_leased=len(leased.leases),
                lease_block_seconds=leased.block_seconds,
                leases_broken=leased.num_broken,
                leases_cut=leased.num_cut,
                leases_since=leased.begun,
            )
        return stats


def serve(
    core: EngineCore, socket: zmq.SyncSocket, publisher: KVEventPublisher | None = None
) -> None:
    """Announce readiness, then run the loop over `socket` until told to shut down.

    Messages are taken before every step, so an abort frees its blocks within one step. A
    `publisher` tells of blocks after each. Raises `EngineBroken` as `EngineCore.step` does.
    """
    socket.send(encode(Ready(core.info)))
    while True:
        while socket.poll(_milliseconds(core.rest_seconds)):
            message: ToEngine = decode_to_engine(socket.recv())
            if isinstance(message, Submit):
                _send(socket, core.submit(message.request))
            elif isinstance(message, Abort):
                _send(socket, core.abort(message.request_id, message.index))
            elif isinstance(message, Unpin):
                core.scheduler.pins.unpin(message.pin)
            elif isinstance(message, ForgetTenant):
                core.forget_tenant(message.tenant)
            elif isinstance(message, ServedElsewhere):
                core.scheduler.served_elsewhere(message.tenants)
            elif isinstance(message, ForgetOthers):
                core.forget_others(message.tenants)
            elif isinstance(message, KeepUnder):
                core.keep_under(message.tenant, message.secret)
            elif isinstance(message, AskFates):
                fates = core.scheduler.tiers.fates(message.hashes)
                socket.send(encode(FatesReply(message.ask_id, fates)))
            elif isinstance(message, AskChains):
                page = core.scheduler.lifecycle.chains.page(message.tenant, message.before)
                socket.send(encode(ChainsReply(message.ask_id, page)))
            elif isinstance(message, AskWall):
                frame = core.wall.frame(message.watcher)
                socket.send(encode(WallReply(message.ask_id, frame)))
            elif isinstance(message, AskRoll):
                socket.send(encode(RollReply(message.ask_id, core.roll(message.cell))))
            elif isinstance(message, Unwatch):
                core.wall.unwatch(message.watcher)
            elif isinstance(message, Probe):
                socket.send(encode(ProbeReply(message.probe_id, core.stats())))
            else:
                core.close(_SAVING_SECONDS)
                return
            if publisher is not None:  # a tenant may have been forgotten
                publisher.publish()
        _send(socket, core.step())
        if publisher is not None:
            publisher.publish()
        if core.is_idle:
            core.check()


def _make_keeper(
    config: EngineConfig, info: EngineInfo, scheduler: Scheduler, runner: Runner
) -> Keeper | None:
    """Who keeps blocks on disk, if that is configured and can be."""
    if config.kept_dir is None or not config.prefix_cache or not isinstance(runner, BlockMemory):
        return None
    try:
        return Keeper(config, info, scheduler, runner)
    except OSError as error:
        _log.warning("nothing is kept on disk: %s", error)
        return None


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else ceil(1000 * seconds)


def _kinds(plans: list[StepPlan]) -> set[str]:
    """What steps do; without any, something else has failed."""
    chunks = [chunk for plan in plans for chunk in plan.chunks]
    return {
        "decode" if chunk.start >= chunk.sequence.num_prompt_tokens else "prefill"
        for chunk in chunks
    } or {"planning"}


def _send(socket: zmq.SyncSocket, deltas: list[TokenDelta]) -> None:
    if deltas:
        socket.send(encode(Deltas(deltas)))


def _terminal(
    request: EngineRequest,
    reason: FinishReason,
    error: str | None = None,
    index: int | None = None,
) -> list[TokenDelta]:
    """The last deltas of a request that has not come to the scheduler, or of one sequence."""
    indices = range(request.num_outputs) if index is None else [index]
    return [
        TokenDelta(
            request_id=request.request_id,
            index=one,
            finish_reason=reason,
            cached_tokens=request.cached_tokens or 0,
            error=error,
        )
        for one in indices
        if one not in request.ended
    ]


def _last_delta(sequence: Sequence) -> TokenDelta:
    return TokenDelta(
        request_id=sequence.request_id,
        index=sequence.index,
        finish_reason=sequence.finish_reason,
        cached_tokens=sequence.first_hit or 0,
        cache_write_tokens=sequence.num_written,
        error=sequence.error,
    )
