"""GPTQ checkpoints as AutoGPTQ and GPTQModel write them (Frantar et al., ICLR 2023).

A layer has `qweight` int32 [in / n, out] of n codes a word along the inputs, `qzeros` int32
[groups, out / n], `scales` [groups, out], and `g_idx` [in], the group of each input. Zero points
are stored less one, except in the format `gptq_v2`.
"""

from __future__ import annotations

from pathlib import Path

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
from kernels.weight_format import GroupedWeight

_FORMATS = {"gptq": 1, "gptq_v2": 0}
"""By what stored zero points are too small."""


class GptqCheckpoint(FolderCheckpoint):
    """A folder in GPTQ's format."""

    method = "gptq"

    def __init__(self, folder: Path, options: Options) -> None:
        """Raises `UnsupportedModel` for what cannot be read as it is."""
        self._bits = require_bits(self.method, options.get("bits"))
        self._group_size = require_group_size(self.method, options.get("group_size"))
        form = options.get("checkpoint_format") or "gptq"
        if form not in _FORMATS:
            raise unsupported(self.method, f"their format is {form}, not gptq or gptq_v2")
        if options.get("dynamic"):
            raise unsupported(self.method, "layers have options of their own (dynamic)")
        self._offset = _FORMATS[form]
        super().__init__(folder, {"qweight": self._read})

    def _read(self, module: str) -> GroupedWeight:
        scales, indices = self._files[f"{module}.scales"], self._files.get(f"{module}.g_idx")
        require_order(self.method, module, indices, self._group_size)
        codes = unpack(self._files[f"{module}.qweight"].T, self._bits)
        zeros = unpack(self._files[f"{module}.qzeros"], self._bits)
        if self._offset and (zeros == 2**self._bits - 1).any():
            raise unsupported(
                self.method, f"{module} has a zero point of 0, which only gptq_v2 has"
            )
        return grouped(codes, scales.T, (zeros + self._offset).T, self._bits, self._group_size)
