"""Who may come in to `/admin`: holders of an admin token, and people who sign in; and how often.

The file's tokens are looked at first, and from memory: they hold whatever else is down.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from starlette.requests import Request

from app.admin.issuer import IssuerUnavailable
from app.admin.oidc import People, is_jwt
from app.admin.problems import Problem, unauthorized
from app.admin.token import AdminToken, Operator
from app.limits.auth import bearer_token
from tenants.errors import StoreUnavailable
from tenants.keys.operator_tokens import OperatorTokens
from tenants.records import OperatorToken

_MINUTE = 60.0
_MOST_KNOWN = 10_000
_ACTOR_PREFIX = "token:"
"""In the audit, so that no token can be given the name of another's holder, or of a person."""


@dataclass(frozen=True)
class Door:
    """Knows the tokens of this service and of the store, and the people, if any may sign in."""

    tokens: AdminToken
    stored: OperatorTokens
    people: People | None = None

    async def holder(self, token: str) -> Operator:
        """Whose token it is.

        Raises `Problem` 401 or 403, `IssuerUnavailable` and `StoreUnavailable`.
        """
        holder = self.tokens.holder(token)
        if holder is not None:
            return holder
        if self.people is not None and is_jwt(token):
            return await self.people.operator(token)
        stored = await self.stored.find(token)
        if stored is None:
            raise unauthorized()
        return _holder(stored)

    async def is_open(self, token: str) -> bool:
        """Whether who was let in is still welcome, as far as can be told."""
        try:
            await self.holder(token)
        except Problem:
            return False
        except (IssuerUnavailable, StoreUnavailable):
            return True
        return True


def bearer(request: Request) -> str:
    """The token in a request's header. Raises `Problem` 401, and `ApiError` 400 for two headers."""
    token = bearer_token(request.headers)
    if token is None:
        raise unauthorized()
    return token


def _holder(token: OperatorToken) -> Operator:
    return Operator(
        f"{_ACTOR_PREFIX}{token.name}",
        reads_only=token.role == "read",
        tenant=token.tenant,
        subject=f"{_ACTOR_PREFIX}{token.id}",
    )


class WriteRate:
    """How many writes each operator may make in a minute, so that none fills the audit.

    Counts in this process; a minute's writes may come at once (GCRA, ITU-T I.371).
    """

    def __init__(self, per_minute: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._full_at: dict[str, float] = {}
        """By operator: when all of a minute's writes may be made again."""

    def count(self, operator: str) -> None:
        """Count a write. Raises `Problem` 429 where it is too many, and does not count it."""
        if self._per_minute is None:
            return
        now = self._clock()
        full_at = max(now, self._full_at.get(operator, now)) + _MINUTE / self._per_minute
        wait = full_at - _MINUTE - now
        if wait > 1e-6:
            raise Problem(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"An operator may make {self._per_minute} writes a minute.",
                code="too_many_writes",
                headers={"retry-after": str(math.ceil(wait))},
            )
        if len(self._full_at) >= _MOST_KNOWN:
            self._full_at = {who: at for who, at in self._full_at.items() if at > now}
        self._full_at[operator] = full_at
