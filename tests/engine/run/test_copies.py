"""Swaps beside computations: two queues that wait for each other where they must, and only there.

The device is simulated: it does everything at once, and remembers with vector clocks what a real
one would be free to do in another order. Whatever touches a block must come after whatever wrote
it, and whatever writes it after all that touched it, by the order of a queue or by an event.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from engine.assembly.parts import Parts
from engine.batch.batch import Batch
from engine.blocks.transfers import Transfers
from engine.run.copies import BlockCopies
from engine.run.runner import AheadRunner, ModelRunner
from engine.schedule.swap_or_recompute import ComputeCost, CopyCost, CostModel
from engine.serve.core import EngineCore
from tests.engine.model.test_model import generate, save_model
from tests.engine.run.test_graphs import BLOCK, core_of, load, recorded
from tests.engine.simulated_model import random_prompt
from tests.engine.simulation import make_request, run_to_end

Clock = dict[str, int]
SWAP = CostModel(CopyCost(0.0, 1e-9), CopyCost(0.0, 1e-9), ComputeCost(1.0, 1.0, 0.0, 48, 1.0))
"""Swapping is always cheaper."""


class Moment:
    """An event; whether the host finds that it has come is a matter of chance."""

    def __init__(self, queues: SimulatedQueues, clock: Clock) -> None:
        self._queues, self.clock = queues, clock

    def query(self) -> bool:
        has_come = self._queues.rng.random() < self._queues.luck
        if has_come:
            self._queues.merge("host", self.clock)
        return has_come


class SimulatedQueues:
    """An `engine.run.copies.Queues` that finds races."""

    def __init__(self, seed: int = 0, luck: float = 0.0) -> None:
        self.rng, self.luck = random.Random(seed), luck
        self.clocks: dict[str, Clock] = {name: defaultdict(int) for name in ("host", "run", "copy")}
        self.races: list[str] = []
        self.num_waits = {"run": 0, "copy": 0}
        self.overlapped = 0
        """Copies that may run beside a step that was launched before them."""
        self._queue = "run"
        self._written: dict[object, tuple[str, int]] = {}
        self._read: dict[object, dict[str, int]] = defaultdict(dict)

    @contextmanager
    def copying(self) -> Iterator[None]:
        self._queue = "copy"
        yield
        self._queue = "run"

    def mark(self) -> Moment:
        return Moment(self, dict(self.clocks[self._queue]))

    def wait(self, event: Moment) -> None:
        self.num_waits[self._queue] += 1
        self.merge(self._queue, event.clock)

    def merge(self, queue: str, clock: Clock) -> None:
        own = self.clocks[queue]
        for name, tick in clock.items():
            own[name] = max(own[name], tick)

    def do(self, reads: set[object], writes: set[object]) -> None:
        """Something goes to the queue; the host has waited for what it knows to be done."""
        queue, own = self._queue, self.clocks[self._queue]
        self.merge(queue, self.clocks["host"])
        if queue == "copy" and own["run"] < self.clocks["run"]["run"]:
            self.overlapped += 1
        own[queue] += 1
        for place in reads | writes:
            before = dict([self._written[place]] if place in self._written else [])
            if place in writes:
                before |= self._read[place]
            late = [name for name, tick in before.items() if own[name] < tick]
            self.races += [f"{place} in {queue} races with {name}" for name in late]
        for place in writes:
            self._written[place] = queue, own[queue]
            self._read[place] = {}
        for place in reads:
            self._read[place][queue] = own[queue]


def watched(parts: Parts, queues: SimulatedQueues) -> None:
    """Let `queues` know what the model reads and writes."""
    model = parts.model
    forward, swap_out, swap_in, copy = (
        model.forward,
        model.swap_out,
        model.swap_in,
        model.copy_pages,
    )

    def watched_forward(batch: Batch) -> object:
        used = batch.attention.context_lens.add(BLOCK - 1).div(BLOCK, rounding_mode="floor")
        rows = zip(batch.attention.block_tables.tolist(), used.tolist(), strict=True)
        blocks = {block for row, count in rows for block in row[:count]}
        written = set(batch.attention.slots.div(BLOCK, rounding_mode="floor").tolist())
        own = {parts.info.num_blocks}  # nobody's
        queues.do(blocks - own, written - own)
        return forward(batch)

    def watched_out(moves: list[tuple[int, int]]) -> None:
        queues.do({block for block, _ in moves}, {("slot", slot) for _, slot in moves})
        swap_out(moves)

    def watched_in(moves: list[tuple[int, int]]) -> None:
        queues.do({("slot", slot) for slot, _ in moves}, {block for _, block in moves})
        swap_in(moves)

    def watched_copy(copies: list[tuple[int, int]]) -> None:
        queues.do({source for source, _ in copies}, {target for _, target in copies})
        copy(copies)

    model.forward = watched_forward  # type: ignore[method-assign, assignment]
    model.swap_out, model.swap_in = watched_out, watched_in  # type: ignore[method-assign]
    model.copy_pages = watched_copy  # type: ignore[method-assign]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("copies")
    save_model("llama", path)
    return path


def swapped(
    folder: Path, queues: SimulatedQueues, is_recorded: bool = False
) -> tuple[dict[str, list[int]], int]:
    """What a pool that is too small answers, and how many blocks it has swapped."""
    parts = load(folder, num_blocks=24, num_host_blocks=60)
    watched(parts, queues)
    graphs = recorded(parts) if is_recorded else None
    runner = AheadRunner(parts.model, SWAP, graphs=graphs, queues=queues)
    core = core_of(Parts(parts.config, parts.info, parts.model, SWAP), runner)
    outputs = answers(core)
    return outputs, core.stats().swapped_out + core.stats().swapped_in


def answers(core: EngineCore) -> dict[str, list[int]]:
    """Of all prompts at once, twice: what is evicted the first time is found by the second."""
    outputs = {}
    for _ in range(2):
        for name, prompt in prompts().items():
            core.submit(make_request(name, prompt, max_tokens=20))
        outputs = run_to_end(core)
    return outputs


def prompts() -> dict[str, list[int]]:
    rng = random.Random(7)
    head = random_prompt(rng, 20)
    return {str(i): head + random_prompt(rng, rng.randrange(1, 40)) for i in range(6)}


@pytest.mark.parametrize(("luck", "is_recorded"), [(0.0, False), (0.5, True)])
def test_nothing_touches_a_block_while_it_is_moved_or_moves_it_while_it_is_written(
    folder: Path, luck: float, is_recorded: bool
) -> None:
    model, queues = save_model("llama", folder), SimulatedQueues(luck=luck)
    outputs, num_swapped = swapped(folder, queues, is_recorded)
    assert outputs == {name: generate(model, prompt, 20) for name, prompt in prompts().items()}
    assert num_swapped > 20
    assert queues.races == []
    assert queues.overlapped > 0, "copies run beside steps that do not touch their blocks"


@pytest.mark.parametrize("forgotten", ["join", "_wait"])
def test_a_wait_that_is_left_out_is_found(
    folder: Path, forgotten: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the test above could not fail."""

    def careless(copies: BlockCopies, *arguments: list[object]) -> object:
        return arguments[0] if forgotten == "_wait" else None

    monkeypatch.setattr(BlockCopies, forgotten, careless)
    queues = SimulatedQueues()
    swapped(folder, queues)
    assert queues.races != []


