"""The compact map of block hashes, and the sets that its values stand for."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.cluster.routing.index import HolderSets
from app.cluster.routing.table import CompactTable

KEYS = st.integers(0, 2**64 - 1) | st.integers(0, 3)
CHANGES = st.lists(st.tuples(st.sampled_from(["default", "replace", "remove"]), KEYS))


@given(CHANGES, st.integers(0, 2**32))
def test_the_table_says_what_a_dict_says(changes: list[tuple[str, int]], seed: int) -> None:
    draw = random.Random(seed)
    table, book = CompactTable(), dict[int, int]()
    for what, key in changes:
        value = draw.getrandbits(32)
        if what == "default":
            before = book.get(key)
            assert table.set_default(key, value) == before
            book.setdefault(key, value)
        elif key not in book:
            with pytest.raises(KeyError):
                table.replace(key, value) if what == "replace" else table.remove(key)
        elif what == "replace":
            table.replace(key, value)
            book[key] = value
        else:
            table.remove(key)
            del book[key]
        assert table.get(key) == book.get(key)
    assert len(table) == len(book)


@pytest.mark.parametrize("bits", [64, 13])
def test_it_says_so_over_many_buckets(bits: int) -> None:
    draw = random.Random(bits)
    table, book = CompactTable(), dict[int, int]()
    for number in range(20_000):
        key = draw.getrandbits(bits)
        assert table.set_default(key, number) == book.get(key)
        book.setdefault(key, number)
        if number % 3 == 0:
            gone = draw.choice([key, number])
            if book.pop(gone, None) is not None:
                table.remove(gone)
            assert table.get(gone) is None
    assert table.num_buckets > 8
    assert all(table.get(key) == value for key, value in book.items())
    found = [item for bucket in range(table.num_buckets) for item in table.items_in(bucket)]
    assert len(found) == len(table) == len(book)
    assert dict(found) == book
    assert set().union(*map(table.values_in, range(table.num_buckets))) == set(book.values())


def test_numbers_of_sets_that_nothing_has_are_given_to_others() -> None:
    sets = HolderSets()
    one, other = sets.take(frozenset({1})), sets.take(frozenset({1, 2}))
    assert sets.take(frozenset({1})) == one != other
    sets.take_again(other, 1)
    for number in (one, other):
        sets.drop(number)
    assert (sets[one], sets[other], len(sets)) == (frozenset({1}), frozenset({1, 2}), 2)
    sets.drop(one)
    assert len(sets) == 1
    assert sets.take(frozenset({3})) == one
    assert sets[one] == frozenset({3})
