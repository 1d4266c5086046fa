"""Memory that the sequences of a request save by sharing blocks (the paper's section 6.3).

A beam search, its forks and the blocks are Partywall's own. What the model says to each beam is
drawn from what the small model has said: every step of a simulated search shows its beams the
log-probabilities that one step of real searches showed theirs. Which beams survive follows from
these: the closer the scores, the longer beams live apart.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from bench.common import engines
from bench.common.engines import finish, scripted_core
from bench.common.workload import question
from bench.paper.cost_model import PAPER_SLOTS
from bench.paper.reality import load_small_model
from bench.paper.systems import MAX_RUNNING, Paged
from bench.paper.workloads import Workload
from engine.api import BeamParams, EngineRequest
from engine.run.runner import ModelRunner
from engine.run.steps import Runner
from engine.schedule.scheduler import Scheduler
from engine.sequences.plan import Sampled, StepPlan
from engine.serve.core import EngineCore

WIDTHS = (2, 4, 6)

Scores = list[list[float]]
"""Log-probabilities of the candidates of each beam in one step of one search, best first."""
_BLOCK_SIZE = 16
_REAL_SEARCHES = 3
_REAL_TOKENS = 48
_TOKEN_IDS = 2**30


@dataclass(slots=True)
class Saving:
    """The mean over steps of (blocks without sharing - blocks) / blocks without sharing.

    If requests ever wait, only steps count in which some do: at the end, the longest ones are left.
    """

    total: float = 0.0
    steps: int = 0
    waited: bool = False

    @property
    def mean(self) -> float:
        """A share of memory."""
        return self.total / max(1, self.steps)

    def look(self, scheduler: Scheduler) -> None:
        """Count the step that the scheduler has planned."""
        waits = scheduler.lifecycle.num_waiting > 0
        if waits and not self.waited:
            self.total, self.steps, self.waited = 0.0, 0, True
        if waits == self.waited:
            tables = chain.from_iterable(group.blocks for group in scheduler.running.values())
            unshared = sum(map(len, tables))
            self.total += (unshared - scheduler.pool.num_in_use) / unshared
            self.steps += 1


def parallel_sampling(
    workload: Workload, width: int, num_requests: int, num_slots: int = PAPER_SLOTS
) -> float:
    """What `width` samples of each request save, in Partywall's own tables, memory being full.

    All samples of a request are as long as its answer in the trace, as in the paper.
    """
    server = Paged(num_slots, MAX_RUNNING, num_sequences=width)
    saving = Saving()
    server.runner.observe = lambda: saving.look(server.core.scheduler)
    trace = workload.trace(num_requests / workload.seconds)
    for request in trace:
        server.submit(request)
    while not server.is_idle:
        server.step()
    return saving.mean


def beam_savings(
    workloads: Sequence[tuple[Workload, int]], width: int, model_path: str
) -> dict[str, float]:
    """The mean share of blocks that `width` beams save, by workload (each with how many requests).

    All beams of a request are as long as its answer in the trace, as in the paper.
    """
    scores = record_scores(model_path, width)
    return {
        workload.name: simulated_saving(workload, width, count, scores)
        for workload, count in workloads
    }


def record_scores(model_path: str, width: int) -> list[Scores]:
    """Search for real how the model goes on behind questions; returns every full step's scores."""
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    model = load_small_model(model_path, _BLOCK_SIZE)
    prompts = [_chat_prompt(tokenizer, f"beam {number}") for number in range(_REAL_SEARCHES)]
    room = _REAL_SEARCHES * (width + 1) * (_REAL_TOKENS + 2 * _BLOCK_SIZE)
    slots = sum(map(len, prompts)) + room
    model.allocate(slots // _BLOCK_SIZE)
    recorder = _Recorder(ModelRunner(model), width)
    core = scripted_core(recorder, slots, _BLOCK_SIZE, _REAL_SEARCHES * width)
    for number, prompt in enumerate(prompts):
        core.submit(_search(number, prompt, _REAL_TOKENS, width))
    finish(core)
    return recorder.scores


def simulated_saving(
    workload: Workload,
    width: int,
    num_requests: int,
    scores: Sequence[Scores],
    num_slots: int = PAPER_SLOTS,
) -> float:
    """What the beams of the workload's requests save, memory being full."""
    runner = _ScoredRunner(scores)
    core = scripted_core(runner, num_slots, _BLOCK_SIZE, MAX_RUNNING)
    runner.core = core
    for request in workload.trace(num_requests / workload.seconds):
        core.submit(_search(request.number, request.prompt, len(request.output), width))
    finish(core)
    return runner.saving.mean


def _chat_prompt(tokenizer: PreTrainedTokenizerBase, seed: str) -> list[int]:
    """A question as the model's chats have it."""
    messages = [{"role": "user", "content": question(seed)}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    return list(ids)


def _search(number: int, prompt: Sequence[int], tokens: int, width: int) -> EngineRequest:
    beam = BeamParams(num_beams=width)
    return engines.request(str(number), list(prompt), tokens, beam=beam)


class _Recorder:
    """A `Runner` that notes what a model says to all beams of a search in one step."""

    def __init__(self, model: Runner, width: int) -> None:
        self.scores: list[Scores] = []
        self._model = model
        self._width = width

    def execute(self, plan: StepPlan) -> Sampled:
        sampled = self._model.execute(plan)
        by_request: dict[str, Scores] = {}
        for row, beam in enumerate(plan.samplers):
            scores = [score for _, score in sampled.candidates[row]]
            by_request.setdefault(beam.request_id, []).append(scores)
        self.scores += [scores for scores in by_request.values() if len(scores) == self._width]
        return sampled


class _ScoredRunner:
    """A `Runner` without a model: each step of a search shows the scores of a recorded one."""

    def __init__(self, scores: Sequence[Scores]) -> None:
        self.saving = Saving()
        self.core: EngineCore
        self._scores = scores
        self._draw = random.Random(0)

    def execute(self, plan: StepPlan) -> Sampled:
        self.saving.look(self.core.scheduler)
        shown: dict[str, Scores] = {}
        candidates = {}
        for row, beam in enumerate(plan.samplers):
            left = shown.get(beam.request_id)
            if not left:
                left = shown[beam.request_id] = list(self._draw.choice(self._scores))
            candidates[row] = [(self._draw.randrange(_TOKEN_IDS), score) for score in left.pop(0)]
        tokens = [options[0][0] for options in candidates.values()]
        return Sampled(tokens, [None] * len(tokens), candidates)
