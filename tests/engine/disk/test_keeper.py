"""Blocks that are kept over a restart, seen from the engine's loop; the model is simulated."""

from __future__ import annotations

import logging
import random
import time
from concurrent.futures import Future
from pathlib import Path

import pytest

from engine.api import CachePolicy
from engine.disk import files, folder, restoring, saving
from tests.engine.disk.simulated import keeper, kept_files, pin, save, spoil, start
from tests.engine.simulated_model import expected_output, random_prompt
from tests.engine.simulation import (
    cached_tokens,
    make_request,
    run_all_to_end,
    run_to_end,
    simulated_core,
)

PROMPT = random_prompt(random.Random(1), 43)
BLOCKS = len(PROMPT) // 4


def found(core, prompt=PROMPT, name="r", **fields) -> int:  # type: ignore[no-untyped-def]
    """How many tokens of a prompt hit; what is generated behind it is right."""
    request = make_request(name, prompt, 6, **fields)
    count = cached_tokens(core, request)
    run_to_end(core)
    keeper(core).shelf.check()
    return count


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_a_pinned_prompt_is_found_after_a_restart(tmp_path: Path, runs_ahead: bool) -> None:
    core = start(tmp_path, runs_ahead=runs_ahead)
    pin(core, PROMPT)
    save(core)
    assert core.stats().kept_files == 1

    core = start(tmp_path, runs_ahead=runs_ahead)
    core.submit(make_request("r", PROMPT, 6))
    assert run_to_end(core)["r"] == expected_output(PROMPT, 6)
    assert core.stats().cached_tokens == 4 * BLOCKS
    assert core.stats().restored_blocks == BLOCKS
    # It is there now, and read no more.
    assert found(core, name="again") >= 4 * BLOCKS
    assert core.stats().restored_blocks == BLOCKS


def test_blocks_on_disk_are_told_by_owner(tmp_path: Path) -> None:
    core = start(tmp_path)
    pin(core, PROMPT)
    pin(core, PROMPT[4:], "b")
    save(core)
    assert core.roll().on_disk == {"": 2 * BLOCKS - 1}
    core.forget_others({"a": "", "b": ""})
    assert core.roll().on_disk == {"a": BLOCKS, "b": BLOCKS - 1}
    core.keep_under("c", "")
    core.forget_tenant("b")
    assert core.roll().on_disk == {"a": BLOCKS}
    keeper(core).shelf.check()
    core.close(5.0)
    assert simulated_core().roll().on_disk == {}


def test_what_is_to_be_kept_is_saved_at_the_end(tmp_path: Path) -> None:
    core = start(tmp_path)
    pin(core, PROMPT)
    core.close(5.0)
    assert found(start(tmp_path)) == 4 * BLOCKS


def test_what_a_tenant_leases_is_found_after_a_restart_and_still_leased(tmp_path: Path) -> None:
    core = start(tmp_path)
    core.submit(make_request("r", PROMPT, 9, cache=CachePolicy(lease_s=600.0)))
    answer = run_to_end(core)["r"]
    core.close(5.0)
    core = start(tmp_path)
    turn = [*PROMPT, *answer, *PROMPT[:5]]
    num_blocks = (len(PROMPT) + len(answer)) // 4
    assert found(core, turn) == 4 * num_blocks
    assert core.stats().restored_blocks == num_blocks
    leases = core.scheduler.pool.leases
    assert leases.num_blocks >= num_blocks
    left, seconds, _ = leases.longest(next(iter(leases.blocks))) or (0.0, 0.0, "")
    assert 590 < left <= seconds == 600


def test_a_lease_that_has_run_out_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = start(tmp_path)
    core.submit(make_request("r", PROMPT, 2, cache=CachePolicy(lease_s=600.0)))
    run_to_end(core)
    save(core)
    assert len(kept_files(tmp_path)) == 1
    later = time.time() + 601
    monkeypatch.setattr(folder.time, "time", lambda: later)
    core = start(tmp_path)
    assert not kept_files(tmp_path)
    assert found(core) == 0


def test_a_lease_that_is_renewed_keeps_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = [0.0]
    core = start(tmp_path, clock=lambda: passed[0])
    core.submit(make_request("r", PROMPT, 2, cache=CachePolicy(lease_s=600.0)))
    run_to_end(core)
    save(core)
    (path,) = kept_files(tmp_path)
    until, now = path.stat().st_mtime, time.time
    passed[0] = 300.0
    monkeypatch.setattr(saving.time, "time", lambda: now() + 300)
    found(core)
    save(core)
    core.close()
    assert path.stat().st_mtime == pytest.approx(until + 300, abs=60)


