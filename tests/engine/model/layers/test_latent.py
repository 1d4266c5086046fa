"""Latents in place of keys and values: what heads compute by them, and what is refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
from torch import nn

from engine.api import EngineError, UnsupportedModel
from engine.model.layers.eager.decoder import EagerDecoder
from engine.model.layers.eager.latent import absorb, expand
from engine.model.load import load_model
from tests.engine.model.test_families import saved
from tests.engine.model.tiny_families import tiny_config, tiny_model

TOKENS, HEADS = 7, 4


@torch.no_grad()
def test_absorbed_products_are_those_of_expanded_keys_and_values() -> None:
    model = tiny_model(tiny_config("deepseek_v2", v_head_dim=12, kv_lora_rank=24))
    module = model.get_submodule("model.layers.1.self_attn")
    latent, rotated = torch.randn(1, 1, TOKENS, 24), torch.randn(1, 1, TOKENS, 8)
    keys, values = module.expand_kv(latent, rotated)
    EagerDecoder(model)
    query = torch.randn(TOKENS, HEADS, 8 + 8)
    rows, _ = module.expand_kv(latent, rotated)
    scores = absorb(module, query).transpose(0, 1) @ rows[0].mT
    torch.testing.assert_close(scores, query.transpose(0, 1) @ keys[0].mT)
    weights = torch.rand(HEADS, TOKENS, TOKENS)
    attended = (weights @ rows[0, ..., :24]).transpose(0, 1)
    torch.testing.assert_close(expand(module, attended), (weights @ values[0]).transpose(0, 1))


def test_the_models_own_attention_still_gets_keys_and_values() -> None:
    model = tiny_model(tiny_config("deepseek_v3"))
    ids = torch.arange(20)[None]
    expected = model(ids, use_cache=False).logits
    own = EagerDecoder(model).own_logits(ids[0].tolist())
    torch.testing.assert_close(own, expected[0])


def test_more_than_latents_is_refused() -> None:
    model = tiny_model(tiny_config("deepseek_v3"))
    model.get_submodule("model.layers.2.self_attn").indexer = nn.Linear(32, 8)
    with pytest.raises(UnsupportedModel, match="more than latents, which is not served: indexer"):
        EagerDecoder(model)


def test_products_that_cannot_be_absorbed_are_refused() -> None:
    model = tiny_model(tiny_config("deepseek_v3"))
    model.get_submodule("model.layers.2.self_attn").kv_b_proj = nn.Linear(16, 64, bias=True)
    with pytest.raises(UnsupportedModel, match="expands its latents by codes, or with a bias"):
        EagerDecoder(model)


def test_latents_are_kept_in_8_bits_where_their_rows_are_aligned(tmp_path: Path) -> None:
    aligned = saved(tiny_config("deepseek_v3", kv_lora_rank=24), tmp_path / "aligned")
    model = load_model(msgspec.structs.replace(aligned, kv_dtype="int8"))
    assert 0 < model.logit_error < 0.02
    odd = saved(tiny_config("deepseek_v3", kv_lora_rank=28), tmp_path / "odd")
    with pytest.raises(EngineError, match="kv_dtype: heads of 36 dimensions cannot be quantized"):
        load_model(msgspec.structs.replace(odd, kv_dtype="int8"))
