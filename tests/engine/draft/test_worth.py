"""How many guesses pay, and how that is learned."""

import random
from math import log1p

import pytest

from engine.draft.drafter import Acceptance
from engine.draft.worth import FREE_ROWS, Market, RowCosts

HERE = RowCosts(((1, 8.6), (4, 9.5), (8, 10.4), (16, 15.9), (32, 32.0)), per_key=0.0005)


def market(costs: RowCosts, num_decoding: int, room: int = 63) -> Market:
    curve = costs.curve(num_decoding + room)
    step = curve[num_decoding]
    added = [seconds - step for seconds in curve[num_decoding + 1 :]]
    return Market(step, step / num_decoding, added)


def chances(right: float, count: int = 16) -> list[float]:
    return [right ** (guess + 1) for guess in range(count)]


def test_a_curve_goes_through_its_points_and_on_behind_them() -> None:
    curve = HERE.curve(40)
    assert [curve[rows] for rows in (1, 4, 8, 16, 32)] == [8.6, 9.5, 10.4, 15.9, 32.0]
    assert curve[6] == pytest.approx((9.5 + 10.4) / 2)
    assert curve[40] == pytest.approx(32.0 + 8 * (32.0 - 15.9) / 16)
    assert len(curve) == 41
    assert HERE.curve(20) == curve[:21]
    assert set(FREE_ROWS.curve(9)) == {1.0}


def test_drafts_are_as_long_as_they_are_likely_to_be_right() -> None:
    alone = market(HERE, 1)
    lengths = [alone.lengths([chances(right)], [0.0])[0] for right in (0.02, 0.3, 0.6, 0.9, 0.99)]
    assert lengths == sorted(lengths)
    assert lengths[0] == 0
    assert lengths[-1] >= 14


def test_drafts_grow_shorter_with_the_batch_and_vanish_in_a_full_one() -> None:
    totals = []
    for num_decoding in (1, 4, 16, 60):
        found = market(HERE, num_decoding).lengths([chances(0.6)] * num_decoding, [0.0] * 60)
        totals.append(sum(found) / num_decoding)
    assert totals == sorted(totals, reverse=True)
    assert totals[-1] == 0
    assert not market(HERE, 64, room=0).is_open


def test_the_surest_guesses_come_first() -> None:
    few = market(FREE_ROWS, 2, room=6)
    assert few.lengths([chances(0.9, 4), chances(0.5, 4)], [0.0, 0.0]) == [4, 2]


def test_alone_the_rate_decides_and_among_many_nobody_pays_for_what_one_repeats() -> None:
    sure = chances(0.97)
    assert market(HERE, 1).lengths([sure], [0.0])[0] >= 14
    crowd = market(HERE, 8)
    together, single = crowd.lengths([sure] * 8, [0.0] * 8), crowd.lengths([sure], [0.0])
    assert min(together) > 0
    assert single[0] < 8


def test_long_contexts_make_guesses_dear() -> None:
    alone = market(HERE, 1)
    short, long = (alone.lengths([chances(0.6)], [keys])[0] for keys in (0.1, 4.0))
    assert 0 < long < short


def test_no_choice_is_better_than_the_one_made() -> None:
    rng = random.Random(5)
    for _ in range(200):
        drafts = [chances(rng.random(), rng.randrange(4)) for _ in range(3)]
        keys = [rng.choice([0.0, 0.5, 1.0])] * 3
        found = market(HERE, 3, room=9)

        def saved(lengths: list[int], drafts=drafts, keys=keys, found=found) -> float:  # type: ignore[no-untyped-def]
            gained = sum(log1p(sum(draft[:n])) for draft, n in zip(drafts, lengths, strict=True))
            cost = sum(key * n for key, n in zip(keys, lengths, strict=True))
            rows = sum(lengths)
            cost += found.added[rows - 1] if rows else 0.0
            return gained * found.token - found.step * log1p(cost / found.step)

        options = [
            [a, b, c]
            for a in range(len(drafts[0]) + 1)
            for b in range(len(drafts[1]) + 1)
            for c in range(len(drafts[2]) + 1)
        ]
        best = max(saved(option) for option in options)
        chosen = found.lengths(drafts, keys)
        assert saved(chosen) == pytest.approx(best) or (
            not any(chosen) and best <= 0.03 * found.step
        )


def test_a_level_is_trusted_as_often_as_it_was_right() -> None:
    learned = Acceptance([0.5, 0.5])
    rng = random.Random(2)
    for _ in range(300):
        right = rng.random() < 0.9
        learned.learn([0], int(right))
        learned.learn([1], 0)
    first, second = learned.chances([0])[0], learned.chances([1])[0]
    assert first > 0.75
    assert second < 0.1
    assert learned.chances([0, 1]) == [first, pytest.approx(first * second)]


def test_guesses_behind_a_wrong_one_teach_nothing() -> None:
    learned = Acceptance([0.5, 0.5, 0.5])
    before = learned.chances([2])
    learned.learn([0, 1, 2], 1)
    assert learned.chances([2]) == before
    assert learned.chances([0])[0] > 0.5 > learned.chances([1])[0]


def test_what_has_become_wrong_is_learned_again() -> None:
    learned = Acceptance([0.5])
    for _ in range(50):
        learned.learn([0], 1)
    assert learned.chances([0])[0] > 0.9
    for _ in range(30):
        learned.learn([0], 0)
    assert learned.chances([0])[0] < 0.2
