"""A door that is told what has changed knows what one knows that is told everything."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

from msgspec import structs

from app.cluster.door.fairness import Turns
from app.cluster.door.ledger import LeaseLedger
from app.cluster.messages import Adapters, State, adapters_since, decode_to_door, state_since
from engine.api import EngineStats, LoadedAdapter, TenantStats
from engine.serve.messages import encode
from tests.engine.simulation import simulated_core

IDLE = TenantStats(
    running=0, waiting=0, blocks_held=0, blocks_shared=0, blocks_cached=0, blocks_pinned=0, served=0
)
EMPTY = simulated_core().stats()
Tenants = Mapping[str, TenantStats]


def passed_on(told: Tenants | None, tenants: Tenants) -> State:
    """As a door has it."""
    stats = structs.replace(EMPTY, tenants=dict(tenants))
    state = decode_to_door(encode(state_since(told, stats, True)))
    assert isinstance(state, State)
    return state


def lives(draw: random.Random) -> Iterator[dict[str, TenantStats]]:
    """What a replica has of its tenants, beat by beat: some of them work, a few are forgotten."""
    tenants: dict[str, TenantStats] = {}
    while True:
        for name in "abcdefgh":
            before = tenants.get(name, IDLE)
            what = draw.random()
            if what < 0.9:  # nobody rests for long
                tenants[name] = structs.replace(
                    before,
                    running=draw.randrange(2),
                    served=before.served + draw.randrange(9),
                    lease_block_seconds=before.lease_block_seconds + draw.randrange(3),
                )
            elif what > 0.97:
                tenants.pop(name, None)
        yield dict(tenants)


def test_only_tenants_that_have_changed_are_told_of_and_those_that_are_gone() -> None:
    first = passed_on(None, {"a": IDLE, "b": IDLE, "c": IDLE})
    assert (set(first.stats.tenants), first.gone) == ({"a", "b", "c"}, None)
    busy = structs.replace(IDLE, running=1)
    following = passed_on(first.stats.tenants, {"a": IDLE, "b": busy})
    assert (following.stats.tenants, following.gone) == ({"b": busy}, ["c"])
    idle = passed_on({"a": IDLE}, {"a": IDLE})
    assert (idle.stats.tenants, idle.gone) == ({}, [])


def test_books_and_turns_are_what_they_are_with_everything_told() -> None:
    draw = random.Random(1)
    replicas = [lives(draw) for _ in range(3)]
    told: list[Tenants | None] = [None] * 3
    whole, changes = (LeaseLedger(), Turns()), (LeaseLedger(), Turns())
    for beat in range(400):
        number = draw.randrange(3)
        if beat % 50 == 49:  # it is lost, and attended anew
            told[number] = None
            for ledger, turns in (whole, changes):
                ledger.forget(number)
                turns.forget(number)
        tenants = next(replicas[number])
        state, told[number] = passed_on(told[number], tenants), tenants
        books = draw.random() < 0.8
        whole[0].observe(number, tenants, books=books)
        changes[0].observe(number, state.stats.tenants, state.gone, books=books)
        everybody = dict.fromkeys("abcdefgh", IDLE)
        seconds = [
            {name: one.lease_block_seconds for name, one in ledger.booked(everybody).items()}
            for ledger in (whole[0], changes[0])
        ]
        assert seconds[0] == seconds[1]
        assert whole[1].observe(number, tenants) == changes[1].observe(
            number, state.stats.tenants, state.gone
        )


def test_who_comes_back_after_a_while_waits_for_nothing_that_others_were_served_before() -> None:
    turns = Turns()
    busy = structs.replace(IDLE, running=1)
    for number in (0, 1):
        turns.observe(number, {"a": IDLE})
    for beat in range(1, 10):
        assert not turns.observe(0, {}, [])
        turns.observe(1, {"a": structs.replace(busy, served=10.0 * beat)}, [])
    assert not turns.observe(0, {"a": busy}, [])
    turns.observe(1, {"a": structs.replace(busy, served=97)}, [])
    assert turns.observe(0, {}, []) == {"a": 7}, "it has said nothing new, and is at work"


def test_a_state_says_how_busy_the_replica_is_whoever_has_changed() -> None:
    stats: EngineStats = structs.replace(EMPTY, queue_seconds=3.5, tenants={"a": IDLE})
    assert state_since({"a": IDLE}, stats, False).stats.queue_seconds == 3.5


def test_adapters_are_told_of_when_they_come_to_be_loaded_and_when_they_are_gone() -> None:
    one, other, again = (
        LoadedAdapter(name, seconds) for name, seconds in ((b"1", 0.5), (b"2", 0.5), (b"1", 0.7))
    )
    assert adapters_since([], [one, other]) == Adapters([one, other], [])
    assert adapters_since([one, other], [other, one]) is None
    assert adapters_since([one, other], [again]) == Adapters([again], [b"2"])
    stats = structs.replace(EMPTY, adapters=[one])
    assert state_since(None, stats, True).stats.adapters == [], "they have a message of their own"
