"""Rotary factors that change with a sequence's length: each gets its own, whoever is beside it."""

import random
from pathlib import Path

import pytest
import torch
from msgspec import structs
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from engine.api import BeamParams, Namespaces, UnsupportedModel
from engine.assembly.assemble import load_core
from engine.assembly.parts import load_parts, make_graphs, make_pieces
from engine.blocks.hashing import Extras, block_hashes
from engine.config import EngineConfig
from engine.model.load import load_model
from engine.run.runner import AheadRunner
from engine.serve.core import EngineCore
from tenants.prompts.index import index_prompt
from tenants.records import SystemPrompt
from tests.engine.model.test_model import SMALL, generate, make_core
from tests.engine.run.test_graphs import Again
from tests.engine.simulated_model import random_prompt
from tests.engine.simulation import (
    cached_tokens,
    make_request,
    run_all_to_end,
    run_to_end,
    simulated_core,
)

SWITCH = 40
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [3.0 + i for i in range(8)],
    "original_max_position_embeddings": SWITCH,
}


def save(folder: Path, family: str = "phi3", **rope: object) -> PreTrainedModel:
    options = SMALL | {"rope_parameters": LONGROPE | rope}
    if family == "phi3":
        options["original_max_position_embeddings"] = SWITCH
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(family, **options), dtype=torch.float32, attn_implementation="eager"
    ).eval()
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="module")
def phi3(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PreTrainedModel]:
    folder = tmp_path_factory.mktemp("longrope")
    return folder, save(folder)


def prompts_around_the_switch() -> dict[str, list[int]]:
    """Some stay short, some are long from the start, some grow long; all begin alike."""
    rng = random.Random(7)
    head = random_prompt(rng, 12)
    lengths = [13, 20, SWITCH - 9, SWITCH - 1, SWITCH, SWITCH + 1, 3 * SWITCH]
    return {
        str(length): head + random_prompt(random.Random(length), length - len(head))
        for length in lengths
    }


@pytest.fixture(scope="module")
def expected(phi3: tuple[Path, PreTrainedModel]) -> dict[str, list[int]]:
    """20 tokens behind each of these prompts."""
    prompts = prompts_around_the_switch()
    return {name: generate(phi3[1], prompt, 20) for name, prompt in prompts.items()}


@pytest.mark.parametrize("num_blocks", [200, 24])
@pytest.mark.parametrize("num_host_blocks", [0, 40])
def test_beside_strangers_of_any_length_a_model_answers_as_generate_does(
    phi3: tuple[Path, PreTrainedModel],
    expected: dict[str, list[int]],
    num_blocks: int,
    num_host_blocks: int,
) -> None:
    core = make_core(phi3[0], num_blocks, num_host_blocks, "swap")
    prompts = prompts_around_the_switch()
    for attempt in ("cold", "cached"):
        for name, prompt in prompts.items():
            core.submit(make_request(name, prompt, max_tokens=20))
        assert run_to_end(core) == expected, attempt
    assert core.stats().blocks_in_use == 0
    assert core.stats().cached_tokens > 0


@pytest.mark.parametrize("is_recorded", [False, True])
def test_run_ahead_and_recorded_it_answers_as_generate_does(
    phi3: tuple[Path, PreTrainedModel], expected: dict[str, list[int]], is_recorded: bool
) -> None:
    parts = load_parts(
        EngineConfig(
            model_path=str(phi3[0]),
            device="cpu",
            dtype="float32",
            block_size=8,
            max_running_requests=8,
            kv_memory_bytes=1 << 21,
            threads=1,
        )
    )
    assert parts.model.weights.is_fused, "both sets of factors lie in its tables"
    graphs = make_graphs(parts, Again) if is_recorded else None
    pieces = make_pieces(parts, Again) if is_recorded else None
    for recorded in filter(None, (graphs, pieces)):
        recorded.record()
    runner = AheadRunner(parts.model, graphs=graphs, pieces=pieces)
    core = EngineCore(parts.config, parts.info, runner)
    for name, prompt in prompts_around_the_switch().items():
        core.submit(make_request(name, prompt, max_tokens=20))
    assert run_to_end(core) == expected


