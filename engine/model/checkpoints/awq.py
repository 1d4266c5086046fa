"""AWQ checkpoints as AutoAWQ writes them, in its GEMM layout (Lin et al., MLSys 2024).

A layer has `qweight` int32 [in, out / 8] of 8 codes a word along the outputs, `qzeros` int32
[groups, out / 8], and `scales` [groups, out]. The codes of a word are those of its outputs 0, 2, 4,
6, 1, 3, 5, 7, lowest bits first.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from engine.model.checkpoints.checkpoint import (
    FolderCheckpoint,
    Options,
    grouped,
    require_group_size,
    unpack,
    unsupported,
)
from kernels.weight_format import GroupedWeight

_PLACES = [0, 4, 1, 5, 2, 6, 3, 7]
"""Where a word has the code of each of its outputs."""


class AwqCheckpoint(FolderCheckpoint):
    """A folder in AWQ's format."""

    method = "awq"

    def __init__(self, folder: Path, options: Options) -> None:
        """Raises `UnsupportedModel` for what cannot be read as it is."""
        bits = options.get("bits", options.get("w_bit"))
        if bits != 4:
            raise unsupported(self.method, f"weights of {bits} bits have no layout, those of 4 do")
        size = options.get("group_size", options.get("q_group_size"))
        self._group_size = require_group_size(self.method, size)
        version = str(options.get("version") or options.get("format") or "gemm").lower()
        if version != "gemm":
            raise unsupported(self.method, f"their layout is {version}, not gemm")
        if not options.get("zero_point", True):
            raise unsupported(self.method, "they have no zero points")
        super().__init__(folder, {"qweight": self._read})

    def _read(self, module: str) -> GroupedWeight:
        codes, zeros = (_unpack(self._files[f"{module}.{part}"]) for part in ("qweight", "qzeros"))
        scales = self._files[f"{module}.scales"].T
        return grouped(codes, scales, zeros, 4, self._group_size)


def _unpack(words: Tensor) -> Tensor:
    """Codes uint8 [out, rows] of words [rows, out / 8]."""
    codes = unpack(words, 4)
    return codes.view(len(codes), -1, 8)[:, :, _PLACES].flatten(1).T.contiguous()
