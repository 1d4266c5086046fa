"""The index of who holds which block."""

from __future__ import annotations

import random

import pytest

from app.cluster.routing.index import PrefixIndex


def chain(name: str, count: int) -> list[bytes]:
    return [random.Random(f"{name} {index}").randbytes(16) for index in range(count)]


def test_a_replica_has_as_much_of_a_chain_as_it_has_without_a_gap() -> None:
    index, hashes = PrefixIndex(), chain("a", 6)
    index.stored(0, hashes)
    index.stored(1, hashes[:2])
    index.stored(2, hashes[1:])
    assert index.depths(hashes) == {0: 6, 1: 2}
    assert index.depths(hashes[:1]) == {0: 1, 1: 1}
    index.removed(0, hashes[3:4])
    assert index.depths(hashes) == {0: 3, 1: 2}
    assert index.depths([]) == {}
    assert index.depths(chain("b", 3)) == {}


def test_what_is_stored_twice_is_removed_at_once() -> None:
    index, hashes = PrefixIndex(), chain("a", 2)
    index.stored(0, hashes)
    index.stored(0, hashes)
    index.removed(0, hashes)
    assert index.depths(hashes) == {}
    assert len(index) == 0


def test_a_cleared_replica_has_nothing_at_once_and_begins_anew() -> None:
    index, hashes = PrefixIndex(), chain("a", 8)
    for replica in (0, 1):
        index.stored(replica, hashes)
    index.cleared(0)
    assert index.depths(hashes) == {1: 8}
    index.removed(0, hashes)  # of the former life: it arrives late, and changes nothing
    assert index.depths(hashes) == {1: 8}
    index.stored(0, hashes[:3])
    assert index.depths(hashes) == {0: 3, 1: 8}
    index.cleared(2)  # nobody knows it


def test_former_lives_are_swept_out() -> None:
    index, hashes = PrefixIndex(), chain("a", 3000)
    index.stored(0, hashes)
    index.cleared(0)
    for _ in range(40):
        index.stored(1, hashes[:1])
    index.cleared(2)  # nobody knows it
    assert len(index) == 1


def test_who_is_cleared_while_others_are_swept_out_is_swept_out_too() -> None:
    index, hashes = PrefixIndex(), chain("a", 6000)
    index.stored(0, hashes[:3000])
    index.stored(1, hashes[3000:])
    index.cleared(0)
    index.stored(2, hashes[:1] * 80)  # half of the buckets
    index.cleared(1)
    assert len(index) > 3000
    index.stored(2, hashes[:1] * 600)
    assert len(index) == 1
    assert index.depths(hashes) == {2: 1}


@pytest.mark.parametrize("seed", range(4))
def test_it_says_what_plain_sets_say(seed: int) -> None:
    rng = random.Random(seed)
    index, chains = PrefixIndex(), [chain(f"{seed} {name}", 12) for name in range(6)]
    books: dict[int, set[bytes]] = {replica: set() for replica in range(5)}
    for _ in range(2000):
        replica, hashes = rng.randrange(5), rng.choice(chains)
        some = hashes[: rng.randrange(13)] if rng.random() < 0.7 else rng.sample(hashes, 3)
        what = rng.random()
        if what < 0.55:
            index.stored(replica, some)
            books[replica].update(some)
        elif what < 0.98:
            index.removed(replica, some)
            books[replica].difference_update(some)
        else:
            index.cleared(replica)
            books[replica].clear()
        asked = rng.choice(chains)
        depths = {
            one: next((n for n, key in enumerate(asked) if key not in held), len(asked))
            for one, held in books.items()
        }
        assert index.depths(asked) == {one: depth for one, depth in depths.items() if depth}
