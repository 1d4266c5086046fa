"""The engine: what waits is let in, a step is computed, and what it means is taken over.

`engine.run.steps` says when a step is planned: after the one before it, or while that is computed.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from msgspec import structs

from engine.adapters.adapters import Adapters
from engine.adapters.memory import AdapterMemory
from engine.api import (
    AdapterState,
    EngineBroken,
    EngineInfo,
    EngineRequest,
    EngineStats,
    Roll,
    StepOutOfMemory,
    TokenDelta,
)
from engine.blocks.changes import changes_of
from engine.blocks.pool import InvariantError
from engine.blocks.tiers import Tiers
from engine.blocks.wall import Wall
from engine.config import EngineConfig
from engine.disk.keeper import Keeper
from engine.disk.memory import BlockMemory
from engine.draft.drafter import Drafter
from engine.draft.lookup import PromptLookup
from engine.draft.worth import FREE_ROWS, RowCosts
from engine.grammar.grammars import Grammars
from engine.pictures.pictures import Pictures
from engine.pictures.sight import Sight
from engine.pictures.stored import StoredPictures
from engine.run.steps import Failure, Runner, Steps
from engine.schedule.decode import Turns
from engine.schedule.scheduler import Scheduler
from engine.schedule.swap_or_recompute import FREE_COPIES, CostModel, SwapOrRecompute
from engine.sequences.plan import Sampled, StepPlan
from engine.sequences.uncut import NOTHING_UNCUT, Uncut
from engine.serve.arrivals import Arrivals
from engine.serve.deltas import delta_of, last_delta
from engine.serve.figures import engine_stats

_log = logging.getLogger(__name__)
_PICTURE_SECONDS = 0.05
"""Of seeing one between two steps, at most, where no time between tokens is aimed at."""
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
            info.memory_pages,
            info.num_host_blocks * info.block_pages,
            info.block_size,
            config.eviction,
            clock,
            None if config.kv_events is None else changes_of(info.kinds, info.block_size),
            info.kinds,
        )
        recovery = SwapOrRecompute(config.recovery, costs)
        if drafter is None and config.speculation == "lookup":
            drafter = PromptLookup()
        assert drafter is not None or config.speculation != "draft", "who loads the model gives it"
        uncut = Uncut(info.picture_token_id) if info.has_mutual_pictures else NOTHING_UNCUT
        fixed = info.hash_extras, info.rotary_switch
        self.scheduler = Scheduler(
            tiers, recovery, config, *fixed, drafter, row_costs, turns, uncut
        )
        self.wall = Wall(tiers, self.scheduler.pins)
        self._name = secrets.token_hex(8)
        self._runner = runner
        keeper = _make_keeper(config, info, self.scheduler, runner)
        adapters = _make_adapters(config, self.scheduler, runner)
        pictures = _make_pictures(config, self.scheduler, runner)
        self.arrivals = Arrivals(self.scheduler.add, grammars, keeper, adapters, pictures)
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
        return not (self._has_steps or self.arrivals)

    @property
    def rest_seconds(self) -> float | None:
        """How long `step` would have nothing to do if nothing is submitted; `None`: for ever."""
        return 0.0 if self._has_steps else self.arrivals.rest_seconds

    def submit(self, request: EngineRequest) -> list[TokenDelta]:
        """Queue a request that `engine.validation.check_request` has let through.

        Returns the terminal deltas of sequences that have nothing left to generate. One with a
        grammar waits for that first, and then for what is read of its prompt's blocks from disk.
        """
        if self.info.limits_prompts:
            request = request.without_answers()
        return self.arrivals.submit(request)

    def abort(self, request_id: str, index: int | None = None) -> list[TokenDelta]:
        """End a request now, or one sequence of it. Returns the terminal deltas of what ends."""
        ends = self.arrivals.abort(request_id, index)
        if ends is None:
            ends = list(map(last_delta, self.scheduler.abort(request_id, index)))
        return ends

    def step(self) -> list[TokenDelta]:
        """Take over one step, computed now or launched before. Starts the next one if it can.

        A step that fails ends every running request with an error, and those that come after may
        fare better; one that lacks memory is tried again, smaller. Raises `EngineBroken` if step
        after step of one kind fails, or the runner does: running requests have not ended then.
        """
        self.wall.lapse()
        deltas = self.arrivals.advance(has_steps=self._has_steps)
        progress = self._order.advance(self._runner)
        deltas += map(last_delta, progress.ended)
        if progress.computed is not None:
            deltas += self._take_over(*progress.computed)
        if progress.failure is not None:
            deltas += self._recover(progress.failure)
        elif progress.computed is not None:  # one that only hashes shows nothing of the device
            for kind in (*_kinds([progress.computed[0]]), "planning"):
                self._failures[kind] = 0
        return deltas

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
        return engine_stats(
            self.scheduler,
            self._order,
            self._runner,
            self.arrivals.keeper,
            engine=self._name,
            steps=self._steps,
            output_tokens=self._output_tokens,
            invariant_violations=self._violations,
            commit_seconds=self._commit_seconds,
            adapters=[] if self.arrivals.adapters is None else self.arrivals.adapters.loaded,
            pictures=self.arrivals.pictures,
        )

    def roll(self, cell: int | None = None) -> Roll:
        """See `engine.questions.AskRoll`."""
        roll, keeper = self.scheduler.lifecycle.roll.roll(cell), self.arrivals.keeper
        return roll if keeper is None else structs.replace(roll, on_disk=keeper.blocks_by_owner())

    def take_wanted(self) -> list[bytes]:
        """The names of adapters and pictures that requests have come to wait for since the last
        call.
        """
        return self.arrivals.take_wanted()

    def bring(
        self, name: bytes, data: bytes, *, is_first: bool = False, is_last: bool = False
    ) -> None:
        """Take over a piece of what was wanted."""
        self.arrivals.bring(name, data, is_first=is_first, is_last=is_last)

    def lack(self, name: bytes, why: str) -> list[TokenDelta]:
        """What was wanted does not come. Returns the terminal deltas of what ends."""
        return self.arrivals.lack(name, why)

    def adapter_states(self, names: Sequence[bytes]) -> list[AdapterState | None]:
        """See `engine.questions.AskAdapters`."""
        adapters = self.arrivals.adapters
        return [None] * len(names) if adapters is None else adapters.states(names)

    def forget_tenant(self, tenant: str) -> None:
        """See `engine.questions.ForgetTenant`."""
        self.scheduler.forget_tenant(tenant)
        self.arrivals.forget_tenant(tenant)

    def forget_others(self, tenants: Mapping[str, str]) -> None:
        """See `engine.questions.ForgetOthers`."""
        if self.arrivals.keeper is not None:
            self.arrivals.keeper.forget_others(tenants)

    def keep_under(self, tenant: str, secret: str) -> None:
        """See `engine.questions.KeepUnder`."""
        if self.arrivals.keeper is not None:
            self.arrivals.keeper.keep_under(tenant, secret)

    def close(self, patience_seconds: float = 0.0) -> None:
        """Save what is to be kept, as far as there is time. No step is to follow."""
        if self.arrivals.keeper is not None:
            self.arrivals.keeper.close(patience_seconds)

    @property
    def _has_steps(self) -> bool:
        return bool(self._order) or not self.scheduler.is_idle

    def _take_over(self, plan: StepPlan, sampled: Sampled) -> list[TokenDelta]:
        """What a computed step means to readers, counted."""
        began = time.perf_counter()
        deltas = [delta_of(news, sampled) for news in self.scheduler.commit(plan, sampled)]
        self._steps += 1
        self._output_tokens += sum(len(delta.token_ids) for delta in deltas)
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
        return list(map(last_delta, ended))


def _make_keeper(
    config: EngineConfig, info: EngineInfo, scheduler: Scheduler, runner: Runner
) -> Keeper | None:
    """Who keeps blocks on disk, if that is configured and can be."""
    memory: BlockMemory | None = getattr(runner, "images", None)
    if config.kept_dir is None or not config.prefix_cache or memory is None:
        return None
    try:
        return Keeper(config, info, scheduler, memory)
    except OSError as error:
        _log.warning("nothing is kept on disk: %s", error)
        return None


def _make_adapters(config: EngineConfig, scheduler: Scheduler, runner: Runner) -> Adapters | None:
    """What loads adapters, where there is a model that they may change."""
    model: AdapterMemory | None = getattr(runner, "adapters", None)
    memory: BlockMemory | None = getattr(runner, "images", None)
    if model is None or memory is None:
        return None
    return Adapters(scheduler, model, memory, config.adapter_memory_bytes)


def _make_pictures(config: EngineConfig, scheduler: Scheduler, runner: Runner) -> Pictures | None:
    """What has pictures seen, where there is a model that sees."""
    sight: Sight | None = getattr(runner, "pictures", None)
    if sight is None:
        return None
    most = config.itl_target_ms / 2000 or _PICTURE_SECONDS
    memory: BlockMemory | None = getattr(runner, "images", None)
    stored = None
    if config.prefix_cache and memory is not None:
        stored = StoredPictures(scheduler, sight, memory)
    return Pictures(scheduler, sight, stored, config.picture_memory_bytes, most)


def _kinds(plans: list[StepPlan]) -> set[str]:
    """What steps do; without any, something else has failed."""
    chunks = [chunk for plan in plans for chunk in plan.chunks]
    return {
        "decode" if chunk.start >= chunk.sequence.num_prompt_tokens else "prefill"
        for chunk in chunks
    } or {"planning"}
