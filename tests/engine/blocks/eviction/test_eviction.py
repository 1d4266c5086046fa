"""Which cached block goes first, by adaptive replacement and by recency."""

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeVar, get_args

import pytest

from engine.api import Namespaces
from engine.blocks.eviction.policy import AdaptiveReplacement, Eviction
from engine.blocks.pool import BlockPool
from engine.blocks.table import BlockTable
from engine.config import EngineConfig
from tests.engine.simulated_model import random_prompt
from tests.engine.simulation import make_request, simulated_core

POLICIES = get_args(Eviction)
T = TypeVar("T")


def chain(name: object, length: int) -> list[bytes]:
    """The keys of a prompt that no other name shares."""
    return [f"{name}/{index}".encode() for index in range(length)]


def serve(pool: BlockPool, keys: Sequence[bytes], owner: str = "a") -> int:
    """One request over `keys`, which computes what it does not find; returns how many it found."""
    hits = pool.find(keys)
    pool.acquire(hits)
    blocks = [*hits, *pool.allocate(len(keys) - len(hits), owner)]
    for block, key in list(zip(blocks, keys, strict=True))[len(hits) :]:
        pool.register(block, key)
    pool.release(blocks)
    pool.check()
    return len(hits)


def scan(pool: BlockPool, prompts: int, owner: str = "a", length: int = 5) -> None:
    """Prompts that never come back."""
    for index in range(prompts):
        serve(pool, chain(f"scan {owner} {index}", length), owner)


def order_of(pool: BlockPool) -> AdaptiveReplacement:
    order = pool._queue._order
    assert isinstance(order, AdaptiveReplacement)
    return order


def num_ghosts(pool: BlockPool) -> int:
    return len(order_of(pool)._once_ghosts) + len(order_of(pool)._again_ghosts)


@pytest.mark.parametrize(("eviction", "found"), [("arc", 10), ("lru", 0)])
def test_only_adaptive_replacement_keeps_what_is_used_again_from_a_scan(
    eviction: Eviction, found: int
) -> None:
    pool = BlockPool(40, eviction)
    prompt = chain("conversation", 10)
    assert serve(pool, prompt) == 0
    assert serve(pool, prompt) == 10
    scan(pool, 100)
    assert serve(pool, prompt) == found


@pytest.mark.parametrize("eviction", POLICIES)
def test_what_was_used_once_does_not_outlive_a_scan(eviction: Eviction) -> None:
    pool = BlockPool(40, eviction)
    prompt = chain("conversation", 10)
    serve(pool, prompt)
    scan(pool, 100)
    assert serve(pool, prompt) == 0


@pytest.mark.parametrize(("prompts", "soon"), [(25, True), (40, False)])
def test_what_is_computed_again_soon_after_its_eviction_counts_as_used_again(
    prompts: int, soon: bool
) -> None:
    pool = BlockPool(40)
    prompt = chain("conversation", 10)
    serve(pool, prompt)
    scan(pool, prompts)
    assert serve(pool, prompt) == 0, "it was evicted"
    scan(pool, 100, owner="later")
    assert (serve(pool, prompt) > 0) == soon, "there are 120 ghosts, 5 a prompt"


def test_a_ghost_shifts_the_share_to_the_queue_that_was_too_short() -> None:
    pool = BlockPool(20)
    order, first, second = order_of(pool), chain("first", 8), chain("second", 8)
    serve(pool, first)
    scan(pool, 5)
    before = order._share
    serve(pool, first)
    assert order._share == pytest.approx(before + 8 / 20), "once-used blocks should have stayed"
    serve(pool, second)
    serve(pool, second)
    serve(pool, chain("large", 20))
    before = order._share
    serve(pool, second)
    assert order._share < before, "blocks used again should have stayed"


def test_before_there_is_evidence_new_prompts_may_have_half_of_the_pool() -> None:
    pool = BlockPool(40)
    prompt = chain("conversation", 40)
    serve(pool, prompt)
    assert serve(pool, prompt) == 40
    scan(pool, 100)
    assert 15 <= serve(pool, prompt) <= 20


def test_the_share_stays_between_none_and_all() -> None:
    pool = BlockPool(8)
    for round_number in range(30):
        for name in range(3):
            serve(pool, chain(name, 4 + round_number % 4))
    assert 0 <= order_of(pool)._share <= 1


def test_ghosts_never_exceed_four_a_block() -> None:
    pool = BlockPool(10)
    rng = random.Random(1)
    most = 0
    for _ in range(400):
        serve(pool, chain(rng.randrange(30), rng.randint(1, 8)))
        most = max(most, num_ghosts(pool))
    scan(pool, 50)
    assert 30 <= num_ghosts(pool) <= 40
    assert most <= 40


def test_contents_that_were_forgotten_start_over() -> None:
    pool = BlockPool(20)
    prompt = chain("before", 5)
    serve(pool, prompt)
    serve(pool, prompt)
    pool.forget_all()
    pool.check()
    after = chain("after", 20)
    serve(pool, after)
    assert not order_of(pool)._used_again
    held = pool.find(after)
    pool.acquire(held)
    pool.forget_all()
    pool.release(held)
    pool.check()
    assert not order_of(pool)._used_again, "nor does a block in use keep its fame"


