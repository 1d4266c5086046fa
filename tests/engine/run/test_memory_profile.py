"""What the largest step takes is known before the KV cache takes the rest. The device is simulated:
it counts the tensors of a model on the CPU."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from engine.api import EngineError, EngineRequest
from engine.assembly.parts import Parts, load_parts, profiled_kv_bytes
from engine.batch.batch import Batch
from engine.model.layers.paged_model import PagedModel
from engine.model.step_size import StepSize
from engine.run.memory_profile import compute_largest_step
from engine.run.runner import AheadRunner
from engine.sequences.plan import StepPlan
from tests.engine.model.states import config_of
from tests.engine.model.test_model import save_model
from tests.engine.pictures.seeing_models import seeing_model
from tests.engine.run.test_graphs import BLOCK, Again, core_of, load
from tests.engine.simulated_model import random_prompt
from tests.engine.simulation import make_request, run_all_to_end


class Held(TorchDispatchMode):
    """Counts the bytes of tensors that operations return, for as long as these are held."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._sizes: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {arg.untyped_storage().data_ptr() for arg in args if isinstance(arg, Tensor)}
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() not in given:
                storage = tensor.untyped_storage()
                self._sizes[storage.data_ptr()] = StorageWeakRef(storage), storage.nbytes()
        self._sizes = {at: held for at, held in self._sizes.items() if not held[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._sizes.values()))
        return result


class SimulatedMemory:
    """A device of `total` bytes; `Again` takes 50 with the first recording, and 5 with each."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.taken = 1000
        self.num_recorded = 0
        self.step = 0

    def used(self) -> int:
        return self.taken + 50 * (self.num_recorded > 0) + 5 * self.num_recorded

    def peak(self, action: Callable[[], object]) -> int:
        with Held() as held:
            action()
        self.step = held.peak
        return held.peak

    def record(self, action: Callable[[], None]) -> Again:
        self.num_recorded += 1
        return Again(action)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("profile")
    save_model("llama", path)
    return path


def demanding_requests() -> list[EngineRequest]:
    rng = random.Random(3)
    requests = []
    for index in range(10):
        request = make_request(str(index), random_prompt(rng, rng.randrange(5, 90)), 12)
        options = {"logprobs": 5, "frequency_penalty": 0.5, "temperature": 0.9, "top_p": 0.9}
        params = msgspec.structs.replace(request.sampling, **options)
        requests.append(msgspec.structs.replace(request, sampling=params))
    return requests


def peaks_of(parts: Parts) -> list[int]:
    """What each step of a busy engine holds."""
    core = core_of(parts, AheadRunner(parts.model))
    execute, peaks = core._runner._begin, []  # type: ignore[attr-defined]

    def watched(plan: StepPlan) -> object:
        with Held() as held:
            step = execute(plan)
        peaks.append(held.peak)
        return step

    core._runner._begin = watched  # type: ignore[attr-defined]
    for request in demanding_requests():
        core.submit(request)
    run_all_to_end(core)
    return peaks


def test_no_step_takes_more_than_the_largest_one(folder: Path) -> None:
    parts = load(folder)
    with Held() as held:
        compute_largest_step(parts.model, StepSize(48, 8), parts.info.max_context_tokens)
    peaks = peaks_of(parts)
    assert max(peaks) <= held.peak < 3 * max(peaks)
    assert min(peaks) < held.peak / 3, "it is not what any step takes"


@pytest.mark.parametrize(
    ("longest", "counts"), [(100, [1] * 7 + [41]), (18, [1] * 5 + [7, 18, 18])]
)
def test_its_prompts_are_as_long_as_one_may_be(
    folder: Path, longest: int, counts: list[int]
) -> None:
    """Beyond that there are no angles to rotate by."""
    model = load(folder).model
    seen: list[Batch] = []
    forward = model.forward
    model.forward = lambda batch: seen.append(batch) or forward(batch)  # type: ignore[method-assign, func-returns-value]
    compute_largest_step(model, StepSize(48, 8), longest)
    (batch,) = seen
    assert batch.attention.query_starts.diff().tolist() == counts
    assert batch.positions.max() < longest
    assert batch.attention.max_context_len == longest, "kernels are told of the longest"


def test_the_cache_takes_what_weights_steps_and_graphs_leave(folder: Path) -> None:
    parts = load(folder)
    model, block_bytes = parts.model, parts.model.layout.block_bytes(BLOCK, torch.float32)
    memory = SimulatedMemory(total=64 * block_bytes + 2**20)
    chosen = profiled_kv_bytes(parts.config, model, block_bytes, memory, memory.record)
    pieces = 2 * (len(model.layout.calls) + 1)  # of 16 and 32 tokens
    assert memory.num_recorded == 2 + pieces, "of 8, 4, 2 and 1 rows the two largest"
    graphs = 50 + (4 + pieces) * 5
    # What the simulated graphs of this profile have taken is not given back.
    assert chosen == int(memory.total * 0.92) - memory.used() - memory.step - graphs
    assert memory.step > 48 * 1000
    assert not model.memory.numel(), "the profile's own blocks are gone"


def test_what_is_seen_of_pictures_is_left_room_for(tmp_path: Path) -> None:
    seeing_model("llava", tmp_path)
    found = []
    for kept in (0, 1 << 20):
        parts = load_parts(config_of(tmp_path, 200, 0, picture_memory_bytes=kept))
        memory = SimulatedMemory(total=1 << 24)
        size = parts.model.block_bytes
        chosen = profiled_kv_bytes(parts.config, parts.model, size, memory, memory.record)
        found.append(chosen)
    assert found[0] - found[1] == 1 << 20


def test_the_graphs_of_a_draft_model_are_left_room_for_as_well(folder: Path) -> None:
    parts = load(folder)
    draft = PagedModel(parts.model.weights, BLOCK)
    block_bytes = 2 * parts.model.layout.block_bytes(BLOCK, torch.float32)
    alone, both = (SimulatedMemory(total=64 * block_bytes + 2**20) for _ in range(2))
    found = [
        profiled_kv_bytes(parts.config, parts.model, block_bytes, memory, memory.record, draft)
        for memory, draft in ((alone, None), (both, draft))
    ]
    assert both.num_recorded == 2 * alone.num_recorded
    assert both.step == alone.step, "only one of them computes at a time"
    assert found[1] < found[0]
    assert not draft.memory.numel()


def test_a_gpu_without_room_says_what_takes_it(folder: Path) -> None:
    parts = load(folder)
    memory = SimulatedMemory(total=2**17)
    with pytest.raises(EngineError, match=r"kv_memory: too little. of 0 MiB .*--step-token-budget"):
        profiled_kv_bytes(parts.config, parts.model, 4096, memory, memory.record)
