"""The completions API on the wire: texts or token ids that are continued as they are."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType
from pydantic import Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from app.wire.chat import MAX_SEQUENCES, ChatStreamOptions, ChatUsage, FinishReason
from app.wire.common import Declining, Identifier, PromptLogprobsField, SamplingFields, at_most
from app.wire.events import Sent

MAX_PROMPTS = 128
"""Prompts of one request."""
_TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(fail_fast=True, min_length=1)]
_several = at_most(MAX_PROMPTS, least=1)


def _prompt_tag(value: Any) -> str:
    """A text, ids, or a list of one of both."""
    if not isinstance(value, list):
        return "@text"
    first = value[0] if value else ""
    return "@texts" if isinstance(first, str) else "@lists" if isinstance(first, list) else "@ids"


_Prompt = Annotated[
    Annotated[str, Tag("@text")]
    | Annotated[_TokenIds, Tag("@ids")]
    | Annotated[list[str], _several, Tag("@texts")]
    | Annotated[list[_TokenIds], _several, Tag("@lists")],
    Discriminator(_prompt_tag),
]


class CompletionBody(SamplingFields):
    """The body of `POST /v1/completions`.

    `echo` puts the prompt before each answer, and with `logprobs` scores its tokens, too.
    `prompt_logprobs` scores them as well, told as vLLM tells them. Scores may be all that is asked
    for: then `max_tokens` may be 0.
    """

    model: Identifier
    prompt: _Prompt
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_SEQUENCES)] | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_SEQUENCES)] | None = None
    stream: bool | None = None
    stream_options: ChatStreamOptions | None = None
    suffix: Annotated[Any, Declining("")] = None
    prompt_logprobs: PromptLogprobsField = None

    @model_validator(mode="after")
    def _generates_or_scores(self) -> CompletionBody:
        if self.max_tokens == 0 and self.scored is None:
            message = "'max_tokens' can be 0 only with 'echo' and 'logprobs', or 'prompt_logprobs'"
            raise PydanticCustomError("invalid_value", message)
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, whichever form they came in."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        ids = [one for one in self.prompt if isinstance(one, int)]
        return [ids] if ids else [one for one in self.prompt if not isinstance(one, int)]

    @property
    def echoes_scores(self) -> bool:
        """Whether the log-probabilities of an answer begin with those of the prompt's tokens."""
        return bool(self.echo) and self.logprobs is not None

    @property
    def scored(self) -> int | None:
        """The number of alternatives to each token of the prompt; `None` for no scores."""
        asked = [self.prompt_logprobs, self.logprobs if self.echoes_scores else None]
        return max((number for number in asked if number is not None), default=None)


class CompletionLogprobs(Sent, kw_only=True):
    """Log-probabilities of an answer's tokens; the first one of a prompt has none. Behind a prompt
    the token that ends the answer has one, as evaluation harnesses count on.

    `text_offset` counts characters from the beginning of the answer's text. `top_logprobs` are
    objects of numbers by tokens, as JSON already: of many it cannot be made at once.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[msgspec.Raw | None]
    text_offset: list[int]


class CompletionChoice(Sent, kw_only=True):
    """An answer, or what a chunk adds to one."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReason | None = None
    prompt_logprobs: list[msgspec.Raw | None] | UnsetType = UNSET


class Completion(Sent, kw_only=True):
    """The answer to a request, or one chunk of it."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: ChatUsage | UnsetType | None = UNSET
