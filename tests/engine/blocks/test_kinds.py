"""Blocks of several kinds in one memory: of several pages, given back while a sequence runs."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.api import Kind
from engine.blocks.eviction.leases import LeaseTerms
from engine.blocks.lookup import Lookup
from engine.blocks.pool import BlockPool
from engine.blocks.rows import HOLE, Rows
from engine.blocks.tiers import HostTier, Tiers
from tests.effort import scaled

KINDS = (Kind(pages=2), Kind(window=7), Kind(chunk=12, pages=3))
SIZE = 4
RULES = st.one_of(
    st.builds(Kind, window=st.integers(1, 40)), st.builds(Kind, chunk=st.integers(1, 40))
)


def sees(kind: Kind, position: int) -> set[int]:
    """The tokens that the one at a position sees, itself included."""
    if kind.window is not None:
        return {one for one in range(position + 1) if position - one < kind.window}
    if kind.chunk is not None:
        return {one for one in range(position + 1) if one // kind.chunk == position // kind.chunk}
    return set(range(position + 1))


@given(kind=RULES, position=st.integers(0, 99))
def test_the_first_token_that_is_needed_is_the_first_that_is_seen(
    kind: Kind, position: int
) -> None:
    assert kind.first_needed(position) == min(sees(kind, position))
    later = set[int]().union(*(sees(kind, one) for one in range(position, position + 50)))
    assert kind.first_needed(position) == min(later), "nothing before it is ever seen again"


@given(
    kind=RULES,
    size=st.sampled_from([1, 4, 16]),
    step=st.integers(1, 50),
    num_tokens=st.integers(1, 120),
)
def test_no_step_holds_more_blocks_than_a_kind_says(
    kind: Kind, size: int, step: int, num_tokens: int
) -> None:
    start = max(0, num_tokens - step)
    held = -(-num_tokens // size) - kind.first_needed(start) // size
    assert held <= kind.blocks_for(num_tokens, size, step)


def test_what_a_window_has_passed_is_found_until_its_memory_is_needed_and_goes_first() -> None:
    pool = BlockPool(9, kinds=(Kind(), Kind(window=SIZE)))
    rows = Rows(pool, SIZE, "a")
    rows.admit(4, [[], []], [range(0)] * 2)
    rows.grow(4)
    for kind, row in enumerate(rows.rows):
        for index, block in enumerate(row):
            pool.register(block, b"h%d" % index, kind=kind)
    passed = rows.rows[1][:2]
    assert rows.forgettable(3 * SIZE) == passed
    rows.forget(3 * SIZE)
    assert rows.rows[1][:3] == [HOLE, HOLE, rows.rows[1][2]]
    assert [pool.find([b"h%d" % one], 1) for one in range(2)] == [[block] for block in passed]
    rows.release()
    pool.allocate(1, "a")
    pool.allocate(2, "a")
    assert [pool.find([b"h%d" % one], 1) for one in range(2)] == [[], []], "these went first"
    assert len(pool.find([b"h%d" % one for one in range(4)])) == 4
    pool.check()


def test_where_others_are_likely_to_go_on_a_window_is_worth_as_much_as_any_block() -> None:
    pool = BlockPool(10, "lru", kinds=(Kind(), Kind(window=SIZE)))
    rows = Rows(pool, SIZE, "a")
    rows.admit(4, [[], []], [range(0)] * 2)
    rows.grow(4)
    for index, block in enumerate(rows.rows[1]):
        pool.register(block, b"h%d" % index, kind=1)
    rows.ends = {(2 * SIZE, 2 * SIZE)}
    rows.forget(3 * SIZE)
    pool.allocate(3, "a")
    assert pool.find([b"h1"], 1), "who goes on behind two blocks needs the second one"
    assert not pool.find([b"h0"], 1)
    pool.check()


@pytest.mark.parametrize("missing", [None, 0, 3, 5, 6, 7])
def test_a_hit_is_as_long_as_every_kind_can_serve(missing: int | None) -> None:
    pool = BlockPool(40, kinds=(Kind(), Kind(window=2 * SIZE + 1)))
    hashes = [b"h%d" % one for one in range(8)]
    for kind in range(2):
        for index, block in enumerate(pool.allocate(8, "a", kind)):
            if not (kind == 1 and index == missing):
                pool.register(block, hashes[index], kind=kind)
    rows, _, alike = Lookup(pool).longest(hashes, 0, SIZE)
    # Behind n blocks the window reaches into the last two of them.
    expected = 8 if missing in (None, 0, 3, 5) else missing
    assert alike == 8
    assert [len(row) for row in rows] == [expected, expected]
    assert [block == HOLE for block in rows[1]] == [
        index < expected - 2 for index in range(expected)
    ]


@pytest.mark.parametrize("in_host", [{0: (), 1: (6,)}, {0: (2, 6, 7), 1: (7,)}, {0: (), 1: (1,)}])
def test_a_block_in_the_host_tier_is_as_good_as_there(in_host: dict[int, tuple[int, ...]]) -> None:
    kinds = (Kind(pages=2), Kind(window=2 * SIZE + 1))
    pool, host = BlockPool(40, kinds=kinds), HostTier(40, kinds)
    hashes = [b"h%d" % one for one in range(8)]
    slots = {
        kind: {index: host.take("a", hashes[index], kind) for index in indices}
        for kind, indices in in_host.items()
    }
    for kind in range(2):
        for index, block in enumerate(pool.allocate(8, "a", kind)):
            if index not in in_host[kind]:
                pool.register(block, hashes[index], kind=kind)
    found = Lookup(pool, host).longest(hashes, 0, SIZE)
    assert [len(row) for row in found.rows] == [8, 8]
    assert found.slots[0] == slots[0]
    assert found.slots[1] == {index: slot for index, slot in slots[1].items() if index > 5}
    for kind, row in enumerate(found.rows):
        needed = [index for index, block in enumerate(row) if block != HOLE]
        assert sorted([*needed, *found.slots[kind]]) == [*range(6 * kind, 8)]
    alone = Lookup(pool).longest(hashes, 0, SIZE)
    assert len(alone.rows[0]) == (8 if in_host[1] == (1,) else 2 if in_host[0] else 6)


def test_what_is_evicted_moves_to_the_host_with_its_kind_but_for_what_was_passed() -> None:
    tiers = Tiers(12, 12, SIZE, kinds=KINDS)
    pool, host = tiers.pool, tiers.host
    blocks = [pool.allocate(1, "a", kind)[0] for kind in (0, 1, 1, 2)]
    names = [(b"x", 0), (b"x", 1), (b"y", 1), (b"x", 2)]
    for block, (name, kind) in zip(blocks, names, strict=True):
        pool.register(block, name, kind=kind)
    pages = {pool.kinds_of[block]: pool.pages_of(block) for block in blocks if block != blocks[2]}
    pool.release([blocks[2]], passed=True)
    pool.release([blocks[0], blocks[1], blocks[3]])
    pool.empty(7, "b")
    moved = tiers.transfers.take().swap_outs
    assert not host.find([b"y"], 1), "its layers have passed it"
    for kind, own in pages.items():
        (slot,) = host.find([b"x"], kind)
        assert host.sizes[slot] == KINDS[kind].pages
        assert [to for page, to in moved if page in own] == host.pages_of(slot)
    assert len(moved) == pool.block_pages
    tiers.transfers.settle()
    tiers.check()


def test_a_leased_block_is_kept_though_it_was_passed() -> None:
    pool = BlockPool(4, clock=lambda: 0.0, kinds=(Kind(), Kind(window=4)))
    blocks = pool.allocate(2, "a", 1)
    for name, block in zip((b"x", b"y"), blocks, strict=True):
        pool.register(block, name, kind=1)
    pool.release(blocks, passed=True)
    pool.lease([(b"x", 1)], LeaseTerms("a", 60.0))
    pool.check()
    pool.allocate(3, "b")
    assert pool.find([b"x"], 1)
    assert not pool.find([b"y"], 1)
    pool.check()


class KindsPoolMachine(RuleBasedStateMachine):
    """Blocks of all kinds come and go; what is foretold comes true, and the books balance."""

    pages = 17
    now = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(self.pages, clock=lambda: self.now, kinds=KINDS)
        self.held: list[list[int]] = []
        self.counter = 0
        self.leased_seconds: Counter[str] = Counter()

    @rule(
        count=st.integers(0, 4),
        kind=st.integers(0, 2),
        register=st.booleans(),
        owner=st.sampled_from("abc"),
    )
    def allocate(self, count: int, kind: int, register: bool, owner: str) -> None:
        size = KINDS[kind].pages
        if not self.pool.can_allocate(count * size, owner):
            return
        blocks = self.pool.allocate(count, owner, kind)
        assert all(self.pool.sizes[block] == size for block in blocks)
        pages = [page for block in blocks for page in self.pool.pages_of(block)]
        others = [page for row in self.held for one in row for page in self.pool.pages_of(one)]
        assert len(set(pages)) == count * size
        assert not set(pages) & set(others)
        if register:
            for block in blocks:
                self.pool.register(block, f"h{self.counter % 20}".encode(), kind=kind)
                self.counter += 1
        self.held.append(blocks)

    @rule(start=st.integers(0, 19), length=st.integers(1, 4), kind=st.integers(0, 2))
    def hit(self, start: int, length: int, kind: int) -> None:
        hashes = [f"h{(start + i) % 20}".encode() for i in range(length)]
        found = self.pool.find(hashes, kind)
        self.pool.acquire(found)
        self.held.append(found)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), passed=st.booleans())
    def release(self, data: st.DataObject, passed: bool) -> None:
        self.pool.release(
            self.held.pop(data.draw(st.integers(0, len(self.held) - 1))), passed=passed
        )

    @precondition(lambda self: self.held)
    @rule(data=st.data(), owner=st.sampled_from("abc"), start=st.integers(0, 19))
    def foretell(self, data: st.DataObject, owner: str, start: int) -> None:
        """What is said to be there after a release and a hit, is there."""
        chosen = data.draw(st.sets(st.integers(0, len(self.held) - 1), min_size=1))
        released = [self.held[index] for index in chosen]
        hits = self.pool.find([f"h{start}".encode()], data.draw(st.integers(0, 2)))
        foretold = [self.pool.can_allocate(n, owner, hits, released) for n in range(self.pages + 1)]
        for blocks in released:
            self.pool.release(blocks)
        self.pool.acquire(hits)
        actual = [self.pool.can_allocate(n, owner) for n in range(self.pages + 1)]
        assert all(not said or there for said, there in zip(foretold, actual, strict=True))
        self.held = [held for index, held in enumerate(self.held) if index not in chosen] + [hits]

    @rule(
        tenant=st.sampled_from("abc"),
        named=st.lists(st.tuples(st.integers(0, 19), st.integers(0, 2)), max_size=5, unique=True),
        seconds=st.sampled_from([0.0, 2.0, 5.0]),
        most=st.one_of(st.none(), st.integers(0, 9)),
    )
    def lease(
        self, tenant: str, named: list[tuple[int, int]], seconds: float, most: int | None
    ) -> None:
        hashes = [(f"h{number}".encode(), kind) for number, kind in named]
        self.pool.lease(hashes, LeaseTerms(tenant, seconds, most))
        if hashes and most is not None:
            assert self.pool.leases.of(tenant).num_pages <= most

    @rule()
    def tick(self) -> None:
        for tenant in "abc":
            self.leased_seconds[tenant] += self.pool.leases.of(tenant).num_pages
        self.now += 1.0

    @rule(owner=st.sampled_from("abc"), count=st.integers(0, 9))
    def reserve(self, owner: str, count: int) -> None:
        self.pool.reserve(owner, count)

    @rule(owner=st.sampled_from("abc"))
    def forget_owner(self, owner: str) -> None:
        self.pool.forget_owner(owner)
        assert self.pool.num_cached_of(owner) == 0
        del self.leased_seconds[owner]

    @rule(data=st.data(), count=st.integers(0, 6), owner=st.sampled_from("abc"))
    def empty(self, data: st.DataObject, count: int, owner: str) -> None:
        if self.pool.can_allocate(self.pool.num_free + count, owner):
            wanted = self.pool.num_free + count
            self.pool.empty(count, owner)
            assert wanted <= self.pool.num_free < wanted + 3

    @invariant()
    def books_balance(self) -> None:
        self.pool.check()
        used = {block for blocks in self.held for block in blocks}
        assert self.pool.num_in_use == self.pool.count(used)
        assert sum(map(self.pool.num_cached_of, "abc")) == self.pool.num_cached
        for tenant in "abc":
            leased = self.pool.leases.of(tenant)
            assert leased.page_seconds == self.leased_seconds[tenant]
            assert leased.num_pages == self.pool.count(leased.leases)

    def teardown(self) -> None:
        for blocks in self.held:
            self.pool.release(blocks)
        self.pool.check()
        assert self.pool.num_in_use == 0


TestKindsPoolMachine = KindsPoolMachine.TestCase
TestKindsPoolMachine.settings = settings(max_examples=scaled(40), stateful_step_count=40)
