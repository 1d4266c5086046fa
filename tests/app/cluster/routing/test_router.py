"""The rule by which a front door chooses a replica, and what it has under way."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import pytest

from app.cluster.routing.in_flight import InFlight
from app.cluster.routing.router import Choice, Placements, ReplicaLoad, Router, ranked

BLOCK = 16
RATE = 1000.0
NOW = 10.0
LONG = 64
"""Blocks of a prompt that takes about a second."""


class Held:
    """What each replica holds, as a table."""

    def __init__(self, held: Mapping[int, Collection[bytes]] | None = None) -> None:
        self.held = dict(held or {})

    def depths(self, hashes: Sequence[bytes]) -> dict[int, int]:
        found = {}
        for replica, held in self.held.items():
            count = next((i for i, one in enumerate(hashes) if one not in held), len(hashes))
            if count:
                found[replica] = count
        return found


def chain(name: str, length: int = LONG, behind: Sequence[bytes] = ()) -> list[bytes]:
    return [*behind, *(f"{name} {index}".encode() for index in range(length))]


def load(
    queue: float = 0.0, free: float = 1.0, rate: float = RATE, age: float = 0.0
) -> ReplicaLoad:
    return ReplicaLoad(queue, free, rate, NOW - age)


def idle(count: int = 4) -> dict[int, ReplicaLoad]:
    return {replica: load() for replica in range(count)}


def choose(router: Router, hashes: Sequence[bytes], loads: Mapping[int, ReplicaLoad]) -> Choice:
    return router.choose(hashes, len(hashes) * BLOCK + 1, loads, now=NOW)


def test_a_prompt_goes_where_most_of_it_is_cached() -> None:
    prompt = chain("a")
    router = Router(Held({1: prompt[:20], 2: prompt[:40], 3: chain("b")}), BLOCK)
    choice = choose(router, prompt, idle())
    assert (choice.replica, choice.cached_tokens, choice.why) == (2, 640, "cached")
    assert choice.prefill_seconds == pytest.approx((LONG * BLOCK + 1 - 640) / RATE)


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    prompt = chain("a")
    choice = Router(Held({0: prompt}), BLOCK).choose(prompt, LONG * BLOCK, idle(), 10.0)
    assert choice.cached_tokens == LONG * BLOCK - 1


def test_a_prompt_spreads_once_waiting_costs_more_than_computing_it_again() -> None:
    prompt = chain("hot")
    router = Router(Held({0: prompt}), BLOCK)
    assert choose(router, prompt, idle() | {0: load(queue=4.0)}).replica == 0
    spread = choose(router, prompt, idle() | {0: load(queue=12.0)})
    assert spread.replica != 0
    assert (spread.cached_tokens, spread.why) == (0, "spread")


def test_a_prompt_that_many_share_spreads_sooner_than_a_conversation() -> None:
    shared = chain("system")
    router = Router(Held({0: shared}), BLOCK)
    loads = idle() | {0: load(queue=3.0)}
    for number in range(8):  # while they are few, they wait
        asked = chain(f"user {number}", 2, behind=shared)
        choice = choose(router, asked, loads)
        assert choice.replica == 0 or number > 1
        router.routed(str(number), replace(choice, replica=0), asked, now=9.0)
        router.finished(str(number))
    assert choose(router, chain("new user", 2, behind=shared), loads).replica != 0
    alone = chain("alone", LONG)
    router = Router(Held({0: alone}), BLOCK)
    assert choose(router, chain("turn", 2, behind=alone), loads).replica == 0


def test_who_has_computed_more_than_its_share_gets_less_that_is_new() -> None:
    router = Router(Held({0: chain("system", 4)}), BLOCK)
    for number in range(1000):
        choice = Choice(0, 0, 1.0, "cached")
        router.routed(str(number), choice, chain(str(number)), now=9.0)
        router.finished(str(number))
    assert choose(router, chain("new", behind=chain("system", 4)), idle()).replica != 0
    router.gone(0)
    assert choose(router, chain("new", behind=chain("system", 4)), idle()).replica == 0


def test_what_was_placed_long_ago_counts_little() -> None:
    placements = Placements()
    placements.add(0, 5.0, None)
    for _ in range(30_000):
        placements.add(1, 2.0, None)
    # All requests took 2 s; had replica 0 done as much as 1, the mean would be 4.
    assert placements.crowding([0, 1]) == pytest.approx({0: -2.0, 1: 2.0}, rel=0.01)
    assert placements.crowding([2, 3]) == {2: 0.0, 3: 0.0}


def test_only_the_latest_branches_are_counted() -> None:
    placements = Placements()
    for number in range(10_000):
        placements.add(0, 1.0, str(number).encode())
        placements.add(0, 1.0, b"hot")
    assert placements.sharers(b"hot") == 10_001
    assert placements.sharers(b"1") == 1
    assert placements.sharers(None) == 1
    assert len(placements._branches) <= 4096


def test_a_prefix_counts_from_when_it_is_sent() -> None:
    router, prompt = Router(Held(), BLOCK), chain("a")
    first = choose(router, prompt, idle())
    assert first.why == "spread"
    router.routed("r", first, prompt, now=9.0)
    longer = chain("then", 4, behind=prompt)
    again = choose(router, longer, idle())
    assert (again.replica, again.cached_tokens, again.why) == (first.replica, 1024, "cached")
    router.finished("r")
    assert choose(router, longer, idle()).cached_tokens == 0


def test_two_requests_keep_a_prefix_under_way_until_both_are_over() -> None:
    router, prompt = Router(Held(), BLOCK), chain("a")
    for name in ("r", "s"):
        router.routed(name, Choice(2, 0, 0.0, "cached"), prompt, now=9.0)
    router.finished("r")
    assert choose(router, prompt, idle()).replica == 2
    router.finished("s")
    router.finished("s")
    assert choose(router, prompt, idle()).cached_tokens == 0


def test_what_was_sent_since_the_last_report_is_waited_for() -> None:
    router = Router(Held(), BLOCK)
    loads = {replica: load(age=0.5) for replica in range(4)}
    seen = set()
    for name in "abcd":
        choice = choose(router, chain(name), loads)
        router.routed(name, choice, chain(name), now=NOW)
        seen.add(choice.replica)
    assert seen == {0, 1, 2, 3}, "a burst does not herd"


def test_what_was_sent_before_the_last_report_is_part_of_it() -> None:
    router = Router(Held(), BLOCK)
    router.routed("r", Choice(0, 0, 3.0, "spread"), chain("a"), now=9.0)
    loads = {0: load(age=0.5), 1: load(queue=1.0, age=0.5)}
    assert choose(router, chain("b"), loads).replica == 0
    router.routed("s", Choice(0, 0, 3.0, "spread"), chain("c"), now=9.8)
    assert choose(router, chain("b"), {0: load(age=0.5), 1: load(queue=1.0, age=0.5)}).replica == 1


def test_no_replica_starves_and_none_is_flooded() -> None:
    router, loads = Router(Held(), BLOCK), {r: load(age=1.0) for r in range(4)}
    taken: Counter[int] = Counter()
    for number in range(400):
        prompt = chain(f"cold {number}")
        choice = choose(router, prompt, loads)
        router.routed(str(number), choice, prompt, now=NOW)
        taken[choice.replica] += 1
    assert min(taken.values()) >= 90


def test_doors_that_know_the_same_agree_on_a_cold_prefix() -> None:
    prompts = [chain(f"cold {number}") for number in range(64)]
    here, there = (
        [choose(Router(Held(), BLOCK, seed), prompt, idle()).replica for prompt in prompts]
        for seed in (1, 2)
    )
    assert here == there
    assert set(here) == {0, 1, 2, 3}


def test_a_few_blocks_more_decide_between_equals() -> None:
    prompt = chain("a")
    for holder in range(4):
        held = dict.fromkeys(range(4), prompt[: LONG - 1]) | {holder: prompt}
        assert choose(Router(Held(held), BLOCK), prompt, idle()).replica == holder


def test_a_replica_without_free_blocks_is_passed_over_unless_all_are_full() -> None:
    prompt = chain("a")
    router = Router(Held({0: prompt}), BLOCK)
    assert choose(router, prompt, idle() | {0: load(free=0.01)}).replica != 0
    assert choose(router, prompt, {r: load(free=0.0) for r in range(4)}).replica == 0


def test_a_faster_replica_is_worth_more() -> None:
    loads = {0: load(rate=1000.0), 1: load(rate=4000.0)}
    assert choose(Router(Held(), BLOCK), chain("a"), loads).replica == 1


def test_a_silent_replica_is_not_believed_while_others_speak() -> None:
    prompt = chain("a")
    router = Router(Held({0: prompt}), BLOCK)
    assert choose(router, prompt, idle() | {0: load(age=60.0)}).replica != 0


def test_where_all_are_silent_the_better_of_two_is_taken() -> None:
    silent = {replica: load(age=60.0) for replica in range(4)}
    router, taken = Router(Held({0: chain("a")}), BLOCK, seed=1), Counter[int]()
    for number in range(400):
        choice = choose(router, chain("a"), silent)
        assert (choice.why, choice.cached_tokens) == ("two_choices", 0)
        router.routed(str(number), choice, chain("a"), now=NOW)
        taken[choice.replica] += 1
    assert max(taken.values()) - min(taken.values()) <= 8, "what this door has sent is known"
    assert choose(router, chain("a"), {7: load(age=60.0)}).replica == 7


def test_a_turn_goes_home_where_nothing_else_is_known() -> None:
    router, prompt = Router(Held(), BLOCK), chain("a")
    for age in (0.0, 60.0):
        loads = {replica: load(age=age) for replica in range(4)}
        for home in range(4):
            choice = router.choose(prompt, 1025, loads, 10.0, home=home)
            assert (choice.replica, choice.cached_tokens, choice.why) == (home, 0, "sticky")
        assert router.choose(prompt, 1025, loads, 10.0, home=9).why != "sticky", "it is gone"
    busy = idle() | {2: load(queue=30.0)}
    assert router.choose(prompt, 1025, busy, 10.0, home=2).replica != 2


def test_a_turn_follows_its_prefix_rather_than_its_home() -> None:
    prompt = chain("a")
    router = Router(Held({3: prompt}), BLOCK)
    assert router.choose(prompt, 1025, idle(), 10.0, home=1).replica == 3


def test_a_replica_that_is_gone_is_neither_chosen_nor_remembered() -> None:
    router, prompt = Router(Held(), BLOCK), chain("a")
    router.routed("r", Choice(1, 0, 1.0, "spread"), prompt, now=9.9)
    router.routed("s", Choice(2, 0, 1.0, "spread"), chain("b"), now=9.9)
    assert router.gone(1) == ["r"]
    assert router.gone(1) == []
    assert choose(router, prompt, idle()).cached_tokens == 0
    assert choose(router, chain("b"), {0: load(), 1: load()}).replica in (0, 1)
    router.finished("r")
    assert choose(router, chain("b"), idle()).replica == 2


def test_the_same_questions_have_the_same_answers() -> None:
    def asked() -> list[Choice]:
        draw = random.Random(1)
        router, given = Router(Held({2: chain("3")}), BLOCK, seed=5), []
        for number in range(200):
            prompt = chain(str(draw.randrange(20)), draw.randrange(1, 50))
            age = draw.choice([0.1, 60.0])
            loads = {r: load(draw.random(), age=age) for r in range(3)}
            given.append(choose(router, prompt, loads))
            router.routed(str(number), given[-1], prompt, now=NOW)
            if draw.random() < 0.7:
                router.finished(str(draw.randrange(number + 1)))
        return given

    assert asked() == asked()


def test_a_prompt_shorter_than_a_block_goes_where_the_queue_is_short() -> None:
    loads = {0: load(queue=1.0), 1: load()}
    assert Router(Held(), BLOCK).choose([], 5, loads, 10.0).replica == 1


def test_there_is_no_choice_without_replicas() -> None:
    with pytest.raises(ValueError, match="loads"):
        Router(Held(), BLOCK).choose([], 5, {}, 10.0)
    with pytest.raises(ValueError, match="prefill_tokens_per_s"):
        load(rate=0.0)


def test_a_request_is_under_way_once() -> None:
    router = Router(Held(), BLOCK)
    router.routed("r", Choice(0, 0, 1.0, "spread"), [], now=1.0)
    with pytest.raises(ValueError, match="'r'"):
        router.routed("r", Choice(0, 0, 1.0, "spread"), [], now=1.0)


def test_who_comes_or_goes_moves_no_other_key() -> None:
    keys = [str(number).encode() for number in range(200)]
    four, three = (
        {key: ranked(key, replicas)[0] for key in keys} for replicas in (range(4), range(3))
    )
    assert all(three[key] == four[key] for key in keys if four[key] != 3)
    assert min(Counter(four.values()).values()) > 25


def test_depths_in_flight_are_those_of_every_chain_under_way() -> None:
    draw, in_flight = random.Random(0), InFlight()
    under_way: dict[str, tuple[int, list[bytes]]] = {}

    def prompt() -> list[bytes]:
        first, second = draw.randrange(3), draw.randrange(3)
        head = chain(str(first), draw.randrange(1, 9))
        return chain(f"{first} {len(head)} {second}", draw.randrange(5), behind=head)

    for number in range(500):
        if under_way and draw.random() < 0.5:
            name = draw.choice(list(under_way))
            del under_way[name]
            in_flight.remove(name)
        under_way[str(number)] = draw.randrange(4), prompt()
        in_flight.add(str(number), *under_way[str(number)], 0.0, 0.0)
        asked = prompt()
        held: dict[int, set[bytes]] = {}
        for replica, hashes in under_way.values():
            held.setdefault(replica, set()).update(hashes)
        assert dict(in_flight.depths(asked)) == Held(held).depths(asked)
    for name in under_way:
        in_flight.remove(name)
    assert dict(in_flight.depths(prompt())) == {}
    assert all(in_flight.num_requests(replica) == 0 for replica in range(4))