def test_it_is_saved_beside_steps_without_being_asked(tmp_path: Path) -> None:
    core = start(tmp_path)
    pin(core, PROMPT)
    deadline = time.monotonic() + 20
    while not core.stats().kept_files and time.monotonic() < deadline:
        core.submit(make_request("r", PROMPT[:9], 6))
        run_to_end(core)
    assert core.stats().kept_files == 1
    assert core.rest_seconds is not None, "an idle engine looks again"


def test_what_nobody_has_pinned_is_not_kept(tmp_path: Path) -> None:
    core = start(tmp_path)
    found(core)
    core.close(5.0)
    assert not kept_files(tmp_path)


def test_who_has_another_key_finds_nothing(tmp_path: Path) -> None:
    core = start(tmp_path)
    pin(core, PROMPT)
    save(core)
    core = start(tmp_path)
    assert found(core, tenant="b") == 0
    assert found(core, user="somebody") == 0
    assert found(core, name="own") == 4 * BLOCKS


def test_a_chain_goes_on_in_the_end_users_namespace(tmp_path: Path) -> None:
    core = start(tmp_path)
    pin(core, PROMPT, user="u", shared_tokens=20)
    save(core)
    assert len(kept_files(tmp_path)) == 2, "each namespace has a file of its own"
    core = start(tmp_path)
    assert found(core, user="v", shared_tokens=20) == 20
    assert found(core, name="own", user="u", shared_tokens=20) == 4 * BLOCKS


def test_a_shared_head_is_written_once(tmp_path: Path) -> None:
    core = start(tmp_path)
    pin(core, PROMPT)
    save(core)
    longer = PROMPT[:32] + random_prompt(random.Random(2), 16)
    pin(core, longer)
    save(core)
    sizes = [len(files.read_head(path)[0].names) for path in kept_files(tmp_path)]
    assert sorted(sizes) == [4, BLOCKS]
    core = start(tmp_path)
    assert found(core, longer) == 44, "the last token is computed in any case"
    assert found(core, name="first") == 4 * BLOCKS


def test_only_what_is_missing_is_read(tmp_path: Path) -> None:
    core = start(tmp_path)
    pin(core, PROMPT)
    save(core)
    core = start(tmp_path)
    assert found(core, PROMPT[:17]) == 16
    assert core.stats().restored_blocks == 4
    assert found(core, name="all") == 4 * BLOCKS
    assert core.stats().restored_blocks == BLOCKS


def test_a_policy_bounds_what_is_read(tmp_path: Path) -> None:
    core = start(tmp_path)
    pin(core, PROMPT)
    save(core)
    core = start(tmp_path)
    assert found(core, cache=False) == 0
    assert found(core, name="some", cache=CachePolicy(up_to=12)) == 12
    assert core.stats().restored_blocks == 3


def test_two_requests_wait_for_one_reading(tmp_path: Path) -> None:
    core = start(tmp_path)
    pin(core, PROMPT)
    save(core)
    core = start(tmp_path)
    for name in "xy":
        core.submit(make_request(name, PROMPT, 6))
    outputs = run_to_end(core)
    assert outputs == dict.fromkeys("xy", expected_output(PROMPT, 6))
    assert core.stats().restored_blocks == BLOCKS
    assert core.stats().cached_tokens == 8 * BLOCKS


def test_deleting_a_tenant_removes_its_files(tmp_path: Path) -> None:
    core = start(tmp_path)
    pin(core, PROMPT)
    pin(core, PROMPT, "b")
    save(core)
    assert len(kept_files(tmp_path)) == 2
    core.forget_tenant("a")
    save(core)
    core.close(5.0)
    assert len(kept_files(tmp_path)) == 1
    core = start(tmp_path)
    assert found(core) == 0
    assert found(core, tenant="b") == 4 * BLOCKS


def test_an_aborted_request_waits_no_more(tmp_path: Path) -> None:
    core = start(tmp_path)
    pin(core, PROMPT)
    save(core)
    core = start(tmp_path)
    core.submit(make_request("r", PROMPT, 6, num_sequences=2))
    (one,) = core.abort("r", 0)
    assert (one.index, one.finish_reason) == (0, "aborted")
    assert not core.abort("r", 0)
    core.submit(make_request("s", PROMPT, 6))
    (one,) = core.abort("s")
    assert one.finish_reason == "aborted"
    assert run_all_to_end(core) == {"r": {1: expected_output(PROMPT, 6, 1)}}
    core.scheduler.check()


