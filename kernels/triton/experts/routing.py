"""Triton: which experts each token goes through, in one launch; a program takes a token."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.types import Routing

LOWEST = tl.constexpr(float("-inf"))
NUM_WARPS = 1
"""Experts are few: what is found among them passes from lane to lane, not through memory."""


def route(logits: Tensor, routing: Routing) -> tuple[Tensor, Tensor]:
    """See `kernels.experts.route`."""
    shape = len(logits), routing.per_token
    chosen = torch.empty(shape, dtype=torch.int32, device=logits.device)
    shares = torch.empty(shape, dtype=torch.float32, device=logits.device)
    with torch.cuda.device(logits.get_device()):  # Triton launches on the current device
        choose_experts[(len(logits),)](
            chosen,
            shares,
            logits,
            routing.correction,
            logits.stride(0),
            routing.least_sum,
            routing.scale,
            routing.margin,
            **constants(routing),
            num_warps=NUM_WARPS,
        )
    return chosen, shares


def constants(routing: Routing) -> dict[str, Any]:
    """What the kernel is compiled for."""
    return {
        "NUM_EXPERTS": routing.num_experts,
        "PER_TOKEN": routing.per_token,
        "NUM_GROUPS": routing.num_groups,
        "KEPT_GROUPS": routing.kept_groups,
        "SCORES": routing.scores,
        "NORMALISED": routing.is_normalised,
    }


@triton.jit(do_not_specialize=["logits_stride"])
def choose_experts(
    chosen_ptr,
    shares_ptr,
    logits_ptr,
    correction_ptr,  # or None
    logits_stride,
    least_sum,
    scale,
    margin,
    NUM_EXPERTS: tl.constexpr,
    PER_TOKEN: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    KEPT_GROUPS: tl.constexpr,
    SCORES: tl.constexpr,
    NORMALISED: tl.constexpr,
):
    """One program: one token, its experts as [groups, experts of a group]."""
    SIZE: tl.constexpr = NUM_EXPERTS // NUM_GROUPS
    token = tl.program_id(0).to(tl.int64)
    group = tl.arange(0, triton.next_power_of_2(NUM_GROUPS))[:, None]
    member = tl.arange(0, triton.next_power_of_2(SIZE))[None, :]
    left = (group < NUM_GROUPS) & (member < SIZE)
    expert = tl.where(left, group * SIZE + member, NUM_EXPERTS)
    logits = tl.load(logits_ptr + token * logits_stride + expert, mask=left, other=LOWEST)
    scores = scores_of(logits, SCORES)
    wanted = scores
    if correction_ptr is not None:
        wanted += tl.load(correction_ptr + expert, mask=left, other=0.0)
    if KEPT_GROUPS < NUM_GROUPS:
        worths = best_two(tl.where(left, wanted, LOWEST), member)
        wanted = tl.where(kept(worths, group, NUM_GROUPS, KEPT_GROUPS), wanted, LOWEST)

    place = tl.arange(0, triton.next_power_of_2(PER_TOKEN))
    chosen = tl.zeros([place.shape[0]], tl.int32)
    shares = tl.zeros([place.shape[0]], tl.float32)
    for index in range(PER_TOKEN):
        one = first_best(wanted, left, expert, NUM_EXPERTS)
        if SCORES == "softmax_near_best":
            share = share_of_near(logits, left, margin)
        else:
            share = tl.sum(tl.where(expert == one, scores, 0.0))
        left = left & (expert != one)
        chosen = tl.where(place == index, one, chosen)
        shares = tl.where(place == index, share, shares)
    if NORMALISED:
        shares = shares / tl.maximum(tl.sum(shares), least_sum)
    at = token * PER_TOKEN + place
    tl.store(chosen_ptr + at, chosen, mask=place < PER_TOKEN)
    tl.store(shares_ptr + at, shares * scale, mask=place < PER_TOKEN)


@triton.jit
def scores_of(logits, SCORES: tl.constexpr):
    """See `kernels.types.Scores`."""
    if SCORES == "softmax":
        powers = tl.exp(logits - tl.max(logits))
        return powers / tl.sum(powers)
    if SCORES == "sigmoid":
        return 1.0 / (1.0 + tl.exp(-logits))
    return logits


@triton.jit
def first_best(values, left, number, count):
    """The number of the greatest of those that are left, of equal ones the first.

    Where there is none, since they are no numbers, it is one that there is all the same.
    """
    best = tl.max(tl.where(left, values, LOWEST))
    return tl.min(tl.where(left & (values == best), number, count - 1))


@triton.jit
def best_two(values, member):
    """Of each row the sum of the two greatest: [rows, 1]."""
    best = tl.max(values, axis=1, keep_dims=True)
    size: tl.constexpr = values.shape[1]
    place = tl.min(tl.where(values == best, member, size), axis=1, keep_dims=True)
    return best + tl.max(tl.where(member == place, LOWEST, values), axis=1, keep_dims=True)


@triton.jit
def kept(worths, group, NUM_GROUPS: tl.constexpr, KEPT_GROUPS: tl.constexpr):
    """Which groups' worths are the greatest: [groups, 1]."""
    left = group < NUM_GROUPS
    for _ in range(KEPT_GROUPS):
        left = left & (group != first_best(worths, left, group, NUM_GROUPS))
    return (group < NUM_GROUPS) & (left == 0)


@triton.jit
def share_of_near(logits, left, margin):
    """What a softmax gives the greatest of those that are left, over those near it."""
    most = tl.max(tl.where(left, logits, LOWEST))
    distance = tl.div_rn(most - logits, tl.maximum(tl.abs(logits), most))
    is_near = left & ((distance > margin) == 0)
    return 1.0 / tl.sum(tl.where(is_near, tl.exp(logits - most), 0.0))
