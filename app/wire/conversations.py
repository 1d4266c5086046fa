"""What a client sends to the conversations API."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from app.wire.common import Metadata, Wire
from app.wire.items import ResolvedItem

MAX_NEW_ITEMS = 20
"""Items that are added to a conversation at once, at most, as OpenAI has it."""

NewItems = Annotated[list[ResolvedItem], Field(fail_fast=True, max_length=MAX_NEW_ITEMS)]


class ConversationBody(Wire):
    """The body of `POST /v1/conversations`."""

    items: NewItems | None = None
    metadata: Metadata | None = None


class MetadataBody(Wire):
    """The body that changes the metadata of a conversation, or of a stored chat completion."""

    metadata: Metadata | None


class ItemsBody(Wire):
    """The body of `POST /v1/conversations/{conversation_id}/items`."""

    items: Annotated[
        list[ResolvedItem], Field(fail_fast=True, min_length=1, max_length=MAX_NEW_ITEMS)
    ]


class KeptItems(Wire):
    """Items as they were kept."""

    items: list[ResolvedItem]
