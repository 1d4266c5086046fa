"""Executes a step plan: batch in, sampled tokens out. It knows no policy."""

from __future__ import annotations

import torch

from engine.batch import pack_plan
from engine.model import PagedModel
from engine.plan import StepPlan
from engine.sampler import Sampled, sample


class ModelRunner:
    """Runs plans on a `PagedModel`; an `engine.core.Runner`."""

    def __init__(self, model: PagedModel) -> None:
        self._model = model

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> Sampled:
        """Compute `plan`; draw a token for each sampler in order, or list its candidates."""
        if plan.transfers.copies:
            self._model.copy_blocks(plan.transfers.copies)
        batch = pack_plan(plan, self._model.block_size, self._model.device)
        logits = self._model.forward(batch)
        return sample(logits, plan.samplers)
