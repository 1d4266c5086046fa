"""Counting and looking at tokens on the wire: `/tokenize` and `/detokenize`, as vLLM has them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from app.wire.chat import ChatMessage
from app.wire.common import MAX_ITEMS, Declining, Identifier, TemplateKwargs, Wire, at_most


class TokenizeBody(Wire):
    """The body of `POST /tokenize`: a text as it is, or messages as the chat template writes them.

    A text may spell control tokens, as a prompt of `POST /v1/completions` may; messages cannot.
    """

    model: Identifier | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], at_most(MAX_ITEMS, least=1)] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: Annotated[Any, Declining(True)] = None
    chat_template_kwargs: TemplateKwargs = None
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _one_of_both(self) -> TokenizeBody:
        if (self.prompt is None) == (self.messages is None):
            raise PydanticCustomError("invalid_value", "give 'prompt' or 'messages'")
        return self


class DetokenizeBody(Wire):
    """The body of `POST /detokenize`."""

    model: Identifier | None = None
    tokens: Annotated[list[Annotated[int, Field(ge=0)]], Field(fail_fast=True)]
