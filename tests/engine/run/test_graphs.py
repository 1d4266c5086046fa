"""Decode steps of few shapes, recorded and replayed; here what was recorded is done again."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from engine.assembly.parts import Parts, load_parts, make_graphs, make_pieces
from engine.batch.batch import Batch, pack
from engine.config import EngineConfig
from engine.model.calibration import calibrate_replay
from engine.model.load import load_model
from engine.run.graphs.decode import DecodeGraphs
from engine.run.runner import AheadRunner, ModelRunner
from engine.run.sampler import sample
from engine.schedule.swap_or_recompute import ComputeCost, CopyCost, CostModel
from engine.sequences.plan import Draw
from engine.serve.core import EngineCore
from kernels.prefix_groups import GroupFinder, GroupingRule, Integers
from kernels.types import PrefixGroups
from tests.engine.model.test_model import generate, save_model
from tests.engine.run.test_sampler import sequence
from tests.engine.simulated_model import random_prompt
from tests.engine.simulation import make_request, run_all_to_end, run_to_end

BLOCK = 8
CPU = torch.device("cpu")


class Again:
    """In place of a CUDA graph: what was recorded is done again, on the same memory."""

    def __init__(self, action: Callable[[], None]) -> None:
        action()
        self.replays = 0
        self._action = action

    def replay(self) -> None:
        self.replays += 1
        self._action()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graphs")
    save_model("llama", path)
    return path


def load(
    folder: Path, num_blocks: int = 60, num_host_blocks: int = 0, device: str = "cpu"
) -> Parts:
    config = EngineConfig(
        model_path=str(folder),
        device=device,
        dtype="float32",
        block_size=BLOCK,
        step_token_budget=48,
        max_running_requests=8,
        threads=1,
    )
    block_bytes = load_model(config).layout.block_bytes(BLOCK, torch.float32)
    return load_parts(
        msgspec.structs.replace(
            config,
            kv_memory_bytes=num_blocks * block_bytes,
            host_memory_bytes=num_host_blocks * block_bytes,
        )
    )


def core_of(parts: Parts, runner: ModelRunner) -> EngineCore:
    return EngineCore(parts.config, parts.info, runner, parts.costs)


def poisoned(graphs: DecodeGraphs) -> DecodeGraphs:
    """What a replay does not write anew shows; `replayed` tells of how many rows each one was."""
    replay = graphs._replay
    graphs.replayed = []  # type: ignore[attr-defined]

    def poisoning(rows: int, *arguments: object) -> object:
        graphs._logits.fill_(float("nan"))
        graphs.replayed.append(rows)  # type: ignore[attr-defined]
        return replay(rows, *arguments)  # type: ignore[arg-type]

    graphs._replay = poisoning  # type: ignore[method-assign, assignment]
    return graphs


def recorded(parts: Parts) -> DecodeGraphs:
    graphs = poisoned(make_graphs(parts, Again))
    graphs.record()
    return graphs


@pytest.mark.parametrize("runs_ahead", [False, True])
@pytest.mark.parametrize("is_recorded", [False, True])
def test_launched_ahead_and_recorded_a_model_answers_as_generate_does(
    folder: Path, runs_ahead: bool, is_recorded: bool
) -> None:
    model = save_model("llama", folder)
    parts = load(folder, num_blocks=40, num_host_blocks=30)
    graphs = recorded(parts) if is_recorded else None
    kind = AheadRunner if runs_ahead else ModelRunner
    core = core_of(parts, kind(parts.model, parts.costs, graphs=graphs))
    rng = random.Random(7)
    head = random_prompt(rng, 60)
    prompts = [head + random_prompt(rng, rng.randrange(1, 40)) for _ in range(6)]
    expected = {str(i): generate(model, prompt, 24) for i, prompt in enumerate(prompts)}
    for attempt in ("cold", "cached"):
        for index, prompt in enumerate(prompts):
            core.submit(make_request(str(index), prompt, max_tokens=24))
        assert run_to_end(core) == expected, attempt
    assert core.stats().preemptions > 0, "the pool was meant to be too small"
    assert core.stats().blocks_in_use == 0
    assert graphs is None or len(set(graphs.replayed)) >= 3  # type: ignore[attr-defined]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
@pytest.mark.parametrize("num_blocks", [300, 120])
@pytest.mark.parametrize("is_recorded", [False, True])
def test_a_gpu_answers_as_generate_does_and_as_without_graphs(
    folder: Path, is_recorded: bool, num_blocks: int
) -> None:
    """Also where the pool is too small, and whoever is preempted is swapped."""
    model = save_model("llama", folder)
    rng = random.Random(7)
    head = random_prompt(rng, 200)
    prompts = [head + random_prompt(rng, rng.randrange(1, 40)) for _ in range(7)]
    expected = {str(i): generate(model, prompt, 24) for i, prompt in enumerate(prompts)}
    parts = load(folder, num_blocks, num_host_blocks=200, device="cuda")
    parts = replace(parts, config=msgspec.structs.replace(parts.config, recovery="swap"))
    graphs = make_graphs(parts) if is_recorded else None
    pieces = make_pieces(parts) if is_recorded else None
    if graphs is not None and pieces is not None:
        assert len(graphs.record()) == 4
        assert len(pieces.record()) == 2
    core = core_of(parts, AheadRunner(parts.model, parts.costs, graphs=graphs, pieces=pieces))
    for _ in range(2):
        for index, prompt in enumerate(prompts):
            # Nobody shares where all are to fit but a pool is too small for all of them.
            cache = num_blocks == 300
            core.submit(make_request(str(index), prompt, max_tokens=24, cache=cache))
        assert run_to_end(core) == expected
    stats = core.stats()
    assert (stats.swapped_in > 0) == (num_blocks == 120)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
def test_a_gpu_draws_what_a_cpu_draws() -> None:
    options = {"temperature": 1.1, "top_p": 0.95, "repetition_penalty": 1.3}
    rows = [
        sequence([1, 2], [3, 5], seed=seed, frequency_penalty=seed % 3 / 2, **options)
        for seed in range(50)
    ]
    scores = torch.randn(50, 40, generator=torch.Generator().manual_seed(1))
    draws = list(map(Draw, rows))
    newest = torch.full((50,), 5)
    drawn = sample(scores.cuda(), draws, newest.cuda()).result()
    assert drawn == sample(scores, draws).result()


def test_sampled_requests_of_every_kind_draw_the_same_in_every_order(folder: Path) -> None:
    rng = random.Random(3)
    options: list[dict[str, object]] = [
        {"temperature": 0.9, "seed": 5},
        {"temperature": 1.2, "top_k": 40, "top_p": 0.9, "seed": 6},
        {"temperature": 0.8, "min_p": 0.02, "frequency_penalty": 0.7, "seed": 7},
        {"temperature": 0.0, "repetition_penalty": 1.3, "logprobs": 2},
        {"temperature": 0.0, "presence_penalty": 1.5, "logit_bias": {7: 2.0}},
    ]
    requests = []
    for index, sampling in enumerate(options):
        request = make_request(
            str(index), random_prompt(rng, 9 + index), num_sequences=1 + index % 2
        )
        params = msgspec.structs.replace(request.sampling, max_tokens=20, **sampling)
        requests.append(msgspec.structs.replace(request, sampling=params))
    outputs = []
    for runs_ahead in (False, True):
        parts = load(folder)
        graphs = recorded(parts) if runs_ahead else None
        core = core_of(
            parts, (AheadRunner if runs_ahead else ModelRunner)(parts.model, graphs=graphs)
        )
        for request in requests:
            core.submit(request)
        outputs.append(run_all_to_end(core))
    assert outputs[0] == outputs[1]


def decode_batch(rng: random.Random, lengths: list[int], num_blocks: int) -> Batch:
    blocks = rng.sample(range(num_blocks), num_blocks)
    parts = []
    for length in lengths:
        table = [blocks.pop() for _ in range(-(-length // BLOCK))]
        parts.append((random_prompt(rng, length), length - 1, 1, table))
    return pack(parts, range(len(lengths)), BLOCK, CPU)


@torch.inference_mode()
def test_added_rows_change_no_other_row_and_write_to_the_null_block_alone(folder: Path) -> None:
    parts = load(folder)
    model = parts.model
    generator = torch.Generator().manual_seed(1)
    start = torch.randn(model.memory.shape, generator=generator)
    graphs = recorded(parts)
    rng = random.Random(2)
    for num_rows in (1, 3, 5, 7, 8):
        batch = decode_batch(rng, [rng.randint(1, 50) for _ in range(num_rows)], 60)
        model.memory.copy_(start)
        expected = model.forward(batch)
        memory = model.memory.clone()
        model.memory.copy_(start)
        replayed = graphs.run(batch, lambda _: None)
        assert replayed is not None
        torch.testing.assert_close(replayed[1][:num_rows], expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(model.memory[:-1], memory[:-1], rtol=1e-5, atol=1e-5)
        assert not torch.equal(model.memory[-1], memory[-1]) or num_rows in (1, 8)
    assert graphs.replayed == [1, 4, 8, 8, 8]  # type: ignore[attr-defined]


def test_only_decode_batches_that_fit_are_replayed(folder: Path) -> None:
    graphs = recorded(load(folder))
    rng = random.Random(2)
    prompt = pack([(random_prompt(rng, 9), 0, 9, [1, 2])], [8], BLOCK, CPU)
    assert graphs.run(prompt, lambda _: None) is None
    assert graphs.run(decode_batch(rng, [5] * 9, 60), lambda _: None) is None
    assert graphs.run(decode_batch(rng, [5] * 8, 60), lambda _: None) is not None


class Unread(TorchDispatchMode):
    """Refuses what reads a tensor's values on the host, which no recording can hold."""

    READS = ("_local_scalar_dense", "item", "is_nonzero", "nonzero", "equal", "resolve_conj")

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.name().removeprefix("aten::").partition(".")[0]
        assert name not in self.READS, f"{func} waits for the device"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("family", "is_fused"),
    [("llama", True), ("qwen3", True), ("gemma3_text", True), ("phi3", True), ("gpt_neox", False)],
)
def test_nothing_of_a_pass_is_read_before_its_end(
    family: str, is_fused: bool, tmp_path: Path
) -> None:
    """Otherwise it could not be recorded."""
    save_model(family, tmp_path)
    model = load(tmp_path).model
    assert model.weights.is_fused is is_fused, "it is the pass that the engine takes"
    batch = decode_batch(random.Random(1), [5] * 4, 60)
    with torch.inference_mode():
        expected = model.forward(batch)
        with Unread():
            unread = model.forward(batch)
            for read in (Tensor.item, Tensor.tolist, Tensor.nonzero, bool):
                with pytest.raises(AssertionError, match="waits for the device"):
                    read(unread[0, 0])
    assert torch.equal(unread, expected)


