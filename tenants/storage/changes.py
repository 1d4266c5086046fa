"""Notices of every write, over one pub/sub channel, so that local copies are dropped at once.

Notices can be lost while a connection is; then all local copies are looked at again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from redis.asyncio.client import PubSub
from redis.exceptions import ResponseError

from tenants import redis_keys
from tenants.records import Change
from tenants.storage.connection import (
    TIMEOUT_SECONDS,
    UNREACHABLE,
    Command,
    GuardedRedis,
    heeding_cancellation,
)

_log = logging.getLogger(__name__)
_RECONNECT_SECONDS = 0.5
_SILENCE_SECONDS = 5.0
_decoder = msgspec.json.Decoder(Change)


def encode(change: Change) -> bytes:
    """A notice as it travels."""
    return msgspec.json.encode(change)


def publication(change: Change) -> Command:
    """The command that sends a notice."""
    return ("PUBLISH", redis_keys.CHANGES, encode(change))


async def count_subscribers(redis: GuardedRedis) -> int:
    """How many processes listen. Raises `StoreUnavailable`."""
    replies = await redis.execute_on_each("PUBSUB", "NUMSUB", redis_keys.CHANGES)
    # redis-py gives pairs or a flat list, by version.
    return sum(int(one[0][1] if isinstance(one[0], tuple | list) else one[1]) for one in replies)


async def listen(redis: GuardedRedis) -> AsyncGenerator[Change, None]:
    """Every notice from now on, after telling the listeners of `redis`; never ends by itself.

    Yields `resync` once listening has begun, and again after each lost connection.
    """
    is_told = False  # one line an outage, however often it is tried
    while True:
        pubsub = redis.pubsub()
        try:
            async with contextlib.aclosing(_notices(pubsub)) as notices:
                async for change in notices:
                    is_told = False
                    redis.notify(change)
                    yield change
        except UNREACHABLE as error:
            if not is_told:
                reason = str(error) or type(error).__name__
                _log.warning("changes of the store are not heard: %s", reason)
            is_told = True
        finally:
            await pubsub.aclose()  # type: ignore[no-untyped-call]
        redis.notify(Change(kind="resync"))
        await asyncio.sleep(_RECONNECT_SECONDS)


async def _notices(pubsub: PubSub) -> AsyncGenerator[Change, None]:
    """`resync` and then the notices of one connection, until it is lost."""
    with heeding_cancellation():
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await pubsub.subscribe(redis_keys.CHANGES)
            while await pubsub.get_message(timeout=TIMEOUT_SECONDS) is None:
                pass
    yield Change(kind="resync")
    pinged = False
    while True:
        message = await _next_message(pubsub)
        if message is None:
            if pinged:
                raise TimeoutError("no answer to a ping")
            with heeding_cancellation():
                await pubsub.ping()
            pinged = True
            continue
        pinged = False
        if message["type"] == "message":
            yield _decode(message["data"])


async def _next_message(pubsub: PubSub) -> dict[str, Any] | None:
    """What comes next, or nothing where that takes long."""
    try:
        message: dict[str, Any] | None = await pubsub.get_message(timeout=_SILENCE_SECONDS)
    except ResponseError as refusal:
        # A server that cannot write to its disk answers a ping so; notices come all the same.
        return {"type": "pong", "data": refusal}
    return message


def _decode(notice: bytes) -> Change:
    try:
        return _decoder.decode(notice)
    except (msgspec.DecodeError, ValueError):
        _log.warning("a notice of a shape unknown to this version: %.100r", notice)
        return Change(kind="resync")
