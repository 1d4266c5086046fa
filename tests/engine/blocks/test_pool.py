from typing import get_args

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.blocks.eviction.policy import Eviction
from engine.blocks.pool import BlockPool, InvariantError
from tests.effort import scaled
from tests.engine.blocks.told import Told


def available(pool: BlockPool, owner: str) -> int:
    """How many blocks `owner` can allocate now."""
    return max(n for n in range(pool.num_blocks + 1) if pool.can_allocate(n, owner))


def test_a_released_cached_block_is_found_until_its_memory_is_needed() -> None:
    pool = BlockPool(3)
    first, second = pool.allocate(2, "a")
    pool.register(first, b"h1")
    pool.release([first, second])
    assert pool.find([b"h1"]) == [first]
    pool.allocate(2, "a")
    assert pool.find([b"h1"]) == [first], "free blocks are taken before cached ones"
    pool.allocate(1, "a")
    assert pool.find([b"h1"]) == []
    pool.check()


def test_who_wants_to_know_is_told_of_every_evicted_block_before_it_is_taken() -> None:
    told = Told()
    pool = BlockPool(3, listener=told)
    first, second = pool.allocate(2, "a")
    pool.register(first, b"h1")
    pool.register(second, b"h2", owner="b")
    pool.release([first, second])
    pool.allocate(2, "c")
    assert told.losses == [(second, b"h2", "b", "pressure")]
    pool.forget([first])
    pool.allocate(1, "c")
    assert len(told.losses) == 1, "a forgotten block holds nothing"


@pytest.mark.parametrize("eviction", get_args(Eviction))
def test_tails_are_evicted_before_heads_and_old_sequences_before_new_ones(
    eviction: Eviction,
) -> None:
    pool = BlockPool(6, eviction)
    old, new = pool.allocate(3, "a"), pool.allocate(3, "a")
    for name, blocks in (("old", old), ("new", new)):
        for index, block in enumerate(blocks):
            pool.register(block, f"{name}{index}".encode())
    pool.release(old)
    pool.release(new)
    assert [pool.allocate(1, "a")[0] for _ in range(6)] == [*reversed(old), *reversed(new)]


def test_a_hit_takes_a_block_out_of_the_middle_of_the_queue() -> None:
    pool = BlockPool(5)
    blocks = pool.allocate(5, "a")
    for block in blocks:
        pool.register(block, bytes([block]))
    pool.release(blocks)
    pool.acquire([blocks[2]])
    pool.check()
    assert available(pool, "a") == 4
    assert blocks[2] not in pool.allocate(4, "a")


def test_can_allocate_does_not_count_a_hit_twice() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1, "a")
    pool.register(blocks[0], b"h")
    pool.release(blocks)
    hits = pool.find([b"h"])
    assert pool.can_allocate(1, "a", hits)
    assert not pool.can_allocate(2, "a", hits)


def test_the_first_of_two_equal_blocks_stays_findable() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(2, "a")
    pool.register(first, b"same")
    pool.register(second, b"same")
    assert pool.find([b"same"]) == [first]
    pool.release([second])
    assert pool.find([b"same"]) == [first]
    pool.check()


def test_releasing_twice_is_caught() -> None:
    pool = BlockPool(1)
    blocks = pool.allocate(1, "a")
    pool.release(blocks)
    with pytest.raises(AssertionError, match="released twice"):
        pool.release(blocks)


@pytest.mark.parametrize("damage", ["reference", "link", "hash"])
def test_check_sees_damage(damage: str) -> None:
    pool = BlockPool(4)
    block = pool.allocate(1, "a")[0]
    pool.register(block, b"h")
    pool.check()
    if damage == "reference":
        pool._refs[block] = 0
    elif damage == "link":
        pool._queue._free.append(pool._queue._free[0])
    else:
        pool._hashes[block] = b"other"
    with pytest.raises(InvariantError):
        pool.check()


@pytest.mark.parametrize("damage", ["reference", "queue", "hash", "free"])
def test_a_part_of_the_blocks_can_be_checked_alone(damage: str) -> None:
    pool = BlockPool(6)
    blocks = pool.allocate(4, "a")
    for block in blocks:
        pool.register(block, b"h%d" % block)
    pool.release(blocks[1:])
    target = blocks[1]
    if damage == "reference":
        pool._refs[target] = -1
    elif damage == "queue":
        pool._queue.remove_cached(target, "a")
    elif damage == "hash":
        pool._hashes[target] = b"other"
    else:
        pool._refs[pool._queue._free[target]] = 1
    for block in range(6):
        if block != target:
            pool.check_some(block, block + 1)
    with pytest.raises(InvariantError):
        pool.check_some(target, target + 1)


