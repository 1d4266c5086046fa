"""Every family that transformers has: served exactly, or refused by a sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

from engine.api import UnsupportedModel
from engine.batch.batch import pack
from engine.config import EngineConfig
from engine.model import self_check
from engine.model.layers import eager
from engine.model.load import load_model
from engine.model.self_check import relative_error
from kernels.attention import attend
from tests.engine.model.tiny_families import WINDOW, families, tiny_config, tiny_model

BLOCK = 16
CHUNKS = (1, 37, 5, 64, 43)
SOME = {
    *("afmoe", "cohere2", "exaone4", "gemma3n_text", "glm4", "gpt_neox", "gpt_oss", "llama4_text"),
    *("minimax_m2", "mixtral", "olmo2", "phi", "phimoe", "qwen2_moe"),
}
"""Of those that are served: each of a kind of its own."""
SERVED = SOME | {
    *("apertus", "arcee", "aria_text", "beam", "biogpt", "bitnet", "cohere", "cohere2_moe", "cwm"),
    *("dots1", "ernie4_5", "ernie4_5_moe", "exaone_moe", "flex_olmo", "fuyu", "gemma", "gemma2"),
    *("flint", "gemma3", "gemma3_text", "gemma3n", "glm", "glm4_moe", "got_ocr2", "gpt-sw3"),
    *("gpt2", "gpt_bigcode", "granite", "granite_swa", "granitemoe", "granitemoe_swa"),
    *("granitemoeshared", "helium", "hunyuan_v1_dense", "hunyuan_v1_moe", "hy_v3", "hyperclovax"),
    *("internlm3", "iquestcoder", "jais2", "jetmoe"),
    *("kolibri1", "laguna", "lfm2", "llama", "llama4", "mellum", "minimax_m3_vl_text", "ministral"),
    *("ministral3", "mistral", "modernbert-decoder", "moshi", "moss_transcribe_diarize"),
    *("nanochat", "nemotron", "olmo", "olmo3", "olmoe", "opt", "persimmon", "phi3", "qwen2"),
    *("qwen3", "qwen3_moe", "seed_oss", "smollm3", "solar_open", "stablelm", "starcoder2"),
    *("vaultgemma", "whisper"),
}


def saved(config: PreTrainedConfig, folder: Path) -> EngineConfig:
    tiny_model(config).save_pretrained(folder)
    return EngineConfig(
        model_path=str(folder), dtype="float32", max_context_tokens=400, block_size=BLOCK
    )


@torch.inference_mode()
def error_of(given: EngineConfig) -> float:
    """How far logits over blocks in reverse order, in odd chunks, are from the model's own."""
    model = load_model(given)
    length = sum(CHUNKS)
    ids = torch.arange(length).mul(31).add(7).remainder(model.weights.config.vocab_size).tolist()
    blocks = list(reversed(range(-(-length // BLOCK))))
    model.allocate(len(blocks))
    start, parts = 0, []
    for count in CHUNKS:
        chunk = [(ids, start, count, blocks)]
        parts.append(model.forward(pack(chunk, range(count), BLOCK, model.device)))
        start += count
    own = AutoModelForCausalLM.from_pretrained(
        given.model_path, dtype=torch.float32, attn_implementation="eager"
    )
    expected = own.eval()(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    return relative_error(torch.cat(parts), expected)


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
        ("qwen3_next", "a recurrent state"),
        ("deepseek_v32", "sparse attention over an index"),
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
