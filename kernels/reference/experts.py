"""Routing and experts in plain torch: one expert after the other, of the rows that chose it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from kernels.linear import pack, pack_groups
from kernels.reference.adapters import adapt_expert
from kernels.reference.layers import gate
from kernels.types import Activation, AdaptedRows, Dense, Linear, Quantization, Routing
from kernels.weight_format import GroupedWeight


def route(logits: Tensor, routing: Routing) -> tuple[Tensor, Tensor]:
    """See `kernels.experts.route`."""
    if routing.scores == "softmax_near_best":
        chosen, shares = _near_best(logits, routing)
    else:
        scores = logits.softmax(1) if routing.scores == "softmax" else logits.sigmoid()
        wanted = scores if routing.correction is None else scores + routing.correction
        chosen = _best(_within_groups(wanted, routing), routing.per_token)
        shares = scores.gather(1, chosen)
    if routing.is_normalised:
        shares = shares / shares.sum(1, keepdim=True).clamp_min(routing.least_sum)
    return chosen.int(), shares * routing.scale


def _best(scores: Tensor, count: int) -> Tensor:
    """The places of the greatest in each row, of equal ones the first: [rows, count]."""
    return scores.sort(dim=1, descending=True, stable=True).indices[:, :count].contiguous()


def _within_groups(wanted: Tensor, routing: Routing) -> Tensor:
    if routing.kept_groups == routing.num_groups:
        return wanted
    size = routing.num_experts // routing.num_groups
    groups = wanted.view(len(wanted), routing.num_groups, size)
    kept = _best(groups.topk(min(2, size)).values.sum(2), routing.kept_groups)
    dropped = torch.ones_like(groups[..., 0]).scatter_(1, kept, 0).bool()
    return groups.masked_fill(dropped[..., None], -torch.inf).view_as(wanted)


def _near_best(logits: Tensor, routing: Routing) -> tuple[Tensor, Tensor]:
    chosen, shares, left = [], [], logits
    for _ in range(routing.per_token):
        one = _best(left, 1)
        most = left.gather(1, one)
        is_far = (most - logits) / torch.maximum(logits.abs(), most) > routing.margin
        chosen.append(one)
        shares.append(left.masked_fill(is_far, -torch.inf).softmax(1).gather(1, one))
        left = left.scatter(1, one, -torch.inf)
    return torch.cat(chosen, 1), torch.cat(shares, 1)


def add_shared(update: Tensor, shared: Tensor, gates: Tensor | None) -> None:
    """See `kernels.experts.add_shared`."""
    wide = shared.float()
    update.copy_(update.float() + (wide if gates is None else wide * torch.sigmoid(gates)))


def pack_experts(
    gate_up: Sequence[Tensor | GroupedWeight],
    down: Sequence[Tensor | GroupedWeight],
    activation: Activation,
    gate_up_biases: Sequence[Tensor] | None,
    down_biases: Sequence[Tensor] | None,
    quantization: Quantization,
    batch_invariant: bool,
) -> _Experts:
    """See `kernels.experts.pack_experts`."""
    none = [None] * len(down)
    packed = partial(_pack, quantization, batch_invariant)
    networks = [
        Dense(packed(into, first), packed(back, second))
        for into, back, first, second in zip(
            gate_up, down, gate_up_biases or none, down_biases or none, strict=True
        )
    ]
    return _Experts(networks, activation)


def _pack(
    quantization: Quantization,
    batch_invariant: bool,
    weight: Tensor | GroupedWeight,
    bias: Tensor | None,
) -> Linear:
    if isinstance(weight, GroupedWeight):
        return pack_groups([weight], [bias], batch_invariant=batch_invariant)
    return pack([weight], [bias], quantization=quantization, batch_invariant=batch_invariant)


class _Experts:
    def __init__(self, networks: Sequence[Dense], activation: Activation) -> None:
        self.num_experts = len(networks)
        self.nbytes = sum(one.gate_up.nbytes + one.down.nbytes for one in networks)
        self.uses = torch.zeros(self.num_experts + 2, dtype=torch.int64)
        self._networks, self._activation = networks, activation

    def __call__(
        self,
        x: Tensor,
        chosen: Tensor,
        shares: Tensor,
        adapted: Sequence[AdaptedRows] = (),
        products: tuple[int, int] = (0, 0),
    ) -> Tensor:
        """See `kernels.types.Experts`."""
        into, back = products
        mixed = x.new_zeros((chosen.numel(), x.shape[1]), dtype=torch.float32)
        flat = chosen.flatten()
        experts = flat.tolist()
        self._count(experts)
        for expert in sorted(set(experts)):
            places = (flat == expert).nonzero().squeeze(1)
            network, tokens = self._networks[expert], places // chosen.shape[1]
            gate_up = network.gate_up(x[tokens])
            adapt_expert(x[tokens], gate_up, adapted, into, expert, tokens)
            hidden = gate(gate_up, self._activation)
            down = network.down(hidden).float()
            adapt_expert(hidden, down, adapted, back, expert, tokens)
            mixed[places] = down
        return (mixed.view(*chosen.shape, x.shape[1]) * shares[..., None]).sum(1).to(x.dtype)

    def _count(self, experts: Sequence[int]) -> None:
        uses = self.uses.numpy()
        for expert in experts:
            uses[expert] += 1
        uses[-2:] += len(set(experts)), 1
