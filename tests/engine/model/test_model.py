"""Any decoder-only model of `transformers`, on random weights: paged output equals `generate()`."""

import random
from pathlib import Path

import msgspec
import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
)

from engine.api import EngineError, SamplingParams, UnsupportedModel
from engine.assembly.assemble import load_core
from engine.assembly.parts import load_parts
from engine.config import EngineConfig
from engine.model import kernel_paths
from engine.model.calibration import calibrate, calibrate_steps
from engine.model.load import load_model
from engine.schedule.swap_or_recompute import Policy
from engine.serve.core import EngineCore
from tests.engine.simulated_model import random_prompt
from tests.engine.simulation import make_request, run_to_end

SMALL = {
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FAMILIES = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "mistral": {"sliding_window": 20},
    "gemma": {},
    "gemma2": {"sliding_window": 20, "query_pre_attn_scalar": 16},
    "gemma3_text": {"sliding_window": 20, "query_pre_attn_scalar": 16},
    "phi3": {},
    "granite": {},
    "olmo2": {},
    "starcoder2": {},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {
        **{"num_experts": 6, "num_experts_per_tok": 2, "decoder_sparse_step": 2},
        **{"moe_intermediate_size": 32, "shared_expert_intermediate_size": 48},
    },
    "gpt_oss": {"sliding_window": 20, "num_local_experts": 4, "num_experts_per_tok": 2},
    "llama4_text": {"attention_chunk_size": 24, "floor_scale": 16, "num_local_experts": 4},
    "deepseek_v3": {
        **{"num_key_value_heads": 4, "head_dim": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16},
        **{"kv_lora_rank": 24, "q_lora_rank": 32, "v_head_dim": 12, "first_k_dense_replace": 1},
        **{"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
        "moe_intermediate_size": 32,
    },
    "glm4_moe": {
        **{"n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 4, "topk_group": 2},
        **{"moe_intermediate_size": 32, "routed_scaling_factor": 2.5, "use_qk_norm": True},
    },
    "qwen3_next": {
        **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8},
        **{"linear_value_head_dim": 12, "num_experts": 4, "num_experts_per_tok": 2},
        **{"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16},
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    },
    "nemotron_h": {
        **{"mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 8, "n_groups": 2},
        "layers_block_type": ["linear_attention", "full_attention", "mlp", "linear_attention"],
    },
    "lfm2": {"layer_types": ["conv", "full_attention", "conv"]},
    "minimax": {
        **{"num_local_experts": 4, "num_experts_per_tok": 2, "block_size": 16},
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    },
    "mamba2": {"num_heads": 8, "state_size": 8, "n_groups": 2},
    "gpt_neox": {},
    "gpt2": {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 512, "n_inner": 96},
}

STATES = ("qwen3_next", "nemotron_h", "lfm2", "minimax", "mamba2")
"""Families with layers that keep a state, which takes room, too."""


def make_config(family: str) -> PreTrainedConfig:
    return AutoConfig.for_model(family, **(SMALL | FAMILIES.get(family, {})))


def save_model(family: str, folder: Path) -> PreTrainedModel:
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(
        make_config(family), dtype=torch.float32, attn_implementation="eager"
    ).eval()
    model.save_pretrained(folder)
    return model


def make_core(
    folder: Path, num_blocks: int, num_host_blocks: int = 0, recovery: Policy = "auto"
) -> EngineCore:
    config = EngineConfig(
        model_path=str(folder),
        device="cpu",
        dtype="float32",
        block_size=8,
        step_token_budget=48,
        max_running_requests=8,
        threads=1,
        recovery=recovery,
    )
    block_bytes = load_model(config).layout.block_bytes(8, torch.float32)
    return load_core(
        msgspec.structs.replace(
            config,
            kv_memory_bytes=num_blocks * block_bytes,
            host_memory_bytes=num_host_blocks * block_bytes,
        )
    )


def generate(model: PreTrainedModel, prompt: list[int], count: int) -> list[int]:
    """The reference: greedy, up to and including the end-of-sequence token (which is 3)."""
    ids = torch.tensor([prompt])
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        do_sample=False,
        eos_token_id=3,
        pad_token_id=0,
    )
    return list(output[0, len(prompt) :].tolist())


@pytest.mark.parametrize("family", FAMILIES)
def test_paged_output_equals_generate_cold_cached_chunked_batched_and_preempted(
    family: str, tmp_path: Path
) -> None:
    model = save_model(family, tmp_path)
    core = make_core(tmp_path, num_blocks=60 if family in STATES else 20)
    rng = random.Random(7)
    head = random_prompt(rng, 60)
    prompts = [head + random_prompt(rng, rng.randrange(1, 40)) for _ in range(4)]
    expected = {str(i): generate(model, prompt, 16) for i, prompt in enumerate(prompts)}
    for attempt in ("cold", "cached"):
        for index, prompt in enumerate(prompts):
            core.submit(make_request(str(index), prompt, max_tokens=16))
        # Layers that forget are seldom short of memory.
        assert run_to_end(core, preempt_after=4) == expected, attempt
    stats = core.stats()
    assert stats.preemptions > 0
    assert stats.cached_tokens > 0
    assert stats.blocks_in_use == 0


def test_a_shortest_output_is_that_of_generate(tmp_path: Path) -> None:
    model, prompt = save_model("llama", tmp_path), random_prompt(random.Random(5), 30)
    core, stop = make_core(tmp_path, num_blocks=20), generate(model, prompt, 3)[-1]
    ids = torch.tensor([prompt])
    for shortest in (2, 9):
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=12,
            min_new_tokens=shortest,
            do_sample=False,
            eos_token_id=stop,
            pad_token_id=0,
        )
        sampling = SamplingParams(
            max_tokens=12, min_tokens=shortest, temperature=0, stop_token_ids=(stop,)
        )
        core.submit(make_request("r", prompt, sampling=sampling))
        assert run_to_end(core)["r"] == output[0, len(prompt) :].tolist()
    assert len(generate(model, prompt, 3)) == 3, "the stop token is what comes without a minimum"


def test_a_model_whose_attention_cannot_be_paged_is_refused(tmp_path: Path) -> None:
    config = AutoConfig.for_model("bloom", hidden_size=64, n_layer=2, n_head=4, vocab_size=1000)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match="Bloom"):
        make_core(tmp_path, num_blocks=8)


