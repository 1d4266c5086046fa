"""GGUF files, whose quantized tensors are read from where they lie.

`engine.model.convert` leaves a link to the file in the model's folder, and an index of what is
where in it, by the names that `transformers` has for parameters: parsing its header takes seconds.
"""

from __future__ import annotations

from functools import partial
from mmap import ACCESS_COPY, mmap
from pathlib import Path
from typing import Final

import msgspec
import torch
from torch import Tensor

from engine.model.checkpoints.coded_linear import ReadGroups
from engine.model.checkpoints.gguf_blocks import split_blocks
from engine.model.weights import GGUF_INDEX, GGUF_LINK
from kernels.group_format import GroupedWeight, group

_PLAIN: Final = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


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
    """A GGUF file's tensors; a `engine.model.checkpoints.checkpoint.Checkpoint`."""

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
        """See `Checkpoint`. Types of another structure are rounded to 8 bits in groups."""
        stored = self._tensors.get(f"{module}.weight")
        return None if stored is None or stored.kind in _PLAIN else partial(self._read, stored)

    def tensor(self, name: str) -> Tensor | None:
        """See `Checkpoint`."""
        stored = self._tensors.get(name)
        if stored is None:
            return None
        values = self._values(stored, self._rows(stored)).view(stored.shape)
        return values - stored.excess if stored.excess else values

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
