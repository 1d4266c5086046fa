"""How many tokens something has, and which: nothing is generated, and a request is counted."""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import ASGIApp

from app.chat.parse import message_item
from app.context import identified
from app.request.template_options import TemplateOptions
from app.responses.parse import generation_request
from app.transport.http import json_response, unless_gone
from app.wire.responses import CreateBody
from app.wire.tokenize import DetokenizeBody, TokenizeBody


async def count_input(request: Request) -> ASGIApp:
    """`POST /v1/responses/input_tokens`: the prompt's length, were a response created so."""
    service, principal = await identified(request)
    body = await service.bodies.read(request, CreateBody, principal)
    asked = generation_request(body)
    count = await unless_gone(request, service.generations.count(principal, asked))
    return json_response({"object": "response.input_tokens", "input_tokens": count})


async def tokenize(request: Request) -> ASGIApp:
    """`POST /tokenize`."""
    service, principal = await identified(request)
    body = await service.bodies.read(request, TokenizeBody, principal)
    await service.adapters.meant(principal, body.model)
    sight = service.generations.sight
    async with service.generations.counted(principal):
        if body.messages is not None:
            items = [
                message_item(message, f"messages[{index}]")
                for index, message in enumerate(body.messages)
            ]
            options = TemplateOptions(named=body.chat_template_kwargs or {})
            items = await unless_gone(request, sight.looked_at(principal.tenant, items))
            work = service.template.prompt_ids(
                principal.tenant.id, items, "messages", options=options
            )
        else:
            work = service.template.text_ids(
                principal.tenant.id,
                body.prompt or "",
                "prompt",
                add_special=body.add_special_tokens,
            )
        ids = await unless_gone(request, work)
    answer = {
        "count": len(ids),
        "max_model_len": service.engine.info.max_context_tokens,
        "tokens": ids,
        "token_strs": service.template.spelled(ids) if body.return_token_strs else None,
    }
    return json_response(answer)


async def detokenize(request: Request) -> ASGIApp:
    """`POST /detokenize`."""
    service, principal = await identified(request)
    body = await service.bodies.read(request, DetokenizeBody, principal)
    await service.adapters.meant(principal, body.model)
    async with service.generations.counted(principal):
        text = await service.template.text_of(principal.tenant.id, body.tokens, "tokens")
    return json_response({"prompt": text})
