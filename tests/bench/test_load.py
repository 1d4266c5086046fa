"""Load: when requests are sent, and what counts as served."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise
from time import perf_counter

import pytest

from bench.common.drivers import Ask, DriverError, Timing
from bench.common.load import Arrival, Phase, Sent, evenly, most_per_s, poisson, send_as_due


def ask(question: str = "now") -> Ask:
    return Ask(api_key="key", system="", question=question, output_tokens=2)


def arrival(due_seconds: float, tenant: str = "a", question: str = "now") -> Arrival:
    return Arrival(due_seconds=due_seconds, tenant=tenant, ask=ask(question))


class Scripted:
    """Answers by the question: "now" at once, "never", or "fail"; notes what it was asked."""

    def __init__(self) -> None:
        self.running = 0
        self.most_running = 0
        self.asked: list[str] = []

    async def ask(self, ask: Ask, timing: Timing) -> None:
        self.asked.append(ask.question)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        timing.sent_at = perf_counter()
        try:
            await asyncio.sleep(0.001)
            if ask.question == "fail":
                raise DriverError("no")
            if ask.question == "never":
                await asyncio.Event().wait()
            timing.arrivals += [perf_counter(), perf_counter()]
            timing.prompt_tokens = 10
        finally:
            self.running -= 1

    async def close(self) -> None:
        """Nothing is open."""


async def test_an_open_loop_does_not_wait_for_answers() -> None:
    driver = Scripted()
    phase = await send_as_due(
        driver,
        [arrival(0.0, "slow", "never"), arrival(0.0, "slow", "never"), arrival(0.01)],
        seconds=0.02,
        awaited=["a"],
        grace_seconds=5.0,
    )
    assert driver.most_running == 3
    assert [one.answered for one in phase.sent] == [False, False, True]
    assert driver.running == 0, "what was not answered has been broken off"


async def test_awaited_answers_get_the_grace_and_others_do_not() -> None:
    driver = Scripted()
    started = perf_counter()
    phase = await send_as_due(
        driver, [arrival(0.0, "a", "never")], seconds=0.01, awaited=["b"], grace_seconds=60.0
    )
    assert perf_counter() - started < 30.0
    phase = await send_as_due(
        driver, [arrival(0.0, "a", "never")], seconds=0.01, awaited=["a"], grace_seconds=0.1
    )
    assert phase.ended_at - phase.started_at >= 0.1


async def test_a_request_without_an_answer_counts_with_how_long_it_has_waited() -> None:
    driver = Scripted()
    phase = await send_as_due(
        driver,
        [arrival(0.0, "a", "never"), arrival(0.0, "a", "fail"), arrival(9.0)],
        seconds=0.05,
        awaited=[],
        grace_seconds=0.0,
    )
    (waited,) = phase.ttfts(["a"])
    assert waited >= 0.04
    assert phase.sent[1].timing.error == "no"


async def test_a_load_that_is_hopeless_is_broken_off() -> None:
    driver = Scripted()
    phase = await send_as_due(
        driver,
        [arrival(0.0, "a", "never"), arrival(0.0, "a"), arrival(60.0)],
        seconds=60.0,
        awaited=["a"],
        grace_seconds=60.0,
        hopeless=lambda sent: any(one.answered for one in sent),
    )
    assert phase.ended_at - phase.started_at < 30.0
    assert [one.answered for one in phase.sent] == [False, True, False]
    assert driver.running == 0


def sent(tenant: str, times: list[float], prompt_tokens: int) -> Sent:
    timing = Timing(sent_at=0.5, arrivals=times, prompt_tokens=prompt_tokens)
    return Sent(arrival(0.0, tenant), timing, answered=prompt_tokens > 0)


def test_served_tokens_are_those_of_the_time_asked_for() -> None:
    phase = Phase(
        [
            sent("a", [101.0, 102.0, 103.0], 20),
            sent("a", [104.0], 0),  # broken off: as long as the others on average
            sent("b", [101.5], 40),
            sent("b", [], 0),
        ],
        started_at=100.0,
        ended_at=110.0,
    )
    assert phase.served_tokens(["a"], 0.0, 10.0) == 20 + 3 + 30 + 1
    assert phase.served_tokens(["a"], 1.5, 3.5) == 2
    assert phase.served_tokens(["a", "b"], 0.0, 3.5) == 20 + 3 + 40 + 1
    assert phase.gaps(["a"]) == [1.0, 1.0]
    assert phase.ttfts(["b"]) == [101.0, 109.5]


def test_a_poisson_process_has_its_rate_and_is_the_same_every_time() -> None:
    times = poisson(5.0, 1000.0, random.Random(1))
    assert times == sorted(times)
    assert 4700 < len(times) < 5300
    assert times == poisson(5.0, 1000.0, random.Random(1))
    assert times != poisson(5.0, 1000.0, random.Random(2))


def test_even_arrivals_keep_their_distance() -> None:
    times = evenly(2.0, 50.0, random.Random(1))
    assert len(times) == 100
    assert times[0] > 0
    assert times[-1] < 50.0
    gaps = [after - before for before, after in pairwise(times)]
    assert min(gaps) >= 0.25
    assert len(set(gaps)) > 90, "but not a fixed one"


async def test_the_capacity_is_found_with_every_sender_busy() -> None:
    driver = Scripted()
    found = await most_per_s(driver, lambda label: ask(label), senders=3, seconds=0.2)
    assert found > 0
    assert driver.most_running == 3
    assert len(set(driver.asked)) == len(driver.asked)


@pytest.mark.parametrize(("question", "error"), [("fail", "no"), ("never", "nothing was answered")])
async def test_a_capacity_that_cannot_be_found_is_an_error(question: str, error: str) -> None:
    with pytest.raises(DriverError, match=error):
        await most_per_s(Scripted(), lambda _: ask(question), senders=2, seconds=0.05)
