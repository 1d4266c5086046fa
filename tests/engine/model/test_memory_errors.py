"""A step without room for what it computes says so, lets go of all it had, and is tried smaller."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.api import StepOutOfMemory
from engine.assembly.parts import Parts
from engine.batch.batch import Batch
from engine.model.errors import attempt
from engine.run.runner import AheadRunner, ModelRunner
from engine.serve.core import EngineCore
from tests.engine.model.test_model import generate, save_model
from tests.engine.run.test_graphs import core_of, load
from tests.engine.simulated_model import random_prompt
from tests.engine.simulation import make_request, run_to_end


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PreTrainedModel]:
    folder = tmp_path_factory.mktemp("memory")
    return folder, save_model("llama", folder)


def too_much() -> Tensor:
    return torch.empty(2**50)  # as torch's own allocator says it


def cublas() -> Tensor:
    raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")


def device() -> Tensor:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")


def host() -> Tensor:
    raise MemoryError


@pytest.mark.parametrize("fail", [too_much, cublas, device, host])
def test_lack_of_memory_is_one_error_that_holds_no_tensors(fail: Callable[[], Tensor]) -> None:
    held: list[weakref.ref[Tensor]] = []

    def action() -> Tensor:
        large = torch.ones(1000)
        held.append(weakref.ref(large))
        return large + fail()

    with pytest.raises(StepOutOfMemory) as raised:
        attempt(action)
    assert raised.value.__context__ is None
    assert held[0]() is None


def test_other_errors_stay_what_they_are() -> None:
    def action() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal memory access"):
        attempt(action)


def lacking_memory(parts: Parts, most_tokens: int) -> Parts:
    """Only steps of up to `most_tokens` have room."""
    forward = parts.model.forward

    def limited(batch: Batch) -> Tensor:
        if len(batch.token_ids) > most_tokens:
            too_much()
        return forward(batch)

    parts.model.forward = limited  # type: ignore[method-assign]
    return parts


@pytest.mark.parametrize("kind", [ModelRunner, AheadRunner])
def test_a_step_that_lacks_memory_is_tried_smaller_and_everyone_is_answered(
    llama: tuple[Path, PreTrainedModel], kind: type[ModelRunner]
) -> None:
    folder, model = llama
    parts = lacking_memory(load(folder, num_blocks=60), most_tokens=13)
    core: EngineCore = core_of(parts, kind(parts.model, parts.costs))
    rng = random.Random(7)
    prompts = {str(i): random_prompt(rng, rng.randrange(30, 60)) for i in range(4)}
    for name, prompt in prompts.items():
        core.submit(make_request(name, prompt, max_tokens=12))
    assert run_to_end(core) == {
        name: generate(model, prompt, 12) for name, prompt in prompts.items()
    }
    assert core.stats().blocks_in_use == 0
