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

from kernels.triton.adapters.expert_rows import ExpertRows, expert_rows
from kernels.triton.adapters.products import give, take
from kernels.triton.adapters.tables import PlacedRows, placed
from kernels.types import AdaptedRows, Adapter, LowRank

__all__ = ["adapt", "expert_rows", "placed", "prepare"]


def prepare(device: torch.device, dtype: torch.dtype, has_experts: bool) -> None:
    """See `kernels.adapters.prepare`: for rows of weights that are whole vectors."""
    x, output = torch.zeros((2, 1, 64), dtype=dtype, device=device)
    rows = torch.zeros(1, dtype=torch.int64)
    part = LowRank(torch.zeros_like(x), torch.zeros_like(x), 0, 1.0)
    adapt(x, output, [AdaptedRows(Adapter(((part,),)), rows)], 0)
    if has_experts:
        part = LowRank(part.down, part.up, 0, 1.0, range(1))
        chosen = torch.zeros((1, 1), dtype=torch.int32, device=device)
        adapted = placed([AdaptedRows(Adapter(((part,),)), rows)], device)
        experts = ExpertRows(adapted, chosen[0], chosen, num_experts=1)
        experts.adapt_into(x, output, 0)
        experts.adapt_back(x, output.float(), 0)


def adapt(x: Tensor, output: Tensor, adapted: Sequence[AdaptedRows], product: int) -> None:
    """See `kernels.adapters.adapt`."""
    assert x.stride(1) == output.stride(1) == 1
    assert x.dtype == output.dtype
    whole = adapted if isinstance(adapted, PlacedRows) else placed(adapted, x.device)
    tiles = whole.num_tiles(product)
    if tiles:
        with torch.cuda.device(x.get_device()):  # Triton launches on the current device
            give(output, take(x, whole.rows, product, tiles), whole.rows, product, x)