def served(pool: BlockPool, namespaces: Namespaces, tokens: list[int], owner: str) -> int:
    table = BlockTable(pool, 4, owner, namespaces, b"")
    hits = pool.find(table.prefix_hashes(tokens))
    table.admit(len(tokens), [hits])
    table.seal(tokens, len(tokens))
    table.release()
    pool.check()
    return len(hits)


def test_a_ghost_is_met_in_its_own_namespace_only() -> None:
    prompt, large = random_prompt(random.Random(2), 24), random_prompt(random.Random(3), 120)
    mine, theirs = (make_request("r", prompt, tenant=name).namespaces for name in "ab")
    for namespaces, met in ((mine, 6), (theirs, 0)):
        pool = BlockPool(30)
        served(pool, mine, prompt, "a")
        served(pool, mine, large, "a")
        before = order_of(pool)._share
        assert served(pool, namespaces, prompt, "a") == 0, "it was evicted"
        assert len(order_of(pool)._used_again) == met
        assert (order_of(pool)._share > before) == bool(met)


@pytest.mark.parametrize("eviction", POLICIES)
def test_a_neighbour_that_comes_back_often_takes_nothing_of_a_reserve(eviction: Eviction) -> None:
    pool = BlockPool(40, eviction)
    pool.reserve("a", 12)
    prompt = chain("reserved", 15)
    serve(pool, prompt, "a")
    for index in range(60):
        for _ in range(3):
            serve(pool, chain(index % 7, 25), "b")
            assert pool.num_cached_of("a") >= 12
    assert len(pool.find(prompt)) >= 12, "the head of the prompt is what was kept"


def test_what_an_owner_evicts_of_its_own_reserve_leaves_ghosts_as_well() -> None:
    pool = BlockPool(10)
    pool.reserve("a", 10)
    prompt = chain("own", 5)
    serve(pool, prompt)
    serve(pool, chain("large", 10))
    assert num_ghosts(pool) == 5
    assert serve(pool, prompt) == 0
    pool.reserve("a", 0)
    pool.check()
    assert len(order_of(pool)._used_again) == 5, "the ghosts are met where the reserve ends"


@pytest.mark.parametrize("damage", ["used again", "ghost", "share", "owner"])
def test_check_sees_damage_to_the_order(damage: str) -> None:
    pool = BlockPool(10)
    serve(pool, chain("one", 5))
    serve(pool, chain("two", 8))
    order, queue = order_of(pool), pool._queue
    block, key = next(iter(order.candidates().items()))
    if damage == "used again":
        order._used_again.add(block)
    elif damage == "ghost":
        order._once_ghosts[key] = None
    elif damage == "share":
        order._share = 1.5
    else:
        queue._surplus_owners[block] = "nobody"
    with pytest.raises(AssertionError):
        pool.check()


@dataclass
class StepCounter:
    """Runs calls, and keeps the largest number of lines of Python that one of them took."""

    most: int = 0

    def run(self, call: Callable[..., T], *arguments: object) -> T:
        count = 0

        def trace(frame: FrameType, event: str, _: object) -> Any:
            nonlocal count
            count += event == "line"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            return call(*arguments)
        finally:
            sys.settrace(before)
            self.most = max(self.most, count)


def most_steps(eviction: Eviction, num_blocks: int) -> int:
    """The dearest operation on one block, in a pool full of blocks of all kinds."""
    pool, counter = BlockPool(num_blocks, eviction), StepCounter()
    pool.reserve("b", num_blocks // 4)
    rng = random.Random(4)
    for _ in range(1200):
        key, owner = str(rng.randrange(2 * num_blocks)).encode(), rng.choice("ab")
        blocks = pool.find([key])
        if blocks:
            counter.run(pool.acquire, blocks)
        else:
            blocks = counter.run(pool.allocate, 1, owner)
            pool.register(blocks[0], key)
        counter.run(pool.release, blocks)
    pool.check()
    return counter.most


@pytest.mark.parametrize("eviction", POLICIES)
def test_an_operation_on_a_block_takes_no_more_steps_in_a_larger_pool(eviction: Eviction) -> None:
    small, large = most_steps(eviction, 40), most_steps(eviction, 400)
    assert 0 < large <= 1.2 * small  # which operation was the dearest is a matter of chance


def test_the_engine_evicts_by_the_policy_that_it_is_told() -> None:
    for eviction, kept in (("arc", 9), ("lru", 0)):
        core = simulated_core(num_blocks=40, eviction=eviction)
        prompt = random_prompt(random.Random(5), 38)
        pool = core.scheduler.pool
        for number in range(60):
            tokens = prompt if number < 2 else random_prompt(random.Random(number + 10), 38)
            core.submit(make_request(str(number), tokens, 1))
            while not core.is_idle:
                core.step()
                core.scheduler.check()
        table = BlockTable(pool, 4, "a", make_request("r", prompt).namespaces, b"simulated")
        assert len(pool.find(table.prefix_hashes(prompt))) == kept


def test_a_policy_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="eviction: 'mru' is none of arc, lru"):
        EngineConfig(model_path="m", eviction="mru")  # type: ignore[arg-type]
