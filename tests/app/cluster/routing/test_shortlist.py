"""Which of many replicas are looked at closer."""

from __future__ import annotations

import random
from collections import Counter
from unittest import mock

import pytest

from app.cluster.routing import router as module
from app.cluster.routing.router import MOST_LOOKED_AT, Choice, ReplicaLoad, Router, shortlist
from tests.app.cluster.routing.test_router import BLOCK, Held, chain, choose, idle, load

MANY = 3 * MOST_LOOKED_AT


def test_of_few_all_are_looked_at() -> None:
    costs = dict.fromkeys(range(MOST_LOOKED_AT), 1.0)
    assert sorted(shortlist(b"key", {3: 5}, costs, 0.005)) == list(costs)


def test_of_many_those_that_cost_least_of_those_with_as_much() -> None:
    costs = {replica: float(replica % 97) for replica in range(MANY)}
    depths = {replica: 1 + replica % 2 for replica in range(0, MANY, 3)}
    near = shortlist(b"key", depths, costs, 0.005)
    assert len(near) == len(set(near)) < MOST_LOOKED_AT
    for depth in (0, 1, 2):
        alike = [replica for replica in costs if depths.get(replica, 0) == depth]
        assert min(alike, key=costs.__getitem__) in near


def test_which_of_equal_ones_is_drawn_by_the_prompt_and_equally_everywhere() -> None:
    doors = [Router(Held(), BLOCK, seed) for seed in (1, 2)]
    chosen = Counter[int]()
    for number in range(400):
        prompt = chain(f"prompt {number}", 4)
        one, other = (choose(door, prompt, idle(MANY)).replica for door in doors)
        assert one == other
        chosen[one] += 1
    assert len(chosen) > MANY // 2
    assert max(chosen.values()) < 20


@pytest.mark.parametrize("seed", range(20))
def test_the_choice_is_that_of_a_look_at_all(seed: int) -> None:
    rng = random.Random(seed)
    prompt = chain("a", 40)
    held = {one: prompt[: rng.choice([10, 10, 30])] for one in rng.sample(range(MANY), 20)}
    loads = {one: load(queue=rng.uniform(0.0, 3.0)) for one in range(MANY)}
    home = rng.choice([None, 5])

    def chosen() -> Choice:
        router = Router(Held(held), BLOCK)
        for number in range(12):  # which count at once
            other = chain(f"other {number % 3}", 30)
            router.routed(str(number), router.choose(other, 481, loads, 9.9), other, now=9.9)
        return router.choose(prompt, 641, loads, now=10.0, home=home)

    with mock.patch.object(module, "MOST_LOOKED_AT", MANY):
        of_all = chosen()
    assert chosen() == of_all


def test_a_home_of_which_nothing_is_known_is_among_those_looked_at() -> None:
    loads = idle(MANY) | {7: load(queue=0.5)}
    choice = Router(Held(), BLOCK).choose(chain("a"), 1025, loads, now=10.0, home=7)
    assert (choice.replica, choice.why) == (7, "sticky")


def test_others_are_taken_where_none_of_the_best_has_room() -> None:
    prompt = chain("a")
    full = {one: load(free=0.0) for one in range(MANY - 1)}
    loads: dict[int, ReplicaLoad] = full | {MANY - 1: load(queue=30.0)}
    assert choose(Router(Held({0: prompt}), BLOCK), prompt, loads).replica == MANY - 1
