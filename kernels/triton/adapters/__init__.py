"""Triton: what low-rank adapters add to a product, for all rows of a step in two launches.

The rows of an adapter stand one behind the other, cut into blocks; a program multiplies one block
by some of its adapter's ranks, or gives what ranks have taken to some outputs (SGMV: Chen et al.,
"Punica", 2023; ranks of any number, in pages: Sheng et al., "S-LoRA", 2023). Where weights lie is
in tables on the device, which steps have the addresses of. Tiles do not depend on how many rows
there are, nor does any order of summation, so that a row's bits do not either. Nothing waits for
the device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.triton.adapters.expert_rows import ExpertRows
from kernels.triton.adapters.products import give, take
from kernels.triton.adapters.tables import PlacedRows, placed
from kernels.types import AdaptedRows

__all__ = ["ExpertRows", "adapt", "placed"]


def adapt(x: Tensor, output: Tensor, adapted: Sequence[AdaptedRows], product: int) -> None:
    """See `kernels.adapters.adapt`."""
    assert x.stride(1) == output.stride(1) == 1
    assert x.dtype == output.dtype
    whole = adapted if isinstance(adapted, PlacedRows) else placed(adapted, x.device)
    tiles = whole.num_tiles(product)
    if tiles:
        with torch.cuda.device(x.get_device()):  # Triton launches on the current device
            give(output, take(x, whole.rows, product, tiles), whole.rows, product, x)
