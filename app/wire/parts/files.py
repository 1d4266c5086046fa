"""Uploaded files on the wire: the form that brings one, and how it is shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, get_args

import msgspec
from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from app.wire.common import Wire

Purpose = Literal["vision", "user_data"]
"""What files are taken for: both show the model a picture."""
PURPOSES: Final[tuple[str, ...]] = get_args(Purpose)
_SERVED: Final = "only files of purpose vision and user_data are taken"
_WITHIN: Final = re.compile(r"(\w+)\[(\w+)\]", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]{1,12}")


def _served(purpose: object) -> object:
    if purpose not in PURPOSES:
        raise PydanticCustomError("unsupported_value", _SERVED)
    return purpose


def _number(text: object) -> object:
    """A number in a form is a text."""
    return int(text) if isinstance(text, str) and _NUMBER.fullmatch(text) else text


class ExpiresAfter(Wire):
    """When a file is to expire."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=1), BeforeValidator(_number)]


class FileForm(Wire):
    """The fields of `POST /v1/files`, beside its file."""

    purpose: Annotated[Purpose, BeforeValidator(_served)]
    expires_after: ExpiresAfter | None = None


class FileObject(msgspec.Struct, kw_only=True):
    """An uploaded file. Times are Unix seconds."""

    id: str
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    object: Literal["file"] = "file"
    status: Literal["processed"] = "processed"


def document_of(texts: Mapping[str, str]) -> dict[str, Any]:
    """A form's fields as a document: `a[b]` is the member `b` of `a`."""
    document = dict[str, Any]()
    for name, text in texts.items():
        within = _WITHIN.fullmatch(name)
        members = None if within is None else document.setdefault(within[1], {})
        if within is None or not isinstance(members, dict):
            document[name] = text
        else:
            members[within[2]] = text
    return document
