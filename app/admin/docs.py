"""`/admin/openapi.json` and `/admin/docs`, which need no token: what can be asked is no secret."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from app.admin.problems import ProblemDocument
from app.transport.http import json_response
from app.transport.openapi import JsonObject, openapi_document

_VERSION = "1"
_DESCRIPTION = """\
For operators. Errors are problem documents (RFC 9457) that name the fields at fault. Every write
takes an `Idempotency-Key`, every patch an `If-Match`. Lists come in pages: `next` is the `after` of
the page behind. Times are UTC."""
_TAGS = {
    "Tenants": "Customers: their share of the engine, and their limits.",
    "API keys": "Several for each tenant, each with a name; a key itself is shown once.",
    "System prompts": "Registered texts, whose KV blocks all requests of a tenant share.",
    "Share groups": "Tenants that share the prompts of a group, and nothing else.",
    "Group prompts": "System prompts that all tenants in a share group share.",
    "Usage": "What a tenant used, by day.",
    "Audit": "Who changed what.",
    "Admin tokens": "Those of the store, for who may do everything, and whose the one sent is.",
    "Signing in": "Where a page has people sign in; needs no token.",
    "Live view": "What this replica is doing.",
}
# The page runs its own script and reads its own document; nothing else may be loaded or sent.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def admin_document(prefix: str, routes: Sequence[BaseRoute]) -> JsonObject:
    """The OpenAPI document of `routes`, which lie under `prefix`."""
    return openapi_document(
        routes,
        tags=_TAGS,
        security="token",
        types={"ProblemDocument": ProblemDocument},
        title="Partywall admin API",
        version=_VERSION,
        description=_DESCRIPTION,
        servers=[{"url": prefix}],
    )


def docs_routes(document: JsonObject) -> list[Route]:
    """The routes of an OpenAPI document, and of the page that shows it."""
    text = msgspec.json.encode(document)
    page = (files("app.admin") / "docs.html").read_bytes()

    async def openapi(_: Request) -> Response:
        return json_response(text)

    async def docs(_: Request) -> Response:
        headers = {"content-security-policy": _POLICY, "referrer-policy": "no-referrer"}
        return Response(page, headers=headers, media_type="text/html")

    return [Route("/openapi.json", openapi), Route("/docs", docs)]
