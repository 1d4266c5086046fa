"""The OpenID provider that people sign in at."""

from __future__ import annotations

from collections.abc import AsyncIterator

from app.assembly.check import Check
from app.settings import Settings

_PART = "sign-in"


async def check_sign_in(settings: Settings) -> AsyncIterator[Check]:
    """Of the provider, where there is one: whether it says with which keys it signs, and where.

    Without it a service starts and serves, and admin tokens hold.
    """
    if settings.oidc_issuer is None:
        return
    from app.admin.issuer import Issuer, IssuerUnavailable

    issuer = Issuer(settings.oidc_issuer)
    try:
        names = await issuer.key_names()
        found = await issuer.configuration()
    except IssuerUnavailable as error:
        remedy = "start it, or correct oidc_issuer; until then admin tokens alone hold"
        yield Check(_PART, "warn", f"{settings.oidc_issuer} tells no keys: {error}", remedy)
        return
    if not names:
        what = f"{settings.oidc_issuer} has no key that a signature can be checked with"
        yield Check(_PART, "warn", what, "have it sign by RS, PS, ES or EdDSA")
        return
    yield Check(_PART, "ok", f"{settings.oidc_issuer} signs with {len(names)} keys")
    if settings.oidc_client_id is not None and not (
        found.authorization_endpoint and found.token_endpoint
    ):
        what = f"{settings.oidc_issuer} has no pages to sign in at"
        yield Check(_PART, "warn", what, "unset oidc_client_id, or use another provider")
