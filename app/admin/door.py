"""Who may come in to `/admin`: holders of an admin token, and people who sign in."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request

from app.admin.people import People, is_jwt
from app.admin.problems import unauthorized
from app.admin.token import AdminToken, Operator


@dataclass(frozen=True)
class Door:
    """Knows the tokens of this service, and the people, if any may sign in."""

    tokens: AdminToken
    people: People | None = None

    async def operator(self, request: Request) -> Operator:
        """Who asks. Raises `Problem` 401 or 403, and `IssuerUnavailable`."""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        token = given.strip()
        if scheme.lower() != "bearer":
            raise unauthorized()
        # First, and from memory: these hold whatever else is down.
        holder = self.tokens.holder(token)
        if holder is not None:
            return holder
        if self.people is not None and is_jwt(token):
            return await self.people.operator(token)
        raise unauthorized()
