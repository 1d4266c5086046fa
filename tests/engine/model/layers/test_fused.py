"""Fused decoder layers compute what the families' own modules do, and nothing that they guess."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.models.mixtral.modeling_mixtral import MixtralExperts

from engine.batch.batch import pack
from engine.config import EngineConfig, Quantization
from engine.model import original
from engine.model.checkpoints.coded_linear import CodedLinear
from engine.model.checkpoints.plain import read_plain
from engine.model.layers import packing
from engine.model.layers.eager.decoder import EagerDecoder
from engine.model.layers.expected import Unfamiliar
from engine.model.layers.fused import fuse
from engine.model.layers.layout import AttentionLayout
from engine.model.load import load_model
from kernels.native import library
from kernels.types import Experts, Mixture
from kernels.weight_format import group
from tests.engine.model.layers.variants import (
    MIXTURES,
    SCALED_QUERIES,
    VARIANTS,
    WITHOUT_CHOICE,
    Variant,
)
from tests.engine.model.test_model import SMALL, save_model

TOKENS = 60
BLOCK_SIZE = 8
LONG = {"max_position_embeddings": 513}
NEW = ["phi3", "glm4", "olmo2", "smollm3", "phi", "cohere2", "starcoder2"]
"""Each with something that the others do not have."""
GPT_OSS = {"num_local_experts": 4, "num_experts_per_tok": 2}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
    "original_max_position_embeddings": 64,
}
UNFAMILIAR: dict[str, tuple[Variant, str]] = {
    "another architecture": (("apertus", {}), "ApertusForCausalLM"),
    "attention beside the network, without a second norm": (
        ("stablelm", {"use_parallel_residual": True}),
        "without post_attention_layernorm",
    ),
    "norms of each head's own": (("cohere", {"use_qk_norm": True}), "without k_norm, q_norm"),
    "queries scaled by their positions": (
        ("ministral3", {"rope_parameters": {"rope_type": "default", **SCALED_QUERIES}, **LONG}),
        "queries are scaled by their positions",
    ),
    "attention that is gated": (("afmoe", {}), "AfmoeForCausalLM"),
    "another clamp": (("gpt_oss", GPT_OSS | {"swiglu_limit": 5.0}), "clamped to 5.0"),
    "another slope of gates": (("gpt_oss", GPT_OSS | {"swiglu_alpha": 1.0}), "gates of alpha 1.0"),
    "clipped queries, keys and values": (
        ("olmoe", {"num_experts": 4, "num_experts_per_tok": 2, "clip_qkv": 3.0}),
        "clip_qkv is set",
    ),
    "another activation": (("llama", {"hidden_act": "relu"}), "activation is ReLU"),
    "angles that depend on the context": (
        ("llama", {"rope_parameters": LONGROPE}),
        "rotary embedding of type longrope",
    ),
}


def make_model(variant: Variant, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """Random weights everywhere, in norms and biases too, which are all alike by default."""
    family, options = variant
    torch.manual_seed(3)
    config = AutoConfig.for_model(family, **(SMALL | options))
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        if name.endswith("bias") or (isinstance(tensor, nn.Parameter) and tensor.dim() == 1):
            tensor.data += 0.3 * torch.randn(tensor.shape)
    return model.to(dtype)


def both_logits(
    model: PreTrainedModel, quantization: Quantization = "none", in_one_call: bool = True
) -> tuple[Tensor, Tensor]:
    """The fused model's and the model's own: for a sequence that comes in chunks, some of one
    token, beside another one, over shuffled blocks; with the layers `in_one_call` where it can be.
    """
    random = torch.Generator().manual_seed(4)
    one, other = torch.randint(1000, (2, TOKENS), generator=random).tolist()
    eager = EagerDecoder(model)
    expected = torch.cat([eager.own_logits(ids) for ids in (one, other)])
    fused = fuse(model, eager.calls, quantization=quantization)
    assert (fused._stack is not None) == library.available()
    if not in_one_call:
        fused._stack = None
    pages = AttentionLayout(tuple(eager.calls)).pages(BLOCK_SIZE, model.dtype)
    per_sequence = -(-TOKENS // BLOCK_SIZE)
    order = torch.randperm(2 * per_sequence, generator=random).tolist()
    tables = order[:per_sequence], order[per_sequence:]
    memory = torch.full((len(order), pages.page_size), torch.nan, dtype=model.dtype)
    caches = pages.caches(memory)
    actual = torch.empty_like(expected)
    starts = [0, 30, 31, 32, 55, TOKENS]
    for start, end in pairwise(starts):
        count = end - start
        parts = [(one, start, count, tables[0]), (other, start, count, tables[1])]
        batch = pack(parts, range(2 * count), BLOCK_SIZE, torch.device("cpu"))
        with torch.inference_mode():
            logits = fused.forward(batch, caches)
        for rows, first in zip(logits.chunk(2), (0, TOKENS), strict=True):
            actual[first + start : first + end] = rows
    return actual, expected


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return float((actual.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_are_those_of_the_model_itself(name: str) -> None:
    actual, expected = both_logits(make_model(VARIANTS[name]))
    assert relative_error(actual, expected) < 1e-5
    assert torch.equal(actual.argmax(-1), expected.argmax(-1))


@pytest.mark.parametrize(
    "name", ["qwen3", "gemma2", "gemma3", "granite", "olmo2", "phi", "cohere2"]
)
def test_bfloat16_differs_by_its_roundings_only(name: str) -> None:
    family, options = VARIANTS[name]
    model = make_model((family, options | {"attn_logit_softcapping": None}), torch.bfloat16)
    assert relative_error(*both_logits(model)) < 0.03


@pytest.mark.parametrize("name", WITHOUT_CHOICE)
def test_experts_in_bfloat16_differ_by_its_roundings_only(name: str) -> None:
    model = make_model(WITHOUT_CHOICE[name], torch.bfloat16)
    assert relative_error(*both_logits(model)) < 0.03


@pytest.mark.parametrize("name", ["llama, biases", "qwen3", "gemma3", *NEW])
def test_8_bits_differ_by_their_roundings_only(name: str) -> None:
    error = relative_error(*both_logits(make_model(VARIANTS[name]), "int8"))
    assert 1e-4 < error < 0.1


@pytest.mark.parametrize("name", WITHOUT_CHOICE)
def test_experts_in_8_bits_differ_by_their_roundings_only(name: str) -> None:
    error = relative_error(*both_logits(make_model(WITHOUT_CHOICE[name]), "int8"))
    assert 1e-4 < error < 0.1


def test_routers_are_never_rounded() -> None:
    model = make_model(VARIANTS["qwen2_moe"])
    eager = EagerDecoder(model)
    router, gate = (
        module.weight.clone()
        for module in (model.model.layers[0].mlp.gate, model.model.layers[0].mlp.shared_expert_gate)
    )
    network = fuse(model, eager.calls, quantization="int4")._layers[0].network
    assert isinstance(network, Mixture)
    assert network.shared_gate is not None
    x = torch.randn(5, 64)
    torch.testing.assert_close(network.router(x), x @ router.T, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(network.shared_gate(x), x @ gate.T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["llama, biases", "qwen3", "gemma3", *WITHOUT_CHOICE])
def test_weights_of_4_bits_are_found_again_in_a_model_that_was_rounded_to_them(name: str) -> None:
    model = make_model((VARIANTS | WITHOUT_CHOICE)[name])
    with torch.no_grad():
        for matrix in matrices(model):
            matrix.copy_(group(matrix.contiguous()).dequantize())
    assert 1e-4 < relative_error(*both_logits(model, "int4")) < 0.1


def matrices(model: PreTrainedModel) -> Iterator[Tensor]:
    """What is quantized, by outputs first: products of layers, and each expert's."""
    for key, weight in model.named_parameters():
        if weight.dim() == 3:
            yield from weight.mT if model.config.model_type == "gpt_oss" else weight
        elif key.endswith(("_proj.weight", "_linear.weight")):
            yield weight


