"""The door to what low-rank adapters add to products."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels import backends
from kernels.backends import Backend
from kernels.types import AdaptedRows


def prepare(device: torch.device, dtype: torch.dtype, *, has_experts: bool) -> None:
    """Compile what adapters of that type need, so that no request waits for a compiler."""
    if device.type == "cuda":
        backends.room("adapters", device).prepare(device, dtype, has_experts)


def placed(
    adapted: Sequence[AdaptedRows], device: torch.device, *, backend: Backend | None = None
) -> tuple[AdaptedRows, ...]:
    """The rows of a step, whose numbers are in the host's memory, for products on `device`.

    The host does not wait for the device.
    """
    if not adapted:
        return ()
    found: tuple[AdaptedRows, ...] = backends.room("adapters", device, backend).placed(
        adapted, device
    )
    return found


def adapt(
    x: Tensor,
    output: Tensor,
    adapted: Sequence[AdaptedRows],
    product: int,
    *,
    backend: Backend | None = None,
) -> None:
    """Add to the `output` of a product of `x` what the adapters of some rows change in it.

    `x` is [num_tokens, in_features] and `output` [num_tokens, out_features], in the type of the
    adapters; `product` is the number of theirs that counts. Sums are float32, and rounded where
    they are added; kernels give a row the same bits whatever other rows there are. Sources: Hu et
    al., "LoRA", 2021; Chen et al., "Punica", 2023 (rows of many adapters in one call).
    """
    if adapted:
        backends.room("adapters", x.device, backend).adapt(x, output, adapted, product)
