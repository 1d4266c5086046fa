"""Which of a model's linear layers adapters may change, by name, and where they are computed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from engine.model.checkpoints.coded_linear import CodedLinear, Product
from engine.model.layers.description import (
    DenseDescription,
    Description,
    ExpertsDescription,
    LayerDescription,
    MixtureDescription,
    in_halves,
)
from engine.model.layers.packing import reordered
from engine.model.layers.shard import Shard, attention_part, dense_part
from kernels.layers import product_number

UNCHANGED: Final = {"gate", "router", "shared_expert_gate", "kv_b_proj", "dt_proj"}
"""Of a name's parts: routers, and what other modules read the weights of."""


@dataclass(frozen=True, slots=True, eq=False)
class LinearPlace:
    """Where the outputs of a linear layer are computed, or a rank's part of it."""

    product: int
    """Its number among all products that adapters may change."""
    in_features: int
    out_features: int
    column: int = 0
    """Of the product's outputs, the first that is this layer's."""
    order: Tensor | None = None
    """[own_outputs], places: which outputs are there, in their order; `None`: all, in their own."""
    inputs: slice | None = None
    """Which inputs are; `None`: all."""
    num_experts: int = 0
    """Which have such a layer each, for the rows that are routed to them; 0: it is for all rows."""

    @property
    def own_inputs(self) -> int:
        """How many of its inputs are there."""
        return len(range(self.in_features)[self.inputs or slice(None)])

    @property
    def own_outputs(self) -> int:
        """How many of its outputs are computed there."""
        return self.out_features if self.order is None else len(self.order)


Places = Mapping[str, LinearPlace]
"""By the names that modules have in their model."""


def shapes(places: Places) -> dict[str, tuple[int, ...]]:
    """Numbers of inputs and outputs, and of experts where it is of some, by name."""
    return {
        name: (one.in_features, one.out_features, *([one.num_experts] if one.num_experts else []))
        for name, one in places.items()
    }


def fused_places(model: nn.Module, description: Description, shard: Shard | None = None) -> Places:
    """Those of a whole model whose layers are fused as `description` says, once only the part of a
    `shard` is left.
    """
    names = {module: name for name, module in model.named_modules()}
    found: dict[str, LinearPlace] = {}
    for number, layer in enumerate(description.layers):
        found |= {names[module]: place for module, place in _of_layer(number, layer, shard)}
        if isinstance(layer.network, MixtureDescription) and shard is None:
            experts = layer.network.experts
            for parameter, place in _of_experts(number, experts):
                found[f"{names[experts.module]}.{parameter}"] = place
    return found


def own_places(model: PreTrainedModel, called: set[str]) -> Places:
    """Those of a model's own modules, of which a pass has `called` these.

    Without the head, whatever it is called: it has other rows than the tokens of a step.
    """
    head = model.get_output_embeddings()
    found = [
        (name, module)
        for name, module in model.named_modules()
        if name in called and module is not head and UNCHANGED.isdisjoint(name.split("."))
    ]
    return {
        name: LinearPlace(number, module.in_features, module.out_features)
        for number, (name, module) in enumerate(found)
        if isinstance(module, nn.Linear | CodedLinear)
    }


def _of_layer(
    number: int, layer: LayerDescription, shard: Shard | None
) -> Iterator[tuple[Product, LinearPlace]]:
    rows, inputs = (None, None) if shard is None else attention_part(layer, shard)
    yield from _side_by_side(product_number(number, "qkv"), layer.qkv, rows, layer.head_order)
    yield _behind(product_number(number, "out"), layer.out, inputs)
    network = layer.network
    dense = network if isinstance(network, DenseDescription) else network.shared
    if dense is not None:
        rows, inputs = (None, None) if shard is None else dense_part(dense, shard)
        yield from _side_by_side(product_number(number, "gate_up"), dense.gate_up, rows)
        yield _behind(product_number(number, "down"), dense.down, inputs)


def _of_experts(number: int, experts: ExpertsDescription) -> Iterator[tuple[str, LinearPlace]]:
    """Those of a layer, by the names of their module's parameters."""
    for parameter in ("gate_up_proj", "down_proj"):
        count, outputs, inputs = experts.shape(parameter)
        order = None
        if experts.is_transposed and parameter == "gate_up_proj":
            order = in_halves(torch.arange(outputs))
        product = product_number(number, f"experts_{parameter.removesuffix('_proj')}")
        yield parameter, LinearPlace(product, inputs, outputs, order=order, num_experts=count)


def _side_by_side(
    product: int,
    parts: list[Product],
    rows: list[Tensor] | None,
    head_order: Tensor | None = None,
) -> Iterator[tuple[Product, LinearPlace]]:
    """Of each part these rows. Queries and keys, the first two, have the dimensions of each head in
    that order.
    """
    column = 0
    for index, part in enumerate(parts):
        order = None if rows is None else rows[index]
        if head_order is not None and index < 2:
            own = reordered(part.out_features if order is None else len(order), head_order)
            order = own if order is None else order[own]
        place = LinearPlace(product, part.in_features, part.out_features, column, order)
        yield part, place
        column += place.own_outputs


def _behind(product: int, part: Product, inputs: slice | None) -> tuple[Product, LinearPlace]:
    """What all ranks' sums are of, each of its own inputs."""
    return part, LinearPlace(product, part.in_features, part.out_features, inputs=inputs)
