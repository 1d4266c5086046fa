"""`POST /v1/responses/compact`: a long conversation replaced by the model's summary of it.

System messages are kept word for word; the rest becomes one sealed `compaction` item, which a later
request sends back as the first of its input.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from contextlib import aclosing
from typing import Literal

from app.context import Service
from app.generate.generation import Generation
from app.prompt.sealing import seal
from app.prompt.turns import engine_request, output_budget
from app.responses.answer import usage_of
from app.wire.common import SamplingFields
from app.wire.errors import ApiError, invalid_request
from app.wire.events import (
    CompactedMessage,
    CompactedResource,
    Compaction,
    InputPart,
    encode_json,
)
from app.wire.responses import CompactBody, MessageItem
from tenants.records import Principal

_SUMMARY_TOKENS = 512
_REQUEST = (
    "Summarize our conversation so far, so that it can go on without its text. "
    "Keep names, facts, decisions and open questions. Write only the summary."
)


async def compact(
    service: Service, principal: Principal, body: CompactBody
) -> tuple[bytes, Mapping[str, str]]:
    """The compacted conversation as JSON, and the headers that go with it.

    Raises `ApiError` naming the field at fault, 500 if the engine fails, and whatever starting a
    response raises.
    """
    service.draining.check()
    service.names.check(body.model)
    if body.input is None and body.previous_response_id is None:
        raise invalid_request(
            "Give 'input' or 'previous_response_id'.", "input", "missing_required_parameter"
        )
    asking = [*body.items, MessageItem(role="user", content=_REQUEST)]
    prompt = await service.responses.conversation(
        principal, asking, body.previous_response_id, body.instructions
    )
    info = service.engine.info
    remaining = output_budget(
        len(prompt.ids), None, _SUMMARY_TOKENS, info, principal.tenant.limits, ("input", "input")
    )
    compaction_id = f"resp_{secrets.token_hex(16)}"
    request = engine_request(
        compaction_id,
        principal,
        prompt,
        SamplingFields(temperature=0.0, prompt_cache_key=body.prompt_cache_key),
        info,
        end_user=prompt.end_user,
        max_tokens=remaining,
        logprobs=None,
    )
    ticket = await service.gate.admit(principal)
    await ticket.reserve(request)
    generation = Generation(service.engine, request, service.tokenizer, (), service.metrics, ticket)
    generation.start()
    summary = _Summary(generation)
    with service.presence.stream(principal, summary):
        await summary.finish()
    kept = [
        _kept("developer" if item.role == "developer" else "system", item.text)
        for item in body.items
        if isinstance(item, MessageItem) and item.role in ("system", "developer")
    ]
    if body.previous_response_id is not None and prompt.system is not None:
        kept.insert(0, _kept("system", prompt.system))
    sealed = seal(principal.tenant, generation.line.text)
    item = Compaction(id=f"cmp_{secrets.token_hex(16)}", encrypted_content=sealed)
    resource = CompactedResource(
        id=compaction_id,
        created_at=int(time.time()),
        output=[*kept, item],
        usage=usage_of(generation),
    )
    return encode_json(resource), ticket.headers


class _Summary:
    """A summary that is being written."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation

    async def end(self, error: ApiError) -> None:
        """See `app.upkeep.connections.Stream`."""
        self._generation.fail(error)

    async def finish(self) -> None:
        """Wait for the end. Raises `ApiError` unless the summary is there."""
        async with aclosing(self._generation.pieces()) as pieces:
            async for _ in pieces:
                pass
        if self._generation.failure is not None:
            raise self._generation.failure


def _kept(role: Literal["system", "developer"], text: str) -> CompactedMessage:
    message_id = f"msg_{secrets.token_hex(16)}"
    return CompactedMessage(id=message_id, role=role, content=[InputPart(text=text)])
