"""Which files go when there are too many bytes."""

from __future__ import annotations

import random
from pathlib import Path

from engine.disk.files import NO_PARENT, Head, new_salt
from engine.disk.folder import KeptFile
from engine.disk.shelf import Shelf


def name_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


def make_file(
    owner: str,
    first: int,
    count: int = 2,
    parent: bytes = NO_PARENT,
    num_bytes: int = 100,
    used: float = 0.0,
    until: float = 1e12,
) -> KeptFile:
    head = Head(
        layout=b"",
        salt=new_salt(),
        parent=parent,
        depth=0,
        lease_seconds=9.0,
        block_bytes=8,
        names=tuple(name_of(number) for number in range(first, first + count)),
    )
    return KeptFile(Path(owner) / f"{first}.kept", head, num_bytes, used, until)


def test_a_block_is_found_where_it_is() -> None:
    shelf, file = Shelf(1000), make_file("a", 1, count=3)
    shelf.add(file)
    assert [shelf.find(name_of(n)) for n in (0, 1, 3)] == [None, (file, 0), (file, 2)]
    shelf.drop(file)
    shelf.check()
    assert shelf.find(name_of(1)) is None
    assert (len(shelf), shelf.num_bytes) == (0, 0)


def test_the_least_recently_used_file_goes_first() -> None:
    shelf = Shelf(300)
    old, middle, new = (make_file("a", 10 * n, used=n) for n in range(1, 4))
    for file in (old, middle, new):
        shelf.add(file)
    shelf.use(old, 9.0)
    assert shelf.make_room(100, "a", 1e13, look=1) == [middle]
    assert shelf.make_room(200, "a", 1e13, look=1) == [new]
    shelf.check()


def test_what_a_file_continues_goes_after_it() -> None:
    shelf = Shelf(300)
    root = make_file("a", 10)
    tail = make_file("a", 20, parent=name_of(11))
    stranger = make_file("a", 30)
    for file in (root, tail, stranger):
        shelf.add(file)
    shelf.use(tail, 1.0)
    assert shelf.make_room(300, "a", 1e13, look=1) == [stranger, tail, root]


def test_who_has_most_loses_its_own() -> None:
    shelf = Shelf(500)
    quiet = make_file("quiet", 1)
    shelf.add(quiet)
    for number in range(1, 20):
        victims = shelf.make_room(100, "flood", 1e13, look=1)
        assert victims is not None
        assert {victim.owner for victim in victims} <= {"flood"}
        shelf.add(make_file("flood", 10 * number, used=float(number)))
        shelf.check()
    assert shelf.find(name_of(1)) == (quiet, 0)
    assert shelf.num_bytes == 500
    victims = shelf.make_room(100, "late", 1.0, look=1)
    assert victims is not None
    assert [victim.owner for victim in victims] == ["flood"], "whatever its time"


def test_files_that_are_wanted_take_no_turns() -> None:
    shelf = Shelf(300)
    for number in range(3):
        shelf.add(make_file("a", 10 * number, until=100.0))
    for file in shelf.files:
        file.look = 7
    assert shelf.make_room(100, "a", 90.0, look=7) is None
    assert len(shelf) == 3
    assert shelf.make_room(100, "b", 90.0, look=7) is not None, "b has none"
    for file in shelf.files:
        file.look = 6
    assert shelf.make_room(200, "a", 90.0, look=7) is not None, "nobody has asked for them"
    assert shelf.make_room(400, "a", 90.0, look=7) is None
    shelf.check()


def test_a_smaller_shelf_loses_what_was_used_least() -> None:
    shelf = Shelf(150)
    files = [make_file("a", 10 * n, used=float(n)) for n in range(3)]
    for file in files:
        shelf.add(file)
    assert shelf.shrink() == files[:2]


def test_what_is_past_its_time_is_taken_out() -> None:
    shelf = Shelf(500)
    short, long = make_file("a", 1, until=5.0), make_file("a", 10, until=50.0)
    shelf.add(short)
    shelf.add(long)
    assert shelf.drop_expired(6.0) == [short]
    assert list(shelf.files) == [long]


def test_books_add_up_whatever_comes_and_goes() -> None:
    rng, shelf = random.Random(3), Shelf(2000)
    alive: list[KeptFile] = []
    for number in range(600):
        parent = rng.choice(alive).head.names[-1] if alive and rng.random() < 0.5 else NO_PARENT
        first = 4 * rng.randrange(150)  # the same blocks may be in two files
        file = make_file(rng.choice("abc"), first, 4, parent, rng.randrange(50, 300), number)
        file.path = Path(file.owner) / f"{number}.kept"
        file.look = rng.randrange(2)
        gone = shelf.make_room(file.num_bytes, file.owner, rng.choice([1.0, 1e13]), look=1)
        if gone is None:
            continue
        shelf.add(file)
        alive = [one for one in alive if one not in gone] + [file]
        chance = rng.random()
        if chance < 0.1:
            shelf.drop(alive.pop(rng.randrange(len(alive))))
        elif chance < 0.12:
            owner = rng.choice("abc")
            shelf.drop_owner(owner)
            alive = [one for one in alive if one.owner != owner]
        elif chance < 0.5 and alive:
            shelf.use(rng.choice(alive), float(number))
        shelf.check()
        assert set(shelf.files) == set(alive)
        assert shelf.num_bytes <= 2000
