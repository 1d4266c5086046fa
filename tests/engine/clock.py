"""Steps that take time: simulated, by their tokens, or real, so that a test can act in between."""

from __future__ import annotations

import time

import pytest

from engine.sequences.plan import Sampled, StepPlan
from engine.serve.core import EngineCore


class Clock:
    """The time of an engine, and the plans of its steps as they are computed."""

    def __init__(self) -> None:
        self.now = 100.0
        self.plans: list[StepPlan] = []


def prompt_tokens(plan: StepPlan) -> int:
    """Of a step, tokens of prompts."""
    return sum(chunk.count for chunk in plan.prompts)


def with_clock(
    core: EngineCore,
    monkeypatch: pytest.MonkeyPatch,
    decoding: float,
    token: float = 0.0,
    draft: float = 0.0,
    pair: float = 0.0,
) -> Clock:
    """Let steps take so many seconds, and so many more for each token of a prompt, each draft and
    each token that is computed again.

    Of a prompt also `pair` for each token that another one comes behind.
    """
    clock = Clock()
    execute = core._runner.execute

    def timed(plan: StepPlan) -> Sampled:
        clock.plans.append(plan)
        drafts = plan.num_tokens - prompt_tokens(plan) - plan.num_decoding
        pairs = sum(chunk.count * (chunk.start + chunk.count / 2) for chunk in plan.prompts)
        clock.now += decoding + token * prompt_tokens(plan) + pair * pairs + draft * drafts
        return execute(plan)

    for module in ("engine.run.steps", "engine.schedule.speculation"):
        monkeypatch.setattr(f"{module}.perf_counter", lambda: clock.now)
    monkeypatch.setattr(core._runner, "execute", timed)
    return clock


def at_a_models_pace(core: EngineCore, seconds: float = 0.002) -> EngineCore:
    """Steps that take so long: what a test does in a long answer's middle comes before its end."""
    execute = core._runner.execute

    def slowly(plan: StepPlan) -> Sampled:
        time.sleep(seconds)
        return execute(plan)

    core._runner.execute = slowly
    return core
