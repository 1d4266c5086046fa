"""Variables of the chat template on the wire, under the name that vLLM and SGLang have for them."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from app.wire.functions import is_too_deep

TEMPLATE_KWARGS: Final = "chat_template_kwargs"
_MOST_NAMES = 32
_MOST_BYTES = 16_384


def _template_kwargs(value: dict[str, Any]) -> dict[str, Any]:
    if len(value) > _MOST_NAMES:
        raise PydanticCustomError("invalid_value", f"at most {_MOST_NAMES} variables")
    if any(len(name) > 64 or not name.isidentifier() for name in value):
        raise PydanticCustomError("invalid_value", "names are words of 64 characters at most")
    if is_too_deep(value):
        raise PydanticCustomError("invalid_value", "it is nested too deeply")
    if len(msgspec.json.encode(value)) > _MOST_BYTES:
        raise PydanticCustomError("invalid_value", f"at most {_MOST_BYTES} bytes of JSON")
    return value


TemplateKwargs = Annotated[dict[str, Any], AfterValidator(_template_kwargs)] | None
"""By name, see `app.request.template_options`."""
