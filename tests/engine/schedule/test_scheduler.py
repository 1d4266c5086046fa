"""What a scheduler does with requests, one behaviour at a time."""

import random

from engine.serve.core import EngineCore
from tests.engine.simulated_model import EOS, VOCAB, expected_output, random_prompt
from tests.engine.simulation import make_request, run_all_to_end, run_to_end, simulated_core


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
    assert core.step()[0].cached_tokens == 39, "all but the token to be computed"


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
        core.scheduler.commit(plan, sampled)
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


def test_a_second_turn_hits_all_that_the_first_has_computed_answer_included() -> None:
    for length in range(8, 13):
        core = simulated_core()
        prompt = random_prompt(random.Random(5), length)
        core.submit(make_request("one", prompt, max_tokens=12))
        history = prompt + run_to_end(core)["one"]
        core.submit(make_request("two", [*history, 9, 9], max_tokens=1))
        assert core.step()[0].cached_tokens == len(history) - (len(history) % 4 > 0)


def test_an_id_is_free_again_as_soon_as_its_request_has_finished() -> None:
    for length in range(8, 12):
        core = simulated_core()
        prompt = random_prompt(random.Random(5), length)
        core.submit(make_request("same", prompt, max_tokens=4))
        ends = []
        while not ends:
            ends = [delta for delta in core.step() if delta.finish_reason is not None]
        core.submit(make_request("same", prompt, max_tokens=4))
        core.scheduler.check()
        assert run_to_end(core)["same"] == expected_output(prompt, 4)


def test_tenants_and_users_share_only_what_their_namespaces_allow() -> None:
    system = random_prompt(random.Random(6), 10)
    prompt = [*system, *random_prompt(random.Random(7), 10)]

    def cached(core: EngineCore, **who: str) -> int:
        core.submit(make_request("x", prompt, max_tokens=1, shared_tokens=10, **who))
        return core.step()[0].cached_tokens

    core = simulated_core()
    assert cached(core, tenant="a", user="ann") == 0
    assert cached(core, tenant="a", user="ann") == 19, "same namespace: all but the last"
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


def test_an_idle_moment_checks_a_bounded_number_of_blocks_and_in_time_all(monkeypatch) -> None:
    core = simulated_core(num_blocks=5000)
    pool, checked = core.scheduler.pool, []
    check_some = pool.check_some

    def spy(first: int, end: int) -> None:
        checked.append(range(first, min(end, 5000)))
        check_some(first, end)

    monkeypatch.setattr(pool, "check_some", spy)
    for _ in range(6):
        core.check()
    assert max(map(len, checked)) == 1024
    assert set().union(*checked[:5]) == set(range(5000))
    assert checked[5] == checked[0], "then from the beginning"
    assert core.stats().invariant_violations == 0
    pool._hashes[4321] = b"unheard of"
    for _ in range(5):
        core.check()
    assert core.stats().invariant_violations == 2, "seen among the blocks and among the free ones"


def test_an_idle_engine_that_holds_a_block_is_noticed_at_once() -> None:
    core = simulated_core(num_blocks=5000)
    core.scheduler.pool.allocate(1, "a")
    core.check()
    assert core.stats().invariant_violations == 1


def test_a_small_pool_preempts_and_still_answers() -> None:
    core = simulated_core(num_blocks=20, step_token_budget=64)
    rng = random.Random(10)
    prompts = {str(i): random_prompt(rng, 9) for i in range(6)}
    for request_id, prompt in prompts.items():
        core.submit(make_request(request_id, prompt, max_tokens=40))
    outputs = run_to_end(core)
    assert core.stats().preemptions > 0
    assert outputs == {i: expected_output(prompt, 40) for i, prompt in prompts.items()}


def test_a_tenants_own_requests_start_by_their_priority_and_then_as_they_came() -> None:
    core = simulated_core(max_running_requests=1)
    rng = random.Random(9)
    for name, priority in [("0", 0), ("flex", -1), ("1", 0), ("first", 1), ("2", 0), ("second", 1)]:
        core.submit(make_request(name, random_prompt(rng, 9), 2, priority=priority))
    started = list(dict.fromkeys(run_all_to_end(core)))
    assert started == ["first", "second", "0", "1", "2", "flex"]


def test_priority_gains_nothing_over_other_tenants() -> None:
    orders = []
    for priority in (-1, 0, 1):
        core, rng = simulated_core(max_running_requests=1), random.Random(9)
        for index in range(12):
            tenant = "ab"[index % 2]
            own = priority if tenant == "a" else 0
            request = make_request(str(index), random_prompt(rng, 9), 2, tenant, priority=own)
            core.submit(request)
        orders.append(list(run_all_to_end(core)))
    assert orders[0] == orders[1] == orders[2]


def test_a_preempted_request_waits_in_its_place() -> None:
    core, rng = simulated_core(num_blocks=16, max_running_requests=4), random.Random(2)
    prompts = {str(index): random_prompt(rng, 12) for index in range(8)}
    for name, prompt in prompts.items():
        core.submit(make_request(name, prompt, 24, priority=int(name) % 3 - 1))
    outputs = run_to_end(core)
    assert core.stats().preemptions > 0
    assert outputs == {name: expected_output(prompt, 24) for name, prompt in prompts.items()}
