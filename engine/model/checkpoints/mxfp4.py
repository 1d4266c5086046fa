"""gpt-oss as it is published: experts in MXFP4, all else plain.

Of each matrix of all experts there are `_blocks` uint8 [experts, out, groups, 16], two codes of
E2M1 in a byte, the first one in its low bits, and `_scales` uint8 [experts, out, groups]: exponents
of two, 127 above what they mean ("OCP Microscaling Formats" 1.0, section 5.2).
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from engine.model.checkpoints.checkpoint import FolderCheckpoint, Options, fitting
from engine.model.checkpoints.coded_linear import ReadGroups
from kernels.weight_format import GroupedWeight

EXPERT: Final = re.compile(r"(?P<owner>.*\.experts)\.(?P<index>\d+)\.(?P<kind>\w+)")
"""A product of one of several experts."""


class Mxfp4Checkpoint(FolderCheckpoint):
    """A folder of gpt-oss."""

    method = "mxfp4"

    def __init__(self, folder: Path, options: Options) -> None:
        """Nothing of `options` matters: the tensors say what is in codes."""
        del options
        super().__init__(folder, {})

    def groups(self, module: str) -> ReadGroups | None:
        """See `FolderCheckpoint`; `module` names an expert by its index before the last part."""
        found = EXPERT.fullmatch(module)
        if found is None:
            return None
        name, expert = f"{found['owner']}.{found['kind']}", int(found["index"])
        if expert >= self._files.length(f"{name}_blocks"):
            return None
        read = partial(self._read, name, expert)
        return partial(fitting, self.method, module, read)

    def _read(self, name: str, expert: int) -> GroupedWeight:
        blocks, exponents = (
            self._files.rows(f"{name}_{part}", expert) for part in ("blocks", "scales")
        )
        codes = torch.stack([blocks & 15, blocks >> 4], dim=-1).flatten(1)
        return GroupedWeight(codes.shape[1], 4, codes, *float_scales(exponents), are_floats=True)


def float_scales(exponents: Tensor) -> tuple[Tensor, Tensor]:
    """Scales and minima of groups of E2M1 with these exponents (E8M0), uint8 [rows, groups]."""
    scales = torch.ldexp(torch.ones(exponents.shape), exponents.int() - 128)  # of halves
    return scales, -12 * scales
