"""Which blocks go first where a model has states: what is worth least, with keys of its own."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from engine.api import EVERYTHING, Kind
from engine.blocks.eviction.leases import LeaseTerms
from engine.blocks.eviction.worth import Purpose
from engine.blocks.pool import BlockPool

STATE_PAGES = 4
KINDS = (EVERYTHING, Kind(is_state=True, pages=STATE_PAGES))
OWNER = "a"


class Texts:
    """A pool, and texts whose blocks and states are left there as sequences leave them."""

    def __init__(self, num_pages: int) -> None:
        self.now = 0.0
        self.pool = BlockPool(num_pages, clock=lambda: self.now, kinds=KINDS)

    def compute(
        self, text: str, ends: dict[int, Purpose] | None = None, owner: str = OWNER
    ) -> None:
        """A block for each letter, states behind some of them; the last one if nothing is said."""
        self.now += 1
        names = [text[: end + 1].encode() for end in range(len(text))]
        held = self.pool.find(names)
        self.pool.acquire(held)
        self.pool.came_back(names, len(held))
        for name in names[len(held) :]:
            (block,) = self.pool.allocate(1, owner)
            self.pool.register(block, name, parent=name[:-1] or None)
            held.append(block)
        for end, purpose in (ends or {len(text): Purpose.LAST}).items():
            if not self.pool.find([names[end - 1]], 1):
                (state,) = self.pool.allocate(1, owner, 1)
                self.pool.register(state, names[end - 1], kind=1, purpose=purpose)
                held.append(state)
        self.pool.release(held)
        self.pool.check()

    def keys(self, text: str) -> int:
        """Of how many leading blocks there are keys."""
        return len(self.pool.find([text[: end + 1].encode() for end in range(len(text))]))

    def states(self, *texts: str) -> list[bool]:
        """Whether each has one behind its last block."""
        return [bool(self.pool.find([text.encode()], 1)) for text in texts]

    def need(self, num_pages: int) -> None:
        """Take so many, and give them back."""
        self.pool.release(self.pool.allocate(num_pages, OWNER))
        self.pool.check()


def test_keys_that_no_state_makes_use_of_go_first() -> None:
    texts = Texts(20)
    texts.compute("abcdef", {2: Purpose.PROMPT})
    texts.compute("xy")
    texts.need(20 - 4 - 2 - 4 - 2)
    assert (texts.keys("abcdef"), texts.states("ab", "xy")) == (2, [True, True])


def test_a_state_goes_with_the_keys_that_it_alone_uses() -> None:
    texts = Texts(24)
    texts.compute("abcdef", {2: Purpose.PROMPT, 6: Purpose.LAST})
    texts.compute("abxyz")
    texts.now += 1000
    texts.compute("abxyz")  # somebody comes back to it, and nobody to the other one
    texts.need(24 - len("abxyz") - STATE_PAGES)
    assert texts.states("abcdef", "abxyz") == [False, True]
    assert (texts.keys("abcdef"), texts.keys("abxyz")) == (2, 5)


def test_what_saves_more_for_its_memory_stays() -> None:
    texts = Texts(40)
    texts.compute("a" * 12)
    texts.compute("b" * 2)
    texts.need(40 - 12 - 4)
    assert texts.states("a" * 12, "b" * 2) == [True, False]


def test_who_came_for_what_is_gone_has_a_state_left_there_again() -> None:
    texts = Texts(14)
    texts.compute("abc")
    texts.compute("abcdef", {6: Purpose.LAST})
    texts.need(14)
    assert texts.states("abc", "abcdef") == [False, False]
    names = ["abcdefgh"[: end + 1].encode() for end in range(8)]
    assert list(texts.pool.came_back(names, 0)) == [3, 6]
    assert list(texts.pool.came_back(names, 3)) == [6]


def test_what_is_leased_stays_and_goes_once_its_lease_is_over() -> None:
    texts = Texts(20)
    texts.compute("ab")
    texts.compute("x" * 6)
    texts.pool.lease([(b"a", 0), (b"ab", 0), (b"ab", 1)], LeaseTerms(OWNER, 60.0))
    texts.need(14)
    assert texts.states("ab", "x" * 6) == [True, False]
    texts.now += 61
    texts.compute("y" * 4)
    texts.need(12)
    assert texts.states("ab", "y" * 4) == [False, True]


def test_of_kinds_of_places_those_that_are_come_back_to_stay() -> None:
    texts = Texts(600)
    for number in range(40):
        letter = chr(ord("A") + number)
        texts.compute(letter * 4, {2: Purpose.SAID, 4: Purpose.LAST})
        texts.compute(letter * 2 + "!!", {4: Purpose.LAST})  # always from where it was said
    kept = 600 - texts.pool.num_free
    texts.need(600 - kept // 2)
    letters = [chr(ord("A") + number) for number in range(40)]
    said = sum(texts.states(*(letter * 2 for letter in letters)))
    last = sum(texts.states(*(letter * 4 for letter in letters)))
    assert said > 2 * last


@given(
    st.lists(
        st.tuples(st.text("ab", min_size=1, max_size=9), st.sets(st.integers(1, 9), max_size=3)),
        max_size=40,
    )
)
def test_the_books_are_in_order_whatever_is_computed(asked: Sequence[tuple[str, set[int]]]) -> None:
    texts = Texts(24)
    for number, (text, ends) in enumerate(asked):
        places = {end: Purpose.SAID for end in sorted(ends) if end <= len(text)}
        needed = len(text) + STATE_PAGES * max(1, len(places))
        if needed <= 24:
            texts.compute(text, places or None, owner="ab"[number % 2])
        if number % 7 == 6:
            texts.pool.forget_owner("b")
            texts.pool.check()
    texts.need(24)
    assert texts.pool.num_free == 24
