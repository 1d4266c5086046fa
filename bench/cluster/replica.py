"""A replica in simulated time: a real block pool under continuous batching, step by step.

As in the engine, all that decodes gets a token in every step, and prompts, first come, first
served, get chunks of what is left of the step's budget. A request that is admitted takes the blocks
of its prompt and of its answer at once, so that nobody is ever preempted.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final

from bench.cluster.workloads import Request
from engine.api import Loss
from engine.blocks.listeners import Listener
from engine.blocks.partial_hits import Place
from engine.blocks.pool import BlockPool

_OWNER: Final = "all"


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds of steps, and what a step holds: about an 8B model on one H100."""

    per_step: float = 0.008
    per_prompt_token: float = 50e-6
    per_decoding: float = 50e-6
    """Of every sequence that decodes in the step."""
    step_tokens: int = 2048
    max_running: int = 256
    full_batch: int = 64
    """Sequences that decode in a step of an engine whose load is 100 %."""

    def seconds(self, prompt_tokens: int, num_decoding: int) -> float:
        """Of one step."""
        return (
            self.per_step + prompt_tokens * self.per_prompt_token + num_decoding * self.per_decoding
        )

    def work_seconds(self, prompt_tokens: int, output_tokens: int) -> float:
        """What a request keeps an engine busy for whose load is 100 %."""
        in_full_steps = self.per_step / self.step_tokens + self.per_prompt_token
        in_full_batches = self.per_step / self.full_batch + self.per_decoding
        return prompt_tokens * in_full_steps + output_tokens * in_full_batches


@dataclass(slots=True)
class Served:
    """What has become of a request."""

    request: Request
    cached_tokens: int = 0
    left: int = 0
    """Tokens of its prompt that are still to be computed; while it waits, expected to be."""
    blocks: list[int] = field(default_factory=list)
    first_token_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Changes:
    """Blocks that have come and gone in a step."""

    at: float
    stored: list[bytes]
    removed: list[bytes]


