"""Whatever happens, in whatever order: the books balance, and answers are what they are alone."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Literal

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from msgspec import structs

from engine.api import (
    EVERYTHING,
    CachePolicy,
    EngineRequest,
    Kind,
    PromptLogprobs,
    RequestRefused,
    StepOutOfMemory,
    TenantShare,
    TokenDelta,
)
from engine.blocks.eviction.policy import Eviction
from engine.draft.drafter import Drafter
from engine.run.steps import Runner
from engine.schedule.swap_or_recompute import ComputeCost, CopyCost, CostModel
from engine.sequences.plan import Sampled, StepPlan
from engine.validation import check_request
from tests.effort import scaled
from tests.engine.simulated_model import expected_output, expected_scores, random_prompt
from tests.engine.simulation import make_request, simulated_core


class FailingStep(Exception):
    pass


class FailingRunner:
    """Fails before or after the step was computed."""

    def __init__(self, runner: Runner | None, error: type[Exception]) -> None:
        self._runner = runner
        self._error = error

    def execute(self, plan: StepPlan) -> Sampled:
        if self._runner is not None:
            self._runner.execute(plan)
        raise self._error


class SchedulerMachine(RuleBasedStateMachine):
    """Requests of one or several sequences come, are computed, preempted and aborted in any order,
    in a pool and a host tier of any size.

    Tenants have weights, reserves and caps that change; prompts are pinned, tenants forgotten,
    steps fail.
    """

    prefix_cache = True
    fairness: Literal["vtc", "fcfs"] = "vtc"
    eviction: Eviction = "arc"
    runs_ahead = False
    kinds: tuple[Kind, ...] = (EVERYTHING,)
    """Of the model's layers."""

    def make_drafter(self) -> Drafter | None:
        return None

    @initialize(
        seed=st.integers(0, 2**32), num_blocks=st.integers(6, 30), budget=st.integers(8, 40)
    )
    def start(self, seed: int, num_blocks: int, budget: int) -> None:
        self.rng, self.now = random.Random(seed), 0.0
        self.num_blocks = num_blocks
        copy = CopyCost(1.0, self.rng.choice([0.0, 2.0, 10.0]))
        self.core = simulated_core(
            num_blocks,
            4,
            budget,
            8,
            prefix_cache=self.prefix_cache,
            fairness=self.fairness,
            eviction=self.eviction,
            num_host_blocks=self.rng.choice([0, 2, 10, 60]),
            kinds=self.kinds,
            spare_pages=self.rng.randint(0, sum(kind.pages for kind in self.kinds) - 1),
            recovery=self.rng.choice(["auto", "swap", "recompute"]),
            min_run_tokens=self.rng.randint(1, 8),
            costs=CostModel(copy, copy, ComputeCost(1.0, 1.0, 0.0, budget, 1.0)),
            runs_ahead=self.runs_ahead,
            drafter=self.make_drafter(),
            lease_share=self.rng.choice([0.3, 1.0]),
            clock=lambda: self.now,
        )
        # Layers that all forget set no limit.
        self.capacity = min(self.core.info.max_context_tokens, 200)
        self.heads = [random_prompt(self.rng, self.capacity // 2) for _ in range(2)]
        self.shares = {tenant: TenantShare() for tenant in "abc"}
        self.requests: dict[str, EngineRequest] = {}
        self.outputs: dict[tuple[str, int], list[int]] = {}
        self.scores: defaultdict[str, list[PromptLogprobs]] = defaultdict(list)
        self.ends: dict[tuple[str, int], TokenDelta] = {}
        self.may_lack_room = False

    @rule(
        shared=st.integers(0, 60),
        own=st.integers(1, 20),
        out=st.integers(0, 20),
        resumed=st.lists(st.integers(0, 8), max_size=4),
        count=st.sampled_from([1, 1, 2, 3, 4]),
        up_to=st.one_of(st.none(), st.none(), st.just(0), st.integers(0, 70)),
        ends=st.lists(st.integers(1, 70), max_size=4),
        lease=st.sampled_from([0.0, 3.0, 30.0]),
        scored=st.booleans(),
    )
    def submit(
        self,
        shared: int,
        own: int,
        out: int,
        resumed: list[int],
        count: int,
        up_to: int | None,
        ends: list[int],
        lease: float,
        scored: bool,
    ) -> None:
        prompt = self.rng.choice(self.heads)[:shared] + random_prompt(self.rng, own)
        prompt = prompt[: self.capacity - out]
        tenant = self.rng.choice("abc")
        generated = [
            expected_output(prompt, out, index)[:length]
            for index, length in enumerate(resumed[:count])
        ]
        fields = {"num_sequences": count, "generated": generated, "num_scored": 0}
        if scored:
            last = len(prompt) - 1
            fields["num_scored"] = last if any(generated) else self.rng.randint(0, last)
        up_to = None if up_to is None else min(up_to, len(prompt))
        ends = [end for end in ends if end <= len(prompt)]
        cache = CachePolicy(lease_s=lease, up_to=up_to, ends=tuple(ends))
        self._submit(prompt, out, tenant, scored=scored, cache=cache, **fields)

    @rule(
        tenant=st.sampled_from("abc"),
        weight=st.sampled_from([0.5, 1.0, 2.0]),
        reserved=st.integers(0, 4),
        cap=st.one_of(st.none(), st.integers(3, 12)),
        pinned=st.one_of(st.none(), st.integers(0, 4)),
        leased=st.one_of(st.none(), st.integers(0, 8)),
    )
    def change_share(
        self,
        tenant: str,
        weight: float,
        reserved: int,
        cap: int | None,
        pinned: int | None,
        leased: int | None,
    ) -> None:
        self.may_lack_room |= reserved > 0
        self.shares[tenant] = TenantShare(
            weight=weight,
            reserved_blocks=reserved,
            max_blocks=cap,
            max_pinned_blocks=pinned,
            max_leased_blocks=leased,
        )

    @rule(seconds=st.sampled_from([1.0, 10.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(tenant=st.sampled_from("abc"), name=st.sampled_from("pq"), length=st.integers(1, 20))
    def pin(self, tenant: str, name: str, length: int) -> None:
        self.may_lack_room = True
        prompt = self.rng.choice(self.heads)[:length]
        self._submit(prompt, 0, tenant, pin=f"{tenant}/{name}")

    @rule(tenant=st.sampled_from("abc"), name=st.sampled_from("pq"))
    def unpin(self, tenant: str, name: str) -> None:
        self.core.scheduler.pins.unpin(f"{tenant}/{name}")

    @rule(tenant=st.sampled_from("abc"))
    def forget_tenant(self, tenant: str) -> None:
        self.core.scheduler.forget_tenant(tenant)
        assert self.core.scheduler.pool.num_cached_of(tenant) == 0
        assert not self.core.scheduler.pool.leases.of(tenant).leases

    @precondition(lambda self: not self.core.is_idle)
    @rule(luck=st.integers(0, 9), is_computed=st.booleans())
    def fail_a_step(self, luck: int, is_computed: bool) -> None:
        if luck:
            return
        self._fail_a_step(is_computed, FailingStep)
        assert self.core.is_idle

    @precondition(lambda self: not self.core.is_idle)
    @rule(luck=st.integers(0, 2), is_computed=st.booleans())
    def lack_memory(self, luck: int, is_computed: bool) -> None:
        if luck:
            return
        limit = self.core.scheduler.budget.num_tokens
        self._fail_a_step(is_computed, StepOutOfMemory)
        assert self.core.scheduler.budget.num_tokens <= limit

    def _fail_a_step(self, is_computed: bool, error: type[Exception]) -> None:
        runner = self.core._runner
        self.core._runner = FailingRunner(runner if is_computed else None, error)
        self._take(self.core.step())
        self.core._runner = runner
        self.core._failures.clear()  # there may be many, at last it would give up

    @precondition(lambda self: not self.core.is_idle)
    @rule()
    def step(self) -> None:
        self._take(self.core.step())

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.requests)))
        indices = [key for key in self.outputs if key[0] == name]
        one = data.draw(st.sampled_from([None, *(index for _, index in indices)]))
        deltas = self.core.abort(name, one)
        gone = {(name, one)} if one is not None else set(indices)
        assert {(name, delta.index) for delta in deltas} == gone - self.ends.keys()
        self._take(deltas)

    @invariant()
    def books_balance(self) -> None:
        self.core.scheduler.check()
        leases = self.core.scheduler.pool.leases
        for tenant in leases.tenants:
            assert all(lease.until > self.now for lease in leases.of(tenant).leases.values())
        if self.core.is_idle:
            self.core.scheduler.check_some()

    def teardown(self) -> None:
        if not hasattr(self, "core"):
            return
        for _ in range(10_000):
            if self.core.is_idle:
                break
            self.step()
            self.books_balance()
        assert self.ends.keys() == self.outputs.keys(), "a sequence never ended"
        scheduler = self.core.scheduler
        assert scheduler.pool.num_in_use == scheduler.pins.num_pages
        for (name, index), output in self.outputs.items():
            request = self.requests[name]
            expected = expected_output(request.prompt, request.sampling.max_tokens, index)
            expected = expected[len(request.generated_by(index)) :]
            if self.ends[name, index].finish_reason in ("aborted", "error"):
                expected = expected[: len(output)]
            assert output == expected
        for name, request in self.requests.items():
            self._check_scores(request, self.scores[name])

    def _check_scores(self, request: EngineRequest, scores: list[PromptLogprobs]) -> None:
        if request.sampling.prompt_logprobs is None:
            assert not scores
            return
        expected = expected_scores(request.prompt)[request.num_scored :]
        ends = [self.ends[request.request_id, index] for index in range(request.num_sequences)]
        if all(end.finish_reason in ("aborted", "error") for end in ends):
            expected = expected[: len(scores)]
        assert scores == expected

    def _submit(
        self, prompt: list[int], out: int, tenant: str, *, scored: bool = False, **fields: object
    ) -> None:
        name, share = str(len(self.requests)), self.shares[tenant]
        request = make_request(name, prompt, out, tenant=tenant, share=share, **fields)
        if scored:
            sampling = structs.replace(request.sampling, prompt_logprobs=0)
            request = structs.replace(request, sampling=sampling)
        try:
            check_request(request, self.core.info)
        except RequestRefused:
            assert share.max_blocks is not None or request.num_sequences > 1
            return
        self.requests[name] = request
        self.outputs |= {(name, index): [] for index in range(request.num_sequences)}
        self._take(self.core.submit(request))

    def _take(self, deltas: list[TokenDelta]) -> None:
        for delta in deltas:
            name = delta.request_id, delta.index
            assert name not in self.ends, "news after the end"
            self.scores[delta.request_id] += delta.prompt_logprobs
            self.outputs[name] += delta.token_ids
            if delta.finish_reason is not None:
                self.ends[name] = delta
            if delta.finish_reason == "error":
                if {"FailingStep", "StepOutOfMemory"} & set((delta.error or "").split()):
                    continue
                kept = "no room" in (delta.error or "") and self.may_lack_room
                assert kept or "cannot be pinned" in (delta.error or "")
            else:
                assert delta.error is None


class UncachedSchedulerMachine(SchedulerMachine):
    prefix_cache = False


class WindowsSchedulerMachine(SchedulerMachine):
    """Layers of which some see all, and some a window that ends within a block."""

    kinds = (Kind(), Kind(window=7, pages=3))


class ManyKindsSchedulerMachine(SchedulerMachine):
    kinds = (Kind(pages=2), Kind(window=3), Kind(chunk=12, pages=2), Kind(window=17, pages=3))


class WindowsAloneSchedulerMachine(SchedulerMachine):
    kinds = (Kind(window=9, pages=2), Kind(chunk=7))


class StatesSchedulerMachine(SchedulerMachine):
    """Layers of which some see all, and others keep a state."""

    kinds = (Kind(), Kind(pages=2, is_state=True))


class StatesBesideWindowsSchedulerMachine(SchedulerMachine):
    kinds = (Kind(pages=2), Kind(window=7), Kind(pages=3, is_state=True))


class StatesAloneSchedulerMachine(SchedulerMachine):
    kinds = (Kind(pages=3, is_state=True),)


class FirstComeSchedulerMachine(SchedulerMachine):
    fairness = "fcfs"
    eviction = "lru"


TestSchedulerMachine = SchedulerMachine.TestCase
TestUncachedSchedulerMachine = UncachedSchedulerMachine.TestCase
TestFirstComeSchedulerMachine = FirstComeSchedulerMachine.TestCase
TestWindowsSchedulerMachine = WindowsSchedulerMachine.TestCase
TestManyKindsSchedulerMachine = ManyKindsSchedulerMachine.TestCase
TestWindowsAloneSchedulerMachine = WindowsAloneSchedulerMachine.TestCase
TestStatesSchedulerMachine = StatesSchedulerMachine.TestCase
TestStatesAloneSchedulerMachine = StatesAloneSchedulerMachine.TestCase
TestStatesBesideWindowsSchedulerMachine = StatesBesideWindowsSchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=scaled(60), stateful_step_count=50)
TestUncachedSchedulerMachine.settings = settings(max_examples=scaled(30), stateful_step_count=50)
TestFirstComeSchedulerMachine.settings = settings(max_examples=scaled(30), stateful_step_count=50)
TestWindowsSchedulerMachine.settings = settings(max_examples=scaled(30), stateful_step_count=50)
TestManyKindsSchedulerMachine.settings = settings(max_examples=scaled(30), stateful_step_count=50)
TestWindowsAloneSchedulerMachine.settings = settings(
    max_examples=scaled(20), stateful_step_count=50
)
TestStatesSchedulerMachine.settings = settings(max_examples=scaled(40), stateful_step_count=50)
TestStatesAloneSchedulerMachine.settings = settings(max_examples=scaled(20), stateful_step_count=50)
TestStatesBesideWindowsSchedulerMachine.settings = settings(
    max_examples=scaled(20), stateful_step_count=50
)