def test_a_damaged_file_is_dropped_with_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    core = start(tmp_path)
    pin(core, PROMPT)
    save(core)
    (path,) = kept_files(tmp_path)
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    spoil(path, content)
    core = start(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert found(core) == 0
    assert [record.message for record in caplog.records] == [
        f"kept file {path.name} is dropped: it was changed, or sealed with another key"
    ]
    core.close()
    assert not path.exists()


def test_a_file_that_is_not_whole_is_dropped_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    core = start(tmp_path)
    pin(core, PROMPT)
    save(core)
    (path,) = kept_files(tmp_path)
    spoil(path, path.read_bytes()[:-1])
    with caplog.at_level(logging.WARNING):
        core = start(tmp_path)
    assert [record.message for record in caplog.records] == [
        "1 kept files are dropped: it is not whole"
    ]
    assert not path.exists()
    assert found(core) == 0


def test_files_of_another_model_are_dropped(tmp_path: Path) -> None:
    core = start(tmp_path)
    pin(core, PROMPT)
    save(core)
    assert found(start(tmp_path, block_size=8)) == 0
    assert not kept_files(tmp_path)


def test_the_disk_is_bounded(tmp_path: Path) -> None:
    core = start(tmp_path, num_blocks=256, kept_bytes=3 * 4096)
    for count in range(6):
        pin(core, random_prompt(random.Random(count), 40 + count))
        save(core)
        assert len(kept_files(tmp_path)) <= 3
        assert core.stats().kept_bytes <= 3 * 4096
    first, last = (random_prompt(random.Random(n), 40 + n) for n in (0, 5))
    assert found(start(tmp_path, num_blocks=256), first) == 36, "what is pinned stays"
    core.scheduler.pins.unpin("a/40")
    save(core)
    assert found(start(tmp_path, num_blocks=256), last, name="l") == 0
    core.scheduler.pins.unpin("a/41")
    pin(core, PROMPT)
    save(core)
    assert found(start(tmp_path, num_blocks=256)) == 4 * BLOCKS


def test_a_disk_that_is_full_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    core = start(tmp_path)
    pin(core, PROMPT)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(files.os, "fsync", full)
        save(core)
    assert "No space left on device" in caplog.text
    assert not kept_files(tmp_path)
    save(core)
    assert len(kept_files(tmp_path)) == 1


def test_a_slow_disk_is_waited_for_no_longer_than_computing_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = start(tmp_path)
    pin(core, PROMPT)
    save(core)
    core = start(tmp_path)
    never: Future[float] = Future()
    never.set_running_or_notify_cancel()
    reads = keeper(core).restorer._reads
    monkeypatch.setattr(reads, "submit", lambda tenant, work: never)
    monkeypatch.setattr(restoring, "LONGEST_WAIT_SECONDS", 0.01)
    core.submit(make_request("r", PROMPT, 6))
    assert run_to_end(core)["r"] == expected_output(PROMPT, 6)
    assert core.stats().cached_tokens == 0
    # What comes too late finds its place taken.
    never.set_result(0.01)
    core.step()
    core.scheduler.check()
    assert found(core, name="later") >= 4 * BLOCKS


def test_what_is_computed_sooner_is_not_read(tmp_path: Path) -> None:
    core = start(tmp_path)
    pin(core, PROMPT)
    save(core)
    core = start(tmp_path, always_reads=False)
    core.scheduler.pace.observe(0, 1e9, 1e-3)
    assert found(core) == 0
    assert core.stats().restored_blocks == 0


def test_blocks_of_running_requests_make_no_room(tmp_path: Path) -> None:
    core = start(tmp_path, num_blocks=16)
    pin(core, PROMPT)
    save(core)
    core = start(tmp_path, num_blocks=16)
    long = random_prompt(random.Random(9), 36)
    core.submit(make_request("long", long, 20, tenant="b"))
    core.step()
    core.submit(make_request("r", PROMPT, 4))
    outputs = run_to_end(core)
    assert outputs == {"long": expected_output(long, 20), "r": expected_output(PROMPT, 4)}
