"""How far a tenant is within its limits, and the error when it is not. Times are microseconds."""

from __future__ import annotations

from typing import Literal

import msgspec

from tenants.errors import StoreError
from tenants.records import TenantLimits

MINUTE = 60_000_000
DAY = 86_400_000_000

Limit = Literal["requests", "tokens", "tokens_per_day", "streams", "sockets", "budget"]


class Quota(msgspec.Struct, frozen=True):
    """What is left of a limit a minute, and when all of it will be there again."""

    limit: int
    remaining: int
    reset_seconds: float


class LimitExceeded(StoreError):
    """A tenant has used up what it may take; nothing was taken.

    Waiting for `retry_after_seconds` may help; `None` says that it never will. `requests` and
    `tokens` are what is left of the limits a minute, if the tenant has them.
    """

    def __init__(
        self,
        limit: Limit,
        message: str,
        retry_after_seconds: float | None,
        requests: Quota | None = None,
        tokens: Quota | None = None,
    ) -> None:
        super().__init__(message)
        self.limit = limit
        self.retry_after_seconds = retry_after_seconds
        self.requests = requests
        self.tokens = tokens


class Verdict(msgspec.Struct, frozen=True):
    """What became of a request: admitted if `limited` is empty.

    `wait` is how long it would have to wait, -1 for ever. The buckets are full again in
    `requests_reset` and `tokens_reset`. `day` is the number of the UTC day that it is counted to.
    """

    limited: Limit | Literal[""]
    wait: int
    requests_reset: int
    tokens_reset: int
    day: int

    def requests(self, limits: TenantLimits) -> Quota | None:
        """What is left of the requests a minute."""
        return _quota(limits.requests_per_minute, self.requests_reset)

    def tokens(self, limits: TenantLimits) -> Quota | None:
        """What is left of the tokens a minute."""
        return _quota(limits.tokens_per_minute, self.tokens_reset)

    def error(self, limits: TenantLimits, tokens: int = 0) -> LimitExceeded:
        """What a request that may take `tokens` is told."""
        assert self.limited
        assert self.limited != "budget"
        message = {
            "requests": f"{limits.requests_per_minute} requests a minute are allowed.",
            "tokens": f"{limits.tokens_per_minute} tokens a minute are allowed.",
            "tokens_per_day": f"{limits.tokens_per_day} tokens a day are allowed.",
            "streams": f"{limits.concurrent_streams} answers may be generated at once.",
            "sockets": f"{limits.sockets} sockets may be open at once.",
        }[self.limited]
        if self.limited in ("tokens", "tokens_per_day"):
            message += f" This request may take {tokens}, prompt and output together."
            less = "lower its maximal output, or shorten its prompt"
        else:
            less = "ask for fewer answers, or send fewer prompts, at once"
        if self.wait < 0:
            message += f" It can never be served; {less}."
        return LimitExceeded(
            self.limited,
            message,
            None if self.wait < 0 else self.wait / 1e6,
            self.requests(limits),
            self.tokens(limits),
        )


def _quota(limit: int | None, reset: int) -> Quota | None:
    if limit is None:
        return None
    # One microsecond is for the rounding of `reset`.
    remaining = (MINUTE - reset + 1) * limit // MINUTE
    return Quota(limit, min(limit, max(0, remaining)), reset / 1e6)
