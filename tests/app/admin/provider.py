"""An OpenID provider on this machine, with real keys, that can be slow, wrong or away."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, RSAAlgorithm
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.app.conftest import serving

AUDIENCE = "partywall"
Key = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


@functools.cache
def rsa_key(number: int = 0) -> rsa.RSAPrivateKey:
    """One of several, which are made once: that takes a while."""
    return rsa.generate_private_key(65537, 2048)


@functools.cache
def ec_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def public_pem(key: Key) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def json_key(key: Key, name: str) -> dict[str, Any]:
    """The public part, as a set of keys shows it."""
    if isinstance(key, rsa.RSAPrivateKey):
        shown, algorithm = RSAAlgorithm.to_jwk(key.public_key()), "RS256"
    else:
        shown, algorithm = ECAlgorithm.to_jwk(key.public_key()), "ES256"
    return {**json.loads(shown), "kid": name, "alg": algorithm, "use": "sig"}


class Provider:
    """Says who it is and which keys it signs with."""

    def __init__(self) -> None:
        self.url = ""
        self.keys: dict[str, Key] = {"one": rsa_key(), "two": ec_key()}
        self.set: list[dict[str, Any]] | None = None
        self.configuration: dict[str, Any] = {}
        self.delay_seconds = 0.0
        self.is_down = False
        self.asked = 0
        places = {"/.well-known/openid-configuration": self._configured, "/keys": self._keys}
        self.app = Starlette(routes=[Route(path, answer) for path, answer in places.items()])

    def token(self, key: str = "one", **changed: Any) -> str:
        """One of ann's, signed by a key; a claim of `None` is left out."""
        now = int(time.time())
        claims = {
            **{"iss": self.url, "aud": AUDIENCE, "sub": "248289761001"},
            **{"iat": now, "nbf": now, "exp": now + 300},
            **{"email": "ann@example.com", "email_verified": True, "partywall": "admin"},
        }
        given = {name: one for name, one in (claims | changed).items() if one is not None}
        private = self.keys[key]
        algorithm = "RS256" if isinstance(private, rsa.RSAPrivateKey) else "ES256"
        return jwt.encode(given, private, algorithm, {"kid": key})

    async def _configured(self, _: Request) -> Response:
        self.asked += 1
        await asyncio.sleep(self.delay_seconds)
        if self.is_down:
            return Response(status_code=502)
        answer = {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}
        return JSONResponse(answer | self.configuration)

    async def _keys(self, _: Request) -> Response:
        shown = [json_key(key, name) for name, key in self.keys.items()]
        return JSONResponse({"keys": shown if self.set is None else self.set})


@contextlib.asynccontextmanager
async def providing() -> AsyncIterator[Provider]:
    """A provider that can be asked."""
    provider = Provider()
    async with serving(provider.app) as (url,):
        provider.url = url
        yield provider
