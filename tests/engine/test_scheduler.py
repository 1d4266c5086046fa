import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from engine.core import EngineCore
from engine.request import EngineRequest
from tests.engine.simulation import (
    EOS,
    VOCAB,
    expected_output,
    make_request,
    random_prompt,
    run_to_end,
    simulated_core,
)


def test_a_request_generates_what_the_model_says() -> None:
    core = simulated_core()
    core.submit(make_request("r", [5, 6, 7], max_tokens=20))
    assert run_to_end(core)["r"] == expected_output([5, 6, 7], 20)


def test_a_stop_token_ends_the_request_and_is_delivered() -> None:
    prompt = next([n] for n in range(4, VOCAB) if EOS in expected_output([n], 60))
    core = simulated_core()
    core.submit(make_request("r", prompt, max_tokens=60))
    deltas = []
    while not core.is_idle:
        deltas += core.step()
    assert deltas[-1].token_ids == [EOS]
    assert deltas[-1].finish_reason == "stop"
    assert {delta.finish_reason for delta in deltas[:-1]} <= {None}


def test_zero_output_tokens_compute_the_prompt_and_cache_it() -> None:
    core = simulated_core()
    prompt = random_prompt(random.Random(1), 40)
    core.submit(make_request("warm", prompt, max_tokens=0))
    deltas = core.step() + core.step()
    assert [(d.token_ids, d.finish_reason) for d in deltas] == [([], "length")]
    core.submit(make_request("r", prompt, max_tokens=1))
    assert core.step()[0].cached_tokens == 36


def test_decoding_never_waits_behind_a_long_prompt() -> None:
    core = simulated_core(num_blocks=200, step_token_budget=16)
    core.submit(make_request("short", [4, 5], max_tokens=30))
    core.step()
    core.submit(make_request("long", random_prompt(random.Random(2), 300), max_tokens=1))
    for _ in range(15):
        assert "short" in {delta.request_id for delta in core.step()}
    assert run_to_end(core)["long"]


def test_a_step_never_exceeds_its_token_budget() -> None:
    core = simulated_core(num_blocks=200, step_token_budget=16)
    rng = random.Random(3)
    for index in range(12):
        core.submit(make_request(str(index), random_prompt(rng, rng.randrange(1, 40))))
    while not core.is_idle:
        plan = core.scheduler.plan()
        assert 0 < plan.num_tokens <= 16
        sampled = core._runner.execute(plan)
        core.scheduler.commit(plan, sampled.token_ids)
        core.scheduler.check()


def test_requests_of_one_step_share_a_prefix_that_is_being_computed() -> None:
    core = simulated_core(step_token_budget=64)
    prompt = random_prompt(random.Random(4), 21)
    core.submit(make_request("first", prompt))
    core.submit(make_request("second", prompt))
    deltas = {delta.request_id: delta for delta in core.step()}
    assert deltas["first"].cached_tokens == 0
    assert deltas["second"].cached_tokens == 20
    core.scheduler.check()


def test_a_second_turn_hits_every_full_block_of_the_first_answer_included() -> None:
    for length in range(8, 13):
        core = simulated_core()
        prompt = random_prompt(random.Random(5), length)
        core.submit(make_request("one", prompt, max_tokens=12))
        history = prompt + run_to_end(core)["one"]
        core.submit(make_request("two", [*history, 9, 9], max_tokens=1))
        assert core.step()[0].cached_tokens == len(history) // 4 * 4


def test_tenants_and_users_share_only_what_their_namespaces_allow() -> None:
    system = random_prompt(random.Random(6), 10)
    prompt = [*system, *random_prompt(random.Random(7), 10)]

    def cached(core: EngineCore, **who: str) -> int:
        core.submit(make_request("x", prompt, max_tokens=1, shared_tokens=10, **who))
        return core.step()[0].cached_tokens

    core = simulated_core()
    assert cached(core, tenant="a", user="ann") == 0
    assert cached(core, tenant="a", user="ann") == 16, "same namespace: every full block"
    assert cached(core, tenant="a", user="bob") == 8, "the system prompt's full blocks only"
    assert cached(core, tenant="b", user="ann") == 0, "another tenant: nothing"


