"""Checkpoints of compressed-tensors: packed weights of 4 or 8 bits, and W8A8 in whole bytes.

A layer in the format `pack-quantized` has `weight_packed` int32 [out, in / n] of n codes a word,
moved up to have no sign, `weight_scale` [out, groups], for zero points `weight_zero_point` packed
along the outputs, and `weight_shape`. One in `int-quantized` has `weight` int8 [out, in] and
`weight_scale` [out, 1]; its activations are rounded to 8 bits as they come, here in groups of 32.
One in `float-quantized` has `weight` float8 [out, in], which is widened, and `weight_scale` of the
whole, of each output, or of blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from engine.model.checkpoints.checkpoint import (
    FolderCheckpoint,
    Options,
    grouped,
    require_bits,
    require_group_size,
    require_order,
    unpack,
    unsupported,
)
from engine.model.checkpoints.fp8 import widened
from kernels.weight_format import Bits, GroupedWeight

_FLOATS = "float-quantized"
_STRATEGIES = {
    "pack-quantized": ("group", "channel", "tensor"),
    "int-quantized": ("group", "channel", "tensor"),
    _FLOATS: ("channel", "tensor", "block"),
}
"""What weights may share a scale, by format."""


class CompressedCheckpoint(FolderCheckpoint):
    """A folder of compressed-tensors."""

    method = "compressed-tensors"

    def __init__(self, folder: Path, options: Options) -> None:
        """Raises `UnsupportedModel` for what cannot be read as it is."""
        for part in ("transform_config", "kv_cache_scheme"):
            if options.get(part):
                raise unsupported(self.method, f"they come with a {part}")
        sparsity = (options.get("sparsity_config") or {}).get("format", "dense")
        if sparsity != "dense":
            raise unsupported(self.method, f"they are sparse ({sparsity})")
        self._block: Sequence[int] | None = None
        form = options.get("format")
        for scheme in (options.get("config_groups") or {}).values():
            form = scheme.get("format") or options.get("format")
            _require_weights(self.method, form, scheme)
            if form == _FLOATS:
                self._block = scheme["weights"].get("block_structure")
            else:
                _require_activations(self.method, scheme.get("input_activations"))
        forms = {"weight_packed": self._read_packed, "weight_scale": self._read_bytes}
        super().__init__(folder, {} if form == _FLOATS else forms)

    def tensor(self, name: str) -> Tensor | None:
        """See `FolderCheckpoint`; floats of 8 bits are widened to float32."""
        found = super().tensor(name)
        if found is None:
            return None
        return widened(self.method, name, found, super().tensor(f"{name}_scale"), self._block)

    def _read_packed(self, module: str) -> GroupedWeight:
        words, scales = (self._files[f"{module}.weight_{part}"] for part in ("packed", "scale"))
        out_features, in_features = self._files[f"{module}.weight_shape"].tolist()
        bits = require_bits(self.method, 32 * words.shape[1] // in_features)
        size = self._group_size(module, in_features, scales)
        require_order(self.method, module, self._files.get(f"{module}.weight_g_idx"), size)
        codes = unpack(words, bits)[:, :in_features]
        packed_zeros = self._files.get(f"{module}.weight_zero_point")
        if packed_zeros is None:
            return grouped(codes, scales, _middle(bits), bits, size)
        return grouped(codes, scales, unpack(packed_zeros.T, bits).T[:out_features], bits, size)

    def _read_bytes(self, module: str) -> GroupedWeight:
        weight, scales = (self._files[f"{module}.{part}"] for part in ("weight", "weight_scale"))
        if weight.dtype != torch.int8:
            raise unsupported(self.method, f"{module} has weights of {weight.dtype}")
        scales = scales.view(len(scales), -1).expand(len(weight), -1)
        size = self._group_size(module, weight.shape[1], scales)
        zeros = self._files.get(f"{module}.weight_zero_point")
        moved = _middle(8) if zeros is None else zeros.view(len(zeros), -1).short() + _middle(8)
        return grouped(weight.view(torch.uint8) ^ 128, scales, moved, 8, size)

    def _group_size(self, module: str, in_features: int, scales: Tensor) -> int:
        """Of the inputs that share a scale; schemes may differ from layer to layer."""
        groups = scales.shape[1]
        if groups == 1:
            return -1
        if in_features % groups:
            raise unsupported(self.method, f"{module} has {groups} scales for {in_features} inputs")
        return require_group_size(self.method, in_features // groups)


def _middle(bits: Bits) -> int:
    """By how much codes are moved up to have no sign."""
    return 1 << bits - 1


def _require_weights(method: str, form: str | None, scheme: Options) -> None:
    if form not in _STRATEGIES:
        raise unsupported(method, f"their format is {form}, not {' or '.join(_STRATEGIES)}")
    weights = scheme["weights"]
    if weights.get("type", "int") != ("float" if form == _FLOATS else "int"):
        raise unsupported(method, f"weights of type {weights['type']} have no products here")
    require_bits(method, weights.get("num_bits"))
    if weights.get("strategy", "tensor") not in _STRATEGIES[form]:
        raise unsupported(method, f"their scales are by {weights['strategy']}")
    require_group_size(method, weights.get("group_size"))


def _require_activations(method: str, options: Options | None) -> None:
    if options is None:
        return
    kind = f"{options.get('type', 'int')}{options.get('num_bits', 8)}"
    if kind != "int8" or not options.get("symmetric", True):
        raise unsupported(method, f"activations in {kind} are not what products take here")
    if not options.get("dynamic"):
        raise unsupported(method, "activations have scales of their own (static)")
