"""Who routes by what is told of blocks counts for each prompt what it would find."""

from __future__ import annotations

import random

import pytest

from engine.api import EVERYTHING, Kind
from engine.blocks.changes import ResumableChanges, changes_of
from engine.blocks.hashing import Extras, block_hashes
from engine.blocks.lookup import usable
from engine.serve.core import EngineCore
from tests.engine.simulated_model import random_prompt
from tests.engine.simulation import make_request, run_to_end, simulated_core

HYBRID = (Kind(), Kind(window=9, pages=2))
WINDOWS = (Kind(window=9),)
CHUNKS = (Kind(pages=2), Kind(chunk=12))
MANY = (Kind(pages=2), Kind(window=3), Kind(chunk=12, pages=2), Kind(window=17, pages=3))
WITHOUT_WHOLE = (Kind(window=9, pages=2), Kind(chunk=7))


class Reader:
    """What a router knows of a core."""

    def __init__(self, kinds: tuple[Kind, ...], num_blocks: int, **options: object) -> None:
        self.core: EngineCore = simulated_core(num_blocks=num_blocks, kinds=kinds, **options)
        self.changes = changes_of(kinds, self.core.info.block_size)
        self.core.scheduler.tiers.changes = self.changes
        self.present: set[bytes] = set()

    def read(self) -> None:
        for change in self.changes.take():
            assert change.is_stored == (change.block_hash not in self.present)
            assert change.parent is None or change.is_stored
            self.present ^= {change.block_hash}

    def run(self, name: str, prompt: list[int], max_tokens: int = 1) -> list[int]:
        self.core.submit(make_request(name, prompt, max_tokens=max_tokens))
        found = run_to_end(self.core)[name]
        self.read()
        return found

    def hashes(self, prompt: list[int]) -> list[bytes]:
        info, namespaces = self.core.info, make_request("any", prompt).namespaces
        return block_hashes(prompt, info.block_size, namespaces, Extras(info.hash_extras))

    def counted(self, prompt: list[int]) -> int:
        hashes = self.hashes(prompt)
        return next((n for n, one in enumerate(hashes) if one not in self.present), len(hashes))

    def found(self, prompt: list[int]) -> int:
        pool = self.core.scheduler.pool
        return len(usable(pool, self.hashes(prompt), self.core.info.block_size))


@pytest.mark.parametrize("kinds", [HYBRID, WINDOWS, CHUNKS, MANY, WITHOUT_WHOLE])
@pytest.mark.parametrize("runs_ahead", [False, True])
def test_whatever_can_be_hit_is_told_under_any_load(
    kinds: tuple[Kind, ...], runs_ahead: bool
) -> None:
    rng = random.Random(int(runs_ahead))
    reader = Reader(kinds, 20, runs_ahead=runs_ahead)
    core, prompts, num_counted, num_found = reader.core, list[list[int]](), 0, 0
    for number in range(100):
        shared = rng.choice(prompts)[: rng.randrange(70)] if prompts and rng.random() < 0.7 else []
        prompts.append(shared + [rng.randrange(3, 6) for _ in range(rng.randrange(1, 30))])
        core.submit(make_request(f"r{number}", prompts[-1], max_tokens=rng.randrange(1, 20)))
        if rng.random() < 0.1:
            core.abort(f"r{rng.randrange(number + 1)}")
        if rng.random() < 0.03:
            core.forget_tenant("a")
        for _ in range(rng.randrange(6)):
            core.step()
            core.scheduler.check()
            reader.read()
            assert isinstance(reader.changes, ResumableChanges)
            reader.changes.check()
            for prompt in prompts[-20:]:
                assert reader.counted(prompt) >= reader.found(prompt)
                num_counted += reader.counted(prompt)
                num_found += reader.found(prompt)
    assert num_counted < 2.5 * num_found


@pytest.mark.parametrize("kinds", [HYBRID, WINDOWS, CHUNKS, MANY])
def test_of_conversations_hardly_more_is_told_than_they_will_find(kinds: tuple[Kind, ...]) -> None:
    rng = random.Random(3)
    reader = Reader(kinds, 60)
    system = random_prompt(rng, 17)
    said = [system + random_prompt(rng, 6) for _ in range(6)]
    num_counted, num_found, num_asked = 0, 0, 0
    for turn in range(60):
        number = rng.randrange(len(said))
        prompt = said[number] + random_prompt(rng, rng.randrange(2, 20))
        num_counted += reader.counted(prompt)
        num_found += reader.found(prompt)
        num_asked += len(reader.hashes(prompt))
        said[number] = prompt + reader.run(f"turn {turn}", prompt, 6)
        if len(said[number]) > 140:
            said[number] = system + random_prompt(rng, 6)
    assert num_found <= num_counted <= 1.1 * num_found
    assert num_found < 0.9 * num_asked, "some is evicted"


def test_of_windows_alone_a_long_conversation_is_told_from_its_beginning() -> None:
    reader = Reader(WINDOWS, 12)
    prompt = random_prompt(random.Random(1), 100)
    said = prompt + reader.run("long", prompt, 30)
    for number in range(2):
        reader.run(f"other {number}", random_prompt(random.Random(2 + number), 12))
    pool, hashes = reader.core.scheduler.pool, reader.hashes(said[:-1])
    assert len(hashes) > pool.num_pages, "its beginning is not there any more"
    assert not pool.find(hashes[:1])
    assert reader.counted(said[:-1]) == reader.found(said[:-1]) == len(hashes)


