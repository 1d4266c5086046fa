import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.block_pool import BlockPool, InvariantError


def test_a_released_cached_block_is_found_until_its_memory_is_needed() -> None:
    pool = BlockPool(3)
    first, second = pool.allocate(2)
    pool.register(first, b"h1")
    pool.release([first, second])
    assert pool.find([b"h1"]) == [first]
    pool.allocate(2)
    assert pool.find([b"h1"]) == [first], "free blocks are taken before cached ones"
    pool.allocate(1)
    assert pool.find([b"h1"]) == []
    pool.check()


def test_tails_are_evicted_before_heads_and_old_sequences_before_new_ones() -> None:
    pool = BlockPool(6)
    old, new = pool.allocate(3), pool.allocate(3)
    for name, blocks in (("old", old), ("new", new)):
        for index, block in enumerate(blocks):
            pool.register(block, f"{name}{index}".encode())
    pool.release(old)
    pool.release(new)
    assert [pool.allocate(1)[0] for _ in range(6)] == [*reversed(old), *reversed(new)]


def test_a_hit_takes_a_block_out_of_the_middle_of_the_queue() -> None:
    pool = BlockPool(5)
    blocks = pool.allocate(5)
    for block in blocks:
        pool.register(block, bytes([block]))
    pool.release(blocks)
    pool.acquire([blocks[2]])
    pool.check()
    assert pool.num_available == 4
    assert blocks[2] not in pool.allocate(4)


def test_can_allocate_does_not_count_a_hit_twice() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.register(blocks[0], b"h")
    pool.release(blocks)
    hits = pool.find([b"h"])
    assert pool.can_allocate(1, hits)
    assert not pool.can_allocate(2, hits)


def test_the_first_of_two_equal_blocks_stays_findable() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(2)
    pool.register(first, b"same")
    pool.register(second, b"same")
    assert pool.find([b"same"]) == [first]
    pool.release([second])
    assert pool.find([b"same"]) == [first]
    pool.check()


def test_releasing_twice_is_caught() -> None:
    pool = BlockPool(1)
    blocks = pool.allocate(1)
    pool.release(blocks)
    with pytest.raises(AssertionError, match="released twice"):
        pool.release(blocks)


@pytest.mark.parametrize("damage", ["reference", "link", "hash"])
def test_check_sees_damage(damage: str) -> None:
    pool = BlockPool(4)
    block = pool.allocate(1)[0]
    pool.register(block, b"h")
    pool.check()
    if damage == "reference":
        pool._refs[block] = 0
    elif damage == "link":
        pool._next[pool._next[4]] = 4
    else:
        pool._hashes[block] = b"other"
    with pytest.raises(InvariantError):
        pool.check()


class PoolMachine(RuleBasedStateMachine):
    """Sequences come, share, grow and go; the pool must agree with a simple model of them."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(12)
        self.held: list[list[int]] = []
        self.counter = 0

    @rule(count=st.integers(0, 6), register=st.booleans())
    def allocate(self, count: int, register: bool) -> None:
        if not self.pool.can_allocate(count):
            return
        blocks = self.pool.allocate(count)
        assert len(set(blocks)) == count
        assert not {b for blocks in self.held for b in blocks} & set(blocks)
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

    @rule()
    def forget(self) -> None:
        self.pool.forget_all()
        assert self.pool.find([f"h{i}".encode() for i in range(20)]) == []

    @invariant()
    def books_balance(self) -> None:
        self.pool.check()
        references = [0] * 12
        for blocks in self.held:
            for block in blocks:
                references[block] += 1
        assert references == self.pool.references()
        used = sum(1 for count in references if count)
        assert used == self.pool.num_in_use
        assert used + self.pool.num_available == 12
        assert self.pool.num_cached <= self.pool.num_available

    def teardown(self) -> None:
        for blocks in self.held:
            self.pool.release(blocks)
        self.pool.check()
        assert self.pool.num_in_use == 0


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
