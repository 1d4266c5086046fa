"""Which place is worth least: by its sort, by who falls back to it, by what replaced it."""

from typing import TypeVar

from engine.blocks.eviction.places import Places

Name = TypeVar("Name", str, int)


def offer(places: Places[Name], *names: Name, kind: str = "turn", now: float = 0.0) -> None:
    for name in names:
        places.add(name, kind, 0, now)
        places.offer(name)


def give_up(places: Places[Name], name: Name, heir: Name | None = None) -> None:
    places.withdraw(name)
    places.forget(name, heir)
    assert name not in places.offered()


def alike(_: str) -> float:
    return 1.0


def test_the_one_that_saves_least_a_byte_goes_first() -> None:
    places: Places[str] = Places()
    offer(places, "a", "b", "c")
    gains = {"a": 2.0, "b": 1.0, "c": 3.0}
    assert places.least(10.0, gains.__getitem__) == "b"
    places.withdraw("b")
    assert places.least(10.0, gains.__getitem__) == "a", "what is in use stays"


def test_of_equal_gain_the_one_that_waits_longer_goes_first() -> None:
    places: Places[str] = Places()
    offer(places, "old")
    offer(places, "new", now=100.0)
    assert places.least(101.0, alike) == "old"
    places.returned("old", now=290.0)
    assert places.least(300.0, alike) == "new"


def test_a_place_that_was_replaced_goes_before_all_others_unless_somebody_comes_back() -> None:
    places: Places[str] = Places()
    offer(places, "precious", "other")
    places.replaced("precious")
    gains = {"precious": 100.0, "other": 1.0}
    assert places.least(1.0, gains.__getitem__) == "precious"
    places.returned("precious", now=1.0)
    assert places.least(2.0, gains.__getitem__) == "other"


def test_whoever_came_for_what_was_given_up_falls_back_to_the_place_before() -> None:
    places: Places[str] = Places()
    offer(places, "before", "behind", "stranger")
    places.passed("before", now=0.0)
    give_up(places, "behind", heir="before")
    assert "behind" not in places
    assert places.remembers("behind")
    assert places.least(50.0, alike) == "stranger", "two wait at the place before"
    places.returned("behind", now=50.0)
    assert places.least(60.0, alike) == "before", "the one behind has come, and gone on"


def test_wards_go_on_to_the_next_heir() -> None:
    places: Places[str] = Places()
    offer(places, "first", "second", "third", "stranger")
    give_up(places, "third", heir="second")
    give_up(places, "second", heir="first")
    assert places.least(50.0, alike) == "stranger"


def test_places_that_are_come_back_to_are_learnt_by_kind() -> None:
    places: Places[int] = Places()
    for number in range(200):
        now = 100.0 * number
        offer(places, number, kind="seldom" if number % 2 else "often", now=now)
        if number % 2 == 0:
            places.returned(number, now + 20.0)
        give_up(places, number)
        places.learn(now + 50.0)
    offer(places, 1_000, kind="seldom", now=30_000.0)
    offer(places, 1_001, kind="often", now=30_000.0)
    assert places.least(30_001.0, lambda _: 1.0) == 1_000


def test_a_place_with_many_neighbours_is_found_by_drawing() -> None:
    places: Places[int] = Places()
    for number in range(1_000):
        offer(places, number)
    gone = []
    for _ in range(500):
        least = places.least(1.0, lambda number: number + 1.0)
        give_up(places, least)
        gone.append(least)
    assert len(places) == 500
    assert sum(gone) / len(gone) < 300, "most of them are of the lower half"


def test_only_so_many_places_are_remembered() -> None:
    places: Places[int] = Places()
    for number in range(2_000):
        offer(places, number, now=float(number))
        give_up(places, number)
        places.learn(float(number))
    remembered = sum(places.remembers(number) for number in range(2_000))
    assert remembered == 256
    assert places.remembers(1_999)
