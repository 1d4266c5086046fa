"""What a reader of quantized weights provides, and what those of folders have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn import functional

from engine.api import EngineError, UnsupportedModel
from engine.model.checkpoints.coded_linear import ReadGroups
from engine.model.errors import lacks_memory
from kernels.weight_format import GROUP, Bits, GroupedWeight

Options = Mapping[str, Any]
"""A checkpoint's `quantization_config`."""


class TensorFiles:
    """The tensors of a folder's safetensors files, mapped, and read one by one."""

    def __init__(self, folder: Path) -> None:
        self._files: dict[str, Any] = {}
        for path in sorted(folder.glob("*.safetensors")):
            file: Any = safe_open(path, framework="pt")
            self._files |= dict.fromkeys(file.keys(), file)

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def __getitem__(self, name: str) -> Tensor:
        tensor: Tensor = self._file(name).get_tensor(name)
        return tensor

    def _file(self, name: str) -> Any:
        if name not in self._files:
            raise UnsupportedModel(f"the checkpoint has no {name}")
        return self._files[name]

    def get(self, name: str) -> Tensor | None:
        """The tensor of that name, if there is one."""
        return self[name] if name in self._files else None

    def length(self, name: str) -> int:
        """The first dimension of a tensor; 0 of one that is not there."""
        return self._file(name).get_slice(name).get_shape()[0] if name in self._files else 0

    def rows(self, name: str, index: int) -> Tensor:
        """What is at `index` of a tensor, without reading the rest."""
        part: Tensor = self._file(name).get_slice(name)[index]
        return part


class FolderCheckpoint:
    """Weights of a folder's safetensors files, by the names that a `transformers` model has for
    them; each format reads its codes its own way.
    """

    method: str
    """By what they were quantized."""

    def __init__(self, folder: Path, codes: Mapping[str, Callable[[str], GroupedWeight]]) -> None:
        """`codes` reads a linear layer, by the tensor of it that says in which form it is."""
        self._files = TensorFiles(folder)
        self._codes = codes

    def groups(self, module: str) -> ReadGroups | None:
        """Reads the weight of that linear layer; `None` where it is not in codes.

        Raises `UnsupportedModel`, now or when it reads, for codes that do not fit the groups.
        """
        for stored in _spellings(module):
            for part, read in self._codes.items():
                if f"{stored}.{part}" in self._files:
                    return partial(fitting, self.method, stored, partial(read, stored))
        return None

    def tensor(self, name: str) -> Tensor | None:
        """A parameter's values, if it is there; in codes or not."""
        found = (self._files.get(stored) for stored in _spellings(name))
        return next((tensor for tensor in found if tensor is not None), None)


def _spellings(name: str) -> tuple[str, ...]:
    """A module or parameter, as `transformers` calls it and as older checkpoints do."""
    old = name.replace(".mlp.", ".block_sparse_moe.")
    return (name,) if old == name else (name, old)


def unsupported(method: str, reason: str) -> UnsupportedModel:
    """The error for weights that cannot be read as they are."""
    return UnsupportedModel(
        f"weights quantized by {method} are not supported: {reason}. "
        "Give the original checkpoint, on a CPU with --quantize int4 or int8"
    )


def fitting(method: str, module: str, read: ReadGroups) -> GroupedWeight:
    """What `read` gives. Raises `UnsupportedModel` where the tensors of the module do not fit each
    other.
    """
    try:
        matrix = read()
    except (RuntimeError, IndexError) as error:
        if isinstance(error, EngineError) or lacks_memory(error):
            raise
        raise unsupported(method, f"the tensors of {module} do not fit each other") from error
    rows, width = matrix.codes.shape
    groups = rows, width // GROUP
    if width % GROUP or matrix.scales.shape != groups or matrix.minima.shape != groups:
        raise unsupported(method, f"the tensors of {module} do not fit each other")
    return matrix


def unpack(words: Tensor, bits: Bits) -> Tensor:
    """Numbers without a sign from int32 [rows, words], lowest bits first: uint8 [rows, numbers]."""
    packed = words.contiguous().view(torch.uint8)
    return packed if bits == 8 else torch.stack([packed & 15, packed >> 4], dim=2).flatten(1)


def grouped(
    codes: Tensor, scales: Tensor, zeros: Tensor | int, bits: Bits, group_size: int
) -> GroupedWeight:
    """Weights of scale * (code - zero), in groups of 32.

    `codes` is uint8 [rows, in_features]; `scales` are float [rows, groups], and so are `zeros`, of
    integers, if they differ. The groups are larger, multiples of 32, or whole rows (-1).
    """
    in_features = codes.shape[1]
    padded = functional.pad(codes, (0, -in_features % GROUP))
    smaller = padded.shape[1] // GROUP
    repeats = smaller if group_size == -1 else group_size // GROUP
    scales = scales.float()
    minima = scales * (-zeros if isinstance(zeros, int) else -zeros.float())
    scales, minima = (
        values.repeat_interleave(repeats, 1)[:, :smaller] for values in (scales, minima)
    )
    return GroupedWeight(in_features, bits, padded, scales, minima)


def require_group_size(method: str, size: int | None) -> int:
    """The length of groups that are made of groups of 32, or -1 for whole rows."""
    if size is None or size == -1:
        return -1
    if size < 1 or size % GROUP:
        raise unsupported(method, f"groups of {size} inputs are no multiple of {GROUP}")
    return size


def require_bits(method: str, bits: object) -> Bits:
    """The width of codes, if it is one of those that there are products for."""
    if bits == 4:
        return 4
    if bits == 8:
        return 8
    raise unsupported(method, f"weights of {bits} bits have no products here, those of 4 and 8 do")


def require_order(method: str, module: str, indices: Tensor | None, group_size: int) -> None:
    """Raise if inputs are not in the order of their groups (activation reordering)."""
    if indices is None or group_size == -1:
        return
    if not torch.equal(indices, torch.arange(len(indices), dtype=indices.dtype) // group_size):
        reason = f"the inputs of {module} are ordered by activation (desc_act, actorder)"
        raise unsupported(method, reason)
