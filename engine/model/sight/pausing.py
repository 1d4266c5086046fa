"""Places at which a tower pauses, so that no two are far apart however large a picture is.

Products are computed by some rows at a time, and attention by some queries: each sees all keys, so
that the results are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

Pause = Callable[[], None]

_ATTENTION: Final = "partywall_pausing"
_MOST_PRODUCTS: Final = 1 << 28
"""Multiplications between two pauses, about: few milliseconds, and twenty on a slow machine. The
same on all, and at any time, or the same picture would be rounded otherwise when it is seen again.
"""


def let_pause(tower: PreTrainedModel, pause: Pause) -> None:
    """Have `tower` call `pause` before each of its small modules, and within large products."""
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
        elif not any(True for _ in module.children()):
            module.register_forward_pre_hook(lambda *_: pause())


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
    products = 2 * key.numel()
    most = max(1, _MOST_PRODUCTS // products)
    found = []
    for start in range(0, query.shape[2], most):
        module.pause()
        mask = attention_mask
        if mask is not None and mask.shape[2] > 1:
            mask = mask[:, :, start : start + most]
        part = query[:, :, start : start + most]
        found.append(scaled_dot_product_attention(part, key, value, mask, scale=scaling))
    return torch.cat(found, dim=2).transpose(1, 2), None
