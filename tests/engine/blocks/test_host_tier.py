import random
from collections import Counter, OrderedDict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.blocks.pool import InvariantError
from engine.blocks.tiers import HostTier
from engine.schedule.swap_or_recompute import ComputeCost, CopyCost, CostModel
from engine.serve.core import EngineCore
from tests.effort import scaled
from tests.engine.simulated_model import expected_output, random_prompt
from tests.engine.simulation import cached_tokens, make_request, run_to_end, simulated_core


def test_an_evicted_block_is_found_until_its_slot_is_needed() -> None:
    host = HostTier(2)
    for name in (b"a", b"b", b"c"):
        slot = host.keep(name, "tenant")
        assert slot is not None
        host.release([slot])
    assert [bool(host.find([name])) for name in (b"a", b"b", b"c")] == [False, True, True]
    assert host.num_in_use + host.num_cached == 2
    host.check()


def test_a_block_that_is_here_already_is_not_copied_again_but_stays_longer() -> None:
    host = HostTier(2)
    for name in (b"a", b"b"):
        host.release([host.take("tenant", name)])
    assert host.keep(b"a", "tenant") is None
    host.release([host.take("tenant", b"c")])
    assert host.find([b"a"])
    assert not host.find([b"b"])


def test_slots_of_swapped_requests_are_not_evicted() -> None:
    host = HostTier(2)
    swapped = [host.take("tenant"), host.take("tenant", b"mine")]
    assert host.num_in_use == 2
    assert host.keep(b"other", "tenant") is None
    assert not host.can_allocate(1, "tenant")
    host.release(swapped)
    assert host.find([b"mine"]), "a swapped block that others may find stays"
    assert host.can_allocate(2, "tenant")
    host.check()


def test_without_host_memory_nothing_is_kept() -> None:
    host = HostTier(0)
    assert host.keep(b"a", "tenant") is None
    assert not host.can_allocate(1, "tenant")
    assert host.find([b"a"]) == []
    host.check()


PROMPT = random_prompt(random.Random(1), 41)


def evicted(core: EngineCore, **fields: object) -> None:
    """Have `PROMPT` computed, and then evicted by other prompts."""
    core.submit(make_request("first", PROMPT, 1, **fields))
    run_to_end(core)
    for number in range(2):
        other = random_prompt(random.Random(10 + number), 47)
        core.submit(make_request(f"other {number}", other, 1, tenant="z", cache=False))
        run_to_end(core)


def small_core(costs: CostModel | None = None) -> EngineCore:
    model = {} if costs is None else {"costs": costs}
    return simulated_core(num_blocks=12, num_host_blocks=30, **model)  # type: ignore[arg-type]


def test_blocks_that_the_pool_evicted_come_back_from_the_host() -> None:
    core = small_core()
    evicted(core)
    assert core.stats().swapped_out == 10
    assert core.stats().host_blocks_used == 10
    assert cached_tokens(core, make_request("again", PROMPT, 4)) == 40
    assert core.stats().host_hit_blocks == core.stats().swapped_in == 10
    assert core.scheduler.pool.find(core.scheduler.running["again"].sequences[0].table._hashes)


def test_what_came_back_is_as_it_was() -> None:
    core = small_core()
    evicted(core)
    core.submit(make_request("again", PROMPT, 6))
    assert run_to_end(core)["again"] == expected_output(PROMPT, 6)


def test_blocks_come_back_only_where_computing_them_takes_longer() -> None:
    for block_cost, cached in ((3.0, 40), (5.0, 0)):
        copy = CopyCost(0.0, block_cost)
        core = small_core(CostModel(copy, copy, ComputeCost(0.0, 1.0, 0.0, 32, 0.0)))
        evicted(core)
        assert cached_tokens(core, make_request("again", PROMPT, 4)) == cached


def test_a_request_without_cache_leaves_nothing_in_the_host_tier() -> None:
    core = small_core()
    evicted(core, cache=False)
    assert core.stats().swapped_out == 0


def test_neither_another_tenant_nor_another_user_finds_a_block_in_the_host_tier() -> None:
    core = small_core()
    evicted(core, user="ann", shared_tokens=10)
    assert core.stats().host_blocks_used == 10
    for who, cached in (({"tenant": "b", "user": "ann"}, 0), ({"user": "bob"}, 8)):
        request = make_request("x", PROMPT, 1, shared_tokens=10, **who)  # type: ignore[arg-type]
        assert cached_tokens(core, request) == cached
        run_to_end(core)


def test_a_forgotten_tenants_blocks_are_not_found_in_the_host_tier() -> None:
    core = small_core()
    evicted(core)
    core.scheduler.forget_tenant("a")
    core.scheduler.check()
    assert core.stats().host_blocks_used == 0
    assert cached_tokens(core, make_request("again", PROMPT, 4)) == 0


