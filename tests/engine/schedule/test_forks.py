"""Several sequences of one request: they share what they can, and each is as if it were alone."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api import (
    BeamParams,
    EngineRequest,
    RequestRefused,
    TenantShare,
    TokenDelta,
)
from engine.serve.core import EngineCore
from engine.validation import check_request
from tests.effort import scaled
from tests.engine.simulated_model import EOS, expected_output, random_prompt
from tests.engine.simulation import (
    cached_tokens,
    make_request,
    run_all_to_end,
    run_to_end,
    simulated_core,
)


def expected_outputs(prompt: list[int], max_tokens: int, count: int) -> dict[int, list[int]]:
    return {index: expected_output(prompt, max_tokens, index) for index in range(count)}


def forked(name: str, prompt: list[int], out: int, count: int, **fields: object) -> EngineRequest:
    return make_request(name, prompt, out, num_sequences=count, **fields)


def distinct_blocks(core: EngineCore, name: str) -> int:
    return len(set().union(*core.scheduler.running[name].blocks))


def lasting_prompt(length: int, count: int, out: int) -> list[int]:
    """A prompt none of whose continuations meets a stop token."""
    for seed in range(1000):
        prompt = random_prompt(random.Random(seed), length)
        if all(EOS not in output for output in expected_outputs(prompt, out, count).values()):
            return prompt
    raise AssertionError("every prompt stops")


def test_sequences_hold_the_prompts_blocks_once() -> None:
    core = simulated_core(num_blocks=100, step_token_budget=64)
    prompt = lasting_prompt(42, 6, 20)
    core.submit(forked("r", prompt, 20, 6))
    core.step()
    assert distinct_blocks(core, "r") == core.stats().blocks_in_use == 11
    core.step()
    assert distinct_blocks(core, "r") == 10 + 6, "each has a copy of the last block now"
    assert core.stats().copied_blocks == 5, "the last holder writes in place"
    assert core.stats().tenants["a"].blocks_held == 16
    assert core.stats().tenants["a"].blocks_shared == 10
    assert run_all_to_end(core)["r"].keys() == set(range(6))
    assert core.stats().forks == 5
    assert core.stats().blocks_in_use == 0


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize(
    ("block_size", "count", "prompt", "out"),
    [(4, 4, 21, 20), (4, 3, 20, 9), (1, 3, 5, 6), (4, 2, 9, 1), (16, 6, 3, 40)],
)
def test_each_sequence_generates_what_it_would_alone(
    block_size: int, count: int, prompt: int, out: int, cache: bool
) -> None:
    core = simulated_core(block_size=block_size, prefix_cache=cache)
    tokens = random_prompt(random.Random(prompt), prompt)
    for name in ("one", "two"):
        core.submit(forked(name, tokens, out, count))
    outputs = run_all_to_end(core)
    assert outputs["one"] == outputs["two"] == expected_outputs(tokens, out, count)


def test_a_conversation_continued_twice_at_once_shares_its_full_blocks() -> None:
    core = simulated_core(num_blocks=100, step_token_budget=64)
    prompt = lasting_prompt(21, 1, 12)
    core.submit(make_request("turn", prompt, 12))
    history = prompt + run_to_end(core)["turn"]
    for name, message in (("one", [8, 9]), ("two", [9, 8])):
        core.submit(make_request(name, history + message, 30))
    core.step()
    one, two = (core.scheduler.running[name].blocks[0] for name in ("one", "two"))
    shared = len(history) // 4
    assert one[:shared] == two[:shared]
    assert not set(one[shared:]) & set(two[shared:])
    outputs = run_to_end(core)
    assert outputs["one"] == expected_output([*history, 8, 9], 30)[1:]
    assert outputs["two"] == expected_output([*history, 9, 8], 30)[1:]
    assert core.stats().copied_blocks == 0


def test_a_prompt_alone_ends_every_sequence_and_copies_nothing() -> None:
    core = simulated_core(num_blocks=3)
    core.submit(forked("r", [5] * 10, 0, 3))
    deltas = core.step()
    assert [(d.index, d.token_ids, d.finish_reason) for d in deltas] == [
        (index, [], "length") for index in range(3)
    ]
    assert core.is_idle
    assert core.stats().copied_blocks == 0


@pytest.mark.parametrize("length", range(20, 25))
def test_every_sequences_answer_is_continued_from_the_cache(length: int) -> None:
    core = simulated_core(num_blocks=100)
    prompt = lasting_prompt(length, 3, 11)
    core.submit(forked("r", prompt, 11, 3))
    outputs = run_all_to_end(core)["r"]
    for index, output in outputs.items():
        turn = make_request(f"turn{index}", [*prompt, *output, 9, 9], 1)
        # The last token is computed where it fills a block, and is not needed for anything else.
        assert cached_tokens(core, turn) == length + 11 - ((length + 11) % 4 > 0)


def test_of_sequences_that_end_within_a_shared_block_one_stays_to_fill_it() -> None:
    core = simulated_core()
    core.submit(forked("r", lasting_prompt(7, 3, 1), 1, 3))
    core.step()
    assert [len(group.sequences) for group in core.scheduler.running.values()] == [1]
    core.step()
    assert core.is_idle
    assert (core.stats().copied_blocks, core.stats().blocks_cached) == (0, 2)


def test_sequences_end_at_their_own_stop_tokens_and_give_their_blocks_back() -> None:
    prompt = next(
        prompt
        for prompt in ([n, n + 1] for n in range(4, 900))
        if len({len(expected_output(prompt, 40, index)) for index in range(3)}) == 3
    )
    core = simulated_core()
    core.submit(forked("r", prompt, 40, 3))
    ends: list[TokenDelta] = []
    while not core.is_idle:
        ends += [delta for delta in core.step() if delta.finish_reason is not None]
        core.scheduler.check()
        group = core.scheduler.running.get("r")
        alive = 0 if group is None else sum(s.finish_reason is None for s in group.sequences)
        assert alive == 3 - len(ends)
        assert group is None or len(group.sequences) <= alive + 1, "one may linger for the cache"
    lengths = sorted(len(output) for output in expected_outputs(prompt, 40, 3).values())
    assert [len(expected_output(prompt, 40, delta.index)) for delta in ends] == lengths


def test_an_aborted_sequence_frees_its_blocks_at_once_and_the_others_go_on() -> None:
    core = simulated_core(num_blocks=100)
    prompt = lasting_prompt(10, 3, 30)
    core.submit(forked("r", prompt, 30, 3))
    for _ in range(12):
        core.step()
    held = core.stats().blocks_in_use
    own = len(core.scheduler.running["r"].sequences[1].table.blocks) - 10 // 4
    assert own > 2
    (delta,) = core.abort("r", 1)
    assert (delta.index, delta.finish_reason) == (1, "aborted")
    assert core.stats().blocks_in_use == held - own
    core.scheduler.check()
    assert core.abort("r", 1) == core.abort("r", 7) == [], "ending twice is nothing"
    outputs = run_all_to_end(core)["r"]
    assert {index: output[-5:] for index, output in outputs.items()} == {
        index: expected_output(prompt, 30, index)[-5:] for index in (0, 2)
    }
    core.submit(forked("s", prompt, 30, 3))
    core.step()
    assert sorted(delta.index for delta in core.abort("s")) == [0, 1, 2]
    assert core.stats().blocks_in_use == 0


@pytest.mark.parametrize("aborted", [[0], [1], [2], [0, 1], [1, 0], [2, 1], [0, 2, 1]])
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_sequences_aborted_while_their_prompt_is_computed_leave_the_others_whole(
    aborted: list[int], steps: int
) -> None:
    core = simulated_core(step_token_budget=16)
    prompt = random_prompt(random.Random(3), 60)
    core.submit(forked("r", prompt, 9, 3))
    for _ in range(steps):
        core.step()
    for index in aborted:
        assert [delta.index for delta in core.abort("r", index)] == [index]
        core.scheduler.check()
    left = {index for index in range(3) if index not in aborted}
    assert core.is_idle == (not left)
    expected = {index: expected_output(prompt, 9, index) for index in left}
    assert run_all_to_end(core) == ({"r": expected} if left else {})
    assert core.stats().blocks_in_use == 0


@pytest.mark.parametrize("cache", [True, False])
def test_preempted_sequences_resume_together_share_again_and_go_on_unchanged(cache: bool) -> None:
    core = simulated_core(num_blocks=40, step_token_budget=64, prefix_cache=cache)
    prompts = {name: random_prompt(random.Random(name), 18) for name in "abcd"}
    for name, prompt in prompts.items():
        core.submit(forked(name, prompt, 24, 3))
    outputs: dict[str, dict[int, list[int]]] = {name: {} for name in prompts}
    resumed, preempted = 0, set()
    while not core.is_idle:
        for delta in core.step():
            outputs[delta.request_id].setdefault(delta.index, []).extend(delta.token_ids)
        core.scheduler.check()
        for name, group in core.scheduler.lifecycle.live.items():
            if name not in core.scheduler.running:
                preempted |= {name} if group.sequences[0].num_output_tokens else set()
            elif name in preempted and len(group.sequences) == 3:
                resumed += 1
                assert len(set.intersection(*map(set, group.blocks))) >= 18 // 4
    assert resumed > 10
    assert outputs == {name: expected_outputs(prompt, 24, 3) for name, prompt in prompts.items()}


@settings(max_examples=scaled(60))
@given(
    seed=st.integers(0, 2**32),
    prompt=st.integers(1, 24),
    out=st.integers(0, 16),
    count=st.integers(1, 5),
    block_size=st.sampled_from([1, 3, 4]),
    cut=st.lists(st.integers(0, 8), max_size=5),
    cache=st.booleans(),
    others=st.integers(0, 2),
)
def test_the_smallest_pool_that_lets_a_request_in_serves_it_beside_others(
    seed: int,
    prompt: int,
    out: int,
    count: int,
    block_size: int,
    cut: list[int],
    cache: bool,
    others: int,
) -> None:
    rng = random.Random(seed)
    tokens = random_prompt(rng, prompt)
    expected = expected_outputs(tokens, out, count)
    generated = [expected[index][:length] for index, length in enumerate(cut[:count])]
    request = forked("r", tokens, out, count, generated=generated, cache=cache)
    for num_blocks in range(1, 200):
        core = simulated_core(num_blocks, block_size, 16, 10)
        try:
            check_request(request, core.info)
        except RequestRefused:
            continue
        break
    for index in range(others):
        room = min(2 * block_size, num_blocks * block_size)
        core.submit(make_request(f"other{index}", random_prompt(rng, room), 0, tenant="b"))
    deltas = core.submit(request)
    core.submit(forked("again", tokens, out, count, cache=cache))
    outputs: dict[tuple[str, int], list[int]] = {}
    for _ in range(1000):
        for delta in deltas:
            assert delta.error is None
            outputs.setdefault((delta.request_id, delta.index), []).extend(delta.token_ids)
        core.scheduler.check()
        if core.is_idle:
            break
        deltas = core.step()
    for index in range(count):
        done = generated[index] if index < len(generated) else []
        assert done + outputs["r", index] == expected[index]
        assert outputs["again", index] == expected[index]
    assert core.stats().blocks_in_use == 0


def test_a_rebuilt_request_goes_on_with_the_sequences_that_are_left() -> None:
    prompt = lasting_prompt(10, 4, 12)
    expected = expected_outputs(prompt, 12, 4)
    generated = [expected[0][:3], expected[1][:1], [], expected[3]]
    core = simulated_core()
    request = forked("r", prompt, 12, 4, generated=generated, ended=(1,))
    check_request(request, core.info)
    assert [(d.index, d.finish_reason) for d in core.submit(request)] == [(3, "length")]
    assert run_all_to_end(core)["r"] == {0: expected[0][3:], 2: expected[2]}
    stats = core.stats()
    assert (stats.prompt_tokens, stats.output_tokens) == (0, 9 + 12)


def test_a_prompt_is_charged_once_and_every_sequences_output_is() -> None:
    core = simulated_core(num_blocks=18)
    prompt = lasting_prompt(9, 3, 12)
    core.submit(forked("r", prompt, 12, 3))
    core.submit(forked("s", prompt[::-1], 12, 3))
    outputs = run_all_to_end(core)
    tokens = sum(len(output) for own in outputs.values() for output in own.values())
    assert core.stats().preemptions > 0
    assert core.stats().tenants["a"].served == 2 * 9 * 1 + tokens * 2


def test_to_recompute_a_request_takes_its_prompt_once_and_every_output() -> None:
    core = simulated_core()
    core.submit(forked("r", lasting_prompt(10, 3, 8), 8, 3))
    for _ in range(5):
        core.step()
    assert core.scheduler.running["r"].num_tokens == 10 + 3 * 5


@pytest.mark.parametrize(("count", "is_admitted"), [(1, True), (2, False)])
def test_a_request_waits_until_there_is_room_for_its_forks(count: int, is_admitted: bool) -> None:
    core = simulated_core(num_blocks=20, step_token_budget=128)
    core.submit(make_request("running", lasting_prompt(40, 1, 20), 20))
    core.submit(forked("r", random_prompt(random.Random(1), 33), 3, count))
    core.step()
    assert ("r" in core.scheduler.running) == is_admitted


@pytest.mark.parametrize(("prompt", "is_admitted"), [(16, True), (17, False)])
def test_a_cap_leaves_each_running_sequence_room_to_grow(prompt: int, is_admitted: bool) -> None:
    core = simulated_core(num_blocks=100, step_token_budget=128)
    share = TenantShare(max_blocks=12)
    core.submit(forked("running", lasting_prompt(8, 3, 4), 4, 3, share=share))
    core.step()
    core.submit(make_request("r", random_prompt(random.Random(1), prompt), 4, share=share))
    plan = core.scheduler.plan()
    assert ("r" in core.scheduler.running) == is_admitted
    assert len(plan.samplers) == 3 + is_admitted


def test_a_request_takes_a_slot_for_each_of_its_sequences() -> None:
    core = simulated_core(num_blocks=200, max_running_requests=8)
    for name in "rst":
        core.submit(forked(name, lasting_prompt(5, 3, 20), 20, 3))
    core.step()
    assert core.scheduler.running.keys() == {"r", "s"}
    while not core.is_idle:
        plan = core.scheduler.plan()
        assert len(plan.samplers) <= 8
        core.scheduler.commit(plan, core._runner.execute(plan))
        core.scheduler.check()


def test_nothing_is_copied_for_sequences_that_make_room_within_the_same_step() -> None:
    core = simulated_core(num_blocks=200, max_running_requests=6, step_token_budget=64)
    for name in ("first", "second"):
        core.submit(forked(name, lasting_prompt(10, 3, 20), 20, 3, tenant="a"))
    core.step()
    core.submit(make_request("b", [5, 6, 7], tenant="b"))
    plan = core.scheduler.plan()
    assert core.scheduler.running.keys() == {"first", "b"}
    assert len(plan.transfers.copies) == 2
    targets = {target for _, target in plan.transfers.copies}
    assert targets < set().union(*core.scheduler.running["first"].blocks)
    core.scheduler.commit(plan, core._runner.execute(plan))
    run_all_to_end(core)


def test_reordered_sequences_share_what_their_parents_had_and_childless_ones_free_theirs() -> None:
    core = simulated_core(num_blocks=60)
    scheduler, rng = core.scheduler, random.Random(1)
    core.submit(make_request("r", random_prompt(rng, 10), 40, beam=BeamParams(num_beams=4)))
    for _ in range(30):
        core._runner.execute(scheduler.plan())
        group = scheduler.running["r"]
        choices = [(rng.choice(group.sequences), rng.randrange(4, 900)) for _ in range(4)]
        expected = [[*parent.token_ids, token] for parent, token in choices]
        children = scheduler.lifecycle.reorder(group, choices)
        assert group.sequences == children
        assert [child.token_ids for child in children] == expected
        assert len(set().union(*group.blocks)) == core.stats().blocks_in_use
        scheduler.check()
    assert core.stats().forks > 20
    core.abort("r")
    assert core.stats().blocks_in_use == 0
