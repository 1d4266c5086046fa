"""What every wire message shares: strict models, the sampling fields, fields we decline.

Nothing is accepted and ignored. A field that OpenAI's API has and this service does not is declared
as `Declined`, with the values that ask for nothing; any other value is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from app.errors import from_validation, invalid_request

MAX_STOP_STRINGS = 4
MAX_METADATA_PAIRS = 16


class Wire(BaseModel):
    """A message on the wire: unknown fields are errors, and types are taken literally."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def decode_json(data: bytes | str) -> Any:
    """Parse one JSON document. Raises `ApiError` with code `invalid_json`."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise invalid_request(f"The body is not valid JSON: {error}", None, "invalid_json") from error


def parse[Model: Wire](model: type[Model], document: Any) -> Model:
    """Validate a decoded document. Raises `ApiError` naming the first offending field."""
    if not isinstance(document, dict):
        raise invalid_request("Expected a JSON object.", None, "invalid_type")
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise from_validation(error) from error
