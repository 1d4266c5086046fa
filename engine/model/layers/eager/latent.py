"""Attention over latents (MLA): what is kept of a token is one row for all heads, never expanded.

Of each token, modules of this kind keep a latent, of which each head makes a key and a value of its
own, and the part of the keys that is rotated, which all heads share. `transformers` caches the same
and expands it, in `expand_kv`, for all tokens that are seen. Here the row goes to attention as it
is: a query is multiplied by what would expand the keys, and what has been attended to by what would
expand the values ("absorbed": DeepSeek-V2, 2024, section 2.1). The rest of a module, its norms and
its rotation, computes as it was written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from engine.api import UnsupportedModel

_Expand = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

_PRODUCTS = {"q_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"}
_NORMS = {"q_a_layernorm", "kv_a_layernorm"}
_VALUES = "values_of_latents"
"""A buffer: what makes values of latents, [num_heads, kv_lora_rank, v_head_dim]."""
_SIZES = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


@torch.no_grad()
def keep_latents(model: PreTrainedModel, implementations: Collection[str]) -> None:
    """Let attention of these implementations get the rows of latents in place of keys and values.

    All others get keys and values as before. Raises `UnsupportedModel` for modules that do more
    than is known of them.
    """
    for module in model.modules():
        if hasattr(module, "kv_a_proj_with_mqa"):
            _require_known(module)
            _, values = _expanding(module)
            # A copy, since CPUs are several times as slow with transposed matrices of bfloat16.
            module.register_buffer(_VALUES, values.mT.contiguous(), persistent=False)
            module.expand_kv = partial(_hand_on, module, module.expand_kv, implementations)


def value_dim(module: Any) -> int | None:
    """Dimensions of a row that are its value, before the rotated part of its key.

    `None` where `module` has no latents to hand on.
    """
    return module.kv_lora_rank if hasattr(module, _VALUES) else None


def absorb(module: Any, query: Tensor) -> Tensor:
    """Queries of latents of a module's queries.

    From [num_tokens, num_heads, qk_nope_head_dim + qk_rope_head_dim] to [num_tokens, num_heads,
    kv_lora_rank + qk_rope_head_dim].
    """
    keys, _ = _expanding(module)
    plain, rotated = query[..., : keys.shape[1]], query[..., keys.shape[1] :]
    return torch.cat([(plain.transpose(0, 1) @ keys).transpose(0, 1), rotated], dim=-1)


def expand(module: Any, attended: Tensor) -> Tensor:
    """What heads give of what they attended to.

    From [num_tokens, num_heads, kv_lora_rank] to [num_tokens, num_heads, v_head_dim].
    """
    values: Tensor = getattr(module, _VALUES)
    return (attended.transpose(0, 1) @ values).transpose(0, 1)


def _expanding(module: Any) -> tuple[Tensor, Tensor]:
    """What makes keys and values of latents: [num_heads, its dimensions, kv_lora_rank] each."""
    key_dim: int = module.qk_nope_head_dim
    rows: Tensor = module.kv_b_proj.weight
    by_head = rows.view(-1, key_dim + module.v_head_dim, module.kv_lora_rank)
    return by_head[:, :key_dim], by_head[:, key_dim:]


def _hand_on(
    module: Any, own: _Expand, implementations: Collection[str], latent: Tensor, rotated: Tensor
) -> tuple[Tensor, Tensor]:
    """In place of `expand_kv`: rows [1, 1, num_tokens, kv_lora_rank + qk_rope_head_dim], twice."""
    if module.config._attn_implementation not in implementations:
        return own(latent, rotated)
    rows = torch.cat([latent, rotated], dim=-1)
    return rows, rows


def _require_known(module: Any) -> None:
    name = type(module).__name__
    unknown = {child for child, _ in module.named_children()} - _PRODUCTS - _NORMS
    if unknown:
        besides = ", ".join(sorted(unknown))
        raise UnsupportedModel(f"{name} has more than latents, which is not served: {besides}")
    if not all(hasattr(module, known) for known in ("expand_kv", "kv_b_proj", *_SIZES)):
        raise UnsupportedModel(f"{name} expands its latents in a way that is not known")
    if type(module.kv_b_proj) is not nn.Linear or module.kv_b_proj.bias is not None:
        raise UnsupportedModel(
            f"{name} expands its latents by codes, or with a bias; with quantize 'none' codes widen"
        )
