"""What a watcher of the blocks is told is what the books say, whatever happens in between."""

import random

import pytest

from engine.api import CachePolicy, Kind, TenantShare
from engine.blocks import wall
from engine.blocks.eviction.leases import LeaseTerms
from engine.blocks.listeners import Marks
from engine.blocks.pool import BlockPool
from engine.blocks.wall import ANEW, FINDABLE, HELD, LEASED, PARTIAL, PINNED, STATE
from engine.serve.core import EngineCore
from tests.effort import scaled
from tests.engine.blocks.watching import FREE, Cell, decode
from tests.engine.clock import Clock
from tests.engine.simulated_model import random_prompt
from tests.engine.simulation import make_request, run_to_end, simulated_core


class Watcher:
    """Keeps what it has been told."""

    def __init__(self, core: EngineCore, name: str) -> None:
        self.core = core
        self.name = name
        self.cells: list[Cell] = []
        self.owners: list[str] = []
        self.pending = 0

    def ask(self) -> int:
        """Take one frame; returns its flags."""
        frame = self.core.wall.frame(self.name)
        flags, self.pending = decode(frame, self.cells, self.owners)
        return flags

    def ask_for_all(self) -> None:
        self.ask()
        while self.pending:
            self.ask()


def truth(core: EngineCore) -> list[Cell]:
    """The picture as the books of pool, leases, pins and host tier have it."""
    pool, slots = core.scheduler.pool, core.scheduler.tiers.host
    leased, pinned = set(pool.leases.blocks), core.scheduler.pins.references
    cells = []
    for books in (pool, slots):
        for number in books.block_on:
            references = books.references[number]
            state = HELD * (references > 0) | FINDABLE * (books.hashes[number] is not None)
            if books is pool:
                state |= LEASED * (number in leased) | PINNED * (number in pinned)
            state |= STATE * (state > 0 and books.kinds[books.kinds_of[number]].is_state)
            cells.append(Cell(state, books.owners[number], references) if state else FREE)
    return cells


def act(core: EngineCore, rng: random.Random, number: int) -> None:
    """One of the things that happen to an engine."""
    tenant = rng.choice("abc")
    prompts = [random_prompt(random.Random(seed), 30) for seed in range(6)]
    chosen = rng.random()
    if chosen < 0.5:
        lease = CachePolicy(lease_s=rng.choice([0.0, 3.0]))
        share = TenantShare(reserved_blocks=rng.choice([0, 4]), max_leased_blocks=12)
        prompt = rng.choice(prompts) + random_prompt(rng, rng.randrange(20))
        request = make_request(
            f"r{number}", prompt, 12, tenant=tenant, cache=lease, share=share, num_sequences=2
        )
        core.submit(request)
    elif chosen < 0.6:
        pin = f"{tenant} pins"
        core.submit(make_request(f"r{number}", rng.choice(prompts), 0, tenant=tenant, pin=pin))
    elif chosen < 0.65:
        core.scheduler.pins.unpin(f"{tenant} pins")
    elif chosen < 0.7:
        core.abort(f"r{rng.randrange(number + 1)}")
    elif chosen < 0.72:
        core.forget_tenant(tenant)
    core.step()


@pytest.mark.scaled
@pytest.mark.parametrize("seed", range(scaled(2)))
@pytest.mark.parametrize(
    "kinds",
    [
        (Kind(),),
        (Kind(), Kind(window=7, pages=3)),
        (Kind(), Kind(pages=2, is_state=True)),
        (Kind(pages=2, is_state=True),),
    ],
)
@pytest.mark.parametrize("runs_ahead", [False, True])
def test_cells_equal_the_books_after_every_step(
    seed: int, runs_ahead: bool, kinds: tuple[Kind, ...]
) -> None:
    clock, rng = Clock(), random.Random(seed)
    core = simulated_core(
        num_blocks=48,
        num_host_blocks=20,
        runs_ahead=runs_ahead,
        clock=lambda: clock.now,
        recovery="swap",
        kinds=kinds,
    )
    often, seldom = Watcher(core, "often"), Watcher(core, "seldom")
    seen: set[int] = set()
    for number in range(150):
        act(core, rng, number)
        clock.now += rng.choice([0.0, 0.5])
        core.scheduler.check()
        often.ask()
        assert often.pending == 0
        assert often.cells == truth(core)
        seen.update(cell.state for cell in often.cells)
        if number % 9 == 0:
            seldom.ask()
            assert seldom.cells == often.cells
    while not core.is_idle:
        core.step()
    often.ask()
    assert often.cells == truth(core)
    has_states = kinds[-1].is_state
    for flag in (HELD, FINDABLE, LEASED, PINNED, *[STATE] * has_states):
        assert any(state & flag for state in seen), "the load has left something out"
    behind = often.cells[core.scheduler.pool.num_pages :]
    assert any(one.state & FINDABLE for one in behind), "nothing came to the host"


