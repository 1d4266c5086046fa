"""GGUF files, whose quantized tensors are read from where they lie.

`engine.model.convert` leaves a link to the file in the model's folder, and an index of what is
where in it, by the names that `transformers` has for parameters: parsing its header takes seconds.

A block of a quantized type (ggml's `ggml-quants.c` defines them) is bytes: scales in half
precision, then codes of 32 weights, or of 256 with a super-scale. Taken apart they are the very
weights, in groups of 32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from mmap import ACCESS_COPY, mmap
from pathlib import Path
from typing import Final

import msgspec
import torch
from torch import Tensor

from engine.model.checkpoints.coded_linear import ReadGroups
from engine.model.checkpoints.mxfp4 import EXPERT, float_scales
from engine.model.weights import GGUF_INDEX, GGUF_LINK
from kernels.weight_format import GROUP, Bits, GroupedWeight, group

_PLAIN: Final = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_FLOATS: Final = "MXFP4"
_Parts = tuple[Bits, Tensor, Tensor, Tensor]
"""Bits, codes uint8 [blocks, weights], scales and minima float32 [blocks, groups]."""


class StoredTensor(msgspec.Struct, frozen=True):
    """A tensor in the file, and how its rows and values differ from those of the model."""

    kind: str
    """GGUF's name of its type."""
    shape: list[int]
    start: int
    """Its first byte in the file."""
    num_bytes: int
    rotated_heads: int = 0
    """The heads whose rows alternate between the halves that are rotated together; 0: none."""
    excess: float = 0.0
    """By how much its values are too large."""


class GgufCheckpoint:
    """A GGUF file's tensors; as `FolderCheckpoint` has those of others."""

    method = "gguf"

    def __init__(self, folder: Path) -> None:
        """Map the file that `folder` has a link to."""
        index = (folder / GGUF_INDEX).read_bytes()
        self._tensors = msgspec.json.decode(index, type=dict[str, StoredTensor])
        with (folder / GGUF_LINK).open("rb") as file:
            # Nothing writes; torch warns of memory that could not be written to.
            mapped = mmap(file.fileno(), 0, access=ACCESS_COPY)
        self._bytes = torch.frombuffer(mapped, dtype=torch.uint8)

    def groups(self, module: str) -> ReadGroups | None:
        """See `FolderCheckpoint`. Types of another structure are rounded to 8 bits in groups."""
        stored = self._tensors.get(f"{module}.weight") or self._expert(module)
        return None if stored is None or stored.kind in _PLAIN else partial(self._read, stored)

    def tensor(self, name: str) -> Tensor | None:
        """See `FolderCheckpoint`."""
        stored = self._tensors.get(name) or self._expert(name.removesuffix(".weight"))
        if stored is None:
            return None
        values = self._values(stored, self._rows(stored)).view(stored.shape)
        return values - stored.excess if stored.excess else values

    def _expert(self, module: str) -> StoredTensor | None:
        """The part of a matrix of all experts that is one's, by its index before the last name."""
        found = EXPERT.fullmatch(module)
        whole = found and self._tensors.get(f"{found['owner']}.{found['kind']}.weight")
        if not found or not whole:
            return None
        expert, (count, *shape) = int(found["index"]), whole.shape
        if expert >= count:
            return None
        size = whole.num_bytes // count
        return StoredTensor(whole.kind, shape, whole.start + expert * size, size)

    def _read(self, stored: StoredTensor) -> GroupedWeight:
        rows = self._rows(stored)
        return split_blocks(stored.kind, rows) or group(self._values(stored, rows), bits=8)

    def _rows(self, stored: StoredTensor) -> Tensor:
        """The bytes of each row, uint8 [rows, bytes], in the model's order."""
        stored_bytes = self._bytes[stored.start : stored.start + stored.num_bytes]
        rows = stored_bytes.view(stored.shape[0], -1)
        if not stored.rotated_heads:
            return rows
        places = torch.arange(len(rows)).view(stored.rotated_heads, -1, 2)
        return rows[places.transpose(1, 2).flatten()]

    def _values(self, stored: StoredTensor, rows: Tensor) -> Tensor:
        if stored.kind in _PLAIN:
            return rows.contiguous().view(_PLAIN[stored.kind])
        split = split_blocks(stored.kind, rows)
        return _dequantize(stored.kind, rows) if split is None else split.dequantize()


