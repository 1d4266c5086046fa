"""What `/openapi.json` says of answers that have no type on the wire, and of queries and forms."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, NotRequired

from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from app.routes.files import MOST_LISTED
from app.transport.forms import FORM
from app.transport.openapi import JsonObject
from app.wire.parts.files import PURPOSES, Purpose
from app.wire.responses import Includable

FILE_FORM: Final[JsonObject] = {
    "requestBody": {
        "required": True,
        "content": {
            FORM: {
                "schema": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"type": "string", "enum": list(PURPOSES)},
                        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
                        "expires_after[seconds]": {"type": "integer", "minimum": 1},
                    },
                }
            }
        },
    }
}
"""As `openapi_extra` of an operation that takes a file."""
FILE: Final[JsonObject] = {
    "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
}
"""An answer that is one."""


class ErrorDetail(TypedDict):
    """What is wrong: `code` is for programs, `param` the field at fault."""

    message: str
    type: str
    param: str | None
    code: str


class Error(TypedDict):
    """Why a request was not served."""

    error: ErrorDetail


class Deleted(TypedDict):
    """What is gone."""

    id: str
    object: str
    deleted: Literal[True]


class List(TypedDict):
    """A page; `last_id` is the `after` of the next one, if there are more."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Conversation(TypedDict):
    """A conversation without its items."""

    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]


class Model(TypedDict):
    """A model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    context_window: int
    input_modalities: list[Literal["text", "image"]]
    description: NotRequired[str]


class Models(TypedDict):
    """Those that are served."""

    object: Literal["list"]
    data: list[Model]


class InputTokens(TypedDict):
    """How long a prompt is."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class Tokens(TypedDict):
    """The tokens of a text, or of messages."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Text(TypedDict):
    """The text of tokens."""

    prompt: str


class State(TypedDict):
    """How the service is."""

    status: Literal["ok", "ready", "degraded", "draining", "unavailable"]


class Version(TypedDict):
    """Which version of the service this is."""

    version: str


class Including(BaseModel):
    """What is to be there besides; all that is kept is, always."""

    include: Includable | None = None


class Page(BaseModel):
    """Which part of a list."""

    limit: Annotated[int, Field(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] | None = None
    after: Annotated[str | None, Field(description="The id of the item before it.")] = None


class PageOfItems(Page, Including):
    """Which part of a list of items."""


class PageOfCompletions(Page):
    """Which part of those that were made with a model; `metadata[KEY]` filters, too."""

    model: str | None = None


class PageOfFiles(Page):
    """Which part of the files, of those for a purpose."""

    limit: Annotated[int, Field(ge=1, le=MOST_LISTED)] = MOST_LISTED
    purpose: Purpose | None = None


class PageOfPrompts(Page):
    """Which part of the prompts, which are in the order of their names."""

    order: Literal["asc"] | None = None


class Following(Including):
    """Whether its events are wanted, and from where on."""

    stream: Literal["true", "false"] | None = None
    starting_after: Annotated[
        int | None, Field(ge=0, lt=10**18, description="The number of the last event seen.")
    ] = None
