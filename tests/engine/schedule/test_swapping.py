"""Preempted requests: swapped or recomputed, they go on as if nothing had happened, and in time."""

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api import EVERYTHING, BeamParams, EngineRequest, Kind, most_pages
from engine.schedule.admission import Admission
from engine.schedule.swap_or_recompute import ComputeCost, CopyCost, CostModel, Policy
from engine.sequences.group import SequenceGroup
from engine.serve.core import EngineCore
from engine.validation import check_request
from tests.effort import scaled
from tests.engine.model.test_model import generate, make_core, save_model
from tests.engine.schedule.test_any_order import (
    ManyKindsSchedulerMachine,
    WindowsAloneSchedulerMachine,
)
from tests.engine.simulated_model import EOS, expected_hypotheses, expected_output, random_prompt
from tests.engine.simulation import make_request, run_all_to_end, run_to_end, simulated_core

BLOCK = 4
KINDS: list[tuple[Kind, ...]] = [
    (EVERYTHING,),
    (Kind(), Kind(window=7, pages=3)),
    ManyKindsSchedulerMachine.kinds,
    WindowsAloneSchedulerMachine.kinds,
]


def lasting_prompt(length: int, out: int, count: int = 1) -> list[int]:
    """A prompt none of whose continuations meets a stop token."""
    for seed in range(1000):
        prompt = random_prompt(random.Random(seed), length)
        if all(EOS not in expected_output(prompt, out, index) for index in range(count)):
            return prompt
    raise AssertionError("every prompt stops")


class Watch:
    """Sees to it that whoever comes back runs for `min_run_tokens` before it has to go again."""

    def __init__(self, core: EngineCore, min_run_tokens: int) -> None:
        self.runs: dict[str, list[int]] = {}
        lifecycle = core.scheduler.lifecycle
        start, preempt = lifecycle.start, lifecycle.preempt
        lengths: dict[str, int] = {}

        def watched_start(admission: Admission) -> None:
            start(admission)
            lengths[admission.group.request_id] = admission.group.num_output_tokens

        def watched_preempt(group: SequenceGroup) -> None:
            name, is_back = group.request_id, group.was_preempted
            ran = group.num_output_tokens - lengths[name]
            self.runs.setdefault(name, []).append(ran)
            assert not is_back or ran >= min_run_tokens or not group.unfinished
            preempt(group)

        lifecycle.start, lifecycle.preempt = watched_start, watched_preempt


def preempt_now(core: EngineCore, name: str) -> None:
    core.scheduler.lifecycle.preempt(core.scheduler.running[name])
    core.scheduler.check()


def steps(core: EngineCore, count: int) -> dict[int, list[int]]:
    """What `count` steps add to the only request, by sequence."""
    outputs: dict[int, list[int]] = {}
    for _ in range(count):
        for delta in core.step():
            outputs.setdefault(delta.index, []).extend(delta.token_ids)
        core.scheduler.check()
    return outputs


def test_a_swapped_request_computes_nothing_again() -> None:
    core = simulated_core(num_host_blocks=20, recovery="swap")
    prompt = lasting_prompt(30, 12)
    core.submit(make_request("r", prompt, 12, cache=False))
    first = steps(core, 5)[0]
    preempt_now(core, "r")
    core.scheduler.pool.forget_all()
    assert core.stats().blocks_in_use == 0
    plan = core.scheduler.plan()
    assert [(chunk.start, chunk.count) for chunk in plan.chunks] == [(34, 1)]
    assert len(plan.transfers.swap_ins) == len(plan.transfers.swap_outs) == 9
    sampled = core._runner.execute(plan)
    core.scheduler.commit(plan, sampled)
    tail = run_to_end(core)["r"]
    assert [*first, *sampled.token_ids, *tail] == expected_output(prompt, 12)
    assert core.stats().host_blocks_used == 0, "nobody may find what was not to be cached"


def test_a_swapped_request_takes_what_is_still_in_the_pool() -> None:
    core = simulated_core(num_host_blocks=20, recovery="swap")
    prompt = lasting_prompt(30, 12)
    core.submit(make_request("r", prompt, 12))
    steps(core, 5)
    preempt_now(core, "r")
    plan = core.scheduler.plan()
    assert len(plan.transfers.swap_outs) == 9
    assert len(plan.transfers.swap_ins) == 1, "only the partly filled block is not findable"
    core.scheduler.commit(plan, core._runner.execute(plan))
    run_to_end(core)


def test_a_second_swap_copies_only_what_is_new() -> None:
    core = simulated_core(num_host_blocks=20, recovery="swap")
    core.submit(make_request("r", lasting_prompt(30, 20), 20))
    steps(core, 5)
    preempt_now(core, "r")
    steps(core, 6)
    before = core.stats().swapped_out
    preempt_now(core, "r")
    steps(core, 1)
    assert core.stats().swapped_out - before == 10 - 8