def test_a_block_stays_its_owners_wherever_it_goes() -> None:
    core = small_core()
    evicted(core)
    shared = make_request("again", PROMPT, 1)
    namespaces = shared.namespaces
    other = make_request("other", PROMPT, 1, tenant="b", namespaces=namespaces)
    assert cached_tokens(core, other) == 40
    run_to_end(core)
    core.scheduler.forget_tenant("a")
    core.scheduler.check()
    assert cached_tokens(core, shared) == 0


def test_copies_of_a_failed_step_are_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    core = small_core()
    core.submit(make_request("first", PROMPT, 1))
    run_to_end(core)
    core.submit(make_request("failing", random_prompt(random.Random(2), 47), 1))
    with monkeypatch.context() as patch:
        patch.setattr(core._runner, "execute", lambda plan: 1 / 0)
        core.step()
    core.scheduler.check()
    assert core.stats().host_blocks_used == 0
    assert cached_tokens(core, make_request("again", PROMPT, 1)) == 0


def test_damage_is_seen() -> None:
    host = HostTier(2)
    host.take("tenant", b"a")
    host._by_hash.clear()
    with pytest.raises(InvariantError):
        host.check()


class HostMachine(RuleBasedStateMachine):
    """Blocks are kept, found, swapped and forgotten; a simple model says what must be there."""

    SLOTS = 6

    def __init__(self) -> None:
        super().__init__()
        self.host = HostTier(self.SLOTS)
        self.held: list[int] = []
        self.cached: OrderedDict[bytes, str] = OrderedDict()
        """What nobody holds, least recently used first, and its owner."""
        self.findable: dict[bytes, str] = {}

    def _taken(self, name: bytes | None, owner: str, slot: int) -> None:
        """A slot was taken: a free one, else that of the least recently used block."""
        if len(self.cached) + len(set(self.held)) == self.SLOTS:
            evicted, _ = self.cached.popitem(last=False)
            del self.findable[evicted]
        assert slot not in self.held
        self.held.append(slot)
        if name is not None:
            self.findable[name] = owner

    def _released(self, slot: int) -> None:
        self.held.remove(slot)
        name = self.host.hash_of(slot)
        if slot not in self.held and name is not None:
            self.cached[name] = self.findable[name]

    @rule(name=st.integers(0, 9), owner=st.sampled_from("ab"))
    def keep(self, name: int, owner: str) -> None:
        key = bytes([name])
        slot = self.host.keep(key, owner)
        if key in self.findable:
            assert slot is None
            if key in self.cached:
                self.cached.move_to_end(key)
        elif len(set(self.held)) == self.SLOTS:
            assert slot is None
        else:
            assert slot is not None
            self._taken(key, owner, slot)

    @precondition(lambda self: len(set(self.held)) < self.SLOTS)
    @rule(owner=st.sampled_from("ab"))
    def swap(self, owner: str) -> None:
        self._taken(None, owner, self.host.take(owner))

    @rule(first=st.integers(0, 9), length=st.integers(1, 3))
    def hold(self, first: int, length: int) -> None:
        names = [bytes([(first + i) % 10]) for i in range(length)]
        slots = self.host.find(names)
        expected = next((i for i, key in enumerate(names) if key not in self.findable), length)
        assert len(slots) == expected
        free = self.SLOTS - len(set(self.held))
        new = len(set(slots) - set(self.held))
        assert self.host.can_allocate(free - new, "a", slots)
        assert not self.host.can_allocate(free - new + 1, "a", slots)
        self.host.acquire(slots)
        self.held += slots
        for key in names[:expected]:
            self.cached.pop(key, None)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(self.held))
        self.host.release([slot])
        self._released(slot)

    @rule(owner=st.sampled_from("ab"))
    def forget_owner(self, owner: str) -> None:
        self.host.forget_owner(owner)
        self._forgotten({key for key, own in self.findable.items() if own == owner})

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(self.held))
        name = self.host.hash_of(slot)
        self.host.forget([slot])
        self._forgotten({name} - {None})

    def _forgotten(self, names: set[bytes]) -> None:
        for name in names:
            del self.findable[name]
            self.cached.pop(name, None)

    @invariant()
    def books_balance(self) -> None:
        self.host.check()
        counts = Counter(self.held)
        assert list(self.host.references) == [counts[slot] for slot in range(self.SLOTS)]
        assert self.host.num_in_use == len(counts)
        used = self.host.num_in_use + self.host.num_cached
        assert used == len(counts) + len(self.cached)
        for name in map(bytes, zip(range(10), strict=True)):
            found = self.host.find([name])
            assert bool(found) == (name in self.findable)
            assert [self.host.owners[slot] for slot in found] == (
                [self.findable[name]] if found else []
            )


TestHostMachine = HostMachine.TestCase
TestHostMachine.settings = settings(max_examples=scaled(80), stateful_step_count=40)
