"""A draft model around the simulated one, which may be told to be wrong."""

from __future__ import annotations

import math
import random
from dataclasses import replace

from msgspec import structs

from engine.api import TokenLogprobs
from engine.draft.worth import RowCosts
from engine.draft_model.drafter import DraftModel
from engine.sequences.plan import Sampled, StepPlan
from tests.engine.simulated_model import VOCAB
from tests.engine.simulated_runner import SimulatedRunner
from tests.engine.simulation import simulated_core


class SmallRunner(SimulatedRunner):
    """Draws what the simulated model draws with a chance of `right`, and says how sure it is."""

    def __init__(self, num_blocks: int, block_size: int, rng: random.Random, right: float) -> None:
        super().__init__(num_blocks, block_size)
        self._rng = rng
        self._right = right
        self.plans: list[StepPlan] = []

    def execute(self, plan: StepPlan) -> Sampled:
        self.plans.append(plan)
        sampled = super().execute(plan)
        return replace(
            sampled,
            token_ids=[self._said(token) for token in sampled.token_ids],
            logprobs=[
                TokenLogprobs(math.log(self._rng.uniform(0.05, 1.0)), []) for _ in sampled.token_ids
            ],
        )

    def _said(self, token_id: int) -> int:
        is_right = self._rng.random() < self._right
        return token_id if is_right else self._rng.randrange(VOCAB)


def draft_model(
    right: float = 1.0,
    num_blocks: int = 200,
    block_size: int = 4,
    step_token_budget: int = 64,
    seed: int = 0,
    **info: object,
) -> tuple[DraftModel, SmallRunner]:
    """A draft model, and what computes it; `info` is what else is to be said of it."""
    runner = SmallRunner(num_blocks, block_size, random.Random(seed), right)
    core = simulated_core(num_blocks, block_size)
    known = structs.replace(core.info, **info)
    costs = RowCosts(((1, 0.0),))
    return DraftModel(runner, known, VOCAB, costs, step_token_budget, 0.0), runner
