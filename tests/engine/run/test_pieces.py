"""Steps with prompts, of which all but attention is recorded; here what was recorded is done again.

What a GPU would be told is counted with its own modules on the CPU, their kernels replaced by ones
that do nothing.
"""

from __future__ import annotations

import importlib
import pkgutil
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM
from triton.runtime import JITFunction

import kernels.triton
from engine.assembly.parts import Parts, make_pieces
from engine.batch.batch import Batch, pack
from engine.model.layers import paged_model
from engine.model.layers.eager.decoder import EagerDecoder
from engine.model.layers.fused import fuse
from engine.model.layers.paged_model import PagedModel, Weights
from engine.run.device_counts import DeviceCounts
from engine.run.graphs import pieces as graph_pieces
from engine.run.graphs.pieces import PieceGraphs
from engine.run.runner import AheadRunner, ModelRunner
from engine.sequences.plan import StepPlan
from engine.serve.core import EngineCore
from kernels import attention as attention_door
from kernels import backends, sampling
from tests.engine.model.test_model import generate, make_config, save_model
from tests.engine.run.test_graphs import BLOCK, CPU, Again, Unread, core_of, load, recorded
from tests.engine.simulated_model import random_prompt
from tests.engine.simulation import make_request, run_all_to_end, run_to_end


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pieces")
    save_model("llama", path)
    return path


@pytest.fixture(autouse=True)
def few_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_pieces, "TOKEN_BUCKETS", (16, 32, 48, 64))


def in_pieces(parts: Parts) -> PieceGraphs:
    """Recorded, with whatever a step might leave behind for the next one to read."""
    pieces = make_pieces(parts, Again)
    assert pieces is not None
    pieces.record()
    run = pieces.run

    def poisoned(host: Batch, complete: Callable[[torch.Tensor], None]) -> object:
        for left in (pieces._residual, pieces._update, pieces._query, pieces._attended):
            left.fill_(float("nan"))
        pieces._buffer.fill_(0)
        return run(host, complete)

    pieces.run = poisoned  # type: ignore[method-assign, assignment]
    return pieces


