"""Whose prompts keep to the pace of whose streams: a flood holds up itself, and nobody else."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from typing import Literal

import pytest

from bench.common.figures import percentile
from engine.api import TenantShare
from engine.serve.core import EngineCore
from tests.engine.clock import Clock, prompt_tokens, with_clock
from tests.engine.simulated_model import random_prompt
from tests.engine.simulation import make_request, simulated_core

STEP, TOKEN = 0.010, 0.001
"""Seconds of a step, and of each prompt token in it; so 200 tokens are efficient."""
PROMPT = 160
FLOOD = "flood"


def core_with(
    fairness: Literal["vtc", "fcfs"] = "vtc", max_running_requests: int = 4
) -> EngineCore:
    return simulated_core(
        num_blocks=2000,
        step_token_budget=512,
        max_running_requests=max_running_requests,
        fairness=fairness,
        itl_target_ms=30.0,
    )


class Load:
    """Sends prompts that resemble no others."""

    def __init__(self, core: EngineCore, clock: Clock) -> None:
        self.core, self.clock = core, clock
        self._random = random.Random(1)
        self._count = 0

    def send(self, tenant: str, prompt: int = PROMPT, output: int = 40, **fields: object) -> str:
        self._count += 1
        name = f"{tenant} {self._count}"
        tokens = random_prompt(self._random, prompt)
        self.core.submit(make_request(name, tokens, output, tenant, **fields))
        return name

    def warm_up(self) -> None:
        """Let the engine learn what steps take."""
        self.send("before", output=12)
        while not self.core.is_idle:
            self.core.step()

    def sizes_until_first(self, name: str) -> list[int]:
        """Of the steps until a request's first token: tokens of its prompt."""
        del self.clock.plans[:]
        while not any(delta.request_id == name for delta in self.core.step()):
            assert len(self.clock.plans) < 500
        self.core.scheduler.check()
        return [
            sum(chunk.count for chunk in plan.chunks if chunk.sequence.request_id == name)
            for plan in self.clock.plans
        ]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    core = core_with()
    load = Load(core, with_clock(core, monkeypatch, STEP, TOKEN))
    load.warm_up()
    return load


def test_a_prompt_does_not_keep_to_the_pace_of_a_tenant_that_has_more_waiting(load: Load) -> None:
    streams = [load.send(FLOOD) for _ in range(12)]
    load.sizes_until_first(streams[0])
    assert load.sizes_until_first(load.send("light"))[-1] == PROMPT


def test_a_prompt_keeps_to_the_pace_of_a_tenant_that_has_nothing_waiting(load: Load) -> None:
    load.sizes_until_first(load.send("stream", output=80))
    sizes = load.sizes_until_first(load.send("light", output=4))
    assert max(sizes) <= 25
    for _ in range(12):
        load.send(FLOOD)
    assert max(load.sizes_until_first(load.send("light"))) <= 25, "a flood beside changes nothing"


def test_prompts_of_a_flood_keep_to_the_pace_of_its_own_streams(load: Load) -> None:
    names = [load.send(FLOOD) for _ in range(12)]
    load.sizes_until_first(names[0])
    del load.clock.plans[:]
    for _ in range(20):
        load.core.step()
    beside = [prompt_tokens(plan) for plan in load.clock.plans if plan.num_decoding]
    assert beside
    assert max(beside) <= 25


def steps_beside_a_stream(load: Load) -> tuple[float, float]:
    """How long prompts take of steps beside the stream of another tenant, and decoding does."""
    load.sizes_until_first(load.send("stream", output=300))
    for _ in range(12):
        load.send(FLOOD, output=2)
    del load.clock.plans[:]
    prompts = decoding = 0.0
    for _ in range(100):
        load.core.step()
        plan = load.clock.plans[-1]
        assert plan.num_decoding, "the stream goes on"
        assert prompt_tokens(plan) <= 25, "within the target"
        prompts += TOKEN * prompt_tokens(plan)
        decoding += STEP
    return prompts, decoding


def test_a_flood_takes_no_more_than_half_of_the_time_from_streams_of_others(load: Load) -> None:
    prompts, decoding = steps_beside_a_stream(load)
    assert 0.4 < prompts / (prompts + decoding) < 0.55


def test_what_owes_time_goes_on_by_what_a_step_computes_anyhow(load: Load) -> None:
    steps_beside_a_stream(load)
    counts = [prompt_tokens(plan) for plan in load.clock.plans]
    few = Counter(count for count in counts if count < 10)
    assert max(few) == 3, "the stream has one of four rows"
    assert 0 < few[0] < few[3] / 10, "now and then it is alone"