def mixed_batch(rng: random.Random, finder: GroupFinder) -> Batch:
    """Of any rows, contexts and shared prefixes that 60 blocks have room for."""
    blocks = rng.sample(range(60), 60)
    heads = [[blocks.pop() for _ in range(rng.randrange(1, 9))] for _ in range(rng.randrange(1, 4))]
    parts = []
    for _ in range(rng.randint(1, 8)):
        head = rng.choice(heads)
        table = head[: rng.randrange(len(head) + 1)] + [blocks.pop() for _ in range(3)]
        length = len(table) * BLOCK - rng.randrange(BLOCK)
        parts.append((random_prompt(rng, length), length - 1, 1, table))

    def group(*arrays: Integers) -> PrefixGroups | None:
        found = finder.find(*arrays)
        return None if found is None else found.to(CPU)

    return pack(parts, range(len(parts)), BLOCK, CPU, group)


@torch.inference_mode()
def test_all_sizes_are_recorded_at_start_and_none_while_serving(folder: Path) -> None:
    """Lengths, tables and groups may be what they are: rows alone make a graph another one."""
    parts = load(folder)
    sizes: list[int] = []

    def counting(action: Callable[[], None]) -> Again:
        sizes.append(len(graphs._graphs))
        return Again(action)

    graphs = poisoned(make_graphs(parts, counting))
    assert list(graphs.record()) == [8, 4, 2, 1], "the largest first"
    rng, finder = random.Random(2), GroupFinder(BLOCK, GroupingRule())
    memory = torch.randn(parts.model.memory.shape, generator=torch.Generator().manual_seed(1))
    parts.model.memory.copy_(memory)
    num_groups = set()
    for _ in range(60):
        batch = mixed_batch(rng, finder)
        num_groups.add(0 if batch.attention.groups is None else len(batch.attention.groups.begins))
        expected = parts.model.forward(batch)
        replayed = graphs.run(batch, lambda _: None)
        assert replayed is not None
        torch.testing.assert_close(replayed[1][: len(expected)], expected, rtol=1e-5, atol=1e-5)
    assert len(sizes) == 4, "once each"
    assert set(graphs.replayed) == {1, 2, 4, 8}  # type: ignore[attr-defined]
    assert len(num_groups) >= 4


