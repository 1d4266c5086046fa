"""`/openapi.json`: what clients can ask for and what they are answered, by the types of the wire.

A socket is not in it, as OpenAPI has no words for one; its messages are bodies and events that are.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, NotRequired, Required, Union, get_args, get_origin

import msgspec
from fastapi import Body, Path, Query
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp
from typing_extensions import TypedDict

from app.admin import ops
from app.routes import chat_completions as chats
from app.routes import conversations, files, messages, models, prompts, responses
from app.routes import tokenize as tokens
from app.routes.completions import complete_text
from app.routes.described import (
    FILE,
    FILE_FORM,
    Conversation,
    Deleted,
    Error,
    Following,
    Including,
    InputTokens,
    List,
    Model,
    Models,
    Page,
    PageOfCompletions,
    PageOfFiles,
    PageOfItems,
    PageOfPrompts,
    State,
    Text,
    Tokens,
    Version,
)
from app.transport.http import Endpoint, json_response
from app.transport.openapi import JsonObject, openapi_document, reference
from app.wire.chat import ChatBody, ChatChunk, ChatCompletion
from app.wire.common import Wire
from app.wire.completions import Completion, CompletionBody
from app.wire.events import (
    ArgumentsDelta,
    ArgumentsDone,
    CompactedResource,
    InputDelta,
    InputDone,
    ItemEvent,
    LifecycleEvent,
    PartEvent,
    ReasoningDelta,
    ReasoningDone,
    ResponseResource,
    TextDelta,
    TextDone,
)
from app.wire.items import ConversationBody, ItemsBody, MetadataBody
from app.wire.message_events import (
    MessageError,
    MessageEvent,
    MessageTokens,
    ModelPage,
    SentMessage,
    SentModel,
)
from app.wire.messages import CountBody, MessagesBody
from app.wire.parts.files import FileObject
from app.wire.responses import CompactBody, CreateBody
from app.wire.tokenize import DetokenizeBody, TokenizeBody

_VERSION = "1"
_DESCRIPTION = """\
OpenAI's and Anthropic's APIs, as far as they are served, and what else there is. Errors name the
field at fault. Responses are served over a WebSocket, too: `GET /v1/responses`, whose messages are
the bodies and events of `POST /v1/responses`."""
_PROBES = "Probes"
_TAGS = {
    "Responses": "Answers that can be read again, and gone on from.",
    "Conversations": "What was said, kept under one name.",
    "Files": "Pictures, uploaded once and named by their ids.",
    "Chat completions": "Answers to a list of messages.",
    "Completions": "Texts that are continued as they are.",
    "Messages": "Answers to the turns of a conversation, as Anthropic's clients ask for them.",
    "Tokens": "What a text consists of.",
    "Models": "The one that is served.",
    "Prompts": "Registered system prompts, which requests may name.",
    _PROBES: "How the service is; without a key.",
}
_NOT_READY = {"content": {"application/json": reference("State")}}
_EVENTS = "text/event-stream"


ResponseEvent = (
    LifecycleEvent
    | ItemEvent
    | PartEvent
    | TextDelta
    | TextDone
    | ReasoningDelta
    | ReasoningDone
    | ArgumentsDelta
    | ArgumentsDone
    | InputDelta
    | InputDone
)


@dataclass(frozen=True)
class Says:
    """What an endpoint takes and gives; `events` names those of its stream, if it has one, and
    `error` what it is refused with. Answers of `bytes` are files; `extra` is as it is written."""

    answer: Any
    body: type[Wire] | None = None
    query: type[BaseModel] | None = None
    events: str | None = None
    error: str = "Error"
    extra: JsonObject | None = None


_SAYS: Mapping[str, Mapping[Endpoint, Says]] = {
    "Responses": {
        responses.create_response: Says(ResponseResource, CreateBody, events="ResponseEvent"),
        responses.get_response: Says(ResponseResource, None, Following, "ResponseEvent"),
        responses.delete_response: Says(Deleted),
        responses.list_input_items: Says(List, query=PageOfItems),
        responses.cancel_response: Says(ResponseResource),
        responses.compact_conversation: Says(CompactedResource, CompactBody),
        tokens.count_input: Says(InputTokens, CreateBody),
    },
    "Conversations": {
        conversations.create_conversation: Says(Conversation, ConversationBody),
        conversations.get_conversation: Says(Conversation),
        conversations.update_conversation: Says(Conversation, MetadataBody),
        conversations.delete_conversation: Says(Deleted),
        conversations.add_items: Says(List, ItemsBody, Including),
        conversations.list_items: Says(List, query=PageOfItems),
        conversations.get_item: Says(dict[str, Any], query=Including),
        conversations.delete_item: Says(Conversation),
    },
    "Chat completions": {
        chats.create_completion: Says(ChatCompletion, ChatBody, events="ChatChunk"),
        chats.list_completions: Says(List, query=PageOfCompletions),
        chats.get_completion: Says(ChatCompletion),
        chats.update_completion: Says(ChatCompletion, MetadataBody),
        chats.delete_completion: Says(Deleted),
        chats.list_messages: Says(List, query=Page),
    },
    "Files": {
        files.create_file: Says(FileObject, extra=FILE_FORM),
        files.list_files: Says(List, query=PageOfFiles),
        files.get_file: Says(FileObject),
        files.delete_file: Says(Deleted),
        files.get_file_content: Says(bytes),
    },
    "Completions": {complete_text: Says(Completion, CompletionBody, events="Completion")},
    "Messages": {
        messages.create_message: Says(
            SentMessage, MessagesBody, events="MessageEvent", error="MessageError"
        ),
        messages.count_message: Says(MessageTokens, CountBody, error="MessageError"),
    },
    "Tokens": {
        tokens.tokenize: Says(Tokens, TokenizeBody),
        tokens.detokenize: Says(Text, DetokenizeBody),
    },
    "Models": {
        models.list_models: Says(Models | ModelPage, error="Refusal"),
        models.get_model: Says(Model | SentModel, error="Refusal"),
    },
    "Prompts": {prompts.list_prompts: Says(List, query=PageOfPrompts)},
    _PROBES: {ops.healthz: Says(State), ops.readyz: Says(State), ops.version: Says(Version)},
}


def openapi_endpoint(served: Iterable[tuple[str, str, Endpoint]]) -> Endpoint:
    """What answers with the document of `served`, which is made once it is asked for."""
    document = cache(lambda: msgspec.json.encode(public_document(served)))

    async def openapi(_: Request) -> ASGIApp:
        return json_response(await asyncio.to_thread(document))

    return openapi


def public_document(served: Iterable[tuple[str, str, Endpoint]]) -> JsonObject:
    """The OpenAPI document of methods, paths and endpoints; of those that serve something."""
    said = {one: (tag, says) for tag, group in _SAYS.items() for one, says in group.items()}
    return openapi_document(
        [_route(*one, *said[one[2]]) for one in served if one[2] in said],
        tags=_TAGS,
        security="key",
        types={
            "Error": Error,
            "ResponseEvent": described(ResponseEvent),
            "ChatChunk": described(ChatChunk),
            "Completion": described(Completion),
            "MessageEvent": described(MessageEvent),
            "MessageError": described(MessageError),
            "Refusal": described(Error | MessageError),
        },
        title="Partywall API",
        version=_VERSION,
        description=_DESCRIPTION,
    )


def _route(method: str, path: str, endpoint: Endpoint, tag: str, says: Says) -> APIRoute:
    """A route that describes an endpoint; nobody asks it."""
    takes: dict[str, Any] = {name: Annotated[str, Path()] for name in re.findall(r"{(\w+)", path)}
    if says.query is not None:
        takes["query"] = Annotated[says.query, Query()]
    if says.body is not None:
        takes["body"] = Annotated[says.body, Body()]

    def asked() -> None:
        """Takes all that."""

    asked.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind)
            for name, kind in takes.items()
        ]
    )
    is_probe = tag == _PROBES
    error = {"content": {"application/json": reference(says.error)}}
    gives: dict[int | str, JsonObject] = (
        {503: _NOT_READY} if is_probe else {"4XX": error, 503: error}
    )
    if says.events is not None:
        gives[200] = {"content": {_EVENTS: reference(says.events)}}
    is_file = says.answer is bytes
    if is_file:
        gives[200] = FILE
    return APIRoute(
        path,
        asked,
        methods=[method],
        tags=[tag],
        operation_id=path[1:] if is_probe else endpoint.__name__,
        name=endpoint.__name__,
        description=inspect.cleandoc(endpoint.__doc__ or ""),
        response_model=None if is_file else described(says.answer),
        response_class=Response if is_file else JSONResponse,
        response_description="OK",
        responses=gives,
        openapi_extra={"security": []} if is_probe else says.extra,
    )


def described(kind: Any) -> Any:
    """What pydantic can describe in the place of a type: with structs as dictionaries."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _dictionary(kind)
    if kind is msgspec.Raw:
        return Any
    if get_origin(kind) in (Union, UnionType):
        kinds = [described(one) for one in get_args(kind) if one is not msgspec.UnsetType]
        return Union[tuple(kinds)]  # noqa: UP007 - there is no other way to write it
    if get_origin(kind) is list:
        return list[described(get_args(kind)[0])]  # type: ignore[misc]
    return kind


@cache
def _dictionary(struct: type[msgspec.Struct]) -> Any:
    config, fields = struct.__struct_config__, dict[str, Any]()
    if config.tag_field is not None:
        fields[config.tag_field] = Required[Literal[config.tag]]
    for one in msgspec.structs.fields(struct):
        may_lack = msgspec.UnsetType in get_args(one.type)
        kind = described(one.type)
        fields[one.encode_name] = NotRequired[kind] if may_lack else Required[kind]
    return TypedDict(struct.__name__, fields)  # type: ignore[operator]
