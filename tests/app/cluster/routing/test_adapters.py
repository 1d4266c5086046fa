"""Where requests with adapters go: to replicas that have them, unless others are much less busy."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

import pytest

from app.cluster.routing.adapters import AdapterPlaces
from app.cluster.routing.router import Choice, ReplicaLoad, Router
from tests.app.cluster.routing.test_router import BLOCK, NOW, Held, chain, idle, load

ONE, OTHER = b"one", b"other"
SECONDS = 0.4


def choose(
    router: Router,
    loads: Mapping[int, ReplicaLoad],
    adapter: bytes = ONE,
    name: str = "new",
    now: float = NOW,
) -> Choice:
    prompt = chain(f"{name} {adapter!r}", 2)
    return router.choose(prompt, len(prompt) * BLOCK + 1, loads, now, adapter=adapter)


def knowing(*places: int, adapter: bytes = ONE, seconds: float = SECONDS) -> Router:
    """A router that was told that these replicas have an adapter."""
    router = Router(Held(), BLOCK)
    for replica in places:
        router.adapters.loaded(replica, {adapter: seconds}, None)
    return router


@pytest.mark.parametrize("holder", range(4))
def test_a_request_goes_where_its_adapter_is(holder: int) -> None:
    router = knowing(holder)
    chosen = {choose(router, idle(), name=str(number)).replica for number in range(20)}
    assert chosen == {holder}


def test_what_others_have_is_no_reason_to_go_there() -> None:
    router = knowing(2, adapter=OTHER)
    prompts = [chain(str(number), 2) for number in range(40)]
    assert {router.choose(one, 33, idle(), NOW).replica for one in prompts} == {0, 1, 2, 3}


def test_it_waits_there_about_as_long_as_loading_takes_and_no_longer() -> None:
    router = knowing(2)
    assert choose(router, idle() | {2: load(queue=SECONDS)}).replica == 2
    assert choose(router, idle() | {2: load(queue=5 * SECONDS)}).replica != 2


def test_what_is_dear_to_load_is_waited_for_longer() -> None:
    busy = idle() | {2: load(queue=2.0)}
    assert choose(knowing(2, seconds=0.1), busy).replica != 2
    assert choose(knowing(2, seconds=2.0), busy).replica == 2


def test_an_adapter_that_nobody_has_loaded_takes_as_long_as_others_have() -> None:
    places = AdapterPlaces()
    assert places.seconds(ONE) > 0
    for number in range(200):
        places.loaded(0, {str(number).encode(): 3.0}, [])
    assert places.seconds(ONE) == pytest.approx(3.0)
    assert places.seconds(b"7") == 3.0


def test_it_counts_from_when_the_first_request_is_sent() -> None:
    router = Router(Held(), BLOCK)
    first = choose(router, idle(), name="first")
    router.routed("first", first, [], NOW, ONE)
    for number in range(20):
        assert choose(router, idle(), name=str(number)).replica == first.replica
    router.finished("first")
    assert choose(router, idle(), now=NOW + 1.0).replica == first.replica, "it is to tell of it yet"


def test_it_counts_no_more_once_the_replica_has_had_time_to_say_so_and_has_not() -> None:
    places = AdapterPlaces()
    places.routed("r", 1, ONE, NOW)
    places.routed("s", 1, ONE, NOW)
    places.finished("r")
    assert places.has(1, ONE, NOW + 100.0), "one is still under way"
    places.finished("s")
    places.finished("s")
    assert places.has(1, ONE, NOW + 1.0)
    assert not places.has(1, ONE, NOW + 3.0)
    assert not places.has(0, ONE, NOW)


def test_replicas_tell_of_what_comes_and_goes() -> None:
    places = AdapterPlaces()
    places.loaded(0, {ONE: 1.0, OTHER: 1.0}, None)
    places.loaded(1, {ONE: 1.0}, None)
    places.loaded(0, {}, [ONE])
    assert not places.has(0, ONE, NOW)
    assert places.has(0, OTHER, NOW)
    assert places.has(1, ONE, NOW)
    places.loaded(0, {ONE: 1.0}, None)  # it is attended anew
    assert not places.has(0, OTHER, NOW)
    places.forget(0)
    assert not places.has(0, ONE, NOW)
    assert places.seconds(OTHER) == 1.0


def test_a_replica_that_is_gone_has_nothing_though_its_requests_are_finished_later() -> None:
    router = Router(Held(), BLOCK)
    router.routed("r", Choice(1, 0, 0.1, "spread"), chain("a"), NOW, ONE)
    assert router.gone(1) == ["r"]
    router.adapters.forget(1)
    assert not router.adapters.has(1, ONE, NOW)
    router.finished("r")
    assert not router.adapters.has(1, ONE, NOW)


def test_doors_that_know_the_same_prefer_one_replica_for_an_adapter_that_is_nowhere() -> None:
    names = [f"adapter {number}".encode() for number in range(64)]
    here, there = (
        [choose(Router(Held(), BLOCK, seed), idle(), one, str(seed)).replica for one in names]
        for seed in (1, 2)
    )
    assert here == there
    assert set(here) == {0, 1, 2, 3}


def test_of_many_replicas_the_one_that_has_it_is_found() -> None:
    assert choose(knowing(77), idle(200)).replica == 77


def test_a_prefix_that_takes_longer_to_compute_than_its_adapter_to_load_decides() -> None:
    prompt = chain("long")
    router = Router(Held({3: prompt}), BLOCK)
    router.adapters.loaded(1, {ONE: SECONDS}, None)
    size = len(prompt) * BLOCK + 1
    assert router.choose(prompt, size, idle(), NOW, adapter=ONE).replica == 3
    router.adapters.loaded(1, {ONE: 30.0}, None)
    assert router.choose(prompt, size, idle(), NOW, adapter=ONE).replica == 1


class Fleet:
    """Replicas that compute a prompt at a time, and hold so many adapters, by their use."""

    def __init__(self, count: int, room: int) -> None:
        self.held: list[dict[bytes, None]] = [{} for _ in range(count)]
        self.free_at = [0.0] * count
        self.num_loads = 0
        self._room = room

    def loads(self, now: float) -> dict[int, ReplicaLoad]:
        queues = enumerate(max(0.0, at - now) for at in self.free_at)
        return {replica: ReplicaLoad(queue, 1.0, 1000.0, now) for replica, queue in queues}

    def serve(self, replica: int, adapter: bytes, now: float, seconds: float) -> float:
        """Returns how long the request waits, for the adapter and those before it."""
        held = self.held[replica]
        is_new = adapter not in held
        held.pop(adapter, None)
        held[adapter] = None
        if len(held) > self._room:
            del held[next(iter(held))]
        self.num_loads += is_new
        waits = max(self.free_at[replica] - now, SECONDS if is_new else 0.0)
        self.free_at[replica] = max(self.free_at[replica], now) + seconds
        return waits


def served(*, counts_adapters: bool) -> tuple[int, float]:
    """Loads, and the mean wait, of 2,000 requests of 40 adapters by Zipf at 4 replicas that hold 12
    each."""
    draw, fleet, router = random.Random(1), Fleet(4, 12), Router(Held(), BLOCK)
    names = [f"adapter {number}".encode() for number in range(40)]
    weights = [1 / (1 + rank) for rank in range(40)]
    now, waits = NOW, 0.0
    for number, name in enumerate(draw.choices(names, weights, k=2000)):
        now += draw.expovariate(1 / 0.05)
        adapter = name if counts_adapters else b""
        choice = choose(router, fleet.loads(now), adapter, str(number), now)
        router.routed(str(number), choice, [], now, adapter)
        waits += fleet.serve(choice.replica, name, now, seconds=0.12)
        for replica, held in enumerate(fleet.held):
            router.adapters.loaded(replica, dict.fromkeys(held, SECONDS), None)
        router.finished(str(number))
    return fleet.num_loads, waits / 2000


def test_a_fleet_loads_less_and_answers_sooner_where_adapters_count() -> None:
    loads, wait = served(counts_adapters=True)
    loads_without, wait_without = served(counts_adapters=False)
    assert loads < loads_without / 4
    assert wait < wait_without


def test_a_hot_adapter_comes_to_be_on_several_replicas() -> None:
    router, fleet, now = Router(Held(), BLOCK), Fleet(4, 12), NOW
    taken = Counter[int]()
    for number in range(400):
        now += 0.05
        choice = choose(router, fleet.loads(now), ONE, str(number), now)
        router.routed(str(number), choice, [], now, ONE)
        fleet.serve(choice.replica, ONE, now, seconds=0.19)
        for replica, held in enumerate(fleet.held):
            router.adapters.loaded(replica, dict.fromkeys(held, SECONDS), None)
        router.finished(str(number))
        taken[choice.replica] += 1
    assert fleet.num_loads == 4
    assert min(taken.values()) > 50
