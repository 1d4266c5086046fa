"""Where a checkpoint has the matrices of experts, and in which form.

A model has those of all experts in one parameter, what is multiplied by the gates below them or,
row for row, between them. A checkpoint may have it whole, or each expert's products apart.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from typing import Protocol

import torch
from torch import Tensor

from engine.api import UnsupportedModel
from engine.model.checkpoints.coded_linear import ReadGroups
from kernels.weight_format import GroupedWeight, concatenate

_PARTS = {
    "gate_up_proj": (("gate_up_proj",), ("gate_proj", "up_proj"), ("w1", "w3")),
    "down_proj": (("down_proj",), ("w2",)),
}
"""By the parameter's name: the products that it consists of, as different checkpoints call them."""


class Reader(Protocol):
    """A checkpoint."""

    def groups(self, module: str) -> ReadGroups | None:
        """See `FolderCheckpoint`."""
        ...

    def tensor(self, name: str) -> Tensor | None:
        """See `FolderCheckpoint`."""
        ...


class ExpertReader:
    """One parameter of a module of experts."""

    def __init__(self, checkpoint: Reader, parameter: str, is_interleaved: bool) -> None:
        """`is_interleaved` says that the rows of its parts alternate, where it has several."""
        self._checkpoint = checkpoint
        self._owner, _, self._kind = parameter.rpartition(".")
        self._is_interleaved = is_interleaved
        self._parts = next(filter(self._has, _PARTS.get(self._kind, ())), None)

    def _has(self, parts: Sequence[str]) -> bool:
        return self._is_there(f"{self._owner}.0.{parts[0]}")

    def _is_there(self, module: str) -> bool:
        is_coded = self._checkpoint.groups(module) is not None
        return is_coded or self._checkpoint.tensor(f"{module}.weight") is not None

    @property
    def is_apart(self) -> bool:
        """Whether the checkpoint has each expert's products apart."""
        return self._parts is not None

    def has(self, expert: int) -> bool:
        """Whether the checkpoint has that expert's."""
        return self._parts is not None and self._is_there(self._modules(expert)[0])

    def is_coded(self, num_experts: int) -> bool:
        """Whether all of it is in codes."""
        modules = chain.from_iterable(map(self._modules, range(num_experts)))
        return self.is_apart and all(map(self._checkpoint.groups, modules))

    def groups(self, expert: int) -> GroupedWeight:
        """The matrix of one expert, [out_features, in_features], of those that are in codes."""
        reads = map(self._checkpoint.groups, self._modules(expert))
        parts = [read() for read in reads if read is not None]
        self._require_one(expert, {part.in_features for part in parts})
        whole = concatenate(parts)
        return whole.take(self._order(len(whole.codes))) if self._reorders else whole

    def values(self, expert: int) -> Tensor:
        """The matrix of one expert, widened."""
        parts = [self._value(module) for module in self._modules(expert)]
        self._require_one(expert, {part.shape[1] for part in parts})
        whole = torch.cat(parts)
        return whole[self._order(len(whole))] if self._reorders else whole

    def biases(self) -> Tensor | None:
        """Those of all experts, [experts, out_features], of checkpoints that have them in parts."""
        kind = self._kind.removesuffix("_bias")
        for parts in _PARTS.get(kind, ()):
            found = [self._checkpoint.tensor(f"{self._owner}.{part}.bias") for part in parts]
            biases = [bias for bias in found if bias is not None]
            if biases:
                whole = torch.cat(biases, 1)
                interleaves = self._is_interleaved and len(parts) > 1
                return whole[:, self._order(whole.shape[1])] if interleaves else whole
        return None

    def _require_one(self, expert: int, widths: Collection[int]) -> None:
        if len(widths) > 1:
            raise UnsupportedModel(f"the products of {self._owner}.{expert} do not fit each other")

    @property
    def _reorders(self) -> bool:
        return self._is_interleaved and len(self._parts or ()) > 1

    def _order(self, rows: int) -> Tensor:
        return torch.arange(rows).view(2, -1).T.flatten()

    def _modules(self, expert: int) -> list[str]:
        return [f"{self._owner}.{expert}.{part}" for part in self._parts or ()]

    def _value(self, module: str) -> Tensor:
        read = self._checkpoint.groups(module)
        if read is not None:
            return read().dequantize()
        found = self._checkpoint.tensor(f"{module}.weight")
        if found is None:
            raise UnsupportedModel(f"the checkpoint has no {module}, or no codes of it")
        return found