def test_a_kv_memory_without_room_for_a_block_is_refused(tmp_path: Path) -> None:
    save_model("llama", tmp_path)
    config = EngineConfig(model_path=str(tmp_path), device="cpu", kv_memory_bytes=10)
    with pytest.raises(EngineError, match="kv_memory: a single block"):
        load_core(config)


def test_a_block_is_contiguous_across_all_layers(tmp_path: Path) -> None:
    save_model("llama", tmp_path)
    core = make_core(tmp_path, num_blocks=4)
    memory = core._runner._model.memory  # type: ignore[attr-defined]
    assert memory.shape == (4 + 1, 3 * 2 * 2 * 8 * 16), "and a page for rows that are only padding"
    assert memory[1].is_contiguous()


def test_latents_take_one_row_a_token_for_all_heads(tmp_path: Path) -> None:
    save_model("deepseek_v3", tmp_path)
    core = make_core(tmp_path, num_blocks=4)
    memory = core._runner._model.memory  # type: ignore[attr-defined]
    assert memory.shape == (4 + 1, 3 * 8 * (24 + 8))


def test_swapped_blocks_come_back_as_they_were_wherever_they_go(tmp_path: Path) -> None:
    save_model("llama", tmp_path)
    model = load_model(EngineConfig(model_path=str(tmp_path), device="cpu", block_size=8))
    model.allocate(6)
    model.allocate_host(4)
    model.memory.copy_(torch.randn(model.memory.shape))
    before = model.memory.clone()
    model.swap_out([(1, 2), (2, 3), (5, 0)])
    assert torch.equal(model.host_memory[[2, 3, 0]], before[[1, 2, 5]])
    model.memory.zero_()
    model.swap_in([(0, 4), (2, 0), (3, 1)])
    assert torch.equal(model.memory[[4, 0, 1]], before[[5, 1, 2]])
    assert not model.memory[[2, 3, 5]].any(), "no other block is touched"


def test_calibration_prices_every_part_of_a_resumption(tmp_path: Path) -> None:
    save_model("llama", tmp_path)
    model = load_model(EngineConfig(model_path=str(tmp_path), device="cpu", block_size=8))
    model.allocate(20)
    model.allocate_host(20)
    costs = calibrate(model, step_tokens=16, max_context_tokens=160)
    assert 0 < costs.swap_out_seconds(1) <= costs.swap_out_seconds(20)
    assert 0 < costs.swap_in_seconds(1) <= costs.swap_in_seconds(20)
    assert 0 < costs.compute_seconds([(0, 1)]) <= costs.compute_seconds([(0, 16)])
    assert costs.compute_seconds([(0, 160)]) > 5 * costs.compute_seconds([(0, 16)])


@pytest.mark.parametrize("longest", [1, 20, 4096])
def test_steps_of_prompts_are_timed_as_far_as_the_model_reaches(
    longest: int, tmp_path: Path
) -> None:
    save_model("llama", tmp_path)
    model = load_model(EngineConfig(model_path=str(tmp_path), device="cpu", block_size=8))
    tokens = calibrate_steps(model, longest)
    assert tokens in (128, 256, 512, 1024, 2048)
    assert longest > 1 or tokens == 512, "nothing was timed"


def test_a_load_measures_steps_once_unless_they_are_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model("llama", tmp_path / "model")
    cache = tmp_path / "cache"
    config = EngineConfig(
        model_path=str(tmp_path / "model"),
        device="cpu",
        kv_memory_bytes=1 << 20,
        cache_dir=str(cache),
        threads=1,
    )
    # Other tests of this process may have measured other models.
    monkeypatch.setattr(kernel_paths, "_measured", {})
    found = load_parts(config).config.step_token_budget
    monkeypatch.setattr(kernel_paths, "_measured", {})
    monkeypatch.setattr("engine.assembly.parts.calibrate_steps", lambda *_: pytest.fail("again"))
    assert load_parts(config).config.step_token_budget == found
    known = kernel_paths.known_choice(config)
    assert known is not None
    assert list(known.step_tokens.values()) == [found]
    configured = msgspec.structs.replace(config, step_token_budget=77, max_running_requests=7)
    assert load_parts(configured).config.step_token_budget == 77
