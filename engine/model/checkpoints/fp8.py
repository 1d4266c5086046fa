"""Weights in 8-bit floats (E4M3), each block or each matrix of them with a scale.

A layer has `weight` float8 [out, in] and `weight_scale_inv`, by which it is to be multiplied, of
blocks as `weight_block_size` says or of all of it. There are no products of such codes here: they
are widened.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from engine.model.checkpoints.checkpoint import FolderCheckpoint, Options, unsupported

_FLOATS = (torch.float8_e4m3fn, torch.float8_e5m2)


class Fp8Checkpoint(FolderCheckpoint):
    """A folder of `fp8`, as DeepSeek's, Qwen's and MiniMax's are."""

    method = "fp8"

    def __init__(self, folder: Path, options: Options) -> None:
        """Raises `UnsupportedModel` for experts in codes of another kind."""
        if options.get("expert_dtype", "fp8") != "fp8":
            raise unsupported(self.method, f"experts are in {options['expert_dtype']}")
        self._block: Sequence[int] | None = options.get("weight_block_size")
        super().__init__(folder, {})

    def tensor(self, name: str) -> Tensor | None:
        """See `FolderCheckpoint`; widened to float32 where it is in codes."""
        found, scales = super().tensor(name), super().tensor(f"{name}_scale_inv")
        if scales is not None and not scales.dtype.is_floating_point:
            raise unsupported(self.method, f"{name} has scales of {scales.dtype}")
        return None if found is None else widened(self.method, name, found, scales, self._block)


def widened(
    method: str, name: str, found: Tensor, scales: Tensor | None, block: Sequence[int] | None
) -> Tensor:
    """What floats of 8 bits with scales stand for, float32; all else as it is.

    They are a matrix, or one of each expert. Raises `UnsupportedModel` for scales that are not
    there, or not of them.
    """
    if found.dtype not in _FLOATS:
        return found
    if scales is None:
        raise unsupported(method, f"{name} has no scales")
    spread = _spread(scales.float(), found.shape, block)
    if spread is None:
        shapes = f"{list(scales.shape)}, for {list(found.shape)}"
        raise unsupported(method, f"{name} has scales of shape {shapes}")
    return found.float() * spread


def _spread(scales: Tensor, shape: torch.Size, block: Sequence[int] | None) -> Tensor | None:
    """Each weight's scale, or what is broadcast to that: of blocks, the last of which may be cut
    short, of rows, or of all. `None` for scales of another shape.
    """
    if scales.numel() == 1:
        return scales.reshape(())
    *experts, rows, columns = shape
    if scales.shape in (torch.Size(experts), torch.Size((*experts, 1))):
        return scales.reshape(*experts, 1, 1)
    if scales.shape in (shape[:-1], (*shape[:-1], 1), (*experts, 1, 1)):
        return scales.reshape(*experts, -1, 1)
    if block is None or scales.shape != (*experts, -(-rows // block[0]), -(-columns // block[1])):
        return None
    whole = scales.repeat_interleave(block[0], -2)[..., :rows, :]
    return whole.repeat_interleave(block[1], -1)[..., :columns]
