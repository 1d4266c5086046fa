"""What the transfers of a step read stays as it is until the step is on its way."""

from engine.api import Kind
from engine.blocks.pool import BlockPool
from engine.blocks.tiers import HostTier
from engine.blocks.transfers import TransferQueue


def test_a_block_that_is_to_be_copied_stays_when_its_last_holder_is_gone() -> None:
    pool = BlockPool(4)
    queue = TransferQueue(pool, HostTier(0))
    source, target = pool.allocate(2, "a")
    queue.copy(source, target)
    queue.give_back([source])
    pool.release([source])
    assert (pool.references[source], queue.held_blocks) == (1, [source])
    assert queue.take().copies == [(source, target)]
    assert pool.references[source] == 1, "until the step that copies it is on its way"
    queue.settle()
    assert (pool.references[source], queue.held_blocks) == (0, [])


def test_a_copy_that_is_not_wanted_any_more_holds_nothing() -> None:
    pool = BlockPool(4)
    queue = TransferQueue(pool, HostTier(0))
    source, target = pool.allocate(2, "a")
    queue.copy(source, target)
    for block in (source, target):
        queue.give_back([block])
        pool.release([block])
    assert (pool.num_in_use, queue.sources, queue.held_blocks) == (0, [], [])


def test_a_copy_is_wanted_for_as_long_as_anybody_holds_its_target() -> None:
    pool = BlockPool(4)
    queue = TransferQueue(pool, HostTier(0))
    source, target = pool.allocate(2, "a")
    queue.copy(source, target)
    pool.acquire([target])
    for copies in ([source], []):
        queue.give_back([target])
        pool.release([target])
        assert queue.sources == copies


def test_a_block_that_a_slot_is_to_fill_is_nobody_elses_until_the_step_is_on_its_way() -> None:
    pool, host = BlockPool(2), HostTier(1)
    queue = TransferQueue(pool, host)
    (block,) = pool.allocate(1, "a")
    queue.swap_in(host.take("a"), block)
    assert queue.fills([block])
    queue.give_back([block])
    pool.release([block])
    assert not pool.can_allocate(2, "a")
    assert queue.take().swap_ins == [(0, block)]
    queue.settle()
    assert pool.can_allocate(2, "a")


def test_the_pages_of_a_swap_are_those_of_the_moment_it_was_asked_for() -> None:
    kinds = (Kind(), Kind(window=4, pages=3))
    pool, host = BlockPool(4, kinds=kinds), HostTier(4, kinds)
    queue = TransferQueue(pool, host)
    (block,) = pool.allocate(1, "a", 1)
    (slot,) = host.allocate(1, "a", 1)
    pages = list(zip(pool.pages_of(block), host.pages_of(slot), strict=True))
    queue.swap_out(block, slot)
    pool.release([block])
    pool.allocate(4, "b")
    assert queue.take().swap_outs == pages