class Replica(Listener):
    """One engine. `clock` is where its time has come to: the end of its last step."""

    def __init__(
        self, num_blocks: int, block_size: int, pace: Pace, shared: BlockPool | None = None
    ) -> None:
        """Several replicas may have one `shared` pool; then none of them tells of its changes."""
        self.clock = 0.0
        self.changes: deque[Changes] = deque()
        """What has become of blocks, to be taken from the left."""
        self._ended: list[Served] = []
        self.pool = shared or BlockPool(num_blocks, listener=self)
        self._block_size = block_size
        self._pace = pace
        self._waiting: deque[Served] = deque()
        self._prefill: deque[Served] = deque()
        self._decoding: list[tuple[int, int, Served]] = []
        """With the number of the decoding step that is its last, least first."""
        self._num_decoding_steps = 0
        self._num_running = 0
        self._num_begun = 0
        self._left_tokens = 0
        self._coming: Counter[bytes] = Counter()
        """Blocks of what waits: who comes behind will find them."""
        self._stored: dict[int, bytes] = {}
        self._removed: list[bytes] = []

    @property
    def num_requests(self) -> int:
        """Those that have not ended."""
        return len(self._waiting) + self._num_running

    @property
    def queue_seconds(self) -> float:
        """Left to compute of the prompts that are here, beside what decodes."""
        return self._left_tokens / self.prefill_tokens_per_s

    @property
    def prefill_tokens_per_s(self) -> float:
        """In full steps, beside what decodes."""
        tokens = self._pace.step_tokens - len(self._decoding)
        return tokens / self._pace.seconds(tokens, len(self._decoding))

    @property
    def kv_free_share(self) -> float:
        """Part of the blocks that no request holds."""
        return 1 - self.pool.num_in_use / self.pool.num_blocks

    def submit(self, request: Request) -> None:
        """A request arrives now."""
        if not self.num_requests:
            self.clock = max(self.clock, request.at)
        found = len(self.pool.find(request.prompt_hashes))
        for one in request.prompt_hashes[found:]:
            if one not in self._coming:
                break
            found += 1
        self._coming.update(request.prompt_hashes)
        expected = max(1, request.prompt_tokens - found * self._block_size)
        self._left_tokens += expected
        self._waiting.append(Served(request, left=expected))

    def take_ended(self) -> list[Served]:
        """Who has ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def step(self, then: float) -> None:
        """Take a step, or several at once of those in which nothing comes or goes before `then`."""
        left = self._pace.step_tokens - len(self._decoding)
        computed: list[Served] = []
        while left > 0 and (self._prefill or self._admit()):
            first = self._prefill[0]
            count = min(left, first.left)
            first.left -= count
            self._left_tokens -= count
            left -= count
            if not first.left:
                computed.append(self._prefill.popleft())
        num_tokens = self._pace.step_tokens - len(self._decoding) - left
        seconds = self._pace.seconds(num_tokens, len(self._decoding))
        steps = 1
        if not num_tokens and self._decoding:  # else others hold what it waits for
            most = self._decoding[0][0] - self._num_decoding_steps
            steps = int(max(1, min(most, (then - self.clock) / seconds)))
        self.clock += steps * seconds
        self._num_decoding_steps += steps
        for served in computed:
            self._begin_to_decode(served)
        while self._decoding and self._decoding[0][0] <= self._num_decoding_steps:
            self._end(heapq.heappop(self._decoding)[2])
        self._tell()

    def _admit(self) -> bool:
        """Admit who has waited longest, if there is room."""
        if not self._waiting or self._num_running >= self._pace.max_running:
            return False
        served = self._waiting[0]
        request = served.request
        most = (request.prompt_tokens - 1) // self._block_size
        hits = self.pool.find(request.prompt_hashes[:most])
        num_blocks = -(-(request.prompt_tokens + request.output_tokens) // self._block_size)
        if not self.pool.can_allocate(num_blocks - len(hits), _OWNER, hits):
            assert self.pool.num_in_use, "the pool is smaller than a request"
            return False
        self._waiting.popleft()
        for one in request.prompt_hashes:
            if self._coming[one] == 1:
                del self._coming[one]
            else:
                self._coming[one] -= 1
        self._num_running += 1
        self.pool.acquire(hits)
        served.blocks = hits + self.pool.allocate(num_blocks - len(hits), _OWNER)
        served.cached_tokens = len(hits) * self._block_size
        self._left_tokens -= served.left
        served.left = request.prompt_tokens - served.cached_tokens
        self._left_tokens += served.left
        # As the scheduler does: who comes later may build on what is about to be computed.
        self._register(served, len(hits), request.prompt_hashes[len(hits) :])
        self._prefill.append(served)
        return True

    def _begin_to_decode(self, served: Served) -> None:
        served.first_token_at = self.clock
        self._num_begun += 1
        last = self._num_decoding_steps + served.request.output_tokens - 1
        heapq.heappush(self._decoding, (last, self._num_begun, served))

    def _end(self, served: Served) -> None:
        request = served.request
        self._register(served, len(request.prompt_hashes), request.answer_hashes)
        self.pool.release(served.blocks)
        self._num_running -= 1
        self._ended.append(served)

    def _register(self, served: Served, first: int, hashes: list[bytes]) -> None:
        for block, block_hash in zip(served.blocks[first:], hashes, strict=False):
            self.pool.register(block, block_hash)

    def stored(
        self,
        block: int,
        block_hash: bytes | None,
        _where: Place | None,
        _parent: bytes | None,
        _kind: int,
    ) -> None:
        """See `Listener`."""
        assert block_hash is not None, "no tails"
        self._stored[block] = block_hash

    def lost(
        self,
        block: int,
        block_hash: bytes | None,
        _owner: str,
        _why: Loss | None,
        _kind: int,
        _by: str,
    ) -> None:
        """See `Listener`."""
        assert block_hash is not None, "no tails"
        self._stored.pop(block, None)
        self._removed.append(block_hash)

    def _tell(self) -> None:
        """Note what the step has changed: what it evicted, it did before it stored anything."""
        if self._stored or self._removed:
            self.changes.append(Changes(self.clock, [*self._stored.values()], self._removed))
            self._stored, self._removed = {}, []
