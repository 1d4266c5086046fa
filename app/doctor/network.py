"""The addresses that a service would listen on, and the provider that people sign in at."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from app.assembly.check import Check
from app.assembly.server import CannotListen, bind, url_host
from app.settings import Settings


def check_ports(settings: Settings) -> Iterator[Check]:
    """Of the tenants' address and the operators': whether each can be had."""
    yield _address("port", settings.host, settings.port, settings.uses_tls)
    yield _address(
        "admin port", settings.admin_host, settings.resolved_admin_port, settings.uses_tls
    )


def _address(part: str, host: str, port: int, uses_tls: bool) -> Check:
    try:
        bind(host, port).close()
    except CannotListen as error:
        version = _partywall_at(host, port, uses_tls)
        if version is not None:
            what = f"Partywall {version} serves on {host} port {port} already"
            return Check(part, "warn", what, "stop it before another one is started there")
        return Check(part, "fail", error.what, error.remedy)
    return Check(part, "ok", f"{host} port {port} can be had" if port else f"a free one of {host}")


def _partywall_at(host: str, port: int, uses_tls: bool) -> str | None:
    """The version of the service that listens there, if it is one."""
    import httpx

    scheme = "https" if uses_tls else "http"
    try:
        # Whoever it is, nothing is told to it: its certificate does not matter.
        url = f"{scheme}://{url_host(host)}:{port}/version"
        answer = httpx.get(url, timeout=1.0, verify=False, trust_env=False)
        version = answer.json()["version"]
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError):
        return None
    return version if isinstance(version, str) else None


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
