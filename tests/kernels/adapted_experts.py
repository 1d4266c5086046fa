"""Adapters that change experts, drawn: in pages, as the engine has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.types import AdaptedRows, Adapter, LowRank

INTO, BACK = 1, 3
NUM_PRODUCTS = 4


class Ranks(NamedTuple):
    """Of an adapter, for each expert; 0: it does not change that product."""

    into: int
    back: int


@dataclass(frozen=True)
class Experts:
    """What is multiplied."""

    count: int
    hidden_size: int
    inter: int


def adapted_experts(
    experts: Experts,
    ranks: Sequence[Ranks],
    owners: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    page_bytes: int,
) -> list[AdaptedRows]:
    """An adapter of each of these `ranks`; `owners` says whose each token is, -1 nobody's."""
    # They import Triton, which may have to be interpreted.
    from engine.model.adapters.images import LinearChange, make_image
    from engine.model.layers.linear_places import LinearPlace

    found = []
    for number, (into, back) in enumerate(ranks):
        hidden, inter = experts.hidden_size, experts.inter
        changes = {
            LinearPlace(product, inputs, outputs, num_experts=experts.count): LinearChange(
                torch.randn(experts.count * rank, inputs) / inputs**0.5,
                torch.randn(outputs, experts.count * rank) / rank**0.5,
                0.5 + number,
            )
            for product, inputs, outputs, rank in (
                (INTO, hidden, 2 * inter, into),
                (BACK, inter, hidden, back),
            )
            if rank
        }
        # Of a product that is nobody's.
        other = LinearChange(torch.full((1, 3), torch.inf), torch.ones(3, 1), 1.0)
        changes |= {LinearPlace(0, 3, 3): other}
        image = make_image(changes, NUM_PRODUCTS, dtype, page_bytes)
        order = torch.randperm(len(image.pages)).tolist()
        memory = torch.empty_like(image.pages)
        memory[order] = image.pages
        rows = (torch.tensor(owners) == number).nonzero().squeeze(1)
        found.append(AdaptedRows(image.layout.within(memory.to(device), order), rows))
    return found


def widened(adapted: Sequence[AdaptedRows]) -> list[AdaptedRows]:
    """The same in float64, on a CPU."""
    return [
        AdaptedRows(Adapter(tuple(tuple(map(_wide, one)) for one in adapter.changes)), rows)
        for adapter, rows in adapted
    ]


def _wide(part: LowRank) -> LowRank:
    down, up = (one.cpu().double() for one in (part.down, part.up))
    return LowRank(down, up, part.column, part.scale, part.experts)


def routed(num_tokens: int, experts: Experts, per_token: int) -> tuple[Tensor, Tensor]:
    """Experts of tokens, and what each counts."""
    order = torch.rand(num_tokens, experts.count).argsort(1)[:, :per_token]
    return order.int().contiguous(), torch.rand(order.shape)