@pytest.mark.parametrize("name", [*NEW, "qwen2_moe", "granitemoeshared", "ernie4_5_moe"])
def test_every_kind_of_layer_is_loaded_in_8_bits(name: str, tmp_path: Path) -> None:
    make_model(VARIANTS[name]).save_pretrained(tmp_path)
    model = load_model(config_of(tmp_path, quantize="int8"))
    assert model.weights.is_fused
    assert model.logit_error > 1e-4


def test_logits_are_never_computed_in_4_bits() -> None:
    model = make_model(VARIANTS["llama, biases"])
    fuse_in_4_bits = fuse(
        model, EagerDecoder(model, max_context_tokens=64).calls, quantization="int4"
    )
    head = fuse_in_4_bits._head
    assert head.nbytes >= head.in_features * head.out_features


@pytest.mark.skipif(not library.available(), reason="the library is not built")
@pytest.mark.parametrize("name", ["llama, biases", "qwen3", "gemma2", "gemma3", *NEW, *MIXTURES])
@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_layers_in_one_call_compute_what_they_do_one_by_one(
    name: str, quantization: Quantization
) -> None:
    together, _ = both_logits(make_model(VARIANTS[name], torch.bfloat16), quantization)
    model = make_model(VARIANTS[name], torch.bfloat16)
    one_by_one, _ = both_logits(model, quantization, in_one_call=False)
    assert torch.equal(together, one_by_one)