class PoolMachine(RuleBasedStateMachine):
    """Sequences come, share, grow and go; the pool must agree with a simple model of them."""

    eviction: Eviction = "arc"

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.pool = BlockPool(12, self.eviction, lambda: self.now)
        self.held: list[list[int]] = []
        self.reserved = dict.fromkeys("abc", 0)
        self.counter = 0

    @rule(count=st.integers(0, 6), register=st.booleans(), owner=st.sampled_from("abc"))
    def allocate(self, count: int, register: bool, owner: str) -> None:
        cached = {name: self.pool.num_cached_of(name) for name in "abc"}
        protected = sum(min(cached[name], self.reserved[name]) for name in "abc" if name != owner)
        unprotected = 12 - self.pool.num_in_use - protected
        assert available(self.pool, owner) == unprotected
        assert self.pool.can_allocate(count, owner) == (count <= unprotected)
        if count > unprotected:
            return
        blocks = self.pool.allocate(count, owner)
        assert len(set(blocks)) == count
        assert not {b for blocks in self.held for b in blocks} & set(blocks)
        for name in set("abc") - {owner}:
            assert self.pool.num_cached_of(name) >= min(cached[name], self.reserved[name])
        if register:
            for block in blocks:
                self.pool.register(block, f"h{self.counter % 20}".encode())
                self.counter += 1
        self.held.append(blocks)

    @rule(start=st.integers(0, 19), length=st.integers(1, 4))
    def hit(self, start: int, length: int) -> None:
        found = self.pool.find(f"h{(start + i) % 20}".encode() for i in range(length))
        self.pool.acquire(found)
        self.held.append(found)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.pool.release(self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    @precondition(lambda self: self.held)
    @rule(
        data=st.data(),
        owner=st.sampled_from("abc"),
        start=st.integers(0, 19),
        length=st.integers(0, 4),
    )
    def foretell(self, data: st.DataObject, owner: str, start: int, length: int) -> None:
        """What could be allocated after a release and a hit is what then can be allocated."""
        chosen = data.draw(st.sets(st.integers(0, len(self.held) - 1), min_size=1))
        released = [self.held[index] for index in chosen]
        hits = self.pool.find(f"h{(start + i) % 20}".encode() for i in range(length))
        foretold = [self.pool.can_allocate(n, owner, hits, released) for n in range(13)]
        for blocks in released:
            self.pool.release(blocks)
        self.pool.acquire(hits)
        assert foretold == [self.pool.can_allocate(n, owner) for n in range(13)]
        self.held = [held for index, held in enumerate(self.held) if index not in chosen] + [hits]

    @rule(owner=st.sampled_from("abc"), count=st.integers(0, 8))
    def reserve(self, owner: str, count: int) -> None:
        self.pool.reserve(owner, count)
        self.reserved[owner] = count

    @rule()
    def forget(self) -> None:
        keep = self.held[0] if self.held else []
        findable = {f"h{i}" for i in range(20) if self.pool.find([f"h{i}".encode()])}
        kept = {name for name in findable if self.pool.find([name.encode()])[0] in keep}
        self.pool.forget_all(keep)
        assert {f"h{i}" for i in range(20) if self.pool.find([f"h{i}".encode()])} == kept

    @rule(owner=st.sampled_from("abc"))
    def forget_owner(self, owner: str) -> None:
        self.pool.forget_owner(owner)
        self.reserved[owner] = 0
        assert self.pool.num_cached_of(owner) == 0

    @invariant()
    def books_balance(self) -> None:
        self.pool.check()
        references = [0] * 12
        for blocks in self.held:
            for block in blocks:
                references[block] += 1
        assert references == list(self.pool.references)
        used = sum(1 for count in references if count)
        assert used == self.pool.num_in_use
        assert sum(map(self.pool.num_cached_of, "abc")) == self.pool.num_cached <= 12 - used
        assert sum(self.reserved.values()) == self.pool.num_reserved

    def teardown(self) -> None:
        for blocks in self.held:
            self.pool.release(blocks)
        self.pool.check()
        assert self.pool.num_in_use == 0


class LeastRecentlyUsedPoolMachine(PoolMachine):
    eviction = "lru"


TestPoolMachine = PoolMachine.TestCase
TestLeastRecentlyUsedPoolMachine = LeastRecentlyUsedPoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=scaled(60), stateful_step_count=40)
TestLeastRecentlyUsedPoolMachine.settings = settings(
    max_examples=scaled(40), stateful_step_count=40
)
