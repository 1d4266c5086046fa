"""Executes a step plan: transfers and batch in, sampled tokens out. It knows no policy."""

from __future__ import annotations

import torch

from engine.batch import BatchBuilder
from engine.model import PagedModel
from engine.plan import StepPlan
from engine.recovery import CostModel
from engine.sampler import Sampled, sample
from engine.stopwatch import Stopwatch
from kernels.prefix_groups import rule_for


class ModelRunner:
    """Runs plans on a `PagedModel`; an `engine.core.Runner`. Tells `costs` what took how long."""

    def __init__(
        self, model: PagedModel, costs: CostModel | None = None, prefix_grouping: bool = True
    ) -> None:
        self._model = model
        self._costs = costs
        rule = rule_for(model.device) if prefix_grouping else None
        self._batches = BatchBuilder(model.block_size, model.device, rule)

    @property
    def num_spared_keys(self) -> int:
        """As in `BatchBuilder`."""
        return self._batches.num_spared_keys

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> Sampled:
        """Move blocks and compute `plan`; draw a token for each sampler, or list its candidates."""
        watch = Stopwatch(self._model.device)
        watch.mark()
        self._model.swap_out(plan.transfers.swap_outs)
        watch.mark()
        self._model.swap_in(plan.transfers.swap_ins)
        watch.mark()
        if plan.transfers.copies:
            self._model.copy_blocks(plan.transfers.copies)
        batch = self._batches.build(plan)
        logits = self._model.forward(batch)
        sampled = sample(logits, plan.samplers)
        watch.mark()
        if self._costs is not None:
            _observe(self._costs, plan, watch.seconds())
        return sampled


def _observe(costs: CostModel, plan: StepPlan, seconds: list[float]) -> None:
    """Compare what was predicted with what a step's parts took."""
    swap_out, swap_in, compute = seconds
    costs.observe_swap_out(len(plan.transfers.swap_outs), swap_out)
    costs.observe_swap_in(len(plan.transfers.swap_ins), swap_in)
    costs.observe_compute([(chunk.start, chunk.count) for chunk in plan.chunks], compute)
