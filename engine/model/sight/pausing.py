"""Places at which a tower pauses, so that no two are far apart however large a picture is.

Products are computed by some rows at a time, and attention by some queries: each sees all keys, so
that the results are the same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import wraps
from itertools import repeat
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from kernels.attention import attend_in_parts

Pause = Callable[[], None]

_ATTENTION: Final = "partywall_pausing"
_MOST_PRODUCTS: Final = 1 << 28
"""Multiplications between two pauses, about: few milliseconds, and twenty on a slow machine. The
same on all, and at any time, or the same picture would be rounded otherwise when it is seen again.
"""

_TURN: Final = "apply_rotary_pos_emb_vision"
_TURNING: Final = 128
"""Multiplications of a product in the time in which a number is turned, about."""
_FEWEST_QUERIES: Final = 32
"""At a time: with fewer, keys would be read too often."""


def let_pause(tower: PreTrainedModel, pause: Pause) -> None:
    """Have `tower` call `pause` before each of its small modules, and within large ones."""
    AttentionInterface.register(_ATTENTION, _attention)
    AttentionMaskInterface.register(_ATTENTION, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
    tower.set_attn_implementation({"vision_config": _ATTENTION})
    for module in tower.modules():
        own: Any = module
        own.pause = pause  # attention is handed its module
        if isinstance(module, nn.Linear):
            own.forward = _by_rows(module.forward, _most_rows(module), 1, pause)
        elif isinstance(module, nn.Conv3d):  # of patches, which are its batch
            own.forward = _by_rows(module.forward, _most_rows(module), 4, pause)
        elif type(module).__name__.lower().endswith("mlp"):  # of each token for itself
            most = min(_most_rows(one) for one in module.modules() if isinstance(one, nn.Linear))
            own.forward = _by_rows(module.forward, most, 1, pause)
        elif not any(True for _ in module.children()):
            module.register_forward_pre_hook(lambda *_: pause())

    for home in {sys.modules[type(module).__module__] for module in tower.modules()}:
        if hasattr(home, _TURN):
            _let_turning_pause(home, pause)


def _let_turning_pause(home: Any, pause: Pause) -> None:
    """Have the function by which Qwen's towers turn queries and keys, all at once and in float32,
    do so by some tokens at a time.
    """
    whole = getattr(home, _TURN)
    whole = getattr(whole, "__wrapped__", whole)

    @wraps(whole)
    def turn(*tensors: Tensor) -> tuple[Tensor, ...]:
        most = max(1, _MOST_PRODUCTS // (_TURNING * tensors[0][0].numel()))
        turned = []
        for parts in zip(*(torch.split(tensor, most) for tensor in tensors), strict=True):
            pause()
            turned.append(whole(*parts))
        return tuple(map(torch.cat, zip(*turned, strict=True)))

    setattr(home, _TURN, turn)


def _most_rows(module: nn.Linear | nn.Conv3d) -> int:
    return max(1, _MOST_PRODUCTS // module.weight.numel())


def _by_rows(
    compute: Callable[[Tensor], Tensor], most: int, num_axes: int, pause: Pause
) -> Callable[[Tensor], Tensor]:
    """`compute`, at most so many rows at a time, of so many axes each."""

    def parts(rows: Tensor) -> Iterator[Tensor]:
        for part in torch.split(rows, most):
            pause()
            yield compute(part)

    def forward(x: Tensor) -> Tensor:
        rows = x.flatten(0, -num_axes - 1)
        if len(rows) <= most:
            pause()
            return compute(x)
        found = torch.cat(list(parts(rows)))
        return found.view(*x.shape[:-num_axes], *found.shape[1:])

    return forward


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """The `AttentionInterface` function: all are [batch, heads, tokens, head_dim], of equally many
    heads, and a query sees what the mask lets it. The result is [batch, tokens, heads, head_dim].
    """
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    masks = (
        repeat(None) if attention_mask is None else attention_mask.expand(len(query), -1, -1, -1)
    )
    found = []
    for queries, keys, values, mask in zip(query, key, value, masks, strict=False):
        most = max(_FEWEST_QUERIES, _MOST_PRODUCTS // (2 * keys.numel()))
        parts = _attended(queries, keys, values, mask, most, scale)
        done = []
        while True:
            module.pause()
            part = next(parts, None)
            if part is None:
                break
            done.append(part)
        found.append(torch.cat(done))
    return torch.stack(found), None


def _attended(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, most: int, scale: float
) -> Iterator[Tensor]:
    """Of one sequence, at most so many queries at a time: [num_queries, heads, head_dim] each."""
    seen = None if mask is None else _seen_by_all(mask)
    if mask is None or seen is not None:
        keys, values = (
            (one if seen is None else one[:, seen]).transpose(0, 1) for one in (key, value)
        )
        yield from attend_in_parts(query.transpose(0, 1), keys, values, most, scale=scale)
        return
    for start in range(0, query.shape[1], most):
        rows = slice(start, start + most)
        part = mask[:, rows] if mask.shape[1] > 1 else mask
        found = scaled_dot_product_attention(query[:, rows], key, value, part, scale=scale)
        yield found.transpose(0, 1)


def _seen_by_all(mask: Tensor) -> Tensor | None:
    """The keys that each query sees, [num_keys] bool, where all see the same ones."""
    if mask.dtype != torch.bool:
        return None
    first = mask[0, 0]
    return first if bool((mask == first).all()) else None