@pytest.mark.parametrize("kinds", [HYBRID, WINDOWS, CHUNKS, MANY])
def test_of_what_cannot_be_gone_on_from_nothing_is_told(kinds: tuple[Kind, ...]) -> None:
    reader = Reader(kinds, 30, eviction="lru")
    prompt = random_prompt(random.Random(1), 58)
    reader.run("first", prompt)
    assert reader.counted(prompt) == len(reader.hashes(prompt)) == 14
    pool = reader.core.scheduler.pool
    last = reader.hashes(prompt)[13]
    ends = [one for n in range(1, len(kinds)) for one in pool.find([last], n)] or pool.find([last])
    pool.forget(ends)
    reader.read()
    assert reader.counted(prompt) < 14
    pool.forget(pool.find(reader.hashes(prompt)[:1]))
    if len(kinds) > 1:
        reader.read()
        assert reader.counted(prompt) == 0, "layers that see everything need the first one"


def test_a_chunks_end_needs_no_block_of_the_chunk() -> None:
    """Behind three blocks another chunk begins."""
    reader = Reader(CHUNKS, 40)
    prompt = random_prompt(random.Random(1), 22)
    reader.run("first", prompt)
    assert reader.counted(prompt) == 5
    pool = reader.core.scheduler.pool
    pool.forget([block for one in reader.hashes(prompt) for block in pool.find([one], 1)])
    reader.read()
    assert reader.counted(prompt) == reader.found(prompt) == 3


def test_what_is_told_of_is_told_behind_what_it_follows() -> None:
    reader = Reader(HYBRID, 40)
    prompt = random_prompt(random.Random(1), 62)
    reader.core.submit(make_request("first", prompt, max_tokens=1))
    run_to_end(reader.core)
    stored, hashes = reader.changes.take(), reader.hashes(prompt)
    assert [one.block_hash for one in stored] == hashes
    assert [one.parent for one in stored] == [None, *hashes[:-1]]


def test_where_all_is_remembered_all_that_is_there_is_told() -> None:
    assert not isinstance(changes_of((EVERYTHING,), 4), ResumableChanges)


@pytest.mark.parametrize("kinds", [HYBRID, WINDOWS, CHUNKS, MANY])
def test_a_few_look_ups_tell_about_what_will_be_found(
    kinds: tuple[Kind, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader(kinds, 60)
    prompt = random_prompt(random.Random(1), 78)
    said = prompt + reader.run("first", prompt, 9)
    tiers, pool = reader.core.scheduler.tiers, reader.core.scheduler.pool
    num_looked_up, is_there = 0, tiers._is_there

    def counted(block_hash: bytes, kind: int) -> bool:
        nonlocal num_looked_up
        num_looked_up += 1
        return is_there(block_hash, kind)

    monkeypatch.setattr(tiers, "_is_there", counted)
    for more in (0, 3, 40, 800):
        hashes = reader.hashes(said[:-1] + random_prompt(random.Random(2), more))
        found = len(usable(pool, hashes, 4))
        assert found >= len(said[:-1]) // 4
        num_looked_up = 0
        assert tiers.roughly_found(hashes) == found
        assert num_looked_up < 40 + more // 4
    assert tiers.roughly_found(reader.hashes(random_prompt(random.Random(3), 100))) == 0


def test_a_window_that_is_gone_is_why_a_prompt_was_not_found() -> None:
    reader = Reader(HYBRID, 60)
    prompt = random_prompt(random.Random(1), 42)
    reader.run("first", prompt)
    pool, tiers = reader.core.scheduler.pool, reader.core.scheduler.tiers
    hashes = reader.hashes(prompt)
    assert {one.state for one in tiers.fates(hashes)} == {"present"}
    pool.forget(pool.find(hashes[8:9], 1), "own_quota")
    # Behind ten blocks a window reaches into the ninth.
    assert len(usable(pool, hashes, 4)) == 8
    fates = [(one.state, one.why) for one in tiers.fates(hashes)]
    assert fates == [("present", None)] * 8 + [("evicted", "own_quota")] * 2
    reader.core.submit(make_request("again", prompt, max_tokens=9))
    reader.core.step()
    (told,) = reader.core.roll().requests
    assert told.broke is not None
    assert (told.broke.why, told.broke.evicted_by) == ("evicted", "own_quota")


@pytest.mark.parametrize("kinds", [HYBRID, WINDOWS, MANY])
def test_operators_are_told_what_hits_can_use(kinds: tuple[Kind, ...]) -> None:
    reader = Reader(kinds, 60)
    core, prompt = reader.core, random_prompt(random.Random(1), 78)
    core.roll()
    core.submit(make_request("first", prompt, max_tokens=1, conversation="c"))
    while core.scheduler.lifecycle.live:
        core.step()
        for one in core.roll().requests:
            if one.state == "running":
                assert one.num_blocks == len(one.lines[0])
    pool, lifecycle = core.scheduler.pool, core.scheduler.lifecycle
    (chain,) = lifecycle.chains.page("a").chains
    assert chain.found_tokens == chain.tokens == 76
    (ended,) = core.roll().requests
    held = [block for blocks in usable(pool, reader.hashes(prompt), 4) for block in blocks]
    assert ended.lines == [held]
    last = pool.find(reader.hashes(prompt)[-1:], len(kinds) - 1)
    (place,) = core.roll(cell=pool.pages_of(last[0])[-1]).places
    assert (place.conversation, place.number) == ("c", 19)
    pool.forget(last)
    pool.forget(pool.find(reader.hashes(prompt)[12:13], len(kinds) - 1))
    (ended,) = core.roll().requests
    assert ended.lines != [held]
    assert lifecycle.chains.page("a").chains[0].found_tokens == 4 * reader.found(prompt) < 76