def test_who_shares_no_block_waits_for_nobody(folder: Path) -> None:
    parts, queues = load(folder, num_blocks=30, num_host_blocks=4), SimulatedQueues()
    watched(parts, queues)
    copies = BlockCopies(parts.model, queues)
    copies.launched([np.array([[1, 2], [1, 3]])])
    copies.begin(Transfers(swap_outs=[(4, 0)], swap_ins=[(1, 5)]))
    copies.join([np.array([[1, 2]])])
    assert queues.num_waits == {"run": 0, "copy": 0}
    copies.begin(Transfers(swap_outs=[(3, 2)]))
    assert queues.num_waits == {"run": 0, "copy": 1}
    copies.join([np.array([[1, 2]]), np.array([(2, 5)])])
    assert queues.num_waits == {"run": 1, "copy": 1}


@pytest.mark.parametrize("kind", [ModelRunner, AheadRunner])
def test_swaps_that_are_done_tell_the_cost_model_how_long_they_took(
    folder: Path, kind: type[ModelRunner]
) -> None:
    parts = load(folder, num_blocks=24, num_host_blocks=60)
    seen: list[tuple[int, int]] = []

    class Listening(CostModel):
        def observe_swap_out(self, num_blocks: int, seconds: float) -> None:
            assert seconds >= 0
            seen.append((0, num_blocks))

        def observe_swap_in(self, num_blocks: int, seconds: float) -> None:
            seen.append((1, num_blocks))

    costs = Listening(SWAP.swap_out, SWAP.swap_in, SWAP.compute)
    core = core_of(Parts(parts.config, parts.info, parts.model, costs), kind(parts.model, costs))
    answers(core)
    stats = core.stats()
    totals = [sum(count for way, count in seen if way == one) for one in (0, 1)]
    assert totals == [stats.swapped_out, stats.swapped_in]
    assert min(totals) > 0


