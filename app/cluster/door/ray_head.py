"""Whether the head of a Ray cluster answers: streams go on without it, and nothing else does."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Final

import grpc
import grpc.aio

_log = logging.getLogger(__name__)
_LOOK_SECONDS: Final = 1.0
"""Between two questions, and for an answer."""
_FAILURES: Final = 2
"""In a row, after which the head is taken for lost: one may be the network's."""
_QUESTION: Final = "/grpc.health.v1.Health/Check"
"""Of gRPC's own protocol, which Ray's head answers to anybody."""


class HeadWatch:
    """Asks the head every second."""

    def __init__(self) -> None:
        self.is_lost = False
        self._failures = 0

    async def run(self, address: str) -> None:
        """Watch the one at `address` until cancelled."""
        while True:
            try:
                # One of its own each time: what was refused takes ever longer to try again.
                async with _channel(address) as channel:
                    answered = await _answers(channel)
            except (KeyError, OSError) as error:  # its certificates may just be replaced
                _log.error("Ray's head cannot be asked: %r", error)
                answered = False
            self._take(answered=answered)
            await asyncio.sleep(_LOOK_SECONDS)

    def _take(self, *, answered: bool) -> None:
        self._failures = 0 if answered else self._failures + 1
        is_lost = self._failures >= _FAILURES
        if is_lost and not self.is_lost:
            _log.error("Ray's head does not answer: streams go on, and it is waited for")
        elif self.is_lost and not is_lost:
            _log.warning("Ray's head answers again")
        self.is_lost = is_lost


async def _answers(channel: grpc.aio.Channel) -> bool:
    try:
        await channel.unary_unary(_QUESTION)(b"", timeout=_LOOK_SECONDS)
    except grpc.aio.AioRpcError as error:
        lost = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
        return error.code() not in lost
    return True


def _channel(address: str) -> grpc.aio.Channel:
    """Encrypted as Ray's own are, by the same variables of the environment."""
    if os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
        return grpc.aio.insecure_channel(address)
    names = ("RAY_TLS_CA_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_SERVER_CERT")
    authority, key, certificate = (Path(os.environ[name]).read_bytes() for name in names)
    return grpc.aio.secure_channel(
        address, grpc.ssl_channel_credentials(authority, key, certificate)
    )
