"""What pools of other sizes would have found, beside what they find: simulated block by block."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterator
from hashlib import blake2b

import pytest

from engine.schedule.reuse import ReuseCurve

Access = tuple[str, list[bytes]]


def block(number: int) -> bytes:
    return blake2b(number.to_bytes(8, "big"), digest_size=16).digest()


def accesses(rng: random.Random, count: int, chains: int) -> Iterator[Access]:
    """Requests for chains of blocks, some chains more often than others, each left at its end."""
    for _ in range(count):
        chain = int(chains * rng.random() ** 3)
        hashes = [block(chain * 1000 + index) for index in range(1 + chain % 13)]
        yield "look_up", hashes
        yield "touch", hashes[::-1]


def found(size: int, accesses: list[Access]) -> float:
    """Which part of the look-ups a pool finds that evicts the least recently used block."""
    pool: OrderedDict[bytes, None] = OrderedDict()
    hits = asked = 0
    for kind, hashes in accesses:
        for one in hashes:
            asked += kind == "look_up"
            hits += kind == "look_up" and one in pool
            pool[one] = None
            pool.move_to_end(one)
            if len(pool) > size:
                pool.popitem(last=False)
    return hits / asked


def watched(num_blocks: int, most: int, accesses: list[Access]) -> ReuseCurve:
    curve = ReuseCurve(num_blocks, num_blocks, most)
    for kind, hashes in accesses:
        getattr(curve, kind)(hashes)
    return curve


@pytest.mark.parametrize("seed", range(3))
def test_where_all_blocks_are_watched_it_is_exactly_what_pools_find(seed: int) -> None:
    done = list(accesses(random.Random(seed), 400, 40))
    points = watched(64, 10_000, done).points()
    assert [point.blocks for point in points] == [16, 32, 64, 128, 256, 512, 1024]
    for point in points:
        assert point.found == pytest.approx(found(point.blocks, done))
    assert points[0].found < points[-1].found


def test_a_sample_of_fixed_size_tells_about_the_same() -> None:
    done = list(accesses(random.Random(7), 4000, 1500))
    curve = watched(1000, 500, done)
    for point in curve.points():
        assert point.found == pytest.approx(found(point.blocks, done), abs=0.05)
    sizes = (len(curve._last), len(curve._times), len(curve._highest))
    assert set(sizes) == {sizes[0]}
    assert 400 < sizes[0] <= 500


def test_before_anything_was_asked_nothing_is_found() -> None:
    curve = ReuseCurve(100, 100)
    curve.touch([block(1)])
    assert {point.found for point in curve.points()} == {0.0}


def test_a_pool_whose_windows_are_passed_finds_more_blocks_than_it_has_of_each_kind() -> None:
    done = list(accesses(random.Random(1), 400, 40))
    curve = ReuseCurve(64, 96, 10_000)
    for kind, hashes in done:
        getattr(curve, kind)(hashes)
    for point in curve.points():
        assert point.found == pytest.approx(found(point.blocks * 3 // 2, done))
