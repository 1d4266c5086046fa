"""A model's own modules over packed products: what reads weights fast, in 16, 8 or 4 bits.

Everything else of the modules computes as it was written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from engine.model.layers.eager.filling import of_tokens
from engine.model.layers.packing import Packer
from engine.model.layers.shard import Gathered, Shard, keep_equal_outputs
from kernels.types import Linear, Quantization

_CHOOSING: Final = {"gate", "router", "shared_expert_gate"}
"""Of a name's parts: where a small error is another choice of experts."""
_READ: Final = {"kv_b_proj", "dt_proj"}
"""Whose weights other modules read."""
_FEW: Final = 64
"""Outputs, with which a product is a few gates, and takes no time."""


class PackedLinear(nn.Module):
    """In place of an `nn.Linear`."""

    def __init__(self, product: Linear, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = torch.empty(0, dtype=dtype)  # some ask for its type
        self.in_features, self.out_features = product.in_features, product.out_features
        self._product = product

    def forward(self, x: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features]; of a head, a rank's part of these."""
        rows = x.reshape(-1, self.in_features)
        made = of_tokens(self._product, rows)
        return made.view(*x.shape[:-1], made.shape[1])


def exact_modules(model: nn.Module) -> set[nn.Module]:
    """The products that are not quantized."""
    return {module for name, module in _products(model) if _is_exact(name, module)}


def pack_products(
    model: PreTrainedModel,
    quantization: Quantization,
    *,
    batch_invariant: bool,
    shard: Shard | None,
) -> None:
    """Put packed products in place of a model's own, one after the other.

    A rank multiplies by its part of the outputs, which all ranks gather; what is no product they
    all compute, with the same bits.
    """
    packer = Packer(quantization, batch_invariant, model.dtype, shard)
    head = model.get_output_embeddings()
    for name, module in list(_products(model)):
        parent, _, own = name.rpartition(".")
        if own in _READ:
            continue
        cut = None if module.out_features <= _FEW else shard
        if cut is not None:
            keep_equal_outputs(module, cut)
        if module is head:
            packed = packer.head(module)
        else:
            packed = packer.product([module], "none" if _is_exact(name, module) else None)
            if cut is not None:
                packed = Gathered(packed, module.out_features, cut, on_all=True)
        setattr(model.get_submodule(parent), own, PackedLinear(packed, model.dtype))


def unpacked(model: PreTrainedModel) -> list[str]:
    """The modules that multiply by weights which `pack_products` leaves as they are, by name."""
    packed = {name for name, _ in _products(model) if name.rpartition(".")[2] not in _READ}
    return [
        name
        for name, module in model.named_modules()
        if name not in packed
        and not isinstance(module, nn.Embedding | nn.Conv1d)
        and any(map(_is_matrix, (*module.parameters(False), *module.buffers(False))))
    ]


def _is_matrix(values: Tensor) -> bool:
    return sum(size > 1 for size in values.shape) > 1


def _products(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    for name, module in model.named_modules():
        if type(module) is nn.Linear:
            yield name, module


def _is_exact(name: str, module: nn.Linear) -> bool:
    parts = name.split(".")
    return module.out_features <= _FEW or not (_CHOOSING | _READ).isdisjoint(parts)