def test_forks_that_were_swapped_share_what_they_shared() -> None:
    for preempted_after in range(1, 8):
        core = simulated_core(num_blocks=60, num_host_blocks=60, recovery="swap")
        prompt = lasting_prompt(18, 10, count=4)
        core.submit(make_request("r", prompt, 10, num_sequences=4, cache=False))
        outputs = steps(core, preempted_after)
        held = core.stats().blocks_in_use
        preempt_now(core, "r")
        again = steps(core, 1)
        grown = core.stats().blocks_in_use - held
        assert grown in (0, 3 if preempted_after == 1 else 4), "copy-on-write, or a next block"
        rest = run_all_to_end(core)["r"]
        for index in range(4):
            whole = outputs[index] + again[index] + rest[index]
            assert whole == expected_output(prompt, 10, index)
        assert core.stats().recomputed == 0


def test_a_sequence_of_a_swapped_request_can_be_aborted() -> None:
    for preempted_after in (1, 2):
        core = simulated_core(num_host_blocks=60, step_token_budget=16, recovery="swap")
        prompt = lasting_prompt(24, 8, count=3)
        core.submit(make_request("r", prompt, 8, num_sequences=3))
        outputs = steps(core, preempted_after)
        preempt_now(core, "r")
        assert [delta.index for delta in core.abort("r", 0)] == [0]
        core.scheduler.check()
        rest = run_all_to_end(core)["r"]
        assert rest.keys() == {1, 2}
        for index in (1, 2):
            whole = outputs.get(index, []) + rest[index]
            assert whole == expected_output(prompt, 8, index)


def test_without_room_in_the_host_tier_a_request_is_recomputed() -> None:
    core = simulated_core(num_host_blocks=3, recovery="swap")
    prompt = lasting_prompt(30, 12)
    core.submit(make_request("r", prompt, 12))
    first = steps(core, 3)[0]
    preempt_now(core, "r")
    assert core.stats().recomputed == 1
    assert first + run_to_end(core)["r"] == expected_output(prompt, 12)


def test_an_aborted_swapped_request_gives_its_slots_back() -> None:
    core = simulated_core(num_host_blocks=20, recovery="swap")
    core.submit(make_request("r", lasting_prompt(30, 12), 12, cache=False))
    steps(core, 3)
    preempt_now(core, "r")
    assert core.stats().host_blocks_used == 8
    core.abort("r")
    core.scheduler.check()
    core.submit(make_request("s", [5], 1))
    run_to_end(core)
    core.scheduler.check()
    assert core.stats().host_blocks_used == 0


def test_auto_swaps_long_requests_and_recomputes_short_ones() -> None:
    copy = CopyCost(10.0, 0.1)
    costs = CostModel(copy, copy, ComputeCost(1.0, 1.0, 0.0, 32, 1.0))
    for length, recomputed in ((12, 1), (60, 0)):
        core = simulated_core(num_host_blocks=40, costs=costs)
        core.submit(make_request("r", lasting_prompt(length, 12), 12))
        steps(core, 4)
        preempt_now(core, "r")
        assert core.stats().recomputed == recomputed


def test_a_prefix_that_others_hold_makes_recomputing_cheap() -> None:
    copy = CopyCost(10.0, 0.5)
    costs = CostModel(copy, copy, ComputeCost(1.0, 1.0, 0.0, 32, 1.0))
    for pinned, recomputed in ((False, 0), (True, 1)):
        core = simulated_core(num_host_blocks=40, costs=costs)
        prompt = lasting_prompt(60, 12)
        if pinned:
            core.submit(make_request("pin", prompt, 0, pin="p"))
            run_to_end(core)
        core.submit(make_request("r", prompt, 12))
        steps(core, 4)
        preempt_now(core, "r")
        assert core.stats().recomputed == recomputed


def test_two_requests_that_do_not_fit_together_run_one_after_the_other() -> None:
    for recovery in ("swap", "recompute"):
        core = simulated_core(20, BLOCK, 64, num_host_blocks=40, recovery=recovery)
        prompts = {name: lasting_prompt(24 + index, 48) for index, name in enumerate("ab")}
        for name, prompt in prompts.items():
            core.submit(make_request(name, prompt, 48))
        assert run_to_end(core) == {
            name: expected_output(prompt, 48) for name, prompt in prompts.items()
        }
        assert core.stats().preemptions == 1


