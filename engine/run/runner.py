"""Executes a step plan: transfers and batch in, sampled tokens out. It knows no policy.

Everything is put into the device's queue without waiting for any of it. Only the result is waited
for, and the newest tokens of a step may still be in the queue: these are put into their batch on
the device.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from engine.batch.batch import Batch, BatchBuilder, first_rows
from engine.batch.staging import upload
from engine.constraint.masks import Masks, RowMasks
from engine.model.errors import attempt
from engine.model.layers.paged_model import PagedModel
from engine.run.adapters import ModelAdapters
from engine.run.copies import BlockCopies, Queues
from engine.run.device_counts import Counts, token_counts
from engine.run.expert_use import expert_use
from engine.run.graphs.decode import DecodeGraphs
from engine.run.graphs.padding import tensors_of, with_tensors
from engine.run.graphs.pieces import PieceGraphs
from engine.run.images import BlockImages
from engine.run.pictures import ModelPictures, picture_rows
from engine.run.sampler import Draws, PromptScores, sample, score
from engine.run.stopwatch import Stopwatch
from engine.schedule.swap_or_recompute import CostModel
from engine.sequences.plan import Draw, Sampled, StepPlan
from engine.sequences.sequence import Sequence
from kernels.prefix_groups import rule_for

_HOST = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """A step in the device's queue; an `engine.run.steps.Pending`."""

    _plan: StepPlan
    _draws: Draws
    _scores: PromptScores | None
    _watch: Stopwatch
    _copies: BlockCopies
    _costs: CostModel | None

    def result(self) -> Sampled:
        """Wait for the tokens. Tells the cost model what took how long.

        Raises `StepOutOfMemory` as `execute` does: a device may say so late.
        """
        sampled = attempt(self._result)
        if self._costs is not None:
            self._copies.observe(self._costs)
            (seconds,) = self._watch.seconds()
            self._costs.observe_compute(self._plan.spans, seconds)
        return sampled

    def _result(self) -> Sampled:
        sampled = self._draws.result()
        if self._scores is None:
            return sampled
        return replace(sampled, prompt_logprobs=self._scores.result())