def mixed_batch(rng: random.Random, counts: list[int]) -> Batch:
    """Sequences of which so many tokens are computed."""
    blocks = rng.sample(range(60), 60)
    parts = []
    for count in counts:
        start = rng.randrange(20)
        table = [blocks.pop() for _ in range(-(-(start + count) // BLOCK))]
        parts.append((random_prompt(rng, start + count), start, count, table))
    ends = [sum(counts[: index + 1]) - 1 for index in range(len(counts))]
    return pack(parts, ends, BLOCK, CPU)


@torch.inference_mode()
def test_what_is_added_changes_nothing_and_writes_to_the_null_block_alone(folder: Path) -> None:
    parts = load(folder)
    model, pieces = parts.model, in_pieces(parts)
    assert pieces.sizes == [16, 32, 48], "as many as a step of 48 tokens may take"
    start = torch.randn(model.memory.shape, generator=torch.Generator().manual_seed(1))
    rng = random.Random(2)
    for counts in ([5], [1, 1, 9], [16], [1, 16], [20, 1, 8], [32], [1] * 7):
        batch = mixed_batch(rng, counts)
        model.memory.copy_(start)
        expected = model.forward(batch)
        memory = model.memory.clone()
        model.memory.copy_(start)
        found = pieces.run(batch, lambda _: None)
        assert found is not None
        newest, logits = found
        torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(model.memory[:-1], memory[:-1], rtol=1e-5, atol=1e-5)
        assert torch.equal(newest, batch.token_ids[batch.logit_rows])
    assert pieces.run(mixed_batch(rng, [49]), lambda _: None) is None


@pytest.mark.parametrize(
    ("family", "runs_ahead"),
    [("llama", False), ("llama", True), ("olmo2", True), ("phi", True)],
)
def test_beside_recorded_decode_steps_a_model_answers_as_generate_does(
    tmp_path: Path, family: str, runs_ahead: bool
) -> None:
    model, parts = save_model(family, tmp_path), load(tmp_path, num_blocks=40, num_host_blocks=30)
    kind = AheadRunner if runs_ahead else ModelRunner
    pieces = in_pieces(parts)
    replays = [again for one in pieces._pieces.values() for again in one.recordings]
    runner = kind(parts.model, parts.costs, graphs=recorded(parts), pieces=pieces)
    core = core_of(parts, runner)
    rng = random.Random(7)
    head = random_prompt(rng, 60)
    prompts = {str(i): head + random_prompt(rng, rng.randrange(1, 40)) for i in range(6)}
    for name, prompt in prompts.items():
        core.submit(make_request(name, prompt, max_tokens=24))
    assert run_to_end(core) == {
        name: generate(model, prompt, 24) for name, prompt in prompts.items()
    }
    assert core.stats().preemptions > 0
    assert sum(again.replays for again in replays) > 10  # type: ignore[attr-defined]


class UnreadOnDevice(Unread):
    """Arrays may be made of the host's tensors: of a device's that is an error, not a wait."""

    READS = tuple(name for name in Unread.READS if name != "resolve_conj")


def test_a_step_is_launched_without_asking_the_device_anything(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it does: swaps, copies, prompts, decoding, penalties, log-probabilities."""
    # Compiled code for CPUs tells of a lack of memory in what it returns.
    monkeypatch.setattr(sampling, "draw", lambda scores, *_: scores.argmax(-1))
    parts = load(folder, num_blocks=32, num_host_blocks=80)
    runner = AheadRunner(parts.model, parts.costs, True, recorded(parts), in_pieces(parts))
    runner._counts = DeviceCounts()
    launch = runner.launch

    def unread(plan: StepPlan) -> object:
        with UnreadOnDevice():
            return launch(plan)

    runner.launch = unread  # type: ignore[method-assign, assignment]
    config = msgspec.structs.replace(parts.config, recovery="swap")
    core = EngineCore(config, parts.info, runner, parts.costs)
    rng = random.Random(7)
    for index in range(6):
        request = make_request(str(index), random_prompt(rng, rng.randrange(40, 90)), 24)
        options = {"logprobs": 2, "frequency_penalty": 0.5 * (index % 2), "logit_bias": {7: -1.0}}
        params = msgspec.structs.replace(request.sampling, **options)
        core.submit(msgspec.structs.replace(request, sampling=params, num_sequences=1 + index % 2))
    run_all_to_end(core)
    stats = core.stats()
    assert min(stats.swapped_in, stats.copied_blocks, stats.steps) > 0


def test_batch_invariant_models_stay_so(folder: Path) -> None:
    parts = load(folder)
    parts.model.batch_invariant = True
    batch = mixed_batch(random.Random(1), [9, 1])
    seen: list[Batch] = []
    arranged = parts.model.arranged
    parts.model.arranged = lambda batch: seen.append(batch) or arranged(batch)  # type: ignore[method-assign, func-returns-value]
    pieces = in_pieces(parts)
    with torch.inference_mode():
        found = pieces.run(batch, lambda _: None)
        expected = parts.model.forward(batch)
    assert found is not None
    assert len(seen) == 2
    torch.testing.assert_close(found[1], expected, rtol=1e-5, atol=1e-5)


VIEWS = {"view", "slice", "select", "unbind", "flatten", "reshape", "unsqueeze", "alias", "detach"}
VIEWS |= {"empty", "new_empty", "empty_like", "to", "resolve_conj", "resolve_neg", "lift_fresh"}
"""Operations of torch that compute nothing, of those that a step does."""


class Launches(TorchDispatchMode):
    """Counts what a GPU is told: Triton's kernels, and operations of torch that compute."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()
        self.is_replaying = False

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.name().removeprefix("aten::").partition(".")[0]
        if name not in VIEWS:
            self.tell(name)
        return func(*args, **(kwargs or {}))

    def tell(self, name: str) -> None:
        if not self.is_replaying:
            self.seen[name] += 1

    def record(self, action: Callable[[], None]) -> Replayed:
        return Replayed(self, action)


class Replayed(Again):
    """Replaying is one thing to tell, whatever was recorded."""

    def __init__(self, launches: Launches, action: Callable[[], None]) -> None:
        super().__init__(action)
        self._launches = launches

    def replay(self) -> None:
        self._launches.tell("replay")
        self._launches.is_replaying = True
        super().replay()
        self._launches.is_replaying = False


class Told:
    """In place of a Triton kernel: it does nothing, and is counted."""

    def __init__(self, launches: Launches, name: str) -> None:
        self._launches, self._name = launches, name

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return lambda *arguments, **options: self._launches.tell(self._name)


@contextmanager
def simulated_gpu(launches: Launches) -> Iterator[None]:
    """Tensors on the CPU go to the modules that a GPU's go to."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backends, "default", lambda _: "triton")
        patch.setattr(paged_model, "prepare", lambda *_: None)
        for found in pkgutil.walk_packages(kernels.triton.__path__, "kernels.triton."):
            module = importlib.import_module(found.name)
            for name, value in list(vars(module).items()):
                if isinstance(value, JITFunction):
                    patch.setattr(module, name, Told(launches, name))
        yield


def gpu_model(family: str, num_layers: int) -> PagedModel:
    """Of so many layers."""
    config = make_config(family)
    config.num_hidden_layers = num_layers
    eager = EagerDecoder(AutoModelForCausalLM.from_config(config, dtype=torch.float32))
    decoder = fuse(eager.model, eager.calls)
    model = PagedModel(
        Weights(decoder, eager.layout(by_kinds=False), config, (2,), CPU, torch.float32), BLOCK
    )
    model.allocate(61)
    return model


@torch.inference_mode()
def told(family: str, num_layers: int, is_recorded: bool) -> Counter[str]:
    """What a step of a prompt beside decoding sequences is told."""
    launches = Launches()
    batch = mixed_batch(random.Random(1), [9, 1, 1])
    with simulated_gpu(launches):
        model = gpu_model(family, num_layers)
        pieces = PieceGraphs(model, model.weights.decoder, 60, 48, launches.record)  # type: ignore[arg-type]
        pieces.record()
        launches.seen.clear()
        with launches:
            if is_recorded:
                assert pieces.run(batch, lambda _: None) is not None
            else:
                model.forward(batch)
    return launches.seen


@torch.inference_mode()
def attention_alone() -> int:
    """What a layer's attention is told, behind the first, which may tell of things for all."""
    launches = Launches()
    with simulated_gpu(launches):
        model = gpu_model("llama", 2)
        call, views = model.layout.calls[0], model.caches.views
        query = torch.zeros(11, call.num_heads, call.head_dim)
        batch = mixed_batch(random.Random(1), [9, 1, 1]).attention
        attention_door.attend(query, views[0], batch, scale=1.0)
        launches.seen.clear()
        with launches:
            attention_door.attend(query, views[1], batch, scale=1.0)
    return launches.seen.total()


@pytest.mark.parametrize(("family", "words"), [("llama", 8), ("mixtral", 12), ("glm4_moe", 16)])
def test_a_layer_of_a_mixed_step_is_told_in_one_word_beside_its_attention(
    family: str, words: int
) -> None:
    attention = attention_alone()
    layer = {}
    for is_recorded in (False, True):
        few, many = (told(family, count, is_recorded) for count in (2, 6))
        layer[is_recorded] = (many.total() - few.total()) / 4
    assert attention == 2, "chunks, and sequences that decode"
    assert layer[False] == words + attention
    assert layer[True] == 1 + attention, "a replay, beside attention"
