"""Whose prompt is computed first, of those that are under way."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

from engine.serve.core import EngineCore
from tests.engine.simulated_model import random_prompt
from tests.engine.simulation import make_request, simulated_core

BUDGET = 32


class Prompts:
    """Sends prompts that resemble no others, and tells after how many steps each was computed."""

    def __init__(self, fairness: Literal["vtc", "fcfs"] = "vtc") -> None:
        self.core: EngineCore = simulated_core(
            4_000, step_token_budget=BUDGET, max_running_requests=BUDGET, fairness=fairness
        )
        self.done: dict[str, int] = {}
        self.num_steps = 0
        self._random = random.Random(3)

    def send(self, name: str, length: int, tenant: str, after: Sequence[int] = ()) -> list[int]:
        prompt = [*after, *random_prompt(self._random, length)]
        self.core.submit(make_request(name, prompt, 1, tenant))
        return prompt

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.num_steps += 1
            for delta in self.core.step():
                self.done.setdefault(delta.request_id, self.num_steps)
            self.core.scheduler.check()

    def finish(self) -> None:
        while not self.core.is_idle:
            self.step()


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    prompts = Prompts()
    prompts.send("long", 40 * BUDGET, "a")
    prompts.step(2)
    prompts.send("short", 2 * BUDGET, "b")
    prompts.finish()
    assert prompts.done["short"] <= 2 + 3
    assert prompts.done["long"] >= 42


def test_not_even_one_of_a_tenant_that_has_others_under_way() -> None:
    prompts = Prompts()
    prompts.send("long", 40 * BUDGET, "a")
    for number in range(3):
        prompts.send(f"short {number}", BUDGET, "b")
    prompts.finish()
    assert max(prompts.done[f"short {number}"] for number in range(3)) <= 6


def test_nor_behind_long_ones_that_wait() -> None:
    prompts = Prompts()
    prompts.send("long", 40 * BUDGET, "a")
    prompts.step(2)
    for number in range(5):
        prompts.send(f"waiting {number}", 50 * BUDGET, f"tenant {number}")
    prompts.send("short", BUDGET, "b")
    prompts.finish()
    assert prompts.done["short"] <= 2 + 2
    assert prompts.done["long"] <= min(prompts.done[f"waiting {number}"] for number in range(5))


def test_what_is_cached_of_a_prompt_makes_it_no_longer() -> None:
    prompts = Prompts()
    chat = prompts.send("chat", 80 * BUDGET, "b")
    prompts.finish()
    prompts.send("other", 90 * BUDGET, "a")
    prompts.finish()
    prompts.send("long", 60 * BUDGET, "a")
    prompts.step(2)
    before = prompts.num_steps
    prompts.send("chat goes on", 3, "b", after=chat)
    prompts.finish()
    assert prompts.done["chat goes on"] <= before + 2


def test_who_continues_with_what_is_being_computed_waits_for_it() -> None:
    prompts = Prompts()
    long = prompts.send("long", 40 * BUDGET, "a")
    prompts.step(30)
    prompts.send("the same", 3, "a", after=long)
    prompts.finish()
    assert prompts.core.scheduler.lifecycle.num_cached_tokens == len(long)
    assert prompts.done["long"] == 40


def test_what_is_found_is_counted_together_with_what_was_looked_up() -> None:
    prompts = Prompts()
    chat = prompts.send("chat", 8 * BUDGET, "a")
    prompts.finish()
    before = prompts.core.stats()
    for number in range(6):
        prompts.send(f"again {number}", 3, "a", after=chat)
    while not prompts.core.is_idle:
        last = prompts.core.stats()
        prompts.step()
        now = prompts.core.stats()
        asked, found = (
            now.prompt_tokens - last.prompt_tokens,
            now.cached_tokens - last.cached_tokens,
        )
        assert 0 <= found <= asked
    assert now.prompt_tokens - before.prompt_tokens == 6 * (len(chat) + 3)
    assert now.cached_tokens - before.cached_tokens == 6 * len(chat)


def test_a_long_prompt_is_not_overtaken_for_ever() -> None:
    prompts = Prompts()
    prompts.send("long", 20 * BUDGET, "long")
    for number in range(100):  # as many as can be computed, each of a tenant of its own
        prompts.send(str(number), BUDGET, f"tenant {number}")
        prompts.step()
        if "long" in prompts.done:
            break
    assert 20 < prompts.done["long"] <= 2 * 20 + 25


def test_a_tenant_that_runs_much_is_overtaken_by_one_that_runs_little() -> None:
    prompts = Prompts()
    for number in range(4):
        prompts.send(f"flood {number}", 3 * BUDGET, "flood")
    while sum(bool(group.prefill) for group in prompts.core.scheduler.running.values()) < 1:
        prompts.step()
    prompts.send("light", 3 * BUDGET, "light")
    prompts.finish()
    assert prompts.done["light"] <= prompts.done["flood 1"]


def test_without_fairness_they_are_computed_as_they_came() -> None:
    prompts = Prompts("fcfs")
    prompts.send("long", 10 * BUDGET, "a")
    prompts.step()
    prompts.send("short", BUDGET, "b")
    prompts.finish()
    assert prompts.done["long"] <= prompts.done["short"]
