"""How old an answer from memory may be, and when it must go."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tenants.errors import StoreUnavailable
from tenants.storage.cache import ReadThroughCache
from tests.tenants.clock import Clock

Cache = ReadThroughCache[str, str]


class Source:
    """What lies behind the cache."""

    def __init__(self) -> None:
        self.value: str | None = "old"
        self.down = False
        self.loads = 0

    async def load(self) -> str | None:
        self.loads += 1
        if self.down:
            raise StoreUnavailable("down")
        return self.value


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cache(clock: Clock) -> Cache:
    return ReadThroughCache(5, 60, max_entries=3, keep_missing=True, clock=clock)


async def test_a_fresh_copy_is_not_looked_up_again(
    cache: Cache, source: Source, clock: Clock
) -> None:
    assert await cache.get("a", source.load) == "old"
    source.value = "new"
    clock.now += 4.9
    assert await cache.get("a", source.load) == "old"
    clock.now += 0.2
    assert await cache.get("a", source.load) == "new"
    assert source.loads == 2


async def test_a_copy_serves_through_an_outage_for_a_bounded_time(
    cache: Cache, source: Source, clock: Clock
) -> None:
    await cache.get("a", source.load)
    source.down = True
    clock.now += 59
    assert await cache.get("a", source.load) == "old"
    clock.now += 2
    with pytest.raises(StoreUnavailable):
        await cache.get("a", source.load)


async def test_what_was_never_read_is_unavailable_in_an_outage(
    cache: Cache, source: Source
) -> None:
    source.down = True
    with pytest.raises(StoreUnavailable):
        await cache.get("a", source.load)


async def test_an_expired_copy_is_looked_up_again_but_still_serves_in_an_outage(
    cache: Cache, source: Source
) -> None:
    await cache.get("a", source.load)
    cache.expire()
    source.down = True
    assert await cache.get("a", source.load) == "old"
    source.down = False
    source.value = "new"
    assert await cache.get("a", source.load) == "new"


async def test_a_copy_that_expires_while_its_lookup_fails_still_serves(
    cache: Cache, source: Source, clock: Clock
) -> None:
    await cache.get("a", source.load)
    clock.now += 6

    async def fail() -> str | None:
        cache.expire()
        raise StoreUnavailable("down")

    assert await cache.get("a", fail) == "old"


async def test_a_copy_dropped_while_its_lookup_fails_is_gone(
    cache: Cache, source: Source, clock: Clock
) -> None:
    await cache.get("a", source.load)
    clock.now += 6

    async def fail() -> str | None:
        cache.drop_if(lambda key, _: key == "a")
        raise StoreUnavailable("down")

    with pytest.raises(StoreUnavailable):
        await cache.get("a", fail)


async def test_a_dropped_copy_is_gone_even_in_an_outage(cache: Cache, source: Source) -> None:
    await cache.get("a", source.load)
    await cache.get("b", source.load)
    cache.drop_if(lambda key, value: (key, value) == ("a", "old"))
    source.down = True
    assert await cache.get("b", source.load) == "old"
    with pytest.raises(StoreUnavailable):
        await cache.get("a", source.load)


async def test_a_value_read_before_a_change_is_not_kept_after_it(
    cache: Cache, source: Source
) -> None:
    reading, changed = asyncio.Event(), asyncio.Event()

    async def slow() -> str | None:
        value = source.value
        reading.set()
        await changed.wait()
        return value

    lookup = asyncio.create_task(cache.get("a", slow))
    await reading.wait()
    source.value = "new"
    cache.drop_if(lambda key, _: key == "a")
    changed.set()
    assert await lookup == "old"
    assert await cache.get("a", source.load) == "new"


async def test_who_asks_at_once_shares_a_look_up_but_not_with_who_asks_after_a_change(
    cache: Cache,
) -> None:
    asked, may = 0, asyncio.Event()

    async def slow() -> str | None:
        nonlocal asked
        asked += 1
        value = f"value {asked}"
        await may.wait()
        return value

    before = [asyncio.create_task(cache.get("k", slow)) for _ in range(3)]
    await asyncio.sleep(0)
    cache.drop_if(lambda key, value: True)
    after = [asyncio.create_task(cache.get("k", slow)) for _ in range(3)]
    await asyncio.sleep(0)
    before[0].cancel()
    may.set()
    assert await asyncio.gather(*before[1:]) == ["value 1"] * 2
    assert await asyncio.gather(*after) == ["value 2"] * 3
    assert await cache.get("k", slow) == "value 2"
    assert asked == 2


async def test_asking_for_what_is_not_there_drives_out_nothing_that_is(
    cache: Cache, source: Source
) -> None:
    await cache.get("a", source.load)
    source.value = None
    for number in range(20):
        assert await cache.get(f"missing {number}", source.load) is None
    loads = source.loads
    assert await cache.get("missing 19", source.load) is None
    assert await cache.get("a", source.load) == "old"
    assert source.loads == loads


async def test_a_cache_that_keeps_only_what_is_there_asks_again_for_the_rest(
    source: Source, clock: Clock
) -> None:
    cache: Cache = ReadThroughCache(5, 60, keep_missing=False, clock=clock)
    source.value = None
    assert await cache.get("a", source.load) is None
    source.value = "new"
    assert await cache.get("a", source.load) == "new"


async def test_the_number_of_copies_is_bounded(cache: Cache, source: Source) -> None:
    for name in "abcd":
        await cache.get(name, source.load)
    source.down = True
    held = 0
    for name in "abcd":
        with contextlib.suppress(StoreUnavailable):
            held += await cache.get(name, source.load) == "old"
    assert held == 3