def test_a_block_of_a_short_sequence_is_not_found_by_a_long_one(
    phi3: tuple[Path, PreTrainedModel],
) -> None:
    core = make_core(phi3[0], 200)
    rng = random.Random(3)
    short = random_prompt(rng, SWITCH)
    long = short + random_prompt(rng, 30)
    run_to_end_of(core, short)
    assert cached_tokens(core, make_request("long", long)) == 0
    run_to_end(core)
    # Block 0 has no parent that tells of the factors: its head must not be copied either.
    assert cached_tokens(core, make_request("head", long[:5] + random_prompt(rng, 60))) == 5
    run_to_end(core)
    assert cached_tokens(core, make_request("again", long)) == 69
    run_to_end(core)
    assert cached_tokens(core, make_request("short", short)) == SWITCH - 1


def run_to_end_of(core: EngineCore, prompt: list[int]) -> None:
    core.submit(make_request("first", prompt, max_tokens=0))
    run_to_end(core)


def test_several_sequences_and_beams_that_grow_long_go_on_as_undisturbed_ones_do(
    phi3: tuple[Path, PreTrainedModel],
) -> None:
    folder, model = phi3
    prompt = random_prompt(random.Random(5), SWITCH - 6)
    search = structs.replace(
        make_request("beams", prompt, 14), beam=BeamParams(num_beams=3, num_return=1)
    )
    ids = torch.tensor([prompt])
    reference = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=14,
        do_sample=False,
        num_beams=3,
        eos_token_id=3,
        pad_token_id=0,
    )[0, len(prompt) :].tolist()
    samples = make_request("samples", prompt, 14, num_sequences=3)
    samples = structs.replace(
        samples, sampling=structs.replace(samples.sampling, temperature=1.0, seed=3)
    )
    alone = make_core(folder, 200)
    alone.submit(samples)
    undisturbed = run_all_to_end(alone)["samples"]
    assert len(set(map(tuple, undisturbed.values()))) == 3
    core = make_core(folder, 200)
    for request in (search, samples, make_request("stranger", prompt * 3, 9)):
        core.submit(request)
    outputs = run_all_to_end(core)
    assert outputs["beams"][0] == reference
    assert outputs["samples"] == undisturbed


def test_a_sequence_that_is_over_when_it_grows_long_is_not_computed_again() -> None:
    core = simulated_core(block_size=1, rotary_switch=12)
    core.submit(make_request("r", list(range(5, 15)), max_tokens=3))
    run_to_end(core)
    assert core.stats().preemptions == 0
    core.submit(make_request("r", list(range(5, 15)), max_tokens=4))
    run_to_end(core)
    assert core.stats().preemptions == 1


def test_the_index_of_a_long_prompt_names_the_blocks_that_are_found() -> None:
    key = b"k" * 32
    namespaces = Namespaces(shared_key=key, private_key=key, shared_tokens=64)
    info = simulated_core(rotary_switch=12).info
    prompt = SystemPrompt(name="law", version=1, text="one", created_at=0.0)
    for length, extras in ((12, b"simulated"), (64, b"simulated long")):
        ids = list(range(length))
        index = index_prompt(key, prompt, ids, info, warmed_at=1.0)
        assert index.block_hashes == block_hashes(ids, info.block_size, namespaces, Extras(extras))


def test_a_model_whose_factors_change_in_an_unknown_way_is_served_where_they_do_not(
    tmp_path: Path,
) -> None:
    model = save(tmp_path, "llama")
    config = EngineConfig(model_path=str(tmp_path), device="cpu", dtype="float32", threads=1)
    with pytest.raises(UnsupportedModel, match="'longrope' change in contexts of more than 40"):
        load_model(config)
    config = structs.replace(config, max_context_tokens=SWITCH, kv_memory_bytes=1 << 20)
    core = load_core(config)
    prompt = random_prompt(random.Random(1), SWITCH - 10)
    core.submit(make_request("r", prompt, 10))
    assert run_to_end(core) == {"r": generate(model, prompt, 10)}


def test_dynamic_factors_do_not_change_within_the_models_context(tmp_path: Path) -> None:
    model = save(tmp_path, "llama", rope_type="dynamic", factor=4.0)
    core = make_core(tmp_path, 200)
    assert core.info.max_context_tokens == 512
    rng = random.Random(1)
    prompts = {str(length): random_prompt(rng, length) for length in (20, 500, 60)}
    for name, prompt in prompts.items():
        core.submit(make_request(name, prompt, 12))
    assert run_to_end(core) == {
        name: generate(model, prompt, 12) for name, prompt in prompts.items()
    }