@pytest.mark.parametrize("seed", range(4))
def test_every_operation_of_a_pool_marks_what_it_changes(seed: int) -> None:
    rng, clock = random.Random(seed), Clock()
    marks = Marks(lambda block: (block,))
    pool = BlockPool(24, clock=lambda: clock.now, listener=marks)
    pool.reserve("b", 3)
    held: list[list[int]] = []
    hashes = [bytes([number]) * 16 for number in range(30)]
    before = pool_cells(pool)
    marks.pages = set()
    for _ in range(400):
        tenant, chosen = rng.choice("abc"), rng.randrange(9)
        if chosen == 0 and pool.can_allocate(3, tenant):
            held.append(pool.allocate(3, tenant))
        elif chosen == 1 and held:
            free = [one for one in rng.choice(held) if not (pool.hashes[one] is not None)]
            for block in free:
                pool.register(block, rng.choice(hashes), owner=tenant)
        elif chosen == 2 and held:
            pool.release(held.pop(rng.randrange(len(held))))
        elif chosen == 3 and (found := pool.find([rng.choice(hashes)])):
            pool.acquire(found)
            held.append(found)
        elif chosen == 4 and pool.can_allocate(pool.num_free + 1, tenant):
            pool.empty(1, tenant)
        elif chosen == 5:
            terms = LeaseTerms(tenant, rng.choice([0.0, 2.0]), rng.choice([1, 8]))
            pool.lease([(one, 0) for one in rng.sample(hashes, 4)], terms)
        elif chosen == 6:
            clock.now += 1
            assert pool.leases is not None
        elif chosen == 7 and rng.random() < 0.2:
            pool.forget_owner(tenant)
        elif chosen == 8 and rng.random() < 0.2:
            pool.forget_all(keep=range(12))
        pool.check()
        after = pool_cells(pool)
        changed = {number for number in range(24) if before[number] != after[number]}
        assert changed <= marks.pages, f"operation {chosen} does not tell"
        assert len(marks.pages) <= 24
        marks.pages.clear()
        before = after


def pool_cells(pool: BlockPool) -> list[tuple[int, bool, bool, str]]:
    leased = set(pool._queue.leases.blocks)
    return [
        (count, (pool.hashes[block] is not None), block in leased, pool.owners[block])
        if count or (pool.hashes[block] is not None)
        else (0, False, False, "")
        for block, count in enumerate(pool.references)
    ]


def test_where_more_changes_than_a_frame_holds_the_cells_take_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wall, "_CELLS_A_FRAME", 8)
    core = simulated_core(num_blocks=64)
    watcher = Watcher(core, "w")
    watcher.ask_for_all()
    pool = core.scheduler.pool
    for _ in range(8):  # everything changes again before each frame
        pool.release(pool.allocate(64, "a"))
        held = pool.allocate(64, "b")
        watcher.ask()
        pool.release(held)
    assert all(cell.owner == "b" for cell in watcher.cells), "every cell has had its turn"
    assert watcher.pending == 56
    watcher.ask_for_all()
    assert watcher.cells == truth(core)


def test_the_first_picture_comes_in_parts_and_is_told_to_be_partial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wall, "_CELLS_AT_FIRST", 10)
    core = simulated_core(num_blocks=32)
    core.submit(make_request("r", random_prompt(random.Random(1), 60)))
    run_to_end(core)
    watcher = Watcher(core, "w")
    flags = [watcher.ask() for _ in range(4)]
    assert flags == [ANEW | PARTIAL, PARTIAL, PARTIAL, 0]
    assert watcher.cells == truth(core) != [FREE] * 32


def test_nothing_is_noted_while_nobody_watches() -> None:
    clock = Clock()
    core = simulated_core(num_blocks=32, clock=lambda: clock.now)
    marks = core.scheduler.tiers.marks
    assert marks.pages is None
    one, other = Watcher(core, "one"), Watcher(core, "other")
    one.ask()
    other.ask()
    core.wall.unwatch("one")
    assert core.wall._watchers
    clock.now += 11  # the other one has not asked for long
    core.submit(make_request("r", random_prompt(random.Random(1), 20)))
    run_to_end(core)
    assert not core.wall._watchers
    assert marks.pages is None
    assert other.ask() & ANEW
    assert other.cells == truth(core)


def test_few_may_watch_and_the_others_are_told_nothing() -> None:
    core = simulated_core(num_blocks=4)
    frames = [core.wall.frame(str(number)) for number in range(9)]
    assert all(frames[:8])
    assert frames[8] == b""
    core.wall.unwatch("3")
    assert core.wall.frame("8")


def test_a_watcher_of_very_many_owners_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wall, "_MOST_OWNERS", -1)
    core = simulated_core(num_blocks=4)
    pool, watcher = core.scheduler.pool, Watcher(core, "w")
    told_anew = 0
    for number in range(12):
        held = pool.allocate(1, f"tenant {number}")
        told_anew += watcher.ask() & ANEW
        assert watcher.cells == truth(core)
        assert len(watcher.owners) <= 4
        pool.release(held)
    assert told_anew == 3


def test_as_many_owners_as_there_are_blocks_are_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wall, "_MOST_OWNERS", 3)
    monkeypatch.setattr(wall, "_CELLS_AT_FIRST", 4)
    core = simulated_core(num_blocks=16)
    for number in range(16):
        core.scheduler.pool.allocate(1, f"tenant {number}")
    watcher = Watcher(core, "w")
    flags = [watcher.ask() for _ in range(6)]
    assert [one & ANEW for one in flags] == [ANEW, 0, 0, 0, 0, 0]
    assert watcher.cells == truth(core)
