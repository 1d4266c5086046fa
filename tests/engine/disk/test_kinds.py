"""Blocks of several kinds on disk: what a prompt needs of each comes back, and no more."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from engine.api import EVERYTHING, CachePolicy, Kind
from engine.disk import restoring, saving
from engine.disk.files import read_head
from engine.disk.folder import disk_bytes
from engine.serve.core import EngineCore
from tests.engine.disk.simulated import keeper, kept_files, pin, save, spoil, start
from tests.engine.disk.test_keeper import BLOCKS, PROMPT, found
from tests.engine.simulated_model import expected_output, random_prompt
from tests.engine.simulation import make_request, run_to_end

SHORT = (EVERYTHING, Kind(window=3))
SEVERAL = (EVERYTHING, Kind(window=10, pages=2))
BOTH = (EVERYTHING, Kind(window=10, pages=2), Kind(window=3))
CHUNKS = (EVERYTHING, Kind(chunk=12, pages=3))
ALONE = (Kind(window=9),)
TWO_ALONE = (Kind(window=9, pages=2), Kind(window=5))
ANY = [SHORT, SEVERAL, BOTH, CHUNKS, ALONE, TWO_ALONE]

any_kinds = pytest.mark.parametrize("kinds", ANY)


def needed(kinds: tuple[Kind, ...], num_blocks: int) -> int:
    """How many pages a hit of so many blocks needs."""
    return sum(kind.pages * len(kind.seen(4 * num_blocks, 4)) for kind in kinds)


def restored(core: EngineCore) -> int:
    """How many pages were read; told in blocks of each kind."""
    pages, pool = keeper(core).restorer.num_restored_pages, core.scheduler.pool
    assert core.stats().restored_blocks == -(-pages // pool.block_pages)
    return pages


@any_kinds
@pytest.mark.parametrize("runs_ahead", [False, True])
def test_a_pinned_prompt_is_found_after_a_restart(
    tmp_path: Path, kinds: tuple[Kind, ...], runs_ahead: bool
) -> None:
    core = start(tmp_path, kinds=kinds, runs_ahead=runs_ahead)
    pin(core, PROMPT)
    save(core)
    sizes = [disk_bytes(path.stat().st_size) for path in kept_files(tmp_path)]
    assert (core.stats().kept_files, core.stats().kept_bytes) == (len(kinds), sum(sizes))
    assert keeper(core).blocks_by_owner() == {"": core.stats().blocks_pinned}

    core = start(tmp_path, kinds=kinds, runs_ahead=runs_ahead)
    assert found(core) == 4 * BLOCKS
    assert restored(core) == needed(kinds, BLOCKS)
    # It is there now, and read no more.
    assert found(core, name="again") >= 4 * BLOCKS
    assert restored(core) == needed(kinds, BLOCKS)


@any_kinds
def test_a_leased_conversation_goes_on_after_a_restart(
    tmp_path: Path, kinds: tuple[Kind, ...]
) -> None:
    """Wherever in a block it ends, when some of what its next turn sees may be given back."""
    for length in range(40, 44):
        core, prompt = start(tmp_path, kinds=kinds), random_prompt(random.Random(length), length)
        core.submit(make_request("r", prompt, 9, cache=CachePolicy(lease_s=600.0)))
        turn = [*prompt, *run_to_end(core)["r"], *prompt[:5]]
        core.close(5.0)
        core = start(tmp_path, kinds=kinds)
        assert found(core, turn) == (length + 9) // 4 * 4
        for number, kind in enumerate(kinds):
            hashes = core.scheduler.new_table(make_request("t", turn))().prefix_hashes(turn)
            seen = kind.seen((length + 9) // 4 * 4, 4)
            for block_hash in hashes[seen.start : seen.stop]:
                (block,) = core.scheduler.pool.find([block_hash], number)
                assert core.scheduler.pool.leases.longest(block), "it is still leased"


@any_kinds
def test_what_is_behind_a_breakpoint_is_found_after_a_restart(
    tmp_path: Path, kinds: tuple[Kind, ...]
) -> None:
    core = start(tmp_path, kinds=kinds)
    core.submit(make_request("r", PROMPT, 9, cache=CachePolicy(lease_s=600.0, up_to=20)))
    run_to_end(core)
    core.close(5.0)
    assert found(start(tmp_path, kinds=kinds)) == 20


@any_kinds
def test_only_what_is_missing_is_read(tmp_path: Path, kinds: tuple[Kind, ...]) -> None:
    core = start(tmp_path, kinds=kinds)
    pin(core, PROMPT[:33])
    pin(core, PROMPT)
    save(core)
    core = start(tmp_path, kinds=kinds)
    assert found(core, PROMPT[:33]) == 32
    pool, hashes = core.scheduler.pool, tables_hashes(core, PROMPT)
    seen = [kind.seen(4 * BLOCKS, 4) for kind in kinds]
    there = sum(
        kinds[number].pages * len(pool.find([hashes[index]], number))
        for number, indices in enumerate(seen)
        for index in indices
    )
    assert found(core, name="all") == 4 * BLOCKS
    assert restored(core) == needed(kinds, 8) + needed(kinds, BLOCKS) - there


def tables_hashes(core: EngineCore, prompt: list[int]) -> list[bytes]:
    return core.scheduler.new_table(make_request("t", prompt))().prefix_hashes(prompt)


@pytest.mark.parametrize("kinds", [SHORT, SEVERAL, BOTH])
def test_a_prompt_has_the_longest_beginning_of_which_all_is_there(
    tmp_path: Path, kinds: tuple[Kind, ...]
) -> None:
    core = start(tmp_path, kinds=kinds)
    pin(core, PROMPT[:17])
    save(core)
    before = kept_files(tmp_path)
    pin(core, PROMPT)
    save(core)
    # The last file has the last kind's blocks that the end of the prompt sees.
    depths = {path: read_head(path)[0].depth for path in kept_files(tmp_path)}
    newest = [path for path in kept_files(tmp_path) if path not in before]
    last = max(newest, key=depths.__getitem__)
    content = bytearray(last.read_bytes())
    content[-5] ^= 1
    spoil(last, content)
    core = start(tmp_path, kinds=kinds)
    assert found(core) == 16
    core.close()
    assert not last.exists()


def test_what_there_is_room_for_is_read(tmp_path: Path) -> None:
    core = start(tmp_path, kinds=SEVERAL)
    pin(core, PROMPT[:17])
    pin(core, PROMPT)
    save(core)
    core = start(tmp_path, kinds=SEVERAL, num_blocks=16)
    long = random_prompt(random.Random(9), 36)
    core.submit(make_request("long", long, 20, tenant="b"))
    core.step()
    pool = core.scheduler.pool
    taken = pool.allocate(pool.num_pages - pool.num_in_use - 13, "b")
    # Of these "long" may come to take three. All of the prompt would need 16, its beginning 10.
    core.submit(make_request("r", PROMPT, 4))
    while restored(core) < needed(SEVERAL, 4):
        core.step()
    assert restored(core) == needed(SEVERAL, 4)
    pool.release(taken)
    assert run_to_end(core)["r"] == expected_output(PROMPT, 4)


@pytest.mark.parametrize("others", [(EVERYTHING,), (EVERYTHING, Kind(window=4)), ALONE])
def test_files_of_other_kinds_are_dropped(tmp_path: Path, others: tuple[Kind, ...]) -> None:
    core = start(tmp_path, kinds=SHORT)
    pin(core, PROMPT)
    save(core)
    assert len(kept_files(tmp_path)) == 2
    assert found(start(tmp_path, kinds=others)) == 0
    assert not kept_files(tmp_path)


@pytest.mark.parametrize("kinds", [SEVERAL, ALONE])
def test_long_chains_come_in_portions_of_each_kind(
    tmp_path: Path, kinds: tuple[Kind, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (saving, restoring):
        monkeypatch.setattr(module, "PORTION_BYTES", 64)  # two blocks of a page
    monkeypatch.setattr(restoring, "_MOST_BLOCKS", 3)
    core = start(tmp_path, kinds=kinds)
    pin(core, PROMPT)
    save(core)
    heads = [read_head(path)[0] for path in kept_files(tmp_path)]
    assert max(len(head.names) * head.block_bytes for head in heads) == 64
    core = start(tmp_path, kinds=kinds)
    assert found(core) == 4 * BLOCKS


def test_who_computes_what_another_reads_waits_for_it(tmp_path: Path) -> None:
    core = start(tmp_path, kinds=BOTH)
    pin(core, PROMPT)
    save(core)
    core = start(tmp_path, kinds=BOTH)
    for name in "xy":
        core.submit(make_request(name, PROMPT, 6))
    assert run_to_end(core) == dict.fromkeys("xy", expected_output(PROMPT, 6))
    assert restored(core) == needed(BOTH, BLOCKS)
    assert core.stats().cached_tokens == 8 * BLOCKS


def test_a_disk_that_is_full_holds_whole_chains(tmp_path: Path) -> None:
    """Each chain's blocks of all kinds come together, so that it can be used."""
    core = start(tmp_path, kinds=SHORT, num_blocks=256, kept_bytes=4 * 4096)
    prompts = [random_prompt(random.Random(n), 40 + n) for n in range(5)]
    for prompt in prompts:
        pin(core, prompt)
    save(core)
    assert len(kept_files(tmp_path)) == 4
    core = start(tmp_path, kinds=SHORT, num_blocks=256, kept_bytes=4 * 4096)
    hits = [found(core, prompt, f"{n}") for n, prompt in enumerate(prompts)]
    assert sum(hit > 0 for hit in hits) == 2
    keeper(core).shelf.check()
