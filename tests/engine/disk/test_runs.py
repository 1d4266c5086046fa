"""Runs of blocks: what goes into one file."""

from __future__ import annotations

from engine.blocks.hashing import HASH_BYTES
from engine.disk.files import NO_PARENT
from engine.disk.saving import Candidate, Run, make_runs

ROOT = bytes(HASH_BYTES)


def block(
    number: int, parent: int | None, owner: str = "a", key: bytes = b"k", kind: int = 0
) -> Candidate:
    return Candidate(
        block=number,
        kind=kind,
        block_hash=hash_of(number),
        name=name_of(number),
        parent_hash=ROOT if parent is None else hash_of(parent),
        namespace_key=key,
        owner=owner,
        lease_seconds=9.0,
        until=float(number),
    )


def hash_of(number: int) -> bytes:
    return b"h%015d" % number


def name_of(number: int) -> bytes:
    return b"n%015d" % number


def told(runs: list[Run]) -> list[tuple[bytes, int, list[int]]]:
    return [(run.parent, run.depth, [one.block for one in run.blocks]) for run in runs]


def test_a_chain_is_cut_into_runs_behind_each_other() -> None:
    chain = [block(n, n - 1 if n else None) for n in range(5)]
    runs = make_runs(reversed(chain), {}, 2)
    assert told(runs) == [
        (NO_PARENT, 0, [0, 1]),
        (name_of(1), 2, [2, 3]),
        (name_of(3), 4, [4]),
    ]
    assert [run.until for run in runs] == [1.0, 3.0, 4.0]


def test_a_shared_head_is_in_one_run() -> None:
    blocks = [block(0, None), block(1, 0), block(2, 1), block(3, 1), block(4, 3)]
    assert told(make_runs(blocks, {}, 9)) == [
        (NO_PARENT, 0, [0, 1]),
        (name_of(1), 2, [2]),
        (name_of(1), 2, [3, 4]),
    ]


def test_a_run_is_of_one_owner_and_one_namespace() -> None:
    blocks = [block(0, None), block(1, 0, key=b"other"), block(2, 1, "b", b"other")]
    assert [one[2] for one in told(make_runs(blocks, {}, 9))] == [[0], [1], [2]]


def test_what_is_on_disk_is_continued() -> None:
    runs = make_runs([block(7, 6), block(8, 7)], {hash_of(6): (name_of(6), 6)}, 9)
    assert told(runs) == [(name_of(6), 7, [7, 8])]


def test_what_continues_nothing_that_is_kept_is_left() -> None:
    assert make_runs([block(7, 6), block(8, 7)], {}, 9) == []


def test_where_all_is_forgotten_a_run_begins_anywhere() -> None:
    chain = [block(7, 6), block(8, 7), block(3, None)]
    assert told(make_runs(chain, {}, 9, forgets=True)) == [
        (NO_PARENT, 0, [7, 8]),
        (NO_PARENT, 0, [3]),
    ]


def test_a_run_of_another_kind_begins_where_the_first_kind_goes_on() -> None:
    first = {hash_of(n): (name_of(n), n) for n in range(9)}
    chain = [block(n, n - 1, kind=1) for n in (4, 5, 8)]
    assert told(make_runs(chain, first, 9)) == [(name_of(3), 4, [4, 5]), (name_of(7), 8, [8])]
