"""Orca: iteration-level batching, each request in one contiguous reservation.

Requests join and leave the batch at every step; a request's whole prompt is computed in the step
that admits it, beside the others' decoding (Yu et al., OSDI 2022, sections 3.1 and 3.2: iterations
of both phases are batched). Its memory is reserved once, for all of its life, by a buddy allocator;
for how many tokens is what the three variants differ in (Kwon et al., SOSP 2023, section 6.1).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from bench.paper.baselines.server import MemoryUse, Step, TracedRequest
from bench.paper.cost_model import StepShape


class BuddyAllocator:
    """Contiguous ranges of slots, in powers of two (Knowlton, CACM 1965).

    A range of size 2^k starts at a multiple of 2^k. A larger free range is halved until it fits; a
    range that is given back merges with its other half, its buddy, as long as that is free. The
    `num_slots`, not necessarily a power of two, are cut into aligned powers.
    """

    def __init__(self, num_slots: int) -> None:
        if num_slots < 1:
            raise ValueError("num_slots: must be at least 1")
        self.num_slots = num_slots
        self._free: list[set[int]] = [set() for _ in range(num_slots.bit_length())]
        self._taken: dict[int, int] = {}
        start = 0
        for order in reversed(range(num_slots.bit_length())):
            if num_slots & 1 << order:
                self._free[order].add(start)
                start += 1 << order

    @property
    def num_free(self) -> int:
        """Slots in free ranges."""
        return sum(len(starts) << order for order, starts in enumerate(self._free))

    def can_allocate(self, size: int) -> bool:
        """Whether a free range holds `size` slots."""
        return any(self._free[_order(size) :])

    def allocate(self, size: int) -> int:
        """Take a range of at least `size` slots; returns its first slot.

        The smallest free range that is large enough is split, the lowest one among equals.
        """
        order = _order(size)
        found = next((at for at in range(order, len(self._free)) if self._free[at]), None)
        assert found is not None, "allocate without can_allocate"
        start = min(self._free[found])
        self._free[found].remove(start)
        for at in range(found - 1, order - 1, -1):
            self._free[at].add(start + (1 << at))
        self._taken[start] = order
        return start

    def size_of(self, start: int) -> int:
        """How many slots the range that starts there has taken."""
        return 1 << self._taken[start]

    def release(self, start: int) -> None:
        """Give a range back."""
        order = self._taken.pop(start)
        while start ^ 1 << order in self._free[order]:
            self._free[order].remove(start ^ 1 << order)
            start &= ~(1 << order)
            order += 1
        self._free[order].add(start)

    def check(self) -> None:
        """Verify that the ranges tile the memory, and that no two free buddies are left apart.

        Raises `AssertionError`.
        """
        free = [(start, order) for order, starts in enumerate(self._free) for start in starts]
        position = 0
        for start, order in sorted([*free, *self._taken.items()]):
            assert start == position, f"ranges overlap or leave a gap at slot {position}"
            assert start % (1 << order) == 0, f"the range at slot {start} is not aligned"
            position += 1 << order
        assert position == self.num_slots, "the ranges do not end where the memory ends"
        for start, order in free:
            assert start ^ 1 << order not in self._free[order], f"slot {start}: buddies not merged"


def _order(size: int) -> int:
    """The exponent of the smallest power of two that is at least `size`."""
    return (size - 1).bit_length()


Reservation = Callable[[TracedRequest], int]
"""How many slots are reserved for a request; never fewer than it needs."""


def reserve_max(context_tokens: int) -> Reservation:
    """Orca (Max): room for the longest sequence that the model allows."""
    return lambda _: context_tokens


def reserve_pow2(context_tokens: int) -> Reservation:
    """Orca (Pow2): the output's length is overestimated by at most 2x, as a power of two."""

    def reserve(request: TracedRequest) -> int:
        output = 1 << (len(request.output) - 1).bit_length()
        return min(len(request.prompt) + output, context_tokens)

    return reserve


def reserve_oracle(request: TracedRequest) -> int:
    """Orca (Oracle): the lengths are known, which no real system can have."""
    return request.num_states


@dataclass(order=True, slots=True)
class Running:
    """A request in the batch, ordered by the step that ends it."""

    last_step: int
    number: int
    request: TracedRequest
    start: int
    """First slot of its range."""


class Orca:
    """A `Server` of `num_slots` slots that runs at most `max_running` requests at once."""

    def __init__(self, num_slots: int, reservation: Reservation, max_running: int) -> None:
        self.allocator = BuddyAllocator(num_slots)
        self.running: list[Running] = []
        self._reservation = reservation
        self._max_running = max_running
        self._waiting: deque[TracedRequest] = deque()
        self._num_steps = 0
        self._context = 0
        self._final = 0
        self._reserved = 0
        self._taken = 0

    @property
    def is_idle(self) -> bool:
        """See `Server`."""
        return not self.running and not self._waiting

    def submit(self, request: TracedRequest) -> None:
        """See `Server`. A request larger than all memory is refused."""
        if 1 << (self._reservation(request) - 1).bit_length() > self.allocator.num_slots:
            raise ValueError(f"request {request.number} never fits")
        self._waiting.append(request)

    def step(self) -> Step:
        """See `Server`."""
        return self.finish(self.start())

    def start(self) -> list[Running]:
        """Admit what fits; returns the requests whose prompts this step computes."""
        self._num_steps += 1
        admitted: list[Running] = []
        while self._waiting and len(self.running) < self._max_running:
            request = self._waiting[0]
            size = self._reservation(request)
            if not self.allocator.can_allocate(size):
                break
            self._waiting.popleft()
            start = self.allocator.allocate(size)
            last = self._num_steps + len(request.output) - 1
            admitted.append(Running(last, request.number, request, start))
            heapq.heappush(self.running, admitted[-1])
            self._reserved += size
            self._taken += self.allocator.size_of(start)
            self._final += request.num_states
        return admitted

    def finish(self, admitted: list[Running]) -> Step:
        """Account for the step that `start` began, and let go what it has ended."""
        prompts = [len(entry.request.prompt) for entry in admitted]
        decoding = len(self.running) - len(admitted)
        self._context += sum(prompts) + decoding
        shape = StepShape(
            tokens=sum(prompts) + decoding,
            sequences=len(self.running),
            context=self._context,
            pairs=sum(count * (count + 1) // 2 for count in prompts),
        )
        running, memory = len(self.running), self._memory()
        return Step(shape, running, memory, self._release_finished())

    def _release_finished(self) -> list[int]:
        """Let go of the requests that end with this step; returns their numbers."""
        finished: list[int] = []
        while self.running and self.running[0].last_step == self._num_steps:
            entry = heapq.heappop(self.running)
            self._context -= entry.request.num_states
            self._final -= entry.request.num_states
            self._reserved -= self._reservation(entry.request)
            self._taken -= self.allocator.size_of(entry.start)
            self.allocator.release(entry.start)
            finished.append(entry.number)
        return finished

    def _memory(self) -> MemoryUse:
        free = self.allocator.num_slots - self._taken
        rounded_up = self._taken - self._reserved
        scattered = free if self._is_scattered(free) else 0
        return MemoryUse(
            token_states=self._context,
            reserved=self._final - self._context,
            internal=self._reserved - self._final,
            external=rounded_up + scattered,
            free=free - scattered,
        )

    def _is_scattered(self, free: int) -> bool:
        """Whether the next request waits for one range although its slots are free in several."""
        if not self._waiting:
            return False
        size = self._reservation(self._waiting[0])
        return size <= free and not self.allocator.can_allocate(size)
