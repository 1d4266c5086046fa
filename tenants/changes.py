"""What changed in the store, told to every service that listens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Literal

import msgspec

from tenants import keyspace
from tenants.connection import StoreConnection
from tenants.errors import StoreUnavailable

_RECONNECT_SECONDS = 1.0
_POLL_SECONDS = 5.0


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """Something of a tenant changed. `kind` is "connection" after changes may have been missed."""

    kind: Literal["tenant", "keys", "prompts", "connection"]
    tenant_id: str = ""
    name: str = ""


async def publish(connection: StoreConnection, change: Change) -> int:
    """Tell the listeners; returns how many there are."""
    async with connection.use() as redis:
        return int(await redis.publish(keyspace.CHANGES, msgspec.json.encode(change)))


async def listen(connection: StoreConnection) -> AsyncIterator[Change]:
    """Every change from now on, across lost connections, until the iteration is left.

    Starts with a "connection" change, and gives one again whenever the connection was lost.
    """
    while True:
        try:
            async with aclosing(_listen_once(connection)) as changes:
                async for change in changes:
                    yield change
        except StoreUnavailable:
            await asyncio.sleep(_RECONNECT_SECONDS)


async def _listen_once(connection: StoreConnection) -> AsyncIterator[Change]:
    async with connection.use() as redis, redis.pubsub(ignore_subscribe_messages=True) as pubsub:
        await pubsub.subscribe(keyspace.CHANGES)
        yield Change(kind="connection")
        while True:
            message = await pubsub.get_message(timeout=_POLL_SECONDS)
            if message is not None:
                yield msgspec.json.decode(message["data"], type=Change)
            else:
                # A server that has silently gone says nothing; a ping makes the loss an error.
                await redis.ping()
