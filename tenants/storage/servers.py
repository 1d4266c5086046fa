"""Where commands go: to one server, or to that of a Redis Cluster which has the key's slot."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.client import Pipeline, PubSub
from redis.asyncio.cluster import ClusterNode, ClusterPipeline, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisClusterException

Argument = str | bytes | int | float
Command = tuple[Argument, ...]

_CLUSTER_SCHEMES: Final = {"redis+cluster": "redis", "rediss+cluster": "rediss"}
_SCRIPTS: Final = ("EVAL", "EVALSHA")
_KEYLESS: Final = frozenset(
    {"BGREWRITEAOF", "CONFIG GET", "ECHO", "INFO", "PING", "PUBLISH", "PUBSUB", "SCAN", "TIME"}
)


def key_of(command: Command) -> str | None:
    """The first key of a command, which has the slot of all its keys; `None` if it has none."""
    name = command[0]
    if name in _KEYLESS or (name in _SCRIPTS and not command[2]):
        return None
    key = command[3] if name in _SCRIPTS else command[1]
    return key.decode() if isinstance(key, bytes) else str(key)


class Servers:
    """One server, which may have replicas: all keys are there, and in one slot."""

    is_cluster = False

    def __init__(self, redis: Redis | RedisCluster) -> None:
        self._redis: Any = redis

    def place_of(self, _command: Command, /) -> str:
        """Names the server that a command goes to. Raises `RedisClusterException` for none."""
        return ""

    def slot_of(self, _key: str, /) -> int:
        """Keys of one slot can be used in one script."""
        return 0

    async def execute(self, *command: Argument) -> Any:
        """One command's reply."""
        return await self._redis.execute_command(*command)

    async def execute_on_each(self, *command: Argument) -> list[Any]:
        """Every server's reply to a command without a key."""
        return [await self.execute(*command)]

    def pipeline(self, *, transaction: bool) -> Pipeline | ClusterPipeline:
        """Several commands for one server."""
        opened: Pipeline | ClusterPipeline = self._redis.pipeline(transaction=transaction)
        return opened

    async def scan(self, pattern: str, count: int) -> AsyncIterator[list[bytes]]:
        """All keys that match, some at a time; a key may come twice."""
        cursor = b"0"
        while True:
            cursor, names = await self.execute("SCAN", cursor, "MATCH", pattern, "COUNT", count)
            yield names
            if int(cursor) == 0:
                return

    def pubsub(self) -> PubSub:
        """A subscription: what is published anywhere is heard everywhere."""
        subscription: PubSub = self._redis.pubsub()
        return subscription

    async def close(self) -> None:
        """Close all connections."""
        await self._redis.aclose()


class Cluster(Servers):
    """A Redis Cluster: slots of keys at several primaries."""

    is_cluster = True

    _redis: RedisCluster

    def place_of(self, command: Command, /) -> str:
        """See `Servers`."""
        key = key_of(command)
        if key is None:
            return ""
        node = self._redis.get_node_from_key(key)
        if node is None:
            raise RedisClusterException(f"no server has the slot of {key!r}")
        return node.name

    def slot_of(self, key: str, /) -> int:
        """See `Servers`."""
        return self._redis.keyslot(key)

    async def execute_on_each(self, *command: Argument) -> list[Any]:
        """See `Servers`."""
        return [await self._on(node, *command) for node in self._redis.get_primaries()]

    async def scan(self, pattern: str, count: int) -> AsyncIterator[list[bytes]]:
        """See `Servers`."""
        for node in self._redis.get_primaries():
            cursor = 0
            while True:
                cursors, names = await self._on(
                    node, "SCAN", cursor, "MATCH", pattern, "COUNT", count
                )
                yield names
                [cursor] = cursors.values()
                if not cursor:
                    break

    def pubsub(self) -> PubSub:
        """See `Servers`."""
        # Not the one with the channel's slot, which may be the one that is gone.
        return self._redis.pubsub(node=self._redis.get_random_node())

    async def _on(self, node: ClusterNode, *command: Argument) -> Any:
        return await self._redis.execute_command(*command, target_nodes=node)


def connect(url: str, timeout_seconds: float, max_connections: int) -> Servers:
    """Those of a URL, to each of which there are so many connections; nothing is retried.

    Raises `ValueError` or `RedisClusterException` for a malformed URL.
    """
    no_retry = Retry(NoBackoff(), 0)
    scheme, separator, rest = url.partition("://")
    if scheme in _CLUSTER_SCHEMES:
        cluster = RedisCluster.from_url(
            f"{_CLUSTER_SCHEMES[scheme]}{separator}{rest}",
            max_connections=max_connections,
            socket_timeout=timeout_seconds,
            socket_connect_timeout=timeout_seconds,
            retry=no_retry,
            require_full_coverage=False,
            reinitialize_steps=0,  # which would close connections that others use
            protocol=2,
        )
        return Cluster(cluster)
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=max_connections,
        timeout=timeout_seconds,
        socket_timeout=timeout_seconds,
        socket_connect_timeout=timeout_seconds,
        retry=no_retry,
        protocol=2,  # a server without HELLO can then still say how old it is
    )
    return Servers(Redis.from_pool(pool))
