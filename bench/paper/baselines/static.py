"""Request-level batching: a batch is formed, runs until its last request ends, then the next one.

Whatever waits when the server becomes free forms the batch, up to the size that memory allows when
every request may become as long as the model's context: the dynamic batching that Kwon et al. put
before FasterTransformer (SOSP 2023, section 6.1). Answers return with the end of the batch, and
rows that have ended are computed on to it (Yu et al., OSDI 2022, section 2).
"""

from __future__ import annotations

from collections import deque

from bench.paper.baselines.server import MemoryUse, Step, TracedRequest
from bench.paper.cost_model import StepShape


class StaticBatches:
    """FasterTransformer: `context_tokens` slots are reserved for each request of a batch.

    Its prompts are computed without padding, which it can remove.
    """

    def __init__(self, num_slots: int, context_tokens: int, max_running: int) -> None:
        self._num_slots = num_slots
        self._context_tokens = context_tokens
        self._batch_size = min(max_running, num_slots // context_tokens)
        if self._batch_size < 1:
            raise ValueError("num_slots: must hold one request of context_tokens")
        self._waiting: deque[TracedRequest] = deque()
        self._batch: list[TracedRequest] = []
        self._step = 0

    @property
    def is_idle(self) -> bool:
        """See `Server`."""
        return not self._batch and not self._waiting

    def submit(self, request: TracedRequest) -> None:
        """See `Server`."""
        self._waiting.append(request)

    def step(self) -> Step:
        """See `Server`."""
        if not self._batch:
            size = min(self._batch_size, len(self._waiting))
            self._batch = [self._waiting.popleft() for _ in range(size)]
            self._step = 0
        self._step += 1
        batch, shape, memory = self._batch, self._shape(), self._memory()
        if self._step < max(len(request.output) for request in batch):
            return Step(shape, len(batch), memory)
        self._batch = []
        return Step(shape, len(batch), memory, [request.number for request in batch])

    def _widths(self) -> list[int]:
        """The KV rows that each request of the batch has been given so far, padding included."""
        return [len(request.prompt) + self._step - 1 for request in self._batch]

    def _num_held(self) -> int:
        """Slots that the batch holds."""
        return self._context_tokens * len(self._batch)

    def _shape(self) -> StepShape:
        widths = self._widths()
        if self._step > 1:
            return StepShape(len(widths), len(widths), sum(widths), 0)
        pairs = sum(width * (width + 1) // 2 for width in widths)
        return StepShape(sum(widths), len(widths), sum(widths), pairs)

    def _memory(self) -> MemoryUse:
        live = [request for request in self._batch if self._step <= len(request.output)]
        states = sum(len(request.prompt) + self._step - 1 for request in live)
        reserved = self._num_ahead(sum(request.num_states for request in live) - states)
        return MemoryUse(
            token_states=states,
            reserved=reserved,
            internal=self._num_held() - states - reserved,
            free=self._num_slots - self._num_held(),
        )

    def _num_ahead(self, future: int) -> int:
        """Slots held for the `future` tokens of the batch."""
        return future


class PaddedBatches(StaticBatches):
    """`generate()` of transformers: prompts are padded to the longest of the batch.

    Its cache grows by one column a step, so that nothing is held ahead; but the batch must be small
    enough for the longest answers, as it cannot be changed on the way.
    """

    def _widths(self) -> list[int]:
        longest = max(len(request.prompt) for request in self._batch)
        return [longest + self._step - 1] * len(self._batch)

    def _num_held(self) -> int:
        return sum(self._widths())

    def _num_ahead(self, future: int) -> int:  # noqa: ARG002 - the cache grows with the step
        return 0