@pytest.mark.parametrize("name", UNFAMILIAR)
def test_what_is_not_known_is_not_fused(name: str) -> None:
    variant, reason = UNFAMILIAR[name]
    model = make_model(variant)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(Unfamiliar, match=reason):
        fuse(model, EagerDecoder(model, max_context_tokens=64).calls)
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(after[key], value) for key, value in before.items())


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def test_a_module_of_another_class_is_not_fused() -> None:
    model = make_model(("llama", {}))
    model.model.layers[1].mlp.up_proj = Doubled(64, 96, bias=False)
    with pytest.raises(Unfamiliar, match="Doubled"):
        fuse(model, EagerDecoder(model).calls)


class Tripled(MixtralExperts):
    def forward(self, *given: Tensor) -> Tensor:
        return 3 * super().forward(*given)


def test_experts_of_another_class_are_not_fused() -> None:
    model = make_model(VARIANTS["mixtral"])
    model.model.layers[1].mlp.experts.__class__ = Tripled
    with pytest.raises(Unfamiliar, match="Tripled in place of MixtralExperts"):
        fuse(model, EagerDecoder(model).calls)


def test_experts_with_one_more_weight_are_not_fused() -> None:
    model = make_model(VARIANTS["mixtral"])
    model.model.layers[2].mlp.experts.down_proj_bias = nn.Parameter(torch.zeros(5, 64))
    with pytest.raises(Unfamiliar, match=r"without experts\.down_proj_bias"):
        fuse(model, EagerDecoder(model).calls)


def test_a_layer_with_one_more_module_is_not_fused() -> None:
    model = make_model(("llama", {}))
    model.model.layers[2].self_attn.q_norm = nn.Identity()
    with pytest.raises(Unfamiliar, match="q_norm"):
        fuse(model, EagerDecoder(model).calls)


@pytest.mark.parametrize("asked", [{"chunk": 16}, {"has_sinks": True}])
def test_attention_that_asks_for_more_than_fused_layers_have_is_not_fused(
    asked: dict[str, Any],
) -> None:
    model = make_model(("llama", {}))
    first, *others = EagerDecoder(model).calls
    with pytest.raises(Unfamiliar, match="sinks or within local chunks"):
        fuse(model, [replace(first, **asked), *others])


def test_a_biased_head_whose_logits_are_scaled_is_not_fused() -> None:
    model = make_model(("granite", {"logits_scaling": 8.0}))
    model.lm_head = nn.Linear(64, 1000)
    with pytest.raises(Unfamiliar, match="behind a bias"):
        fuse(model, EagerDecoder(model).calls)


@pytest.mark.parametrize("name", ["glm", "phi3"])
def test_weights_in_codes_are_fused_as_plain_ones_are(name: str) -> None:
    """Heads whose dimensions are put in another order too, and products of several parts."""
    model = make_model(VARIANTS[name])
    for layer in model.model.layers:
        attention = layer.self_attn
        for key, product in list(attention.named_children()):
            weight = group(product.weight.detach(), 8)
            coded = CodedLinear(64, len(weight.codes), lambda weight=weight: weight, product.bias)
            setattr(attention, key, coded)
    assert relative_error(*both_logits(model)) < 0.1


def test_contexts_end_where_the_engine_ends_them() -> None:
    model = make_model(("llama", {}))
    fused = fuse(model, EagerDecoder(model).calls, max_positions=40)
    assert {layer.options.rotation.cos.shape for layer in fused._layers} == {(40, 8)}


@pytest.mark.parametrize("family", ["llama", "qwen2_moe"])
def test_the_originals_are_gone_once_a_model_is_loaded(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(family, tmp_path)
    alive: list[weakref.ref[Any]] = []

    def watched(folder: Path, dtype: torch.dtype, *, sees: bool) -> PreTrainedModel:
        model = read_plain(folder, dtype, sees=sees)
        alive.extend(map(weakref.ref, [model, *model.parameters()]))
        return model

    monkeypatch.setattr(original, "read_plain", watched)
    model = load_model(config_of(tmp_path))
    assert model.weights.is_fused
    gc.collect()
    assert len(alive) > 20
    assert not any(reference() is not None for reference in alive)


def test_a_layers_experts_are_given_up_before_the_next_ones_are_packed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = make_model(VARIANTS["mixtral"])
    modules = [layer.mlp.experts for layer in model.model.layers]
    pack_experts, held = packing.pack_experts, []

    def watched(*arguments: Any, **options: Any) -> Experts:
        held.append([module.down_proj is not None for module in modules])
        return pack_experts(*arguments, **options)

    monkeypatch.setattr(packing, "pack_experts", watched)
    fuse(model, EagerDecoder(model).calls)
    assert held == [[True, True, True], [False, True, True], [False, False, True]]
    assert not any(list(module.parameters()) for module in modules)


def config_of(folder: Path, **options: Any) -> EngineConfig:
    return EngineConfig(
        model_path=str(folder), device="cpu", dtype="float32", block_size=8, threads=1, **options
    )
