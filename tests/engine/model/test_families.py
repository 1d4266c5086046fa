"""Every family that transformers has: served exactly, or refused by a sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

from engine.api import UnsupportedModel
from engine.batch.batch import pack
from engine.config import EngineConfig
from engine.model import self_check
from engine.model.layers.eager import decoder as eager
from engine.model.layers.paged_model import PagedModel
from engine.model.load import load_model
from engine.model.self_check import relative_error
from kernels.attention import attend
from kernels.types import StateRuns
from tests.engine.model.tiny_families import WINDOW, families, tiny_config, tiny_model

BLOCK = 16
FIVE_TO_ONE = [*5 * ["sliding_attention"], "full_attention"]
CHUNKS = (1, 37, 5, 64, 43)
SOME = {
    *("afmoe", "cohere2", "deepseek_v2", "exaone4", "gemma3n_text", "gemma4_text", "glm4"),
    *("gpt_neox", "gpt_oss", "kimi_linear", "nemotron_h", "qwen3_next"),
    *("llama4_text", "minimax", "minimax_m2", "mixtral", "olmo2", "phi", "phimoe", "qwen2_moe"),
}
"""Of those that are served: each of a kind of its own."""
SERVED = SOME | {
    *("apertus", "arcee", "aria_text", "beam", "biogpt", "bitnet", "cohere", "cohere2_moe", "cwm"),
    *("dots1", "ernie4_5", "ernie4_5_moe", "exaone_moe", "flex_olmo", "fuyu", "gemma", "gemma2"),
    *("flint", "gemma3", "gemma3_text", "gemma3n", "gemma4", "gemma4_unified"),
    *("gemma4_unified_assistant", "gemma4_unified_text", "glm", "glm4_moe", "got_ocr2", "gpt-sw3"),
    *("gpt2", "gpt_bigcode", "granite", "granite_swa", "granitemoe", "granitemoe_swa"),
    *("granitemoeshared", "helium", "hunyuan_v1_dense", "hunyuan_v1_moe", "hy_v3", "hyperclovax"),
    *("internlm3", "iquestcoder", "jais2", "jetmoe", "kolibri1", "laguna", "lfm2", "llama"),
    *("llama4", "mamba", "mamba2", "mellum", "mimo_v2_flash", "minimax_m3_vl_text", "ministral"),
    *("ministral3", "mistral", "modernbert-decoder", "moshi", "moss_transcribe_diarize"),
    *("nanochat", "nemotron", "olmo", "olmo3", "olmoe", "opt", "persimmon", "phi3", "qwen2"),
    *("qwen3", "qwen3_moe", "seed_oss", "smollm3", "solar_open", "stablelm", "starcoder2"),
    *("vaultgemma", "whisper"),
    *("bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba", "lfm2_moe", "lfm3"),
    *("olmo_hybrid", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text"),
    *("axk1", "deepseek_v3", "glm4_moe_lite", "longcat_flash", "minicpm3", "youtu"),
}


def saved(config: PreTrainedConfig, folder: Path) -> EngineConfig:
    tiny_model(config).save_pretrained(folder)
    return EngineConfig(
        model_path=str(folder), dtype="float32", max_context_tokens=400, block_size=BLOCK
    )


def scattered(model: PagedModel, num_blocks: int) -> npt.NDArray[np.int32]:
    """Pages for so many blocks, [num_columns, num_blocks]: in reverse order, with gaps between
    them, those of a block apart.
    """
    num_columns = model.pages.num_columns
    pages = np.arange(num_columns * num_blocks, dtype=np.int32).reshape(num_columns, num_blocks)
    return 2 * pages[:, ::-1] + 1


def forget(model: PagedModel, pages: npt.NDArray[np.int32], num_tokens: int) -> None:
    """Let pages be anything whose tokens nobody sees behind the first `num_tokens`."""
    column = 0
    for kind in model.kinds:
        if kind.is_state:
            continue
        gone = kind.first_needed(num_tokens) // model.block_size
        model.memory[pages[column : column + kind.pages, :gone]] = torch.nan
        column += kind.pages


def runs_of(number: int, count: int, states: npt.NDArray[np.int32]) -> StateRuns | None:
    """Of a chunk from its number on: from one of two states to the other, [2, num_pages], in which
    its last token goes on in place.
    """
    if not states.size:
        return None
    before, behind = states[number % 2], states[(number + 1) % 2]
    first = before if number else np.full_like(before, -1)
    if count == 1:
        starts, sources, targets = [0, 1], [first], [behind]
    else:
        starts, sources, targets = [0, count - 1, count], [first, behind], [behind, behind]
    tensors = (np.array(one, np.int32) for one in (starts, sources, targets))
    return StateRuns(*map(torch.from_numpy, tensors))


@torch.inference_mode()
def error_of(given: EngineConfig, num_kinds: int | None = None) -> float:
    """How far logits over scattered pages, in odd chunks, are from the model's own; pages behind a
    window are poison. The model has `num_kinds`, if that is given.
    """
    model = load_model(given, by_kinds=True)
    assert num_kinds in (None, len(model.kinds))
    length = sum(CHUNKS)
    ids = torch.arange(length).mul(31).add(7).remainder(model.weights.config.vocab_size).tolist()
    pages = scattered(model, -(-length // model.block_size))
    model.allocate(2 * pages.size + 4 * model.pages.state_pages)
    states = np.arange(2 * pages.size, len(model.memory), 2, dtype=np.int32).reshape(-1, 2).T
    start, parts = 0, []
    for number, count in enumerate(CHUNKS):
        forget(model, pages, start)
        chunk = [(ids, start, count, pages)]
        batch = pack(chunk, range(count), model.block_size, model.device)
        runs = runs_of(number, count, states)
        parts.append(model.forward(replace(batch, states=runs)))
        start += count
    own = AutoModelForCausalLM.from_pretrained(
        given.model_path, dtype=torch.float32, attn_implementation="eager"
    )
    expected = own.eval()(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    return relative_error(torch.cat(parts), expected)


@pytest.mark.parametrize("block_size", [4, BLOCK])
@pytest.mark.parametrize(
    ("family", "num_kinds", "options"),
    [
        ("cohere2", 2, {}),
        ("gemma2", 2, {}),
        ("gemma3_text", 2, {}),
        ("gemma3_text", 2, {"layer_types": FIVE_TO_ONE, "num_hidden_layers": 6}),
        ("gemma3n_text", 2, {}),
        ("gemma4_text", 2, {}),
        ("gemma4_text", 2, {"num_kv_shared_layers": 0, "num_global_key_value_heads": 1}),
        ("gemma4_text", 2, {"attention_k_eq_v": True, "num_kv_shared_layers": 2}),
        ("mistral", 1, {}),
    ],
)
def test_layers_remember_no_more_than_they_see(
    family: str, num_kinds: int, options: dict[str, Any], block_size: int, tmp_path: Path
) -> None:
    given = saved(tiny_config(family, **options), tmp_path)
    given = msgspec.structs.replace(given, block_size=block_size)
    assert error_of(given, num_kinds) < 1e-5


@pytest.mark.parametrize("family", sorted(SOME))
def test_some_families_are_served_exactly(family: str, tmp_path: Path) -> None:
    assert error_of(saved(tiny_config(family), tmp_path)) < 1e-5


@pytest.mark.exhaustive
@pytest.mark.parametrize("family", families())
def test_a_family_is_served_exactly_or_refused_by_a_sentence(family: str, tmp_path: Path) -> None:
    given = saved(tiny_config(family), tmp_path)
    if family in SERVED:
        assert error_of(given) < 1e-5
        return
    with pytest.raises(UnsupportedModel, match=r"\w+ .* \w+"):
        load_model(given)


@pytest.mark.parametrize("window", [7, 16, 40])
@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("phimoe", {"attention_bias": True, "num_key_value_heads": 1}),
        ("qwen2_moe", {"use_sliding_window": True, "layer_types": None, "max_window_layers": 3}),
        ("cohere2", {"num_attention_heads": 6, "num_key_value_heads": 3}),
        ("starcoder2", {"tie_word_embeddings": True}),
        ("gpt_oss", {"initializer_range": 0.3, "num_attention_heads": 6}),
        ("granite_swa", {"num_attention_heads": 3, "num_key_value_heads": 1}),
    ],
)
def test_windows_are_seen_wherever_a_family_has_them(
    family: str, options: dict[str, Any], window: int, tmp_path: Path
) -> None:
    given = saved(tiny_config(family, sliding_window=window, **options), tmp_path)
    assert error_of(given) < 1e-5


YARN = {"rope_type": "yarn", "factor": 4.0, "mscale_all_dim": 0.8, "mscale": 0.9}


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("deepseek_v2", {"q_lora_rank": None, "attention_bias": True}),
        ("deepseek_v2", {"v_head_dim": 12, "kv_lora_rank": 24, "qk_rope_head_dim": 4}),
        ("deepseek_v3", {"rope_parameters": {"rope_theta": 1e4, **YARN}}),
        ("deepseek_v3", {"rope_interleave": False, "qk_nope_head_dim": 20}),
    ],
)
def test_latents_are_exact_however_they_are_expanded_and_rotated(
    family: str, options: dict[str, Any], tmp_path: Path
) -> None:
    assert error_of(saved(tiny_config(family, **options), tmp_path)) < 1e-5


@pytest.mark.parametrize("chunk", [7, 16, 40, 64])
def test_chunks_of_any_length_are_seen(chunk: int, tmp_path: Path) -> None:
    options = {"num_attention_heads": 6, "num_key_value_heads": 3, "use_qk_norm": False}
    given = saved(tiny_config("llama4_text", attention_chunk_size=chunk, **options), tmp_path)
    assert error_of(given) < 1e-5


@pytest.mark.parametrize(
    ("family", "options", "part", "blind"),
    [
        *(
            (family, options, "_Watch.sight", lambda _watch, _mask, asked: (asked, None))
            for family, options in (
                ("phimoe", {"sliding_window": WINDOW}),
                ("phimoe", {"sliding_window": 400}),
                ("llama4_text", {"attention_chunk_size": 13}),
                ("llama4_text", {"attention_chunk_size": 400}),
            )
        ),
        ("llama4_text", {"floor_scale": 16}, "count_packed", lambda *_: None),
        ("llama4_text", {"floor_scale": 8192}, "count_packed", lambda *_: None),
        ("gpt_oss", {}, "attend", lambda *given, sinks, **rest: attend(*given, **rest)),
    ],
)
def test_what_paging_misses_is_found_however_far_it_reaches(
    family: str,
    options: dict[str, Any],
    part: str,
    blind: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = saved(tiny_config(family, **options), tmp_path)
    monkeypatch.setattr(f"{eager.__name__}.{part}", blind)
    with pytest.raises(UnsupportedModel, match="computes something else when its attention"):
        load_model(given)


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("deepseek_v32", "sparse attention over an index"),
        ("glm_moe_dsa", "sparse attention over an index"),
        ("bert", "not causal"),
        ("doge", "masks of their own"),
        ("bloom", "AttentionInterface"),
        ("xmod", "fails on a single token"),
    ],
)
def test_what_is_refused_says_why(family: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=reason):
        load_model(saved(tiny_config(family), tmp_path))


@torch.no_grad()
def test_narrow_weights_are_as_they_were_behind_the_comparison_in_float32() -> None:
    model = tiny_model(tiny_config("qwen2_moe")).to(torch.bfloat16)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    ids = self_check.sample(97)
    logits = self_check.checked_logits(eager.EagerDecoder(model), ids, BLOCK)
    assert logits.dtype == torch.float32
    after = model.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)
    model.set_attn_implementation("eager")
    expected = model.float()(input_ids=torch.tensor([ids])).logits[0]
    assert relative_error(logits, expected) < 1e-5
