"""Leased blocks: kept until a time, charged to who asked, and in nobody's way."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from engine.blocks.eviction.leases import LeaseTerms
from engine.blocks.eviction.policy import Eviction
from engine.blocks.pool import BlockPool
from tests.effort import scaled
from tests.engine.blocks.eviction.test_eviction import POLICIES, chain, scan, serve
from tests.engine.blocks.test_pool import PoolMachine
from tests.engine.blocks.told import Told


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def leased(
    pool: BlockPool,
    name: str,
    length: int,
    seconds: float = 60.0,
    tenant: str = "a",
    **terms: float,
) -> list[bytes]:
    """A prompt that a tenant has computed and leased."""
    keys = chain(name, length)
    use(pool, keys, LeaseTerms(tenant, seconds, **terms))  # type: ignore[arg-type]
    return keys


def lease(pool: BlockPool, keys: Sequence[bytes], terms: LeaseTerms) -> None:
    pool.lease([(key, 0) for key in keys], terms)


def use(pool: BlockPool, keys: Sequence[bytes], terms: LeaseTerms) -> int:
    """Serve one request that leases what it has used; returns how many blocks it found."""
    hits = pool.find(keys)
    pool.acquire(hits)
    blocks = [*hits, *pool.allocate(len(keys) - len(hits), terms.tenant)]
    for block, key in list(zip(blocks, keys, strict=True))[len(hits) :]:
        pool.register(block, key)
    lease(pool, keys, terms)
    pool.release(blocks)
    pool.check()
    return len(hits)


@pytest.mark.parametrize("eviction", POLICIES)
def test_a_lease_outlives_any_flood_and_a_plain_prompt_does_not(eviction: Eviction) -> None:
    pool = BlockPool(40, eviction)
    kept, plain = leased(pool, "leased", 10), chain("plain", 10)
    serve(pool, plain)
    scan(pool, 200, owner="b")
    assert len(pool.find(kept)) == 10
    assert not pool.find(plain)


def test_a_lease_that_has_run_out_keeps_nothing() -> None:
    clock = Clock()
    pool = BlockPool(40, "lru", clock)
    kept = leased(pool, "leased", 10, seconds=60)
    clock.now = 59.9
    scan(pool, 100)
    assert len(pool.find(kept)) == 10
    clock.now = 60.0
    scan(pool, 100)
    assert not pool.find(kept)


def test_a_use_by_its_tenant_renews_a_lease_and_one_by_another_does_not() -> None:
    for tenant, found in (("a", 10), ("b", 0)):
        clock = Clock()
        pool = BlockPool(40, "lru", clock)
        kept = leased(pool, "leased", 10, seconds=60)
        clock.now = 50.0
        assert use(pool, kept, LeaseTerms(tenant)) == 10
        clock.now = 100.0
        scan(pool, 100)
        assert len(pool.find(kept)) == found


def test_what_has_run_out_goes_before_what_nobody_leased() -> None:
    clock = Clock()
    pool = BlockPool(30, "lru", clock)
    kept = leased(pool, "leased", 10, seconds=60)
    plain = chain("plain", 20)
    serve(pool, plain)
    clock.now = 60.0
    serve(pool, chain("new", 10))
    assert not pool.find(kept)
    assert len(pool.find(plain)) == 20


def test_the_head_of_a_prompt_is_kept_when_not_all_of_it_can_be() -> None:
    for why in ("limit", "pressure", "expiry"):
        clock = Clock()
        pool = BlockPool(20, "lru", clock)
        kept = leased(pool, "leased", 10, seconds=60, most=6 if why == "limit" else 10)
        clock.now = 60.0 if why == "expiry" else 0.0
        serve(pool, chain("flood", 14 if why != "limit" else 13), owner="b")
        assert len(pool.find(kept)) == (7 if why == "limit" else 6)
        pool.check()


def test_beyond_its_limit_a_tenants_oldest_leases_end() -> None:
    pool = BlockPool(40)
    first = leased(pool, "first", 10, most=15)
    second = leased(pool, "second", 10, most=15)
    assert len(pool.leases.of("a").leases) == 15
    assert pool.leases.of("a").num_cut == 5
    scan(pool, 100, owner="b")
    assert (len(pool.find(first)), len(pool.find(second))) == (5, 10)
    use(pool, first[:5], LeaseTerms("a", 0, 15))
    leased(pool, "third", 5, most=15)
    scan(pool, 100, owner="b")
    assert (len(pool.find(first)), len(pool.find(second))) == (5, 5), "renewed ones are newer"


def test_a_limit_of_none_at_all_leases_nothing() -> None:
    pool = BlockPool(20)
    leased(pool, "first", 10, most=0)
    assert pool.leases.num_blocks == 0


def test_leases_are_in_nobodys_way() -> None:
    pool = BlockPool(40)
    leased(pool, "mine", 40)
    assert pool.can_allocate(40, "b")
    pool.release(pool.allocate(40, "b"))
    assert (pool.leases.num_blocks, pool.leases.of("a").num_broken) == (0, 40)


def test_with_nothing_else_left_the_tenant_furthest_over_its_share_loses_leases() -> None:
    pool = BlockPool(60)
    large = leased(pool, "large", 30, tenant="a", weight=1.0)
    small = leased(pool, "small", 12, tenant="b", weight=1.0)
    heavy = leased(pool, "heavy", 18, tenant="c", weight=6.0)
    serve(pool, chain("flood", 18), owner="d")
    assert [len(pool.find(keys)) for keys in (large, small, heavy)] == [12, 12, 18]
    pool.release(pool.allocate(28, "d"))
    assert [len(pool.find(keys)) for keys in (large, small, heavy)] == [7, 7, 18]
    broken = {tenant: pool.leases.of(tenant).num_broken for tenant in "abc"}
    assert broken == {"a": 23, "b": 5, "c": 0}


def test_a_shorter_lease_does_not_cut_a_longer_one_short() -> None:
    clock = Clock()
    pool = BlockPool(40, "lru", clock)
    kept = leased(pool, "leased", 10, seconds=60)
    use(pool, kept, LeaseTerms("a", 5))
    clock.now = 59.0
    scan(pool, 100)
    assert len(pool.find(kept)) == 10
    use(pool, kept, LeaseTerms("a"))
    clock.now = 64.0
    scan(pool, 100)
    assert not pool.find(kept), "it is renewed as it was asked for at last"


def test_what_nobody_holds_can_be_leased_by_several() -> None:
    pool = BlockPool(20, "lru")
    shared = leased(pool, "shared", 10, tenant="a")
    lease(pool, shared, LeaseTerms("b", 60))
    pool.check()
    pool.release(pool.allocate(15, "c"))
    assert len(pool.find(shared)) == 5
    assert sum(pool.leases.of(tenant).num_broken for tenant in "ab") == 10
    pool.check()


def test_what_two_tenants_lease_is_kept_until_neither_does() -> None:
    clock = Clock()
    pool = BlockPool(40, "lru", clock)
    shared = leased(pool, "shared", 10, seconds=60, tenant="a")
    assert use(pool, shared, LeaseTerms("b", 90)) == 10
    assert pool.leases.num_blocks == 10
    clock.now = 80.0
    scan(pool, 100, owner="c")
    assert (len(pool.leases.of("a").leases), len(pool.leases.of("b").leases)) == (0, 10)
    assert len(pool.find(shared)) == 10
    clock.now = 90.0
    scan(pool, 100, owner="c")
    assert not pool.find(shared)


def test_a_tenants_end_ends_its_leases_and_no_others() -> None:
    told = Told()
    pool = BlockPool(40, listener=told)
    shared = leased(pool, "shared", 10, tenant="a")
    use(pool, shared, LeaseTerms("b", 60))
    own = leased(pool, "own", 5, tenant="b")
    pool.forget_owner("b")
    pool.check()
    assert (pool.leases.num_blocks, len(pool.find(shared)), len(pool.find(own))) == (10, 10, 0)
    assert "b" not in pool.leases.tenants
    told.losses.clear()
    pool.release(pool.allocate(40, "c"))
    assert [loss[-1] for loss in told.losses] == ["pressure"] * 10


def test_a_reserve_keeps_leased_blocks_from_others_and_for_their_owner_to_evict() -> None:
    pool = BlockPool(20)
    pool.reserve("a", 8)
    kept = leased(pool, "leased", 15)
    assert not pool.can_allocate(13, "b")
    pool.release(pool.allocate(12, "b"))
    assert len(pool.find(kept)) == 8
    pool.release(pool.allocate(20, "a"))
    assert not pool.find(kept)
    pool.check()


def test_leased_block_seconds_are_told_to_the_second() -> None:
    clock = Clock()
    pool = BlockPool(40, "lru", clock)
    leased(pool, "first", 10, seconds=60)
    clock.now = 10.0
    leased(pool, "second", 5, seconds=20)
    clock.now = 25.0
    assert pool.leases.of("a").page_seconds == 10 * 25 + 5 * 15
    clock.now = 1000.0
    assert pool.leases.of("a").page_seconds == 10 * 60 + 5 * 20
    assert pool.leases.of("stranger").page_seconds == 0


def test_leases_that_are_over_take_no_memory() -> None:
    clock = Clock()
    pool = BlockPool(40, "lru", clock)
    for number in range(500):
        clock.now += 1.0
        leased(pool, f"prompt {number}", 10, seconds=10_000, most=20)
    assert len(pool.leases.of("a").leases) == 20
    assert len(pool.leases._ends) <= pool.leases._num_noted <= 64 + 2 * 31


def test_leases_that_begin_together_are_looked_at_together_until_one_is_renewed() -> None:
    clock = Clock()
    pool = BlockPool(40, "lru", clock)
    leased(pool, "prompt", 10, seconds=10)
    assert len(pool.leases._ends) == 1
    clock.now += 5.0
    lease(pool, chain("prompt", 4), LeaseTerms("a", 10.0))
    clock.now += 6.0
    assert len(pool.leases.of("a").leases) == 4
    assert len(pool.leases._ends) == 1
    pool.check()
    clock.now += 5.0
    assert not pool.leases.of("a").leases
    assert not pool.leases._ends
    pool.check()


def test_of_tenants_without_leases_only_the_last_ones_are_remembered() -> None:
    clock = Clock()
    pool = BlockPool(2, "lru", clock)
    for number in range(1100):
        clock.now += 1.0
        lease(pool, chain("none", 1), LeaseTerms(f"nothing {number}", 60.0))
        leased(pool, f"prompt {number}", 1, seconds=0.5, tenant=str(number))
    assert len(pool.leases.tenants) <= 1024 + 1
    assert pool.leases.of("1099").page_seconds == 0
    clock.now += 1.0
    assert pool.leases.of("1099").page_seconds == 0.5
    assert pool.leases.of("1000").page_seconds == 0.5
    assert len(pool.leases.tenants) == 1024
    assert pool.leases.of("5").page_seconds == 0, "forgotten"


class LeasedPoolMachine(PoolMachine):
    """Tenants lease what is there, time goes by, and a plain model says who has which lease."""

    def __init__(self) -> None:
        super().__init__()
        self.leases: dict[str, OrderedDict[int, tuple[float, float]]] = {
            name: OrderedDict() for name in "abc"
        }
        self.seconds = dict.fromkeys("abc", 0.0)
        self.cut = dict.fromkeys("abc", 0)
        self.broken = dict.fromkeys("abc", 0)

    @rule(
        tenant=st.sampled_from("abc"),
        start=st.integers(0, 7),
        length=st.integers(1, 12),
        seconds=st.sampled_from([0.0, 5.0, 20.0]),
        most=st.one_of(st.none(), st.integers(0, 6)),
        weight=st.sampled_from([0.5, 1.0]),
    )
    def lease(
        self, tenant: str, start: int, length: int, seconds: float, most: int | None, weight: float
    ) -> None:
        hashes = [f"h{(start + i) % 20}".encode() for i in range(length)]
        present = [block for key in hashes for block in self.pool.find([key])]
        lease(self.pool, hashes, LeaseTerms(tenant, seconds, most, weight))
        own = self.leases[tenant]
        has_asked = seconds or tenant in self.pool.leases.tenants
        for block in reversed(present):
            if block in own or seconds:
                before, until = own.pop(block, (0.0, 0.0))
                lasts = seconds or before
                own[block] = lasts, max(until, self.now + lasts)
        while has_asked and most is not None and len(own) > most:
            own.popitem(last=False)
            self.cut[tenant] += 1

    @rule(seconds=st.integers(1, 12))
    def wait(self, seconds: int) -> None:
        for tenant, own in self.leases.items():
            for block, (_, until) in list(own.items()):
                self.seconds[tenant] += min(until - self.now, seconds)
                if until <= self.now + seconds:
                    del own[block]
        self.now += seconds

    @rule(owner=st.sampled_from("abc"))
    def forget_owner(self, owner: str) -> None:
        PoolMachine.forget_owner(self, owner)
        self.leases[owner].clear()
        self.seconds[owner], self.cut[owner], self.broken[owner] = 0.0, 0, 0
        self._lose(is_pressure=False)

    @rule()
    def forget(self) -> None:
        PoolMachine.forget(self)
        self._lose(is_pressure=False)

    @rule(count=st.integers(0, 6), register=st.booleans(), owner=st.sampled_from("abc"))
    def allocate(self, count: int, register: bool, owner: str) -> None:
        PoolMachine.allocate(self, count, register, owner)
        self._lose(is_pressure=True)

    def _lose(self, *, is_pressure: bool) -> None:
        """Take over which leases have ended; by pressure only where nothing else is left."""
        for tenant, own in self.leases.items():
            running = self.pool.leases.of(tenant).leases
            lost = own.keys() - running.keys()
            assert not (lost and is_pressure and len(self.pool._queue._order))
            for block in lost:
                del own[block]
            self.broken[tenant] += len(lost) if is_pressure else 0

    @invariant()
    def leases_are_as_asked(self) -> None:
        leases = self.pool.leases
        for tenant, own in self.leases.items():
            found = leases.of(tenant)
            running = {block: (one.seconds, one.until) for block, one in found.leases.items()}
            assert list(running.items()) == list(own.items())
            told = found.page_seconds, found.num_cut, found.num_broken
            assert told == (self.seconds[tenant], self.cut[tenant], self.broken[tenant])


class LeastRecentlyUsedLeasedPoolMachine(LeasedPoolMachine):
    eviction = "lru"


TestLeasedPoolMachine = LeasedPoolMachine.TestCase
TestLeastRecentlyUsedLeasedPoolMachine = LeastRecentlyUsedLeasedPoolMachine.TestCase
TestLeasedPoolMachine.settings = settings(max_examples=scaled(60), stateful_step_count=40)
TestLeastRecentlyUsedLeasedPoolMachine.settings = settings(
    max_examples=scaled(30), stateful_step_count=40
)