def _dequantize(kind: str, rows: Tensor) -> Tensor:
    import gguf  # it takes a while, and few files need it

    values = gguf.dequantize(rows.numpy(), gguf.GGMLQuantizationType[kind])
    return torch.from_numpy(values)


def split_blocks(kind: str, rows: Tensor) -> GroupedWeight | None:
    """The weights of rows of blocks, uint8 [rows, bytes]; `None` for types of another structure.

    Those are Q6_K, Q3_K and Q2_K, whose scales are for 16 weights each, and codes of no even steps.
    """
    if kind not in _TYPES:
        return None
    size, split = _TYPES[kind]
    bits, *parts = split(rows.reshape(-1, size))
    codes, scales, minima = (part.reshape(len(rows), -1) for part in parts)
    return GroupedWeight(codes.shape[1], bits, codes, scales, minima, kind == _FLOATS)


def _half(blocks: Tensor, start: int) -> Tensor:
    """The number at that byte of each block: float32 [blocks, 1]."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor) -> Tensor:
    """Low halves, then high ones, of every 16 or 32 bytes: [..., n] to [..., 2, n]."""
    return torch.stack([packed & 15, packed >> 4], dim=-2)


def _bits(packed: Tensor) -> Tensor:
    """Of every byte, lowest first: [..., n] to [..., n, 8]."""
    return packed[..., None] >> torch.arange(8, dtype=torch.uint8) & 1


def _q4_0(blocks: Tensor) -> _Parts:
    scales = _half(blocks, 0)
    return 4, _nibbles(blocks[:, 2:]), scales, -8 * scales


def _q4_1(blocks: Tensor) -> _Parts:
    return 4, _nibbles(blocks[:, 4:]), _half(blocks, 0), _half(blocks, 2)


def _five(high: Tensor, low: Tensor) -> Tensor:
    """Codes of 5 bits: [blocks, 4] bytes of fifth bits, [blocks, 16] of the others."""
    return _nibbles(low).flatten(1) | _bits(high).flatten(1) << 4


def _q5_0(blocks: Tensor) -> _Parts:
    scales = _half(blocks, 0)
    return 8, _five(blocks[:, 2:6], blocks[:, 6:]), scales, -16 * scales


def _q5_1(blocks: Tensor) -> _Parts:
    return 8, _five(blocks[:, 4:8], blocks[:, 8:]), _half(blocks, 0), _half(blocks, 2)


def _q8_0(blocks: Tensor) -> _Parts:
    scales = _half(blocks, 0)
    return 8, blocks[:, 2:] ^ 128, scales, -128 * scales


def _k_scales(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Scales and minima of a block's 8 groups: 6 bits each, times the block's own two."""
    low, middle, mixed = blocks[:, 4:16].reshape(-1, 3, 4).unbind(1)
    scales = torch.cat([low & 63, mixed & 15 | low >> 2 & 48], dim=1)
    minima = torch.cat([middle & 63, mixed >> 4 | middle >> 2 & 48], dim=1)
    return _half(blocks, 0) * scales.float(), -(_half(blocks, 2) * minima.float())


def _k_nibbles(packed: Tensor) -> Tensor:
    """Codes of 8 groups, two in every 32 bytes: [blocks, 128] to [blocks, 8, 32]."""
    return _nibbles(packed.reshape(-1, 4, GROUP)).flatten(1, 2)


def _q4_k(blocks: Tensor) -> _Parts:
    return 4, _k_nibbles(blocks[:, 16:]), *_k_scales(blocks)


def _q5_k(blocks: Tensor) -> _Parts:
    fifth = _bits(blocks[:, 16:48]).transpose(1, 2)  # a bit of each byte for each group
    return 8, _k_nibbles(blocks[:, 48:]) | fifth << 4, *_k_scales(blocks)


def _mxfp4(blocks: Tensor) -> _Parts:
    return 4, _nibbles(blocks[:, 1:]), *float_scales(blocks[:, :1])


_TYPES: Final[dict[str, tuple[int, Callable[[Tensor], _Parts]]]] = {
    "Q4_0": (18, _q4_0),
    "Q4_1": (20, _q4_1),
    "Q5_0": (22, _q5_0),
    "Q5_1": (24, _q5_1),
    "Q8_0": (34, _q8_0),
    "Q4_K": (144, _q4_k),
    "Q5_K": (176, _q5_k),
    _FLOATS: (17, _mxfp4),
}
"""Bytes of a block, and what takes it apart."""
