"""How long an answer may be."""

from __future__ import annotations

from app.generate.request import GenerationRequest
from app.wire.errors import ApiError, invalid_request
from engine.api import EngineInfo
from tenants.records import TenantLimits


def output_budget(
    prompt_tokens: int,
    request: GenerationRequest,
    default: int | None,
    info: EngineInfo,
    limits: TenantLimits,
) -> int:
    """How many tokens the answer may have, or each of several candidates.

    Without an explicit number: the rest of the context, within the request's or the service's
    `default`, what the tenant can reserve at once, and the blocks that all sequences together can
    have. Raises `ApiError` if prompt and answer do not fit the context, the model's or the
    tenant's, or the answer is longer than the tenant's may be.
    """
    names, asked, width = request.names, request.max_tokens, request.candidates.width
    context = min(info.max_context_tokens, limits.context_tokens or info.max_context_tokens)
    remaining = context - prompt_tokens
    if remaining < 1:
        raise _too_long(
            f"The prompt has {prompt_tokens} tokens; the context holds {context}, answer included.",
            names.items,
        )
    if asked is not None and asked > remaining:
        raise _too_long(
            f"A prompt of {prompt_tokens} tokens leaves {remaining} of {context} for the answer; "
            f"{asked} were asked for.",
            names.max_tokens,
        )
    longest = limits.output_tokens
    if asked is not None and longest is not None and asked > longest:
        message = f"An answer may have {longest} tokens; {asked} were asked for."
        raise invalid_request(message, names.max_tokens)
    if asked is not None:
        return asked
    reservable = [
        (budget - prompt_tokens) // width
        for budget in (limits.tokens_per_minute, limits.tokens_per_day)
        if budget is not None
    ]
    default = request.default_max_tokens or default
    room = _room(prompt_tokens, width, info, limits)
    bounds = [bound for bound in (default, longest, room, *reservable) if bound is not None]
    # At least 1: where not even that can be reserved, the gate says so.
    return max(1, min([remaining, *bounds]))


def _room(prompt_tokens: int, sequences: int, info: EngineInfo, limits: TenantLimits) -> int:
    """The longest output of which the pool, and the tenant's part of it, hold all `sequences`.

    They share the prompt's full blocks.
    """
    blocks = min(info.num_blocks, limits.blocks or info.num_blocks)
    shared = prompt_tokens // info.block_size
    each = shared + (blocks - shared) // sequences
    return each * info.block_size - prompt_tokens


def _too_long(message: str, param: str) -> ApiError:
    return invalid_request(message, param, "context_length_exceeded")
