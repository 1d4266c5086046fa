"""Delivers what the outbox holds to the operator's webhook, signed as Standard Webhooks says.

See https://www.standardwebhooks.com: the receiver knows a message by its `webhook-id`, which is the
same whenever it is tried again.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tenants.errors import StoreUnavailable
from tenants.storage.outbox import Message, Outbox

if TYPE_CHECKING:
    import httpx

_log = logging.getLogger(__name__)
_POLL_SECONDS = 2.0
_TIMEOUT_SECONDS = 10.0
_GONE = 410
_PREFIX = "whsec_"
_MIN_BYTES, _MAX_BYTES = 24, 64


@dataclass(frozen=True, kw_only=True)
class Webhook:
    """Where messages go, and what they are signed with: by each of several keys."""

    url: str
    keys: Sequence[bytes]


def signing_keys(text: str) -> list[bytes]:
    """The keys in a file, a line each, as `whsec_` and base64. Raises `ValueError`."""
    keys = []
    for number, line in enumerate(filter(None, map(str.strip, text.splitlines())), 1):
        try:
            key = base64.b64decode(line.removeprefix(_PREFIX), validate=True)
        except binascii.Error:
            key = b""
        if not (line.startswith(_PREFIX) and _MIN_BYTES <= len(key) <= _MAX_BYTES):
            raise ValueError(
                f"secret {number} is not '{_PREFIX}' and {_MIN_BYTES} to {_MAX_BYTES} bytes in "
                "base64"
            )
        keys.append(key)
    return keys


def signed(message: Message, keys: Sequence[bytes], now: float) -> dict[str, str]:
    """The headers of a message that is sent at `now`, in Unix seconds."""
    timestamp = str(int(now))
    content = f"{message.id}.{timestamp}.".encode() + message.body
    digests = (hmac.digest(key, content, hashlib.sha256) for key in keys)
    return {
        "webhook-id": message.id,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(f"v1,{base64.b64encode(one).decode()}" for one in digests),
        "content-type": "application/json",
    }


class WebhookSender:
    """Sends one message after the other, until cancelled; `outbox` sees to it that it is again."""

    def __init__(self, outbox: Outbox, webhook: Webhook) -> None:
        self._outbox = outbox
        self._webhook = webhook

    async def run(self) -> None:
        """Deliver until cancelled."""
        import httpx

        async with httpx.AsyncClient(follow_redirects=False, timeout=_TIMEOUT_SECONDS) as client:
            while True:
                try:
                    message = await self._outbox.take()
                    if message is not None and await self._is_settled(client, message):
                        await self._outbox.done(message.id)
                except StoreUnavailable as error:
                    _log.debug("the outbox cannot be read: %s", error)
                    message = None
                if message is None:
                    await asyncio.sleep(_POLL_SECONDS)

    async def _is_settled(self, client: httpx.AsyncClient, message: Message) -> bool:
        """Whether the receiver has taken the message, or wants no more."""
        import httpx

        headers = signed(message, self._webhook.keys, time.time())
        try:
            async with (
                asyncio.timeout(_TIMEOUT_SECONDS),
                client.stream(
                    "POST", self._webhook.url, content=message.body, headers=headers
                ) as answer,
            ):
                status = answer.status_code
        except (httpx.HTTPError, TimeoutError) as error:
            why = str(error) or type(error).__name__
            _log.warning("%s was not delivered: %s", message.id, why)
            return False
        if status == _GONE:
            _log.error("the webhook's receiver wants no more: %s is dropped", message.id)
        elif not 200 <= status < 300:
            _log.warning("%s was not delivered: HTTP %d", message.id, status)
            return False
        return True
