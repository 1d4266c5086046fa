"""From a key in a request to its principal: the key, its tenant and the tenant's share group.

A key comes as `Authorization: Bearer KEY`, or as Anthropic's clients send it, `x-api-key: KEY`. A
browser cannot set headers on a WebSocket; it offers two subprotocols instead, one that names the
protocol (`realtime` or `partywall.v1`) and one that carries the key (`openai-insecure-api-key.KEY`
or `partywall.key.KEY`). The server selects the first, so that the key is not sent back, unless the
key alone was offered: a browser closes a socket that selects nothing of what it has offered.
"""

from __future__ import annotations

from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection

from app.observe.request_fields import note_principal
from app.wire.errors import ApiError, unauthorized
from tenants.records import Principal
from tenants.store import TenantStore

PROTOCOLS = ("partywall.v1", "realtime")
KEY_PREFIXES = ("partywall.key.", "openai-insecure-api-key.")


async def authenticate(tenants: TenantStore, connection: HTTPConnection) -> Principal:
    """Whom the key that a request carries belongs to.

    Raises `ApiError` 400 for two of them, 401 without a valid key and 403 for a disabled tenant,
    and `StoreUnavailable` for a key that is not known here while the store is down.
    """
    key = bearer_token(connection.headers)
    other = connection.headers.get("x-api-key")
    if None not in (key, other) and key != other:
        message = "'Authorization' and 'x-api-key' are two different keys: send one."
        raise ApiError(400, message, code="invalid_value", param="x-api-key")
    key = key or other
    if key is None and connection.scope["type"] == "websocket":
        key = _subprotocol_key(connection.scope["subprotocols"])
    if key is None:
        raise unauthorized("Send your API key as 'Authorization: Bearer KEY', or 'x-api-key: KEY'.")
    principal = await tenants.authenticate(key)
    if principal is None:
        raise unauthorized("This API key is not valid.")
    note_principal(principal.tenant.id, principal.key.id)
    if principal.tenant.status == "disabled":
        raise tenant_disabled()
    return principal


def bearer_token(headers: Headers) -> str | None:
    """What stands in `Authorization: Bearer TOKEN`. Raises `ApiError` 400 for two such headers.

    Of two, what is in front of this service might have looked at the other one.
    """
    given = headers.getlist("authorization")
    if len(given) > 1:
        message = "Send one Authorization header."
        raise ApiError(400, message, code="invalid_value", param="authorization")
    scheme, _, token = "".join(given).partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def tenant_disabled() -> ApiError:
    """What every request of a disabled tenant is told."""
    return ApiError(403, "This tenant is disabled.", code="tenant_disabled")


def select_subprotocol(offered: Iterable[str]) -> str | None:
    """The subprotocol to answer with: one that carries a key only where nothing else is offered."""
    names = list(offered)
    known = [name for name in names if name in PROTOCOLS]
    keys = [name for name in names if name.startswith(KEY_PREFIXES)]
    return next(iter(known or keys), None)


def _subprotocol_key(offered: Iterable[str]) -> str | None:
    for name in offered:
        for prefix in KEY_PREFIXES:
            if name.startswith(prefix):
                return name.removeprefix(prefix) or None
    return None
