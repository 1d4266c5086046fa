"""How soon places of a sort are come back to: hazards by idle time, and the index made of them."""

from engine.blocks.eviction.likelihood import Likelihood, Sort

TURN: Sort = ("turn", "tenant")
PROMPT: Sort = ("prompt", "tenant")


def taught(returns: dict[Sort, list[float]], never: dict[Sort, list[float]]) -> Likelihood:
    likelihood = Likelihood()
    for waits, returned in ((returns, True), (never, False)):
        for sort, idles in waits.items():
            for idle in idles:
                likelihood.over(sort, idle, returned=returned)
    likelihood.learn([])
    return likelihood


def test_before_anything_is_known_who_was_used_last_is_worth_most() -> None:
    likelihood = Likelihood()
    rates = [likelihood.rate(TURN, idle) for idle in (0.5, 5, 50, 500, 5_000)]
    assert rates == sorted(rates, reverse=True)
    assert likelihood.rate(PROMPT, 50) == rates[2]


def test_sorts_that_are_come_back_to_more_often_are_worth_more() -> None:
    likelihood = taught({PROMPT: [10.0] * 50, TURN: [10.0] * 5}, {TURN: [100.0] * 45})
    assert likelihood.rate(PROMPT, 0) > 5 * likelihood.rate(TURN, 0)


def test_an_index_looks_ahead_to_when_others_returned_and_falls_once_that_is_past() -> None:
    likelihood = taught({TURN: [60.0] * 50}, {TURN: [1_000.0] * 50})
    waiting, past = likelihood.rate(TURN, 40), likelihood.rate(TURN, 70)
    assert likelihood.rate(TURN, 2) > past, "most of those that return have yet to"
    assert waiting > likelihood.rate(TURN, 2) > past


def test_waits_that_are_not_over_count_as_far_as_they_have_come() -> None:
    def rate(still: float) -> float:
        likelihood = Likelihood()
        for _ in range(20):
            likelihood.over(TURN, 10.0, returned=True)
        likelihood.learn([(TURN, still)] * 200)
        return likelihood.rate(TURN, 0)

    assert rate(1_000.0) < rate(9.0) / 2, "200 places wait long since, or may yet return"


def test_a_tenant_of_whom_little_is_known_is_taken_for_one_of_its_kind() -> None:
    likelihood = taught({("turn", "loyal"): [10.0] * 100}, {("turn", "fickle"): [100.0] * 100})
    loyal, fickle, unknown = (
        likelihood.rate(("turn", tenant), 0) for tenant in ("loyal", "fickle", "unknown")
    )
    assert loyal > unknown > fickle


def test_what_was_long_ago_counts_less() -> None:
    likelihood = taught({TURN: [10.0] * 20}, {})
    before = likelihood.rate(TURN, 0)
    for _ in range(300):
        likelihood.learn([])
    for _ in range(10):
        likelihood.over(TURN, 100.0, returned=False)
    likelihood.learn([])
    assert likelihood.rate(TURN, 0) < before / 4


def test_of_many_particular_sorts_those_are_known_of_which_a_wait_was_over_last() -> None:
    likelihood = Likelihood()
    for number in range(5_000):
        likelihood.over(("turn", number), 10.0, returned=number >= 4_990)
    likelihood.learn((("turn", number), 5.0) for number in range(5_000))
    first, last = (likelihood.rate(("turn", number), 0) for number in (0, 4_999))
    assert last > 1.5 * first
    assert first == likelihood.rate(("turn", "a stranger"), 0)
    assert len(likelihood._waits) <= 1_025


def test_one_wait_may_stand_for_others() -> None:
    def rate(waiting: int, each: int) -> float:
        likelihood = Likelihood()
        likelihood.over(TURN, 10.0, returned=True)
        likelihood.learn([(TURN, 1_000.0)] * waiting, each)
        return likelihood.rate(TURN, 0)

    assert rate(20, 1) == rate(4, 5) < rate(4, 1)
