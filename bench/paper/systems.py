"""The systems that are compared, all with the same memory and the same limit on what runs.

Partywall is its own engine loop, scheduler and block pool; it has no model, and no clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from bench.common import engines
from bench.common.engines import scripted_core
from bench.paper.baselines.orca import Orca, reserve_max, reserve_oracle, reserve_pow2
from bench.paper.baselines.server import MemoryUse, Server, Step, TracedRequest
from bench.paper.baselines.static import PaddedBatches, StaticBatches
from bench.paper.cost_model import StepShape
from bench.paper.lengths import CONTEXT_TOKENS
from engine.run.steps import Runner
from engine.sequences.plan import Sampled, ScheduledChunk, StepPlan

_INDEX_STRIDE = 2**28
"""Between the tokens of a request's sequences, which all differ."""

MAX_RUNNING = 256
PARTYWALL = "Partywall"
WITHOUT_CACHE = "Partywall, cache off"
ORACLE = "Orca (Oracle)"
POW2 = "Orca (Pow2)"
MAX = "Orca (Max)"
FASTER_TRANSFORMER = "FasterTransformer"
GENERATE = "generate()"
ORCAS = (ORACLE, POW2, MAX)
SYSTEMS = (PARTYWALL, *ORCAS, FASTER_TRANSFORMER, GENERATE)


def step_shape(chunks: Iterable[ScheduledChunk]) -> StepShape:
    """What a plan computes."""
    tokens = sequences = context = pairs = 0
    for chunk in chunks:
        count, end = chunk.count, chunk.start + chunk.count
        tokens += count
        context += end
        sequences += len(chunk.samplers)
        if count > 1:
            pairs += count * chunk.start + count * (count + 1) // 2
    return StepShape(tokens, sequences, context, pairs)


class ScriptedRunner:
    """A `Runner` that answers from the script, and notes what a model would have computed.

    Or what `model` has computed, if there is one.
    """

    def __init__(self, model: Runner | None = None) -> None:
        self.script: dict[str, TracedRequest] = {}
        self.shape = StepShape(0, 0, 0, 0)
        self.observe: Callable[[], None] | None = None
        """Called while a step runs: planned, but not committed."""
        self._model = model

    def execute(self, plan: StepPlan) -> Sampled:
        """Look every token up."""
        self.shape = step_shape(plan.chunks)
        if self.observe is not None:
            self.observe()
        if self._model is not None:
            return self._model.execute(plan)
        drawn = [
            self.script[sampler.request_id].output[sampler.num_output_tokens]
            + sampler.index * _INDEX_STRIDE
            for sampler in plan.samplers
        ]
        return Sampled(drawn, [None] * len(drawn))


class Paged:
    """A `Server`. It never looks at an output's length ahead of time."""

    def __init__(
        self,
        num_slots: int,
        max_running: int,
        block_size: int = 16,
        *,
        prefix_cache: bool = True,
        num_sequences: int = 1,
        measure: bool = False,
        model: Runner | None = None,
    ) -> None:
        """With `measure` its memory is accounted for at every step, if no two requests share."""
        self.runner = ScriptedRunner(model)
        self.core = scripted_core(
            self.runner, num_slots, block_size, max_running, prefix_cache=prefix_cache
        )
        self._num_sequences = num_sequences
        self._unfinished: Counter[int] = Counter()
        self._memory = MemoryUse()
        if measure:
            self.runner.observe = self._account

    @property
    def is_idle(self) -> bool:
        """See `Server`."""
        return self.core.is_idle

    def submit(self, request: TracedRequest) -> None:
        """See `Server`."""
        self.runner.script[str(request.number)] = request
        self._unfinished[request.number] = self._num_sequences
        name, prompt, length = str(request.number), list(request.prompt), len(request.output)
        count = self._num_sequences
        self.core.submit(engines.request(name, prompt, length, num_sequences=count))

    def step(self) -> Step:
        """See `Server`. Raises `RuntimeError` if a request fails."""
        finished = []
        for delta in self.core.step():
            if delta.finish_reason is not None:
                if delta.error is not None:
                    raise RuntimeError(delta.error)
                number = int(delta.request_id)
                self._unfinished[number] -= 1
                if self._unfinished[number] == 0:
                    finished.append(number)
        running = len(self.core.scheduler.running)
        return Step(self.runner.shape, running, self._memory, finished)

    def _account(self) -> None:
        """Every slot of the pool by use, while nothing is shared."""
        pool, block_size = self.core.scheduler.pool, self.core.info.block_size
        states = future = held = 0
        for group in self.core.scheduler.running.values():
            needed = self.runner.script[group.request_id].num_states
            for sequence in group.sequences:
                slots = len(sequence.table.blocks) * block_size
                held += slots
                states += sequence.num_computed
                # A sequence that has ended may stay for a step to complete its last block.
                future += max(0, min(slots, needed) - sequence.num_computed)
        assert held == pool.num_in_use * block_size, "shared blocks would be counted twice"
        self._memory = MemoryUse(
            token_states=states,
            reserved=future,
            internal=held - states - future,
            free=pool.num_blocks * block_size - held,
        )


def make_server(system: str, num_slots: int, *, measure: bool = False) -> Server:
    """A server with empty memory; `measure` has Partywall account for its memory as all others."""
    if system == PARTYWALL:
        return Paged(num_slots, MAX_RUNNING, measure=measure)
    if system == WITHOUT_CACHE:
        return Paged(num_slots, MAX_RUNNING, prefix_cache=False, measure=measure)
    if system == FASTER_TRANSFORMER:
        return StaticBatches(num_slots, CONTEXT_TOKENS, MAX_RUNNING)
    if system == GENERATE:
        return PaddedBatches(num_slots, CONTEXT_TOKENS, MAX_RUNNING)
    reservations = {
        ORACLE: reserve_oracle,
        POW2: reserve_pow2(CONTEXT_TOKENS),
        MAX: reserve_max(CONTEXT_TOKENS),
    }
    return Orca(num_slots, reservations[system], MAX_RUNNING)
