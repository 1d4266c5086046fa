"""Which goes first of keys and of what is of use as a whole."""

import random
from itertools import chain

import pytest

from engine.api import EVERYTHING, Kind
from engine.blocks.eviction.policy import Eviction
from engine.blocks.eviction.wholes import WithWholes
from engine.blocks.pool import BlockPool
from tests.engine.blocks.eviction.test_eviction import chain as keys_of
from tests.engine.blocks.eviction.test_eviction import serve


def use(pool: BlockPool, name: object, length: int, worth: float, owner: str = "a") -> int:
    """Hold a whole for a moment, and bring what is missing of it; returns how much was there."""
    keys = keys_of(f"whole {name}", length)
    there = [block for key in keys for block in pool.find([key])]
    missing = [key for key in keys if not pool.find([key])]
    pool.acquire(there)
    new = pool.allocate(len(missing), owner)
    for block, key in zip(new, missing, strict=True):
        pool.register(block, key, is_tail=True)
    if new:
        pool.join([*there, *new], worth)
    pool.release([*there, *new])
    pool.check()
    return len(there)


@pytest.mark.parametrize(("worth", "num_left"), [(0.2, 0), (5.0, 4)])
def test_what_is_brought_back_sooner_than_keys_are_computed_goes_before_them(
    worth: float, num_left: int
) -> None:
    pool = BlockPool(20)
    serve(pool, keys_of("prompt", 10))
    use(pool, "adapter", 4, worth)
    for number in range(3):
        serve(pool, keys_of(number, 4))
    assert use(pool, "adapter", 4, worth) == num_left


def test_the_one_that_was_used_more_often_stays() -> None:
    pool = BlockPool(20)
    for _ in range(3):
        use(pool, "often", 8, 0.5)
    use(pool, "once", 8, 0.5)
    serve(pool, keys_of("prompt", 8))
    assert use(pool, "often", 8, 0.5) == 8
    assert use(pool, "once", 8, 0.5) < 8


def test_what_was_used_often_goes_when_nobody_comes_any_more() -> None:
    pool = BlockPool(20)
    for _ in range(5):
        use(pool, "often", 8, 0.5)
    for number in range(40):
        serve(pool, keys_of(number, 4))
    assert use(pool, "often", 8, 0.5) == 0


def test_a_whole_goes_before_another_loses_anything() -> None:
    pool = BlockPool(20)
    for name in ("first", "second"):
        use(pool, name, 8, 1.0)
    pool.release(pool.allocate(8, "a"))
    pool.check()
    assert use(pool, "second", 8, 1.0) == 8


def test_a_reserve_that_moves_a_whole_about_is_no_use_of_it() -> None:
    pool = BlockPool(40)
    pool.reserve("a", 6)
    use(pool, "reserved", 4, 0.1, "a")
    for _ in range(50):
        serve(pool, keys_of("beside it", 6), "a")
    for _ in range(3):
        use(pool, "often", 4, 0.1, "b")
    serve(pool, keys_of("prompt", 29), "b")
    pool.check()
    assert use(pool, "often", 4, 0.1, "b") == 4
    assert use(pool, "reserved", 4, 0.1, "a") < 4


def test_uses_of_one_whole_leave_nothing_behind_while_another_lies_idle() -> None:
    pool = BlockPool(40)
    use(pool, "idle", 4, 0.5)
    use(pool, "hot", 4, 0.5)
    order = pool._queue._order
    assert isinstance(order, WithWholes)
    for _ in range(500):
        use(pool, "hot", 4, 0.5)
    assert len(order._heap) < 50


@pytest.mark.parametrize("eviction", ["arc", "lru"])
@pytest.mark.parametrize("seed", range(5))
def test_any_mix_keeps_the_books(eviction: Eviction, seed: int) -> None:
    draw = random.Random(seed)
    kinds = (EVERYTHING, Kind(pages=2, is_state=True)) if seed % 2 else (EVERYTHING,)
    pool = BlockPool(40, eviction, kinds=kinds)
    held = list[list[int]]()
    for _ in range(400):
        name, owner = draw.randrange(6), draw.choice("ab")
        match draw.randrange(6):
            case 0 | 1:
                use(pool, name, 2 + name, draw.choice([0.1, 1.0, 9.0]), owner)
            case 2 | 3:
                serve(pool, keys_of(name, 2 + name), owner)
            case 4:
                pool.reserve(owner, draw.randrange(12))
            case _ if held and draw.random() < 0.6:
                pool.release(held.pop())
            case _:
                found = chain.from_iterable(pool.find([key]) for key in keys_of("whole 3", 5))
                held.append(list(found))
                pool.acquire(held[-1])
        if draw.random() < 0.02:
            pool.forget_owner(owner, {block for blocks in held for block in blocks})
        pool.check()
    for blocks in held:
        pool.release(blocks)
    pool.check()
    assert pool.num_in_use == 0
