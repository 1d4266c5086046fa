"""A decoder-only model as fused layers compute it: what its modules are, and which weights they
hold. Whoever packs the weights takes them from the modules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from engine.model.checkpoints.coded_experts import CodedParameter, coded_parameters
from engine.model.checkpoints.coded_linear import Product
from kernels.types import Activation, LayerOptions, Norm, Routing
from kernels.weight_format import GroupedWeight


@dataclass(frozen=True, slots=True)
class DenseDescription:
    """A network that all tokens go through."""

    gate_up: list[Product]
    """Of gate and up, or one for both, or for up alone."""
    down: Product
    activation: Activation


Matrix = Tensor | GroupedWeight


class CodedMatrices(Sequence[GroupedWeight]):
    """Each expert's, in codes, read from the checkpoint."""

    def __init__(self, parameter: CodedParameter, are_twined: bool) -> None:
        self._parameter, self._are_twined = parameter, are_twined

    def __len__(self) -> int:
        return self._parameter.shape[0]

    def __getitem__(self, index: Any) -> Any:
        if index >= len(self):
            raise IndexError(index)  # by which iterating ends
        matrix = self._parameter.read(index)
        rows = torch.arange(len(matrix.codes))
        return matrix.take(in_halves(rows)) if self._are_twined else matrix


class Matrices(Sequence[Tensor]):
    """Each expert's part of a stack, made as it is read."""

    def __init__(self, stack: Tensor, part: Callable[[Tensor], Tensor]) -> None:
        self._stack, self._part = stack.detach(), part

    def __len__(self) -> int:
        return len(self._stack)

    def __getitem__(self, index: Any) -> Any:
        return self._part(self._stack[index])


@dataclass(frozen=True, slots=True)
class ExpertsDescription:
    """The experts of a layer, whose module holds all of a kind in one tensor."""

    module: Any
    """`gate_up_proj` is [num_experts, 2 * inter, hidden_size], gates above what they multiply, and
    `down_proj` [num_experts, hidden_size, inter]; biases, if there are any, have `_bias` behind
    their names."""
    is_transposed: bool
    """Matrices are by inputs first, and gates and what they multiply come in turns."""

    def shape(self, parameter: str) -> tuple[int, int, int]:
        """Of one of the matrices: how many there are, and their numbers of outputs and inputs."""
        coded = coded_parameters(self.module).get(parameter)
        stack = getattr(self.module, parameter) if coded is None else coded
        count, first, second = stack.shape
        return (count, second, first) if self.is_transposed else (count, first, second)

    @property
    def gate_up(self) -> Sequence[Matrix]:
        """Each expert's, as `kernels.experts.pack_experts` has it."""
        coded = coded_parameters(self.module).get("gate_up_proj")
        if coded is not None:
            return CodedMatrices(coded, self.is_transposed)
        stack = self.module.gate_up_proj
        return Matrices(stack, _untwined if self.is_transposed else _as_it_is)

    @property
    def down(self) -> Sequence[Matrix]:
        """Each expert's."""
        coded = coded_parameters(self.module).get("down_proj")
        if coded is not None:
            return CodedMatrices(coded, are_twined=False)
        return Matrices(self.module.down_proj, _turned if self.is_transposed else _as_it_is)

    @property
    def gate_up_biases(self) -> Matrices | None:
        """Each expert's, in the order of the outputs of `gate_up`."""
        stack = getattr(self.module, "gate_up_proj_bias", None)
        part = in_halves if self.is_transposed else _as_it_is
        return None if stack is None else Matrices(stack, part)

    @property
    def down_biases(self) -> Matrices | None:
        """Each expert's."""
        stack = getattr(self.module, "down_proj_bias", None)
        return None if stack is None else Matrices(stack, _as_it_is)


@dataclass(frozen=True, slots=True)
class MixtureDescription:
    """A network of experts, with what is beside them.

    Router and gate are multiplied in float32: a small error would be another choice.
    """

    router: Any
    """A module with a weight, [num_experts, hidden_size], and maybe a bias."""
    routing: Routing
    experts: ExpertsDescription
    activation: Activation
    shared: DenseDescription | None
    shared_gate: Product | None


@dataclass(frozen=True, slots=True)
class LayerDescription:
    """One decoder layer; its modules still hold the weights."""

    options: LayerOptions
    qkv: list[Product]
    """Of queries, keys and values, or one for all."""
    out: Product
    network: DenseDescription | MixtureDescription
    head_order: Tensor | None
    """[head_dim], places: the dimensions of each query and key head so that those which are turned
    together lie as `kernels.layers.rotate_and_write` has them. `None`: they do."""


@dataclass(frozen=True, slots=True)
class Description:
    """A decoder-only model as `engine.model.layers.fused` runs it."""

    embedding: nn.Embedding
    embedding_scale: float
    layers: list[LayerDescription]
    activation: Activation
    norm: Norm
    head: Product
    softcap: float | None
    """Of the logits."""
    long_row: int | None
    """Of the rotary tables, the first row for long sequences, if those have rows of their own."""


def exact_products(description: Description) -> set[nn.Module]:
    """What is never rounded: see `MixtureDescription`."""
    mixtures = (layer.network for layer in description.layers)
    return {
        module
        for mixture in mixtures
        if isinstance(mixture, MixtureDescription)
        for module in (mixture.router, mixture.shared_gate)
        if module is not None
    }


def _as_it_is(matrix: Tensor) -> Tensor:
    return matrix


def _turned(matrix: Tensor) -> Tensor:
    return matrix.T.contiguous()


def _untwined(matrix: Tensor) -> Tensor:
    return in_halves(matrix.T)


def in_halves(rows: Tensor) -> Tensor:
    """First those at even places, then the others."""
    return torch.cat([rows[::2], rows[1::2]])