@settings(max_examples=scaled(60))
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(2, 8),
    slack=st.integers(0, 12),
    num_host_blocks=st.sampled_from([0, 1, 6, 30, 200]),
    recovery=st.sampled_from(["auto", "swap", "recompute"]),
    min_run_tokens=st.integers(1, 24),
    budget=st.integers(8, 64),
    fairness=st.sampled_from(["vtc", "fcfs"]),
    prefix_cache=st.booleans(),
    kinds=st.sampled_from(KINDS),
)
def test_every_request_ends_as_if_undisturbed_in_whatever_pool_holds_the_largest(
    seed: int,
    count: int,
    slack: int,
    num_host_blocks: int,
    recovery: Policy,
    min_run_tokens: int,
    budget: int,
    fairness: str,
    prefix_cache: bool,
    kinds: tuple[Kind, ...],
) -> None:
    rng = random.Random(seed)
    requests = random_requests(rng, count)
    copy = CopyCost(1.0, rng.choice([0.0, 2.0, 8.0]))
    core = simulated_core(
        max(most_blocks(request, kinds, budget) for request in requests) + slack,
        BLOCK,
        budget,
        max_running_requests=8,
        prefix_cache=prefix_cache,
        fairness=fairness,  # type: ignore[arg-type]
        num_host_blocks=num_host_blocks,
        recovery=recovery,
        min_run_tokens=min_run_tokens,
        costs=CostModel(copy, copy, ComputeCost(1.0, 1.0, 0.01, budget, 1.0)),
        kinds=kinds,
    )
    Watch(core, min_run_tokens)
    outputs: dict[str, dict[int, list[int]]] = {}
    for request in requests:
        check_request(request, core.info)
        core.submit(request)
        for _ in range(rng.randrange(4)):
            for delta in [] if core.is_idle else core.step():
                assert delta.error is None
                own = outputs.setdefault(delta.request_id, {})
                own.setdefault(delta.index, []).extend(delta.token_ids)
            core.scheduler.check()
    for name, rest in run_all_to_end(core).items():
        for index, tokens in rest.items():
            outputs.setdefault(name, {}).setdefault(index, []).extend(tokens)
    assert outputs == {request.request_id: undisturbed(request) for request in requests}
    assert core.stats().blocks_in_use == 0


def undisturbed(request: EngineRequest) -> dict[int, list[int]]:
    """What each of the request's outputs is where nothing else runs."""
    prompt, out = request.prompt, request.sampling.max_tokens
    if request.beam is not None:
        return dict(enumerate(h.token_ids for h in expected_hypotheses(prompt, out, request.beam)))
    return {index: expected_output(prompt, out, index) for index in range(request.num_sequences)}


def random_requests(rng: random.Random, count: int) -> list[EngineRequest]:
    """Of one or two tenants, with common prefixes, of one or several sequences or beams."""
    head = random_prompt(rng, 40)
    kinds = [{}, {}, {"num_sequences": 2}, {"num_sequences": 3}, {"beam": BeamParams(num_beams=3)}]
    return [
        make_request(
            str(number),
            head[: rng.randrange(40)] + random_prompt(rng, rng.randrange(1, 20)),
            rng.randrange(1, 40),
            tenant=rng.choice("ab"),
            cache=rng.random() < 0.8,
            **rng.choice(kinds),
        )
        for number in range(count)
    ]


def most_blocks(request: EngineRequest, kinds: tuple[Kind, ...], step: int) -> int:
    """The memory that the request may come to hold, in blocks of all kinds."""
    prompt, total = len(request.prompt), len(request.prompt) + request.sampling.max_tokens
    pages = most_pages(kinds, BLOCK, prompt, total, request.num_lines, step)
    return -(-pages // sum(kind.pages for kind in kinds))


@pytest.mark.parametrize(
    ("family", "num_blocks"), [("gemma2", 16), ("gpt_oss", 16), ("llama4_text", 11)]
)
def test_a_model_that_forgets_says_the_same_swapped_and_from_the_host(
    family: str, num_blocks: int, tmp_path: Path
) -> None:
    model = save_model(family, tmp_path)
    rng = random.Random(11)
    prompts = {str(i): random_prompt(rng, rng.randrange(30, 80)) for i in range(6)}
    core = make_core(tmp_path, num_blocks, num_host_blocks=60, recovery="swap")
    assert any(kind.forgets for kind in core.info.kinds)
    core.scheduler.lifecycle.recovery.costs.swap_in = CopyCost(0.0, 0.0)
    for turn in range(2):
        expected = {name: generate(model, prompt, 40) for name, prompt in prompts.items()}
        for name, prompt in prompts.items():
            core.submit(make_request(name, prompt, 40))
        assert run_to_end(core, preempt_after=5) == expected, turn
        # What the next turn continues ends within every window.
        prompts = {name: [*prompts[name], *expected[name], 7, 8] for name in prompts}
    stats = core.stats()
    assert stats.preemptions > stats.recomputed == 0
    assert stats.swapped_in > stats.host_hit_blocks > 0


@pytest.mark.parametrize("recovery", ["auto", "swap", "recompute"])
def test_a_real_model_says_the_same_swapped_or_recomputed(recovery: Policy, tmp_path: Path) -> None:
    model = save_model("llama", tmp_path)
    rng = random.Random(11)
    prompts = {str(i): random_prompt(rng, rng.randrange(30, 80)) for i in range(6)}
    expected = {name: generate(model, prompt, 40) for name, prompt in prompts.items()}
    core = make_core(tmp_path, num_blocks=26, num_host_blocks=60, recovery=recovery)
    for name, prompt in prompts.items():
        core.submit(make_request(name, prompt, 40))
    assert run_to_end(core) == expected
    stats = core.stats()
    assert stats.preemptions > 0
    if recovery == "recompute":
        assert stats.recomputed == stats.preemptions
    if recovery == "swap":
        assert stats.recomputed == 0
        assert stats.swapped_in > 0
