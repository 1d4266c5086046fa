"""How much of its prompt a request finds in the cache, and leaves there."""

import random

import pytest

from engine.api import CachePolicy, EngineRequest, RequestRefused, TokenDelta
from engine.serve.core import EngineCore
from engine.validation import check_request
from tests.engine.simulated_model import expected_output, random_prompt
from tests.engine.simulation import cached_tokens, make_request, run_to_end, simulated_core

PROMPT = random_prompt(random.Random(1), 41)
OTHER = random_prompt(random.Random(2), 20)


def computed(core: EngineCore, prompt: list[int], out: int = 6, **fields: object) -> list[int]:
    core.submit(make_request("first", prompt, out, **fields))
    return run_to_end(core)["first"]


def first_delta(core: EngineCore, request: EngineRequest) -> TokenDelta:
    core.submit(request)
    while not (deltas := core.step()):
        core.scheduler.check()
    run_to_end(core)
    return deltas[0]


@pytest.mark.parametrize("up_to", range(42))
def test_a_prompt_is_found_as_far_as_it_was_to_be_written(up_to: int) -> None:
    core = simulated_core()
    assert computed(core, PROMPT, cache=CachePolicy(up_to=up_to)) == expected_output(PROMPT, 6)
    assert core.stats().blocks_cached == -(-up_to // 4)
    again = make_request("again", PROMPT + OTHER, 6)
    assert cached_tokens(core, again) == up_to
    assert run_to_end(core)["again"] == expected_output(PROMPT + OTHER, 6)[1:]


@pytest.mark.parametrize("up_to", range(42))
def test_a_prompt_finds_no_more_than_it_may_read(up_to: int) -> None:
    core = simulated_core()
    computed(core, PROMPT)
    again = make_request("again", PROMPT + OTHER, 6, cache=CachePolicy(up_to=up_to))
    assert cached_tokens(core, again) == up_to
    assert run_to_end(core)["again"] == expected_output(PROMPT + OTHER, 6)[1:]


def test_the_end_is_found_while_whoever_wrote_it_goes_on_within_the_block() -> None:
    core = simulated_core()
    core.submit(make_request("writer", PROMPT, 6, cache=CachePolicy(up_to=41)))
    core.step()
    core.step()
    assert cached_tokens(core, make_request("reader", PROMPT + OTHER, 6)) == 41
    outputs = run_to_end(core)
    assert outputs["reader"] == expected_output(PROMPT + OTHER, 6)[1:]
    assert outputs["writer"] == expected_output(PROMPT, 6)[-len(outputs["writer"]) :]


@pytest.mark.parametrize("count", [2, 4])
def test_sequences_that_share_the_last_block_leave_it_once(count: int) -> None:
    core = simulated_core()
    computed(core, PROMPT, num_sequences=count, cache=CachePolicy(up_to=41))
    assert cached_tokens(core, make_request("again", PROMPT + OTHER, 1)) == 41


def test_a_swapped_request_does_not_take_what_others_wrote_for_its_own_end() -> None:
    core = simulated_core(num_blocks=13, num_host_blocks=20, recovery="swap")
    policy = CachePolicy(up_to=22)
    outputs: dict[str, list[int]] = {}
    for name, tail in (("one", OTHER[:3]), ("two", OTHER[3:9])):
        core.submit(make_request(name, PROMPT[:22] + tail, 16, cache=policy, tenant="a"))
    outputs = run_to_end(core)
    assert core.stats().preemptions, "both fit"
    assert outputs["one"] == expected_output(PROMPT[:22] + OTHER[:3], 16)
    assert outputs["two"] == expected_output(PROMPT[:22] + OTHER[3:9], 16)


def test_what_is_written_is_told_beside_what_was_found() -> None:
    core = simulated_core()
    cold = first_delta(core, make_request("cold", PROMPT, 3))
    assert (cold.cached_tokens, cold.cache_write_tokens) == (0, 41)
    longer = first_delta(core, make_request("longer", PROMPT + OTHER, 3))
    assert (longer.cached_tokens, longer.cache_write_tokens) == (41, 20)
    policy = CachePolicy(up_to=50)
    part = first_delta(core, make_request("part", PROMPT + OTHER[::-1], 3, cache=policy))
    assert (part.cached_tokens, part.cache_write_tokens) == (41, 9)
    nothing = first_delta(core, make_request("nothing", PROMPT, 3, cache=False))
    assert (nothing.cached_tokens, nothing.cache_write_tokens) == (0, 0)


def test_nothing_is_written_without_a_prefix_cache() -> None:
    core = simulated_core(prefix_cache=False)
    assert first_delta(core, make_request("r", PROMPT, 3)).cache_write_tokens == 0


@pytest.mark.parametrize("up_to", [-1, 42])
def test_a_position_outside_the_prompt_is_refused(up_to: int) -> None:
    request = make_request("r", PROMPT, 3, cache=CachePolicy(up_to=up_to))
    with pytest.raises(RequestRefused, match=r"0 \.\.\. 41") as refusal:
        check_request(request, simulated_core().info)
    assert refusal.value.param == "cache"