class ModelRunner:
    """Runs plans on a `PagedModel`, and tells `costs` what took how long."""

    def __init__(
        self,
        model: PagedModel,
        costs: CostModel | None = None,
        prefix_grouping: bool = True,
        graphs: DecodeGraphs | None = None,
        pieces: PieceGraphs | None = None,
        queues: Queues | None = None,
        masks: Masks | None = None,
    ) -> None:
        """Decode steps replay `graphs`, and others `pieces`, where there are any. `queues` are
        those of the device. Sequences have grammars only where there are `masks`.
        """
        self._model = model
        self._copies = BlockCopies(model, queues)
        self.images = BlockImages(model, self._copies)
        self.adapters = ModelAdapters(model) if model.linears else None
        """`None` where nothing can be changed."""
        self._costs = costs
        invariant = model.batch_invariant
        rule = rule_for(model.device, batch_invariant=invariant) if prefix_grouping else None
        switch = model.weights.rotary_switch
        tower = model.weights.tower
        self.pictures = None if tower is None else ModelPictures(model, tower)
        """`None` where nothing is seen."""
        self._batches = BatchBuilder(
            *(model.block_size, _HOST, rule, switch, model.kinds, model.adapters),
            pictures=picture_rows(model),
        )
        self._graphs = graphs
        self._pieces = pieces
        self._masks = masks
        self._drawn: dict[Sequence, int] = {}
        """Of the last step: the row in which a sequence has drawn."""
        self.experts = expert_use(model)
        """`None` where nothing counts them."""
        self._counts: Counts = token_counts(model.device)
        self._draws: Draws | None = None
        """Of the last step."""

    @property
    def num_spared_keys(self) -> int:
        """As in `BatchBuilder`."""
        return self._batches.num_spared_keys

    def execute(self, plan: StepPlan) -> Sampled:
        """Move blocks and compute `plan`; draw a token for each sampler, or list its candidates.

        Raises `StepOutOfMemory` where there is no room for what is computed on the way.
        """
        return self._launch(plan).result()

    def _launch(self, plan: StepPlan) -> LaunchedStep:
        return attempt(lambda: self._begin(plan))

    @torch.inference_mode()
    def _begin(self, plan: StepPlan) -> LaunchedStep:
        model = self._model
        self._copies.begin(plan.transfers)
        host = self._batches.build(plan)
        copied = plan.transfers.copies
        touched = [host.attention.block_tables.numpy(), np.array(copied, np.int64)]
        if host.more is not None:
            touched.append(host.more.block_tables.numpy())
        touched += [np.array(one.adapter.pages) for one in host.adapted]
        self._copies.join(touched)
        watch = Stopwatch(model.device)
        watch.mark()
        if copied:
            model.copy_pages(copied)
        newest, logits = self._compute(plan, host)
        self._copies.launched(touched)
        wanted = plan.draws
        count = len(wanted)
        allowed = self._allowed(wanted)
        draws = sample(logits[:count], wanted, newest[:count], self._counts, allowed)
        scores = score(logits[count:], plan.chunks) if len(logits) > count else None
        self._drawn = {draw.sequence: row for row, draw in enumerate(wanted)}
        self._draws = draws
        watch.mark()
        return LaunchedStep(plan, draws, scores, watch, self._copies, self._costs)

    def _allowed(self, draws: list[Draw]) -> RowMasks | None:
        """The masks of a step whose layers are in the device's queue.

        Waits for the step before, if a mask depends on what that one draws.
        """
        if self._masks is None:
            return None
        awaited = [
            draw.sequence
            for draw in draws
            if draw.sequence.grammar is not None and draw.sequence.num_drawn
        ]
        newest: dict[Sequence, int] = {}
        if awaited:
            assert self._draws is not None
            tokens = self._draws.token_ids()
            newest = {sequence: tokens[self._drawn[sequence]] for sequence in awaited}
        return self._masks.of(draws, newest)

    def _compute(self, plan: StepPlan, host: Batch) -> tuple[Tensor, Tensor]:
        """Of each row of `plan` that draws, and then that is scored: its token, and the logits."""
        model = self._model
        unknown = [
            (first, self._drawn[chunk.sequence])
            for first, chunk in zip(first_rows(plan), plan.chunks, strict=True)
            if chunk.is_unknown
        ]
        places, rows = [place for place, _ in unknown], [row for _, row in unknown]

        def complete(token_ids: Tensor) -> None:
            if places:
                index, drawn = upload([np.array(places), np.array(rows)], model.device)
                assert self._draws is not None
                token_ids.index_copy_(0, index, self._draws.tokens.index_select(0, drawn))

        # What is recorded has no adapters, and sees nothing.
        is_other = host.adapted or host.seen is not None
        graphs, pieces = (None, None) if is_other else (self._graphs, self._pieces)
        replayed = None if graphs is None else graphs.run(host, complete)
        if replayed is not None:
            batch, logits = replayed
            return _chosen(host, batch.token_ids), _chosen(host, logits)
        pieced = None if pieces is None else pieces.run(host, complete)
        if pieced is not None:
            return pieced
        uploaded = replace(host, seen=None)  # what is seen is on the device
        tensors = [tensor.numpy() for tensor in tensors_of(uploaded)]
        batch = replace(with_tensors(uploaded, upload(tensors, model.device)), seen=host.seen)
        complete(batch.token_ids)
        return batch.token_ids.index_select(0, batch.logit_rows), model.forward(batch)


class AheadRunner(ModelRunner):
    """Computes steps while the host goes on; an `engine.run.steps.Launcher`."""

    def launch(self, plan: StepPlan) -> LaunchedStep:
        """See `engine.run.steps.Launcher`."""
        return self._launch(plan)


def _chosen(host: Batch, of_rows: Tensor) -> Tensor:
    """What belongs to the rows that draw, of what there is for every row of a decode batch."""
    rows = host.logit_rows.numpy()
    if np.array_equal(rows, np.arange(len(rows))):
        return of_rows[: len(rows)]
    (index,) = upload([rows], of_rows.device)
    return of_rows.index_select(0, index)
