"""Weights as kernels multiply by them, taken from the modules that held them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from engine.model.checkpoints.coded_linear import CodedLinear, Product
from engine.model.layers.description import (
    DenseDescription,
    ExpertsDescription,
    LayerDescription,
    MixtureDescription,
)
from engine.model.layers.shard import Gathered, Shard
from kernels.experts import pack_experts
from kernels.linear import pack, pack_groups
from kernels.types import (
    Activation,
    DecoderLayer,
    Dense,
    Experts,
    Linear,
    Mixture,
    Quantization,
)


class Packer:
    """Packs products one after the other, so that at no time two copies of all weights exist."""

    def __init__(
        self,
        quantization: Quantization,
        batch_invariant: bool,
        dtype: torch.dtype,
        shard: Shard | None,
    ) -> None:
        self._quantization = quantization
        self._batch_invariant = batch_invariant
        self._dtype = dtype
        self._shard = shard

    def head(self, part: Product) -> Linear:
        """Never in 4 bits: roundings of logits reach the tokens at once."""
        width = part.out_features  # a cut leaves that of the whole
        kind: Quantization = "int8" if self._quantization == "int4" else self._quantization
        product = self.product([part], kind)
        return product if self._shard is None else Gathered(product, width, self._shard)

    def product(self, parts: Sequence[Product], quantization: Quantization | None = None) -> Linear:
        """Of all parts together, in the given kind or the model's; codes stay as they are."""
        biases = [None if part.bias is None else part.bias.detach() for part in parts]
        coded = [part for part in parts if isinstance(part, CodedLinear)]
        if len(coded) == len(parts):
            groups = [part.read() for part in coded]
            packed = pack_groups(groups, biases, batch_invariant=self._batch_invariant)
        else:
            packed = pack(
                [self._plain(part) for part in parts],
                biases,
                quantization=quantization or self._quantization,
                batch_invariant=self._batch_invariant,
            )
        for part in parts:
            release(part)
        return packed

    def _plain(self, part: Product) -> Tensor:
        """Its weight; of one in codes too, which a plain one is stacked with."""
        if isinstance(part, CodedLinear):
            return part.read().dequantize().to(self._dtype)
        return part.weight.detach()

    def layer(self, layer: LayerDescription) -> DecoderLayer:
        """One layer, whose modules have no weights any more."""
        if layer.head_order is not None:
            for part in layer.qkv[:2]:
                _reorder(part, layer.head_order)
        return DecoderLayer(
            options=layer.options,
            qkv=self.product(layer.qkv),
            out=self.product([layer.out]),
            network=self._network(layer.network),
        )

    def _network(self, network: DenseDescription | MixtureDescription) -> Dense | Mixture:
        if isinstance(network, DenseDescription):
            return self._dense(network)
        shared, shared_gate = network.shared, network.shared_gate
        return Mixture(
            router=self._exact(network.router),
            routing=network.routing,
            experts=self._experts(network.experts, network.activation),
            shared=None if shared is None else self._dense(shared),
            shared_gate=None if shared_gate is None else self._exact(shared_gate),
        )

    def _dense(self, network: DenseDescription) -> Dense:
        return Dense(self.product(network.gate_up), self.product([network.down]))

    def _experts(self, experts: ExpertsDescription, activation: Activation) -> Experts:
        packed = pack_experts(
            experts.gate_up,
            experts.down,
            activation,
            experts.gate_up_biases,
            experts.down_biases,
            quantization=self._quantization,
            batch_invariant=self._batch_invariant,
        )
        release(experts.module)
        return packed

    def _exact(self, part: Any) -> Linear:
        """In float32, never quantized: a small error would be another choice of experts."""
        bias: Tensor | None = getattr(part, "bias", None)
        packed = pack(
            [self._plain(part).float()],
            [None if bias is None else bias.detach().float()],
            batch_invariant=self._batch_invariant,
        )
        release(part)
        return packed


def _reorder(product: Product, order: Tensor) -> None:
    """Put the outputs of each head in this order: [head_dim], places of them."""
    if isinstance(product, CodedLinear):
        read, rows = product.read, reordered(product.out_features, order)
        product.read = lambda: read().take(rows)
    else:
        rows = reordered(len(product.weight), order)
        product.weight = nn.Parameter(product.weight.detach()[rows], requires_grad=False)
    if product.bias is not None:
        product.bias = nn.Parameter(product.bias.detach()[rows], requires_grad=False)


def reordered(num_rows: int, order: Tensor) -> Tensor:
    """The rows of all heads, each in this `order` of its dimensions: [num_rows], places of them."""
    return torch.arange(num_rows, device=order.device).view(-1, len(order))[:, order].flatten()


def release(module: nn.Module) -> None:
    """Let the memory of its weights go, if nobody else holds them."""
    for name in list(module._parameters):
        setattr(module, name, None)
