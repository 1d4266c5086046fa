"""What clients are answered with that is made where it is sent: small objects, as they are told."""

from __future__ import annotations

from typing import Any, Literal

from typing_extensions import TypedDict


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
