"""Layers of experts compute in one call what they do one by one, among others and with sinks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from engine.batch.batch import Batch, pack
from engine.model.layers.eager.decoder import EagerDecoder
from engine.model.layers.fused import FusedDecoder, fuse
from engine.model.layers.layout import AttentionLayout
from kernels.experts import pack_experts
from kernels.layers import stack
from kernels.linear import pack as pack_product
from kernels.native import library
from kernels.types import (
    Activation,
    DecoderLayer,
    Dense,
    Linear,
    Mixture,
    Norm,
    Quantization,
    Routing,
)
from tests.engine.model.layers.test_fused import make_model

pytestmark = pytest.mark.skipif(not library.available(), reason="kernels/native is not built")

HIDDEN, NUM_EXPERTS, INTER = 64, 8, 40
ROUTINGS = {
    "softmax": Routing(NUM_EXPERTS, 3, "softmax"),
    "sigmoid in groups": Routing(
        NUM_EXPERTS, 2, "sigmoid", torch.linspace(-1, 1, NUM_EXPERTS), 4, 2, scale=2.5
    ),
    "near best": Routing(NUM_EXPERTS, 2, "softmax_near_best", is_normalised=False, margin=0.2),
}


def drawn(*shape: int, dtype: torch.dtype) -> Tensor:
    return (torch.randn(shape) / shape[-1] ** 0.5).to(dtype)


def product(outputs: int, inputs: int, dtype: torch.dtype, scheme: Quantization) -> Linear:
    return pack_product([drawn(outputs, inputs, dtype=dtype)], quantization=scheme)


def dense(inter: int, dtype: torch.dtype, scheme: Quantization) -> Dense:
    into, back = (2 * inter, HIDDEN), (HIDDEN, inter)
    return Dense(product(*into, dtype, scheme), product(*back, dtype, scheme))


def mixture(
    routing: Routing,
    dtype: torch.dtype,
    scheme: Quantization = "none",
    shared: Dense | None = None,
    is_gated: bool = False,
    activation: Activation = "silu",
) -> Mixture:
    experts = pack_experts(
        drawn(NUM_EXPERTS, 2 * INTER, HIDDEN, dtype=dtype).unbind(),
        drawn(NUM_EXPERTS, HIDDEN, INTER, dtype=dtype).unbind(),
        activation,
        drawn(NUM_EXPERTS, 2 * INTER, dtype=dtype).unbind(),
        drawn(NUM_EXPERTS, HIDDEN, dtype=dtype).unbind(),
        quantization=scheme,
    )
    gate = product(1, HIDDEN, torch.float32, "none") if is_gated else None
    router = pack_product([4 * drawn(NUM_EXPERTS, HIDDEN, dtype=torch.float32)])
    return Mixture(router, routing, experts, shared, gate)


class Decoder:
    """Llama's layers with other networks, over memory of their own for each run."""

    def __init__(self, dtype: torch.dtype) -> None:
        model = make_model(("llama", {}), dtype)
        eager = EagerDecoder(model)
        self.pages = AttentionLayout(tuple(eager.calls)).pages(8, dtype)
        self.fused: FusedDecoder = fuse(model, eager.calls)

    def __setitem__(self, index: int, layer: DecoderLayer) -> None:
        self.fused._layers[index] = layer

    def __getitem__(self, index: int) -> DecoderLayer:
        return self.fused._layers[index]

    def logits(self, in_one_call: bool) -> Tensor:
        """Of two sequences of 40 tokens that come in two chunks and a single token."""
        fused = self.fused
        fused._stack = stack(fused._layers, "silu") if in_one_call else None
        assert (fused._stack is not None) == in_one_call
        memory = torch.full((10, self.pages.page_size), torch.nan, dtype=fused._dtype)
        caches = self.pages.caches(memory)
        with torch.inference_mode():
            results = [
                fused.forward(_batch(start, end), caches)
                for start, end in ((0, 25), (25, 26), (26, 40))
            ]
        return torch.cat(results)


def _batch(start: int, end: int) -> Batch:
    ids = [list(range(7, 47)), list(range(500, 540))]
    tables = [7, 0, 3, 9, 2], [1, 4, 8, 5, 6]
    count = end - start
    parts = [(one, start, count, table) for one, table in zip(ids, tables, strict=True)]
    return pack(parts, range(2 * count), 8, torch.device("cpu"))


@pytest.mark.parametrize("name", ROUTINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scheme", ["none", "int8", "int4"])
def test_layers_of_experts_behind_a_dense_one_have_the_same_bits_in_one_call(
    name: str, dtype: torch.dtype, scheme: Quantization
) -> None:
    decoder = Decoder(dtype)
    networks = (
        dense(112, dtype, scheme),
        mixture(ROUTINGS[name], dtype, scheme, dense(24, dtype, scheme), is_gated=True),
        mixture(ROUTINGS[name], dtype, scheme, dense(128, dtype, scheme)),
    )
    before = decoder.logits(in_one_call=True)
    for index, network in enumerate(networks):
        decoder[index] = replace(decoder[index], network=network)
    together = decoder.logits(in_one_call=True)
    assert torch.equal(together, decoder.logits(in_one_call=False))
    assert not torch.isclose(together, before).all()
    assert not together.isnan().any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_norm_behind_experts_sinks_and_an_activation_of_their_own(dtype: torch.dtype) -> None:
    """Sinks of one layer are not the next one's."""
    decoder = Decoder(dtype)
    norm = Norm(weight=torch.rand(HIDDEN) + 0.5, eps=1e-5)
    layer = decoder[1]
    sinks = torch.randn(layer.options.num_heads) + 2
    options = replace(layer.options, sinks=sinks, after_mlp=norm)
    network = mixture(ROUTINGS["softmax"], dtype, activation="clamped_swiglu")
    results = []
    for changed in (
        replace(layer, network=network),
        replace(layer, network=network, options=replace(options, sinks=None)),
        replace(layer, network=network, options=options),
    ):
        decoder[1] = changed
        results.append(decoder.logits(in_one_call=True))
        assert torch.equal(results[-1], decoder.logits(in_one_call=False))
    assert not any(torch.equal(results[-1], other) for other in results[:-1])


def test_experts_of_another_backend_are_run_layer_by_layer() -> None:
    decoder = Decoder(torch.float32)
    network = mixture(ROUTINGS["softmax"], torch.float32)
    weights = [torch.randn(2 * INTER, HIDDEN)], [torch.randn(HIDDEN, INTER)]
    theirs = pack_experts(*weights, "silu", backend="reference")
    decoder[1] = replace(decoder[1], network=replace(network, experts=theirs))
    assert stack(decoder.fused._layers, "silu") is None
