"""A body of the Responses API as a request to generate, and as the response that it begins."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from msgspec import UNSET, UnsetType

from app.generation.engine_request import or_default
from app.request.cache_wish import CacheWish, cache_wish, lease_seconds
from app.request.constraint import asked_constraint, constraint_of
from app.request.request import (
    FieldNames,
    GenerationRequest,
    Item,
    ItemName,
    SealedSummary,
    Thought,
)
from app.request.template_options import TemplateOptions
from app.wire.errors import invalid_request
from app.wire.events import AppliedCacheOptions, ResponseResource
from app.wire.functions import FunctionCall, Message
from app.wire.items import (
    CompactionItem,
    CustomToolCallItem,
    FunctionCallItem,
    ItemReference,
    MessageItem,
    ReasoningItem,
    ResolvedItem,
    ResultItem,
)
from app.wire.parts.pictures import with_content
from app.wire.prompt_cache import DEFAULT_TTL, CacheBreakpoint, marked_parts, with_breakpoints
from app.wire.responses import LOGPROBS, CompactBody, CreateBody
from app.wire.tools import (
    FunctionTool,
    TextTool,
    ToolChoice,
    asked_tools,
)
from tenants.records import Tenant

_NAMES = FieldNames(items="input", max_tokens="max_output_tokens")


def generation_request(body: CreateBody) -> GenerationRequest:
    """What a body asks for. Raises `ApiError` naming a field that needs another."""
    if body.top_logprobs and not body.includes(LOGPROBS):
        message = f'\'top_logprobs\' needs "include": ["{LOGPROBS}"].'
        raise invalid_request(message, "top_logprobs")
    if body.conversation is not None and body.previous_response_id is not None:
        message = "'conversation' cannot go with 'previous_response_id'."
        raise invalid_request(message, "conversation")
    tools = asked_tools(body.tools or (), body.tool_choice, body.parallel_tool_calls)
    asked = asked_constraint(body.text.format if body.text else None, "text.format")
    return GenerationRequest(
        id=f"resp_{secrets.token_hex(16)}",
        items=[
            ItemName(item.id) if isinstance(item, ItemReference) else _item(item, f"input[{index}]")
            for index, item in enumerate(body.items)
        ],
        names=_NAMES,
        sampling=body,
        model=body.model,
        instructions=body.instructions,
        prompt=body.prompt,
        previous_response_id=body.previous_response_id,
        conversation_id=body.conversation_id,
        max_tokens=body.max_output_tokens if body.generates else 0,
        logprobs=body.top_logprobs or 0 if body.includes(LOGPROBS) else None,
        constraint=constraint_of(body, asked, body.structured_outputs, tools),
        truncates=body.truncation == "auto",
        tools=tools,
        template_options=TemplateOptions(
            body.reasoning.effort if body.reasoning else None, body.chat_template_kwargs or {}
        ),
        cache=replace(wish_of(body), compare_with=_compared_with(body)),
        verbosity=body.text.verbosity if body.text else None,
    )


def _compared_with(body: CreateBody) -> str | None:
    """The response that a request's prompt is compared with."""
    options = body.prompt_cache_options
    if options is None:
        return None
    return options.comparison_response_id or body.previous_response_id


def wish_of(body: CreateBody | CompactBody) -> CacheWish:
    """What a body asks of the prompt cache."""
    marks: list[CacheBreakpoint] = []
    for item in body.items:
        if isinstance(item, MessageItem):
            marks += marked_parts(item.content)
        elif isinstance(item, ResultItem):
            marks += marked_parts(item.output)
    return cache_wish(body.prompt_cache_options, body.prompt_cache_retention, marks)


def conversation(
    items: Sequence[ResolvedItem], field: str = "input", origin: str = ""
) -> list[Item]:
    """Items of a `field` as what was said; those that were kept, with their `origin`."""
    return [_item(item, f"{field}[{index}]", origin) for index, item in enumerate(items)]