def test_an_aborted_request_frees_its_blocks_at_once() -> None:
    core = simulated_core()
    core.submit(make_request("r", random_prompt(random.Random(8), 100), max_tokens=50))
    core.step()
    assert core.scheduler.pool.num_in_use > 0
    assert [delta.finish_reason for delta in core.abort("r")] == ["aborted"]
    assert core.scheduler.pool.num_in_use == 0
    assert core.abort("r") == [], "ending twice is nothing"


def test_a_failing_step_ends_its_requests_and_leaves_a_working_engine(monkeypatch) -> None:
    core = simulated_core()
    prompt = random_prompt(random.Random(9), 20)
    core.submit(make_request("broken", prompt))
    with monkeypatch.context() as patch:
        patch.setattr(core._runner, "execute", lambda plan: 1 / 0)
        (delta,) = core.step()
    assert delta.finish_reason == "error"
    assert "ZeroDivisionError" in (delta.error or "")
    core.scheduler.check()
    core.submit(make_request("next", prompt))
    assert core.step()[0].cached_tokens == 0, "blocks of the failed step are not trusted"
    run_to_end(core)


class SchedulerMachine(RuleBasedStateMachine):
    """Requests come, are computed, preempted and aborted in any order, in a pool of any size."""

    prefix_cache = True

    @initialize(
        seed=st.integers(0, 2**32), num_blocks=st.integers(6, 30), budget=st.integers(8, 40)
    )
    def start(self, seed: int, num_blocks: int, budget: int) -> None:
        self.rng = random.Random(seed)
        self.capacity = num_blocks * 4
        self.core = simulated_core(num_blocks, 4, budget, 8, prefix_cache=self.prefix_cache)
        self.heads = [random_prompt(self.rng, self.capacity // 2) for _ in range(2)]
        self.requests: dict[str, EngineRequest] = {}
        self.outputs: dict[str, list[int]] = {}
        self.ends: dict[str, str] = {}

    @rule(shared=st.integers(0, 60), own=st.integers(1, 20), out=st.integers(0, 20))
    def submit(self, shared: int, own: int, out: int) -> None:
        prompt = self.rng.choice(self.heads)[:shared] + random_prompt(self.rng, own)
        prompt = prompt[: self.capacity - out]
        name = str(len(self.requests))
        self.requests[name] = make_request(name, prompt, out, tenant=self.rng.choice("ab"))
        self.outputs[name] = []
        self.core.submit(self.requests[name])

    @precondition(lambda self: not self.core.is_idle)
    @rule()
    def step(self) -> None:
        for delta in self.core.step():
            assert delta.error is None
            assert delta.request_id not in self.ends, "news after the end"
            self.outputs[delta.request_id] += delta.token_ids
            if delta.finish_reason is not None:
                self.ends[delta.request_id] = delta.finish_reason

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.requests)))
        deltas = self.core.abort(name)
        assert bool(deltas) == (name not in self.ends)
        self.ends.setdefault(name, "aborted")

    @invariant()
    def books_balance(self) -> None:
        self.core.scheduler.check()

    def teardown(self) -> None:
        if not hasattr(self, "core"):
            return
        for _ in range(10_000):
            if self.core.is_idle:
                break
            self.step()
            self.books_balance()
        assert self.ends.keys() == self.requests.keys(), "a request never ended"
        assert self.core.scheduler.pool.num_in_use == 0
        for name, request in self.requests.items():
            expected = expected_output(request.prompt, request.sampling.max_tokens)
            if self.ends[name] == "aborted":
                expected = expected[: len(self.outputs[name])]
            assert self.outputs[name] == expected


class UncachedSchedulerMachine(SchedulerMachine):
    prefix_cache = False


TestSchedulerMachine = SchedulerMachine.TestCase
TestUncachedSchedulerMachine = UncachedSchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
TestUncachedSchedulerMachine.settings = settings(
    max_examples=30, stateful_step_count=50, deadline=None
)


def test_a_small_pool_preempts_and_still_answers() -> None:
    core = simulated_core(num_blocks=20, step_token_budget=64)
    rng = random.Random(10)
    prompts = {str(i): random_prompt(rng, 9) for i in range(6)}
    for request_id, prompt in prompts.items():
        core.submit(make_request(request_id, prompt, max_tokens=40))
    outputs = run_to_end(core)
    assert core.stats().preemptions > 0
    assert outputs == {i: expected_output(prompt, 40) for i, prompt in prompts.items()}
