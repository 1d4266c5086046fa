"""`/v1/conversations`: made, changed and deleted, and their items."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.types import ASGIApp

from app.context import Service, identified
from app.responses.conversations import Conversation, KeptItem, kept_items
from app.responses.items import listed_items
from app.responses.parse import conversation as said_in
from app.routes.list_queries import listed, page, refuse_others, take_include, take_page
from app.transport.http import json_response
from app.wire.common import MAX_ITEMS
from app.wire.errors import ApiError, invalid_request
from app.wire.items import ConversationBody, ItemsBody, MetadataBody, ResolvedItem
from tenants.records import Principal


async def create_conversation(request: Request) -> ASGIApp:
    """`POST /v1/conversations`: a conversation, perhaps with its first items."""
    service, principal = await identified(request)
    body = await service.bodies.read(request, ConversationBody, principal)
    async with service.generations.counted(principal):
        items = await _kept(service, principal, body.items or [])
        Conversation(created_at=0).check_results(items)
        conversation_id, conversation = await service.conversations.create(
            principal.tenant, items, body.metadata or {}
        )
    return json_response(conversation.shown(conversation_id))


async def get_conversation(request: Request) -> ASGIApp:
    """`GET /v1/conversations/{conversation_id}`."""
    conversation_id = request.path_params["conversation_id"]
    return json_response((await _found(request)).shown(conversation_id))


async def update_conversation(request: Request) -> ASGIApp:
    """`POST /v1/conversations/{conversation_id}`: with other metadata from now on."""
    service, principal = await identified(request)
    body = await service.bodies.read(request, MetadataBody, principal)
    conversation_id = request.path_params["conversation_id"]
    async with service.generations.counted(principal):
        changed = await service.conversations.edit(
            principal.tenant,
            conversation_id,
            lambda old: msgspec.structs.replace(old, metadata=body.metadata or {}),
            "metadata",
        )
    return json_response(changed.shown(conversation_id))


async def delete_conversation(request: Request) -> ASGIApp:
    """`DELETE /v1/conversations/{conversation_id}`: it is forgotten with its items."""
    service, principal = await identified(request)
    conversation_id = request.path_params["conversation_id"]
    await service.conversations.delete(principal.tenant.id, conversation_id)
    return json_response({"id": conversation_id, "object": "conversation.deleted", "deleted": True})


async def add_items(request: Request) -> ASGIApp:
    """`POST /v1/conversations/{conversation_id}/items`: more items at its end."""
    service, principal = await identified(request)
    refuse_others(take_include(request.query_params.multi_items()))
    body = await service.bodies.read(request, ItemsBody, principal)
    conversation_id = request.path_params["conversation_id"]
    async with service.generations.counted(principal):
        items = await _kept(service, principal, body.items)
        before: set[str] = set()

        def add(old: Conversation) -> Conversation:
            old.check_results(items)
            new = old.with_items(items)
            before.clear()
            before.update(old.items)
            if len(new.items) > MAX_ITEMS or new.num_bytes > service.bounds.max_body_bytes:
                message = "This conversation has no room for these items."
                raise invalid_request(message, "items")
            return new

        new = await service.conversations.edit(principal.tenant, conversation_id, add)
    return json_response(_list_of([one for one in new.items.items() if one[0] not in before]))


async def list_items(request: Request) -> ASGIApp:
    """`GET /v1/conversations/{conversation_id}/items`: newest first, unless asked otherwise."""
    query = take_page(take_include(request.query_params.multi_items()))
    conversation = await _found(request)
    listed = page(query, [{"id": item_id} for item_id in conversation.items])
    shown = [(one["id"], conversation.items[one["id"]]) for one in listed["data"]]
    return json_response(_list_of(shown, has_more=listed["has_more"]))


async def get_item(request: Request) -> ASGIApp:
    """`GET /v1/conversations/{conversation_id}/items/{item_id}`."""
    refuse_others(take_include(request.query_params.multi_items()))
    conversation, item_id = await _found(request), request.path_params["item_id"]
    if item_id not in conversation.items:
        raise _no_item(item_id)
    return json_response(conversation.items[item_id])


async def delete_item(request: Request) -> ASGIApp:
    """`DELETE /v1/conversations/{conversation_id}/items/{item_id}`: the conversation without it."""
    service, principal = await identified(request)
    conversation_id = request.path_params["conversation_id"]
    item_id = request.path_params["item_id"]

    def remove(old: Conversation) -> Conversation:
        if item_id not in old.items:
            raise _no_item(item_id)
        return old.without_item(item_id)

    async with service.generations.counted(principal):
        changed = await service.conversations.edit(principal.tenant, conversation_id, remove)
    return json_response(changed.shown(conversation_id))


async def _found(request: Request) -> Conversation:
    service, principal = await identified(request)
    return await service.conversations.load(
        principal.tenant.id, request.path_params["conversation_id"]
    )


async def _kept(
    service: Service, principal: Principal, items: Sequence[ResolvedItem]
) -> list[KeptItem]:
    """New items as they are kept. Raises `ApiError` for one that no response could go on from."""
    if not items:
        return []
    await service.telling.check(principal, said_in(items, "items"), "items")
    return await service.workers.run(
        principal.tenant.id, lambda: kept_items(listed_items(secrets.token_hex(16), items))
    )


def _list_of(items: Sequence[KeptItem], *, has_more: bool = False) -> bytes:
    shown = [(item_id, msgspec.Raw(item)) for item_id, item in items]
    return msgspec.json.encode(listed(shown, has_more=has_more))


def _no_item(item_id: str) -> ApiError:
    message = f"There is no item '{item_id}' in this conversation."
    return ApiError(404, message, code="item_not_found", param="item_id")
