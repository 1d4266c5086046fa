"""What is gone is told apart from what was never here, in bounded memory and with few mistakes."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from engine.api import BlockFate
from engine.blocks import losses
from engine.blocks.losses import Losses, Sketch
from tests.effort import scaled
from tests.engine.blocks.eviction.test_leases import Clock


def hashes(count: int, seed: int = 0) -> list[bytes]:
    rng = random.Random(seed)
    return [rng.randbytes(16) for _ in range(count)]


def test_a_sketch_takes_strangers_for_known_ones_far_more_seldom_than_once_in_a_hundred() -> None:
    sketch = Sketch(1 << 14)
    for one in hashes(1 << 15):
        sketch.add(one)
    strangers = hashes(scaled(100_000), seed=1)
    mistaken = sum(map(sketch.has, strangers))
    assert mistaken / len(strangers) < 0.001


def test_a_sketch_knows_nearly_all_of_what_was_added_last() -> None:
    sketch = Sketch(1 << 14)
    for one in hashes(1 << 16):
        sketch.add(one)
    last = hashes(1 << 16)[-(1 << 13) :]
    assert sum(map(sketch.has, last)) / len(last) > 0.98


def test_a_sketch_has_two_bytes_for_a_hash_and_never_more() -> None:
    sketch = Sketch(1 << 10)
    for one in hashes(5000):
        sketch.add(one)
    assert sketch.num_bytes == 1 << 11
    assert len(sketch._marks) == 1 << 11
    assert Losses(10**9, float)._before.num_bytes == 4 << 20


@given(st.lists(st.integers(0, 60), max_size=200))
def test_a_bucket_keeps_its_sixteen_newest_hashes(added: list[int]) -> None:
    sketch, known = Sketch(1), list[int]()
    marked = [b"%08d" % 0 + bytes([number, number * 3 % 251]) for number in range(1, 62)]
    for number in added:
        sketch.add(marked[number])
        known = [number, *(one for one in known if one != number)][:16]
        assert {one for one in range(61) if sketch.has(marked[one])} == set(known)


def test_kinds_are_told_apart() -> None:
    sketch = Sketch(1 << 10)
    for one in hashes(40):
        sketch.add(one, kind=1)
    assert all(sketch.has(one, kind=1) for one in hashes(40))
    assert sum(sketch.has(one) for one in hashes(40)) < 4


def test_what_was_lost_long_ago_was_so_before_the_oldest_that_is_known_better() -> None:
    clock = Clock()
    lost = Losses(2, clock)
    known = hashes(10)
    for one in known:
        clock.now += 10
        lost.add(one, "pressure", by="bulk")
    clock.now = 105.0
    assert lost.fate(known[-1]) == BlockFate("evicted", 5.0, "pressure", "bulk")
    assert lost.fate(known[0]) == lost.fate(known[1]) == BlockFate("lost_long_ago", 75.0)
    assert lost.fate(hashes(1, seed=2)[0]) == BlockFate("never_seen")


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 1)), max_size=300))
def test_whatever_was_lost_is_told_so_while_there_is_room(order: list[tuple[int, int]]) -> None:
    clock, known, gone = Clock(), hashes(31), dict[tuple[int, int], float]()
    lost = Losses(4, clock)
    for number, kind in order:
        clock.now += 1
        lost.add(known[number], "expired", kind)
        gone.pop((number, kind), None)
        gone[number, kind] = clock.now
    newest = set(list(gone)[-losses._LOSSES_A_BLOCK * 4 :])
    for (number, kind), when in gone.items():
        fate = lost.fate(known[number], kind)
        ago = clock.now - when
        if (number, kind) in newest:
            assert fate == BlockFate("evicted", ago, "expired")
        else:
            assert fate.state == "lost_long_ago"
            assert fate.seconds_ago <= ago
