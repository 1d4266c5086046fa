"""An OpenID provider's signing keys: found by discovery, kept a while, fetched anew when needed.

Nothing is fetched before somebody signs in, and who asks while a fetch is under way waits for that
one. What the provider has to say comes from `/.well-known/openid-configuration` (OpenID Connect
Discovery 1.0) and the JSON Web Key Set (RFC 7517) that this names.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import jwt
import msgspec

from app.settings.kinds import checked_secure_url

if TYPE_CHECKING:
    import httpx

_log = logging.getLogger(__name__)

ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
"""Those with a public key alone: with any other, who can check a token could make one."""
_KEY_TYPES: Final = ("RSA", "EC", "OKP")
_TIMEOUT_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 5.0
_FRESH_SECONDS: Final = 300.0
_HELD_SECONDS: Final = 3600.0
_MOST_BYTES: Final = 1024 * 1024

Keys = Mapping[str | None, jwt.PyJWK]
T = TypeVar("T")


class IssuerUnavailable(Exception):
    """The issuer's keys cannot be had right now; the message says why."""


class Configuration(msgspec.Struct, frozen=True):
    """What a provider says of itself; without endpoints it signs nobody in by a page."""

    issuer: str
    jwks_uri: str
    authorization_endpoint: str | None = None
    token_endpoint: str | None = None


class _KeySet(msgspec.Struct, frozen=True):
    keys: list[dict[str, Any]]


class Issuer:
    """The provider at `url`.

    A fetch takes `timeout_seconds` at most, and the next one begins 5 s after its end at the
    soonest: whoever makes up names of keys has the provider asked no more often. Keys are looked
    at again after 5 minutes, and are used for an hour where the provider is away.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_seconds: float = _TIMEOUT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url = url
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._configuration: Configuration | None = None
        self._keys: Keys = {}
        self._fetched_at = float("-inf")
        self._ended_at = float("-inf")
        self._failure: str | None = None
        self._fetch: asyncio.Task[None] | None = None

    async def key(self, key_id: str | None) -> jwt.PyJWK | None:
        """The key of that name, or the only one for a token that names none.

        `None` for one that the issuer does not have. Raises `IssuerUnavailable` where that cannot
        be told.
        """
        found = self._find(key_id)
        if found is None:
            await self._fetch_if_due()
            found = self._find(key_id)
            if found is None and self._failure is not None:
                raise IssuerUnavailable(self._failure)
        elif self._age() > _FRESH_SECONDS:
            self._fetching()  # while this one goes on
        return found

    async def key_names(self) -> list[str | None]:
        """Of the keys that it signs with now. Raises `IssuerUnavailable`."""
        await self._fetch_if_due()
        if self._failure is not None:
            raise IssuerUnavailable(self._failure)
        return list(self._keys)

    async def configuration(self) -> Configuration:
        """What it says of itself. Raises `IssuerUnavailable` where it never did."""
        if self._configuration is None:
            await self._fetch_if_due()
        if self._configuration is None:
            raise IssuerUnavailable(str(self._failure))
        return self._configuration

    def _age(self) -> float:
        return self._clock() - self._fetched_at

    def _find(self, key_id: str | None) -> jwt.PyJWK | None:
        if self._age() > _HELD_SECONDS:
            return None
        if key_id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(key_id)

    async def _fetch_if_due(self) -> None:
        fetch = self._fetching()
        if fetch is not None:
            await asyncio.shield(fetch)

    def _fetching(self) -> asyncio.Task[None] | None:
        """The fetch that is under way, begun here if it may be."""
        is_idle = self._fetch is None or self._fetch.done()
        if is_idle and self._clock() - self._ended_at < _PAUSE_SECONDS:
            return None
        if is_idle:
            self._fetch = asyncio.create_task(self._renew())
        return self._fetch

    async def _renew(self) -> None:
        import httpx

        try:
            async with asyncio.timeout(self._timeout_seconds):
                self._configuration, self._keys = await self._fetched()
        except TimeoutError:
            self._failure = f"no answer within {self._timeout_seconds:g} s"
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            self._failure = str(error) or type(error).__name__
        else:
            self._failure = None
            self._fetched_at = self._clock()
        finally:
            self._ended_at = self._clock()
        if self._failure is not None:
            _log.warning("the keys of %s cannot be had: %s", self.url, self._failure)

    async def _fetched(self) -> tuple[Configuration, Keys]:
        """All as it is now. Raises `httpx.HTTPError`, `OSError` and `ValueError`."""
        import httpx

        # Reading the system's certificates takes a while.
        trusted = await asyncio.to_thread(httpx.create_ssl_context)
        async with httpx.AsyncClient(verify=trusted, follow_redirects=False) as client:
            place = f"{self.url.rstrip('/')}/.well-known/openid-configuration"
            found = await _read(client, place, Configuration)
            if found.issuer != self.url:
                raise ValueError(f"it calls itself {found.issuer!r}")
            for url in (found.jwks_uri, found.authorization_endpoint, found.token_endpoint):
                if url is not None:
                    checked_secure_url(url)
            return found, usable((await _read(client, found.jwks_uri, _KeySet)).keys)


def usable(keys: Sequence[Mapping[str, Any]]) -> Keys:
    """Those keys of a set, by name, that may check signatures here."""
    found: dict[str | None, jwt.PyJWK] = {}
    for one in keys:
        name = one.get("kid")
        is_public = one.get("kty") in _KEY_TYPES and one.get("alg", ALGORITHMS[0]) in ALGORITHMS
        is_named = name is None or isinstance(name, str)
        if not (is_public and is_named and one.get("use", "sig") == "sig"):
            continue
        try:
            found[name] = jwt.PyJWK(dict(one))
        except jwt.PyJWTError as error:
            _log.warning("a key of the issuer's is of no use: %s", type(error).__name__)
    return found


async def _read(client: httpx.AsyncClient, url: str, kind: type[T]) -> T:
    body = bytearray()
    async with client.stream("GET", url) as answer:
        answer.raise_for_status()
        async for piece in answer.aiter_bytes():
            body += piece
            if len(body) > _MOST_BYTES:
                raise ValueError(f"{url} answers more than {_MOST_BYTES} bytes")
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{url} does not answer what it should: {error}") from None