def test_a_step_copies_what_it_has_of_block_tables(folder: Path) -> None:
    """Not the whole width, which is that of the longest context."""
    parts = load(folder)
    graphs = recorded(parts)
    inputs = graphs._inputs
    [tables] = inputs._tables
    assert tables.shape == (8, parts.info.max_context_tokens // BLOCK)
    inputs._buffer.fill_(255)
    graphs.run(decode_batch(random.Random(1), [20, 9], 60), lambda _: None)
    unread = (inputs._buffer != 255).nonzero().max()
    assert unread < 2 * 64 + 2 * 3 * 4 + 160, "rows, three blocks each, and padding"


def test_a_decode_step_costs_what_its_replay_takes(folder: Path) -> None:
    parts = load(folder)
    eager = ComputeCost(9.0, 1.0, 0.0, 32, 9.0)
    costs = CostModel(CopyCost(0.0, 0.0), CopyCost(0.0, 0.0), eager)
    calibrate_replay(costs, parts.model, recorded(parts).replay_smallest)
    assert 0 < costs.compute.per_decode_step < 9
    assert replace(costs.compute, per_decode_step=9.0) == eager, "prefill is not replayed"


def test_a_model_that_cannot_be_recorded_is_run_as_it_is(folder: Path) -> None:
    def refuse(action: Callable[[], None]) -> Again:
        raise RuntimeError("operation not permitted when stream is capturing")

    parts = load(folder)
    graphs = make_graphs(parts, refuse)
    graphs.record()
    core = core_of(parts, AheadRunner(parts.model, graphs=graphs))
    prompt = random_prompt(random.Random(1), 20)
    core.submit(make_request("r", prompt, 12))
    outputs = run_to_end(core)
    plain = core_of(parts, ModelRunner(parts.model))
    plain.submit(make_request("r", prompt, 12))
    assert outputs == run_to_end(plain)
    assert len(graphs) == 0


def test_what_has_been_recorded_is_replayed_for_smaller_batches_too(folder: Path) -> None:
    recordings: list[Again] = []

    def once(action: Callable[[], None]) -> Again:
        if recordings:
            raise RuntimeError("out of memory")
        recordings.append(Again(action))
        return recordings[0]

    graphs = make_graphs(load(folder), once)
    assert list(graphs.record()) == [8]
    rng = random.Random(2)
    for lengths in ([5], [5] * 8):
        assert graphs.run(decode_batch(rng, lengths, 60), lambda _: None) is not None
    assert recordings[0].replays == 2
