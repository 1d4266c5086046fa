"""Every path that tenants reach, and what serves it."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp

from app.admin import ops
from app.routes import chat_completions as chats
from app.routes import conversations, files, messages, models, prompts, responses
from app.routes import tokenize as tokens
from app.routes.completions import complete_text
from app.routes.openapi import openapi_endpoint
from app.routes.responses_ws import responses_socket
from app.transport.http import Endpoint, Shape, answering, error_response

_RESPONSE = "/v1/responses/{response_id}"
_CONVERSATION = "/v1/conversations/{conversation_id}"
_ITEM = f"{_CONVERSATION}/items/{{item_id:path}}"
_FILE = "/v1/files/{file_id}"
_CHATS = "/v1/chat/completions"
_MESSAGES = "/v1/messages"
_BATCHES = f"{_MESSAGES}/batches"

_ENDPOINTS: dict[str, list[tuple[str, str, Endpoint]]] = {
    "responses": [
        ("POST", "/v1/responses", responses.create_response),
        ("GET", _RESPONSE, responses.get_response),
        ("DELETE", _RESPONSE, responses.delete_response),
        ("GET", f"{_RESPONSE}/input_items", responses.list_input_items),
        ("POST", f"{_RESPONSE}/cancel", responses.cancel_response),
    ],
    "compact": [("POST", "/v1/responses/compact", responses.compact_conversation)],
    "input_tokens": [("POST", "/v1/responses/input_tokens", tokens.count_input)],
    "conversations": [
        ("POST", "/v1/conversations", conversations.create_conversation),
        ("GET", _CONVERSATION, conversations.get_conversation),
        ("POST", _CONVERSATION, conversations.update_conversation),
        ("DELETE", _CONVERSATION, conversations.delete_conversation),
        ("POST", f"{_CONVERSATION}/items", conversations.add_items),
        ("GET", f"{_CONVERSATION}/items", conversations.list_items),
        ("GET", _ITEM, conversations.get_item),
        ("DELETE", _ITEM, conversations.delete_item),
    ],
    "chat_completions": [
        ("POST", _CHATS, chats.create_completion),
        ("GET", _CHATS, chats.list_completions),
        ("GET", f"{_CHATS}/{{completion_id}}", chats.get_completion),
        ("POST", f"{_CHATS}/{{completion_id}}", chats.update_completion),
        ("DELETE", f"{_CHATS}/{{completion_id}}", chats.delete_completion),
        ("GET", f"{_CHATS}/{{completion_id}}/messages", chats.list_messages),
    ],
    "files": [
        ("POST", "/v1/files", files.create_file),
        ("GET", "/v1/files", files.list_files),
        ("GET", _FILE, files.get_file),
        ("DELETE", _FILE, files.delete_file),
        ("GET", f"{_FILE}/content", files.get_file_content),
    ],
    "completions": [("POST", "/v1/completions", complete_text)],
    "messages": [
        ("POST", _MESSAGES, messages.create_message),
        ("POST", f"{_MESSAGES}/count_tokens", messages.count_message),
        *((method, _BATCHES, messages.refuse_batches) for method in ("GET", "POST")),
    ],
    "embeddings": [("POST", "/v1/embeddings", models.refuse_embeddings)],
    "tokenize": [("POST", "/tokenize", tokens.tokenize)],
    "detokenize": [("POST", "/detokenize", tokens.detokenize)],
    "models": [
        ("GET", "/v1/models", models.list_models),
        ("GET", "/v1/models/{model:path}", models.get_model),
    ],
    "prompts": [("GET", "/v1/prompts", prompts.list_prompts)],
    "ops": [
        ("GET", "/healthz", ops.healthz),
        ("GET", "/readyz", ops.readyz),
        ("GET", "/health", ops.readyz),
        ("GET", "/version", ops.version),
    ],
}
"""Methods, paths and endpoints, by what their refusals are counted as."""
_openapi = openapi_endpoint([one for endpoints in _ENDPOINTS.values() for one in endpoints])


def tenant_routes() -> list[BaseRoute]:
    """The routes of the tenants' port: one a path, so that a 405 names all of its methods."""
    by_path: dict[str, dict[str, Endpoint]] = {"/openapi.json": {"GET": answering(_openapi, "ops")}}
    for counted_as, endpoints in _ENDPOINTS.items():
        for method, path, endpoint in endpoints:
            served = _answering(endpoint, counted_as, shape_of(path))
            by_path.setdefault(path, {})[method] = served
    return [
        WebSocketRoute("/v1/responses", responses_socket),
        *(
            Route(path, _by_method(by_path[path]), methods=list(by_path[path]))
            for path in sorted(by_path, key=lambda path: "{" in path)
        ),
    ]


def shape_of(path: str) -> Shape:
    """How errors look at a path, whether or not something is served there."""
    is_message = path == _MESSAGES or path.startswith(f"{_MESSAGES}/")
    return messages.message_refusal if is_message else error_response


def _answering(endpoint: Endpoint, counted_as: str, shape: Shape) -> Endpoint:
    """An endpoint whose refusals have the shape of its API; models are told of in two."""
    usual = answering(endpoint, counted_as, shape)
    if counted_as != "models":
        return usual
    other = answering(endpoint, counted_as, messages.message_refusal)

    async def answer(request: Request) -> ASGIApp:
        is_other = "anthropic-version" in request.headers
        return await (other if is_other else usual)(request)

    return answer


def _by_method(endpoints: Mapping[str, Endpoint]) -> Endpoint:
    async def answer(request: Request) -> ASGIApp:
        # Whatever Starlette lets through besides is the HEAD of a GET.
        chosen = endpoints.get(request.method) or endpoints["GET"]
        return await chosen(request)

    return answer
