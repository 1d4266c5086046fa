"""People who sign in at an OpenID provider: its JSON Web Tokens, and what each may do here.

A token is good where the issuer has signed it with a key of its own, as an access or ID token, for
this service, to a client that may have it, and its time has come, is not over and not too long.
What its holder may do says one of its claims, in the words of a line of `--admin-token-file`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit

import jwt

from app.admin.issuer import ALGORITHMS, Configuration, Issuer
from app.admin.problems import Problem, unauthorized
from app.admin.token import Operator, is_role, operator_of
from tenants.errors import InvalidField
from tenants.records import check_name

_LEEWAY_SECONDS: Final = 30
"""By which clocks may differ."""
MOST_TOKEN_SECONDS: Final = 86_400
_KINDS: Final = ("jwt", "at+jwt", "id_token+jwt")
"""In a header: anything, an access token (RFC 9068), an ID token; others may be signed as well."""
_KEYCLOAK_KINDS: Final = ("Bearer", "ID")
"""In its claim `typ`, where a token to log out or to renew others has another word."""
_ACTOR_PREFIX: Final = "oidc:"
"""In the audit, so that nobody can sign in under the name of a token's holder."""


def is_jwt(token: str) -> bool:
    """Whether `token` has the form of a signed one: three parts, the first of them JSON."""
    return token.startswith("eyJ") and token.count(".") == 2


class People:
    """Those whom `issuer` knows, and whose tokens for `audience` say in `claim` what they may."""

    def __init__(
        self,
        issuer: Issuer,
        audience: str,
        claim: str,
        client_id: str | None = None,
        clients: Collection[str] = (),
        most_seconds: float = MOST_TOKEN_SECONDS,
    ) -> None:
        """Tokens last `most_seconds` at most, and were issued to `client_id`, to one of `clients`,
        or to the audience itself; to anybody where neither is given.
        """
        self._issuer = issuer
        self._audience = audience
        self._claim = claim
        self.client_id = client_id
        """As which pages ask for tokens, if they may."""
        named = {*clients} if client_id is None else {*clients, client_id}
        self._clients = named and {*named, audience}
        self._most_seconds = most_seconds

    @property
    def page_origin(self) -> str | None:
        """Where pages ask for tokens, if they may: the issuer's own origin."""
        if self.client_id is None:
            return None
        parts = urlsplit(self._issuer.url)
        return f"{parts.scheme}://{parts.netloc}"

    async def flow(self) -> Configuration | None:
        """How a page gets a token, if any may. Raises `IssuerUnavailable`."""
        if self.client_id is None:
            return None
        told = await self._issuer.configuration()
        return None if None in (told.authorization_endpoint, told.token_endpoint) else told

    async def operator(self, token: str) -> Operator:
        """Who holds a JSON Web Token.

        Raises `Problem`: 401 for one that is not good, 403 for one that says nothing of a role.
        Raises `IssuerUnavailable`.
        """
        claims = await self._claims(token)
        roles = [word for word in _words(claims.get(self._claim)) if is_role(word)]
        if not roles:
            raise self._without_role(f"has no role in its claim {self._claim!r}")
        try:
            return operator_of(_name(claims), roles, f"{self._issuer.url} {claims['sub']}")
        except ValueError as error:
            raise self._without_role(f"has no role: {error}") from None

    async def _claims(self, token: str) -> dict[str, Any]:
        try:
            header = jwt.get_unverified_header(token)
            if header.get("alg") not in ALGORITHMS:
                raise jwt.InvalidAlgorithmError("its algorithm is not one with a public key")
            key = await self._issuer.key(header.get("kid"))
            if key is None:
                raise jwt.InvalidSignatureError("the issuer does not have the key it names")
            claims = jwt.decode(
                token,
                key,
                algorithms=ALGORITHMS,
                audience=self._audience,
                issuer=self._issuer.url,
                leeway=_LEEWAY_SECONDS,
                options={
                    "require": ["exp", "iat", "iss", "aud", "sub"],
                    "enforce_minimum_key_length": True,
                },
            )
            if not _is_name(claims["sub"]):
                raise jwt.InvalidTokenError("its sub is no name")
            _check_kind(header.get("typ"), claims.get("typ"))
            self._check_client(claims)
            self._check_lifetime(claims)
        # Deep nesting and endless numbers are as easily written as any other nonsense.
        except (jwt.PyJWTError, RecursionError, OverflowError) as error:
            raise unauthorized(
                f"The token is not a good one of {self._issuer.url}: {error}"
            ) from None
        return claims

    def _check_client(self, claims: Mapping[str, Any]) -> None:
        """Another application that a person uses gets nowhere with what it was given for here."""
        if not self._clients:
            return
        client = claims.get("azp", claims.get("client_id"))
        if client is None and claims["aud"] in (self._audience, [self._audience]):
            return  # an ID token of the audience's own
        if not (isinstance(client, str) and client in self._clients):
            raise jwt.InvalidTokenError(f"its azp is {client!r}, which is no client for here")

    def _check_lifetime(self, claims: Mapping[str, Any]) -> None:
        seconds = int(claims["exp"]) - int(claims["iat"])
        if seconds > self._most_seconds:
            raise jwt.InvalidTokenError(
                f"it lasts {seconds} s, and {self._most_seconds:g} s are the most"
            )

    def _without_role(self, what: str) -> Problem:
        detail = f"The token of {self._issuer.url} {what}."
        return Problem(HTTPStatus.FORBIDDEN, detail, code="no_role")


def _check_kind(header: Any, claim: Any) -> None:
    """Raises `InvalidTokenError` for a token that is signed, and not for showing who one is."""
    kind = "jwt" if header is None else str(header).lower().removeprefix("application/")
    if kind not in _KINDS or claim not in (None, *_KEYCLOAK_KINDS):
        raise jwt.InvalidTokenError("its typ is not that of an access token or ID token")


def _words(claim: Any) -> list[str]:
    """The words of a string, or a list of them; anything else is none."""
    if isinstance(claim, str):
        return claim.split()
    return [one for one in claim if isinstance(one, str)] if isinstance(claim, list) else []


def _name(claims: Mapping[str, Any]) -> str:
    """What the audit calls the person.

    Nobody but the issuer chooses `sub` and a verified address; where a name may be another's, or
    is its holder's own choice, `sub` stands behind it.
    """
    subject, chosen = claims["sub"], claims.get("preferred_username")
    if claims.get("email_verified") is True and _is_name(claims.get("email")):
        return f"{_ACTOR_PREFIX}{claims['email']}"
    if _is_name(chosen):
        return f"{_ACTOR_PREFIX}{chosen} ({subject})"
    return f"{_ACTOR_PREFIX}{subject}"


def _is_name(value: Any) -> bool:
    try:
        check_name(value)
    except (InvalidField, TypeError):
        return False
    return True
