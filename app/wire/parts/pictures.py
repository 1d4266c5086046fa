"""Pictures on the wire: how each API has them among a message's parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from app.wire.common import CacheControl, Identifier, Wire, by_type
from app.wire.errors import invalid_request
from app.wire.functions import PLACE, REPLACEMENT, Detail, Message, Picture, plain
from app.wire.prompt_cache import MarkedPart


class InputImage(MarkedPart):
    """A picture in the Responses API: a `data:` URL or one of the web, or an uploaded file."""

    type: Literal["input_image"]
    file_id: Identifier | None = None
    image_url: str | None = None
    detail: Detail | None = None
    cache_control: CacheControl | None = None

    def picture(self, param: str) -> Picture:
        """It in words of no API, as the part `param`. Raises `ApiError` unless it is told once."""
        detail, url, file_id = self.detail or "auto", self.image_url, self.file_id
        if url is not None and file_id is not None:
            message = f"'{param}' has both 'image_url' and 'file_id': send one of them."
            raise invalid_request(message, f"{param}.file_id")
        if file_id is not None:
            return Picture(file_id=file_id, detail=detail, param=f"{param}.file_id")
        param = f"{param}.image_url"
        if url is None:
            message = f"Missing required parameter: '{param}', or 'file_id' in its place."
            raise invalid_request(message, param, "missing_required_parameter")
        return Picture(url=url, detail=detail, param=param)


class ImageUrl(Wire):
    """Where a picture is, or all of it (`data:`), and how closely to look at it."""

    url: str
    detail: Detail | None = None


class ChatImagePart(MarkedPart):
    """A picture in chat completions."""

    type: Literal["image_url"]
    image_url: ImageUrl
    cache_control: CacheControl | None = None

    def picture(self, param: str) -> Picture:
        """It in words of no API, as the part `param`."""
        image = self.image_url
        return Picture(url=image.url, detail=image.detail or "auto", param=f"{param}.image_url.url")


class Base64Source(Wire):
    """A picture's file."""

    type: Literal["base64"]
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    data: str

    @property
    def url(self) -> str:
        """It as a URL."""
        return f"data:{self.media_type};base64,{self.data}"


class UrlSource(Wire):
    """Where a picture is."""

    type: Literal["url"]
    url: str


class ImageBlock(Wire):
    """A picture in the Messages API."""

    type: Literal["image"]
    source: Annotated[
        Annotated[Base64Source, Tag("@base64")] | Annotated[UrlSource, Tag("@url")],
        by_type("only sources of type base64 and url are served"),
    ]
    cache_control: CacheControl | None = Field(None)

    def picture(self, param: str) -> Picture:
        """It in words of no API, as the block `param`."""
        kind = "data" if isinstance(self.source, Base64Source) else "url"
        return Picture(url=self.source.url, param=f"{param}.source.{kind}")


def texts_of(content: str | Sequence[Any] | None) -> str:
    """The texts of a content's parts, as one."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(getattr(part, "text", "") for part in content)


def with_content(
    message: Message, content: str | Sequence[Any] | None, param: str, *, taken: bool = True
) -> Message:
    """A message that says a `content`, the field `param`, with its pictures where they stand.

    Raises `ApiError` naming one where none are `taken`.
    """
    if content is None or isinstance(content, str):
        return {**message, "content": (content or "").replace(PLACE, REPLACEMENT)}
    said, pictures = list[str](), list[Picture]()
    for index, part in enumerate(content):
        if hasattr(part, "picture"):
            pictures.append(part.picture(f"{param}[{index}]"))
            said.append(PLACE)
        else:
            said.append(plain(part.text))
    if pictures and not taken:
        text = "Pictures are taken in what users say, and in the results of calls."
        raise invalid_request(text, pictures[0].param, "unsupported_value")
    message = {**message, "content": "".join(said)}
    return {**message, "pictures": pictures} if pictures else message