def test_nor_where_another_one_waits_for_its_own_blocks(load: Load) -> None:
    share = TenantShare(max_blocks=84)
    load.send("full", 20, output=300, share=share)
    waiting = load.send("full", 320, output=2, share=share)
    prompts, decoding = steps_beside_a_stream(load)
    account = load.core.scheduler.accounts["full"]
    assert list(account.waiting) == [waiting], "it has waited all the time"
    assert 0.4 < prompts / (prompts + decoding) < 0.55


def test_nor_beside_a_prompt_of_one_that_asks_for_no_more(load: Load) -> None:
    steps_beside_a_stream(load)
    while not load.core.scheduler.pace.is_in_debt:
        load.core.step()
    del load.clock.plans[:]
    load.sizes_until_first(load.send("light", 80, output=2))
    beside = [chunk.sequence.request.tenant for plan in load.clock.plans for chunk in plan.chunks]
    assert "light" in beside
    flood = sum(
        chunk.count
        for plan in load.clock.plans
        for chunk in plan.chunks[plan.num_decoding :]
        if chunk.sequence.request.tenant == FLOOD
    )
    assert not flood, "it pays first"


def test_without_fairness_it_takes_what_the_target_lets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    core = core_with("fcfs")
    load = Load(core, with_clock(core, monkeypatch, STEP, TOKEN))
    load.warm_up()
    prompts, decoding = steps_beside_a_stream(load)
    assert prompts / (prompts + decoding) > 0.6


def test_one_prompt_that_asks_for_no_more_takes_what_the_target_lets_it(load: Load) -> None:
    load.sizes_until_first(load.send("stream", output=200))
    sizes = load.sizes_until_first(load.send("light", 400, output=2))
    assert min(sizes[:-1]) >= 15, "it never pauses"
    assert len(sizes) < 400 / 17


def test_without_fairness_everybody_keeps_the_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    core = core_with("fcfs", 16)
    load = Load(core, with_clock(core, monkeypatch, STEP, TOKEN))
    load.warm_up()
    streams = [load.send(FLOOD, output=90) for _ in range(3)]
    load.sizes_until_first(streams[0])
    assert max(load.sizes_until_first(load.send("light"))) <= 25


def test_a_lone_prompt_takes_whole_budgets_and_a_queue_of_prompts_efficient_steps(
    load: Load,
) -> None:
    assert max(load.sizes_until_first(load.send("lone", 600, output=2))) == 512
    while not load.core.is_idle:
        load.core.step()
    del load.clock.plans[:]
    for _ in range(12):
        load.send(FLOOD)
    load.core.step()
    assert 160 <= prompt_tokens(load.clock.plans[0]) <= 240


def test_who_has_no_neighbours_has_whole_budgets_for_a_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = core_with(max_running_requests=8)
    load = Load(core, with_clock(core, monkeypatch, STEP, TOKEN))
    load.send(FLOOD, output=12)
    while not core.is_idle:
        core.step()
    del load.clock.plans[:]
    for _ in range(12):
        load.send(FLOOD)
    core.step()
    assert prompt_tokens(load.clock.plans[0]) == 512


def first_tokens(load: Load, tenants: Iterable[str], seconds: float) -> dict[str, list[float]]:
    """Seconds to the first token of each tenant's requests; those of a flood come all at once.

    The others' come about evenly, three tenants' for half of the time that the engine has.
    """
    start = load.clock.now
    draw = random.Random(2)
    due = [
        (0.0 if tenant == FLOOD else 1.3 * (number + draw.uniform(0.25, 0.75)), tenant)
        for tenant in tenants
        for number in range(400 if tenant == FLOOD else int(seconds / 1.3))
    ]
    due.sort()
    sent: dict[str, tuple[str, float]] = {}
    waits: dict[str, list[float]] = {tenant: [] for tenant in tenants}
    while load.clock.now < start + seconds:
        while due and start + due[0][0] <= load.clock.now:
            at, tenant = due.pop(0)
            sent[load.send(tenant, output=6)] = tenant, start + at
        if load.core.is_idle:
            load.clock.now = start + due[0][0] if due else start + seconds
            continue
        for delta in load.core.step():
            tenant, at = sent.pop(delta.request_id, ("", 0.0))
            if tenant:
                waits[tenant].append(load.clock.now - at)
    return waits


def test_a_flood_hardly_delays_the_first_tokens_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    three = ("one", "two", "three")
    found = {}
    for tenants in (three, (*three, FLOOD)):
        core = core_with(max_running_requests=64)
        load = Load(core, with_clock(core, monkeypatch, STEP, TOKEN))
        load.warm_up()
        waits = first_tokens(load, tenants, 40.0)
        found[tenants] = [wait for tenant in three for wait in waits[tenant]]
        assert not waits.get(FLOOD) or len(waits[FLOOD]) > 30, "and it gets what is left"
    alone, beside = found.values()
    assert len(beside) >= len(alone) - 3
    assert percentile(beside, 99) <= 1.5 * percentile(alone, 99)
