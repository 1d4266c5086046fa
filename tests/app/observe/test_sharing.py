"""What sharing is worth: exact, of all and by name, today and now, in bounded memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.observe import sharing
from app.observe.sharing import MOST_NAMES, Board, Row, Saved, Sharing
from tenants.usage.prices import FREE, Prices

PRICES = Prices(currency="EUR", input=300, cached=30, written=400, output=900)
MIDNIGHT = 1_800_057_600.0


class Clock:
    now = MIDNIGHT + 3600

    def __call__(self) -> float:
        return self.now


def one(prompt: int, found: int, seconds: float = 0.0) -> Saved:
    return Saved.by_one(prompt, found, seconds, PRICES)


def test_money_is_what_computing_them_would_cost_and_what_of_that_nobody_paid() -> None:
    assert one(100, 80, 0.5) == Saved(1, 100, 80, 0.5, 80 * 300, 80 * 270)
    assert Saved.by_one(100, 80, 0.5, FREE) == Saved(1, 100, 80, 0.5, 0, 0)
    dear = Prices(currency="EUR", input=30, cached=300)
    assert Saved.by_one(10, 10, 0, dear).discount_nanos == 0, "nobody paid less"
    assert one(100, 80).hit_rate == 0.8
    assert Saved().hit_rate is None


def test_what_was_saved_is_now_for_twenty_seconds_and_today_until_midnight() -> None:
    clock = Clock()
    book = Sharing(clock)
    book.count("acme", one(100, 80), "acme/desk", one(64, 64))
    clock.now += 19
    book.count("acme", one(50, 0))
    both = Saved(2, 150, 80, 0.0, 24_000, 21_600)
    assert book.told(5).tenants == [Row("acme", both, both)]
    assert book.told(5).prompts == [Row("acme/desk", one(64, 64), one(64, 64))]
    clock.now += 1
    assert book.told(5).tenants == [Row("acme", one(50, 0), both)]
    clock.now += 20
    assert book.told(5).tenants == [Row("acme", Saved(), both)]
    assert book.told(5).since == MIDNIGHT + 3600
    clock.now = MIDNIGHT + 24 * 3600 + 5
    assert book.told(5).tenants == []
    assert book.told(5).since == MIDNIGHT + 24 * 3600


def test_those_that_saved_most_are_told_and_the_others_together() -> None:
    book = Sharing(Clock())
    for tenant, found in (("a", 10), ("b", 30), ("c", 20), ("other", 40)):
        book.count(tenant, one(50, found))
    rows = book.told(2).tenants
    assert [(row.name, row.today.found_tokens) for row in rows] == [
        ("b", 30),
        ("c", 20),
        (None, 50),
    ]


def test_who_takes_anothers_place_begins_at_nothing_and_no_token_is_lost() -> None:
    clock = Clock()
    book = Sharing(clock)
    for number in range(MOST_NAMES + 1):
        book.count(f"t{number}", one(100, 50))
    for _ in range(9):
        book.count(f"t{MOST_NAMES}", one(100, 50))
    clock.now += sharing._RANK_SECONDS
    book.count(f"t{MOST_NAMES}", one(100, 50))
    rows = book.told(MOST_NAMES).tenants
    told = {row.name: row.today.requests for row in rows}
    assert told[f"t{MOST_NAMES}"] == 1
    assert len(told) == MOST_NAMES + 1
    assert told[None] == 11
    assert sum(row.today.found_tokens for row in rows) == 50 * (MOST_NAMES + 11)


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(1, 99), st.floats(0, 1), st.integers(0, 9)),
        max_size=60,
    ),
    st.integers(1, 4),
)
def test_rows_add_up_to_all_whoever_they_are(
    order: list[tuple[int, int, float, int]], most: int
) -> None:
    board, second = Board(), 1000
    for name, prompt, part, wait in order:
        second += wait
        board.count(f"t{name}", one(prompt, int(prompt * part)), second)
    for when in ("today", "now"):
        total = Saved()
        for row in board.rows(most, second):
            saved = getattr(row, when)
            total.add(saved)
            assert 0 <= saved.found_tokens <= saved.prompt_tokens
        expected = board.total.today if when == "today" else board.total.lately(second)
        assert total == expected
