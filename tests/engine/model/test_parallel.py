"""A model in two processes, each with a part of every layer, says what it says in one."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from transformers import PreTrainedModel

from engine.api import EVERYTHING, EngineBroken, SamplingParams
from engine.assembly.assemble import make_core
from engine.assembly.parts import Parts, load_parts
from engine.config import EngineConfig
from engine.model.layers.leader import LeadingModel, packed
from engine.model.layers.shard import Shard
from engine.model.load import load_model
from engine.serve.core import EngineCore
from tests.engine.model.layers.test_fused import Variant, make_model
from tests.engine.model.test_model import generate
from tests.engine.simulated_model import random_prompt
from tests.engine.simulation import make_request, run_all_to_end, run_to_end

BLOCK_SIZE = 8
NUM_BLOCKS = 18
OUTPUT = 40
UNEVEN: Variant = (
    "llama",
    {
        "hidden_size": 96,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "intermediate_size": 97,
        "vocab_size": 1001,
        "attention_bias": True,
        "mlp_bias": True,
    },
)
"""Nothing of which is of two equal parts."""


def save(variant: Variant, folder: Path) -> PreTrainedModel:
    model = make_model(variant)
    model.save_pretrained(folder)
    return model


def config_of(folder: Path, ranks: int, **options: Any) -> EngineConfig:
    return EngineConfig(
        model_path=str(folder),
        device="cpu",
        dtype="float32",
        block_size=BLOCK_SIZE,
        step_token_budget=48,
        max_running_requests=8,
        kernel_paths="floats",
        threads=1,
        tensor_parallel=ranks,
        **options,
    )


def with_room(config: EngineConfig, num_host_blocks: int) -> EngineConfig:
    """Memory for few blocks, so that requests are preempted."""
    whole = msgspec.structs.replace(config, tensor_parallel=1)
    block_bytes = load_model(whole).block_bytes
    return msgspec.structs.replace(
        config,
        kv_memory_bytes=NUM_BLOCKS * block_bytes,
        host_memory_bytes=num_host_blocks * block_bytes,
    )


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[PreTrainedModel, Path]:
    folder = tmp_path_factory.mktemp("uneven")
    return save(UNEVEN, folder), folder


@pytest.fixture(scope="module")
def parts(original: tuple[PreTrainedModel, Path]) -> Iterator[Parts]:
    """Of a model in two processes, with a host tier."""
    config = with_room(config_of(original[1], 2, recovery="swap", speculation="lookup"), 40)
    parts = load_parts(config)
    yield parts
    leading(parts).followers.close()


def leading(parts: Parts) -> LeadingModel:
    assert isinstance(parts.model, LeadingModel)
    return parts.model


def prompts_of(rng: random.Random, count: int = 4) -> list[list[int]]:
    head = random_prompt(rng, 26)
    return [head + random_prompt(rng, rng.randrange(1, 16)) for _ in range(count)]


def check_generated(model: PreTrainedModel, core: EngineCore) -> None:
    """Cold, cached, chunked, in batches and preempted."""
    prompts = prompts_of(random.Random(7))
    expected = {str(i): generate(model, prompt, OUTPUT) for i, prompt in enumerate(prompts)}
    for attempt in ("cold", "cached"):
        for index, prompt in enumerate(prompts):
            core.submit(make_request(str(index), prompt, max_tokens=OUTPUT))
        assert run_to_end(core) == expected, attempt
    stats = core.stats()
    if core.info.kinds == (EVERYTHING,):  # else there may be room for all
        assert stats.preemptions > 0, "the pool was meant to be too small"
    assert stats.cached_tokens > 0
    assert stats.blocks_in_use == 0


def test_tokens_are_those_of_generate(original: tuple[PreTrainedModel, Path], parts: Parts) -> None:
    assert parts.model.layout.calls[0].num_kv_heads == 2
    assert parts.info.num_blocks == NUM_BLOCKS
    core = make_core(parts)
    check_generated(original[0], core)
    assert core.stats().swapped_out > 0
    assert core.stats().swapped_in > 0


def test_samples_and_their_log_probabilities_are_those_of_one_process(
    original: tuple[PreTrainedModel, Path], parts: Parts
) -> None:
    """Lines of one request share blocks, which are copied before they are written."""
    whole = load_parts(msgspec.structs.replace(parts.config, tensor_parallel=1))
    sampling = SamplingParams(max_tokens=12, temperature=1.0, seed=5, logprobs=2)
    prompt = random_prompt(random.Random(3), 21)
    found = []
    for core in (make_core(whole), make_core(parts)):
        request = make_request("lines", prompt)
        core.submit(msgspec.structs.replace(request, sampling=sampling, num_sequences=3))
        found.append(run_all_to_end(core))
        assert core.stats().copied_blocks > 0
    assert found[0] == found[1]
    assert len(set(map(tuple, found[0]["lines"].values()))) == 3


def test_a_rank_that_ends_breaks_the_engine(parts: Parts) -> None:
    """The last test on these processes. Whoever serves starts all of them anew."""
    core = make_core(parts)
    core.submit(make_request("one", random_prompt(random.Random(1), 20), max_tokens=8))
    core.step()
    (process,) = leading(parts).followers._processes
    process.kill()
    process.join()
    with pytest.raises(EngineBroken, match="fell apart: rank 1 ended"):
        core.step()
    assert core.stats().running == 1, "nobody was told that it ended"


@pytest.mark.parametrize(("total", "size"), [(3, 2), (8, 3), (5, 5), (12, 4)])
def test_parts_make_up_the_whole(total: int, size: int) -> None:
    parts = [Shard(rank, size).part(total) for rank in range(size)]
    assert [one for part in parts for one in range(total)[part]] == list(range(total))
    counts = [Shard(rank, size).count(total) for rank in range(size)]
    assert max(counts) - min(counts) <= 1
    assert counts[0] == max(counts), "the first rank's memory is that of the largest part"


def test_a_message_keeps_its_tensors() -> None:
    tensor = torch.arange(6).view(2, 3)
    name, (found, number) = pickle.loads(packed(("forward", (tensor, 4))))
    assert (name, number) == ("forward", 4)
    assert torch.equal(found, tensor)