def _item(item: ResolvedItem, param: str, origin: str = "") -> Item:
    if isinstance(item, ReasoningItem):
        return Thought(item.text, item.encrypted_content)
    if isinstance(item, FunctionCallItem):
        call = FunctionCall(item.call_id, item.name, item.arguments)
        return {"role": "assistant", "content": "", "calls": [call]}
    if isinstance(item, CustomToolCallItem):
        call = FunctionCall.of_text(item.call_id, item.name, item.input)
        return {"role": "assistant", "content": "", "calls": [call]}
    if isinstance(item, CompactionItem):
        return SealedSummary(item.encrypted_content)
    if isinstance(item, ResultItem):
        result: Message = {"role": "tool", "content": "", "call_id": item.call_id}
        result = with_content(result, item.output, f"{param}.output")
        return with_breakpoints(_kept_under(origin, result), item.output)
    role = "system" if item.role == "developer" else item.role
    said = with_content(
        {"role": role, "content": ""}, item.content, f"{param}.content", taken=role == "user"
    )
    return with_breakpoints(_kept_under(origin, said), item.content)


def _kept_under(origin: str, message: Message) -> Message:
    """A message whose pictures are kept there, if it has any."""
    if not origin or "pictures" not in message:
        return message
    kept = [replace(one, origin=origin) for one in message["pictures"]]
    return {**message, "pictures": kept}


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
        conversation={"id": body.conversation_id} if body.conversation_id else None,
        instructions=body.instructions,
        prompt=body.prompt.model_dump() if body.prompt else None,
        truncation=body.truncation or "disabled",
        text={"format": _format_sent(body)},
        parallel_tool_calls=body.parallel_tool_calls is not False,
        tools=[_tool(tool) for tool in body.tools or ()],
        tool_choice=_choice(body.tool_choice),
        temperature=or_default(body.temperature, 1.0),
        top_p=or_default(body.top_p, 1.0),
        presence_penalty=or_default(body.presence_penalty, 0.0),
        frequency_penalty=or_default(body.frequency_penalty, 0.0),
        top_logprobs=body.top_logprobs or 0,
        reasoning=_reasoning(body),
        max_output_tokens=body.max_output_tokens,
        store=store,
        background=bool(body.background),
        service_tier=body.tier,
        metadata=body.metadata or {},
        user=body.user,
        safety_identifier=body.safety_identifier,
        prompt_cache_key=body.prompt_cache_key,
        prompt_cache_options=_applied(body, tenant),
        prompt_cache_retention=body.prompt_cache_retention or UNSET,
    )


def _applied(body: CreateBody, tenant: Tenant) -> AppliedCacheOptions | UnsetType:
    """`prompt_cache_options` as they hold for a tenant's request."""
    options = body.prompt_cache_options
    if options is None:
        return UNSET
    return AppliedCacheOptions(
        mode=options.mode or "implicit",
        ttl=options.ttl or DEFAULT_TTL,
        comparison_response_id=options.comparison_response_id or UNSET,
        lease_seconds=lease_seconds(wish_of(body), tenant, 0.0),
    )


def _tool(tool: FunctionTool | TextTool) -> dict[str, Any]:
    """A tool as the response shows it, with the fields that a client may look for."""
    # Not dumped: that goes through all of a schema, which is JSON as it stands.
    # Declared fields only: what an unknown one is named may be a method here.
    fields = tool.model_fields_set & type(tool).model_fields.keys()
    given = {name: getattr(tool, name) for name in fields}
    if "is_async" in given:
        given["async"] = given.pop("is_async")
    if isinstance(tool, TextTool):
        shown = {"type": "text"} if tool.format is None else tool.format.model_dump()
        return {"description": None} | given | {"format": shown}
    return {"type": "function", "description": None, "parameters": None, "strict": None} | given


def _choice(choice: ToolChoice | None) -> str | dict[str, Any]:
    return choice or "auto" if choice is None or isinstance(choice, str) else choice.model_dump()


def _reasoning(body: CreateBody) -> dict[str, Any] | None:
    """`reasoning` as the response repeats it: no summary is made."""
    if body.reasoning is None:
        return None
    return {"effort": body.reasoning.effort, "summary": None}


def _format_sent(body: CreateBody) -> dict[str, Any]:
    """`text.format` as the response repeats it."""
    if body.text is None or body.text.format is None:
        return {"type": "text"}
    return body.text.format.model_dump(by_alias=True)
