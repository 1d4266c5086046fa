"""A body of the Responses API as a request to generate, and as the response that it begins."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence

from app.generate.engine_request import or_default
from app.generate.request import FieldNames, GenerationRequest, Item, ItemName, SealedSummary
from app.wire.errors import invalid_request
from app.wire.events import ResponseResource
from app.wire.responses import LOGPROBS, CompactionItem, CreateBody, ItemReference, ResolvedItem
from tenants.records import Tenant

_NAMES = FieldNames(items="input", max_tokens="max_output_tokens")


def generation_request(body: CreateBody) -> GenerationRequest:
    """What a body asks for. Raises `ApiError` naming a field that needs another."""
    if body.top_logprobs and not body.wants_logprobs:
        message = f'\'top_logprobs\' needs "include": ["{LOGPROBS}"].'
        raise invalid_request(message, "top_logprobs")
    return GenerationRequest(
        id=f"resp_{secrets.token_hex(16)}",
        items=[
            ItemName(item.id) if isinstance(item, ItemReference) else _item(item)
            for item in body.items
        ],
        names=_NAMES,
        sampling=body,
        model=body.model,
        instructions=body.instructions,
        prompt=body.prompt,
        previous_response_id=body.previous_response_id,
        max_tokens=body.max_output_tokens,
        logprobs=body.top_logprobs or 0 if body.wants_logprobs else None,
        truncates=body.truncation == "auto",
    )


def conversation(items: Sequence[ResolvedItem]) -> list[Item]:
    """Items of the input as what was said."""
    return [_item(item) for item in items]


def _item(item: ResolvedItem) -> Item:
    if isinstance(item, CompactionItem):
        return SealedSummary(item.encrypted_content)
    return {"role": "system" if item.role == "developer" else item.role, "content": item.text}


def new_response(
    response_id: str, model_id: str, body: CreateBody, tenant: Tenant
) -> ResponseResource:
    """A response as it begins. Raises `ApiError` for one that goes on unread and is not kept."""
    # A tenant that may not leave prompts in memory does not want its answers kept either.
    store = tenant.cache == "on" if body.store is None else body.store
    if body.background and not store:
        raise invalid_request("'background' needs 'store': true.", "background")
    return ResponseResource(
        id=response_id,
        created_at=int(time.time()),
        model=model_id,
        previous_response_id=body.previous_response_id,
        instructions=body.instructions,
        prompt=body.prompt.model_dump() if body.prompt else None,
        truncation=body.truncation or "disabled",
        parallel_tool_calls=body.parallel_tool_calls is not False,
        tool_choice=body.tool_choice or "auto",
        temperature=or_default(body.temperature, 1.0),
        top_p=or_default(body.top_p, 1.0),
        presence_penalty=or_default(body.presence_penalty, 0.0),
        frequency_penalty=or_default(body.frequency_penalty, 0.0),
        top_logprobs=body.top_logprobs or 0,
        max_output_tokens=body.max_output_tokens,
        store=store,
        background=bool(body.background),
        service_tier=body.tier,
        metadata=body.metadata or {},
        user=body.user,
        safety_identifier=body.safety_identifier,
        prompt_cache_key=body.prompt_cache_key,
    )