class FakeStream:
    """Of CUDA: remembers what it waits for."""

    def __init__(self, device: object = None) -> None:
        self.waits: list[FakeEvent] = []

    def wait_event(self, event: FakeEvent) -> None:
        self.waits.append(event)


class FakeEvent:
    """Of CUDA: waiting for it is for those that know that it has come."""

    current = FakeStream()

    def __init__(self, enable_timing: bool = False) -> None:
        self.has_come = False
        self.stream: FakeStream | None = None

    def record(self) -> None:
        self.stream = FakeEvent.current

    def query(self) -> bool:
        return self.has_come

    def synchronize(self) -> None:
        assert self.has_come, "the host waits"

    def elapsed_time(self, other: FakeEvent) -> float:
        return 2000.0


@contextmanager
def on_stream(stream: FakeStream) -> Iterator[None]:
    outer, FakeEvent.current = FakeEvent.current, stream
    yield
    FakeEvent.current = outer


def test_streams_wait_for_each_other_and_the_host_for_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "stream", on_stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: FakeEvent.current)
    moved: list[FakeStream] = []
    model = SimpleNamespace(
        device=torch.device("cuda"),
        swap_out=lambda _: moved.append(FakeEvent.current),
        swap_in=lambda _: moved.append(FakeEvent.current),
    )
    observed: list[tuple[int, float]] = []
    costs = SimpleNamespace(
        observe_swap_out=lambda *seen: observed.append(seen),
        observe_swap_in=lambda *seen: observed.append(seen),
    )
    compute = FakeEvent.current
    copies = BlockCopies(model)  # type: ignore[arg-type]
    copies.launched([np.array([1, 2])])
    (step,) = copies._steps
    copies.begin(Transfers(swap_outs=[(1, 0), (7, 1)], swap_ins=[(2, 8)]))
    (aside,) = set(moved)
    assert aside is not compute
    assert aside.waits == [step.until]
    copies.join([np.array([8])])
    (copy,) = copies._copies
    assert compute.waits == [copy.until]
    copies.observe(costs)  # type: ignore[arg-type]
    assert observed == []
    for event in copies._timed[0].watch._events:
        event.has_come = True
    copies.observe(costs)  # type: ignore[arg-type]
    copies.observe(costs)  # type: ignore[arg-type]
    assert observed == [(2, 2.0), (1, 2.0)]
    step.until.has_come = copy.until.has_come = True
    copies.begin(Transfers(swap_outs=[(1, 0)]))
    copies.join([np.array([8])])
    assert (len(aside.waits), len(compute.waits)) == (1, 1), "what is done holds nobody up"
