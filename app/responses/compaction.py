"""`POST /v1/responses/compact`: a long conversation replaced by the model's summary of it.

System messages are kept word for word, unless they are a registered prompt's: that is kept by its
name. The rest becomes one sealed `compaction` item, which a later request sends back as the first
of its input.
"""

from __future__ import annotations

import secrets
import time
from contextlib import aclosing
from typing import Literal

from app.generation.generation import Generation
from app.prompt.sealing import Summary, seal
from app.request.request import FieldNames, GenerationRequest
from app.responses.parse import conversation, wish_of
from app.responses.render import usage_of
from app.wire.common import SamplingFields
from app.wire.errors import invalid_request
from app.wire.events import CompactedMessage, CompactedResource, Compaction, InputPart
from app.wire.items import CompactionItem, MessageItem
from app.wire.responses import CompactBody
from tenants.records import Principal

_SUMMARY_TOKENS = 512
_REQUEST = (
    "Summarize our conversation so far, so that it can go on without its text. "
    "Keep names, facts, decisions and open questions. Write only the summary."
)


def generation_request(body: CompactBody) -> GenerationRequest:
    """The summary that a body asks for. Raises `ApiError` where there is nothing to summarize."""
    if body.input is None and body.previous_response_id is None:
        raise invalid_request(
            "Give 'input' or 'previous_response_id'.", "input", "missing_required_parameter"
        )
    return GenerationRequest(
        id=f"resp_{secrets.token_hex(16)}",
        items=[*conversation(body.items), {"role": "user", "content": _REQUEST}],
        names=FieldNames(items="input", max_tokens="input"),
        sampling=SamplingFields(temperature=0.0, prompt_cache_key=body.prompt_cache_key),
        model=body.model,
        instructions=body.instructions,
        previous_response_id=body.previous_response_id,
        default_max_tokens=_SUMMARY_TOKENS,
        cache=wish_of(body),
    )


async def compacted(
    principal: Principal, body: CompactBody, generation: Generation
) -> CompactedResource:
    """The conversation that `generation` summarizes, compacted.

    Raises `ApiError` where the generation fails.
    """
    async with aclosing(generation.pieces()) as pieces:
        async for _ in pieces:
            pass
    if generation.failure is not None:
        raise generation.failure
    prompt, inherits = generation.prompt, body.previous_response_id is not None
    kept = [
        _kept("developer" if item.role == "developer" else "system", item.text)
        for item in body.items
        if isinstance(item, MessageItem) and item.role in ("system", "developer")
    ]
    # The text of a registered prompt is no client's: the item says where it can be found again.
    if inherits and prompt.system is not None and not prompt.shared_owner:
        kept.insert(0, _kept("system", prompt.system))
    inherits = inherits or any(isinstance(item, CompactionItem) for item in body.items)
    summary = Summary(generation.line.text, prompt.origin if inherits else None)
    sealed = seal(principal.tenant, summary)
    item = Compaction(id=f"cmp_{secrets.token_hex(16)}", encrypted_content=sealed)
    return CompactedResource(
        id=generation.request.request_id,
        created_at=int(time.time()),
        output=[*kept, item],
        usage=usage_of(generation),
    )


def _kept(role: Literal["system", "developer"], text: str) -> CompactedMessage:
    message_id = f"msg_{secrets.token_hex(16)}"
    return CompactedMessage(id=message_id, role=role, content=[InputPart(text=text)])
