"""A Redis connection that fails fast: a dead or stalled server costs a caller a second at most."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.client import PubSub
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoScriptError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from tenants.errors import InvalidField, StoreFull, StoreUnavailable, StoreUnsupported
from tenants.records import Change

Argument = str | bytes | int | float
Command = tuple[Argument, ...]

TIMEOUT_SECONDS = 1.0
UNREACHABLE = (RedisConnectionError, RedisTimeoutError, OSError, TimeoutError)
_COOL_DOWN_SECONDS = 0.5
_MAX_CALLS = 64
_MAX_SUBSCRIPTIONS = 8
_QUEUE_SECONDS = 5.0
_SCRIPTS_AT_ONCE = 256
_MIN_MAJOR = {"redis": 7, "valkey": 8}
# What an error reply begins with when the command was wrong. With any other the server says what
# state it is in (LOADING, NOREPLICAS, BUSY, OOM, TRYAGAIN, ... and whatever comes to be).
_OUR_FAULT = frozenset({"ERR", "WRONGTYPE", "CROSSSLOT", "NOSCRIPT"})


class Script:
    """A Lua script, which the server knows by its SHA-1 once it has run."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class GuardedRedis:
    """Redis behind deadlines and a circuit breaker; any trouble with it is `StoreUnavailable`.

    After a failure every call fails at once for half a second; then one call is let through, and
    its success closes the circuit. Nothing is retried: a write that timed out may have happened.
    More calls than there are connections wait for their turn, which is no failure of Redis; a
    call's deadline begins with its turn.
    """

    def __init__(self, redis: Redis, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._redis = redis
        self._timeout_seconds = timeout_seconds
        self._turns = asyncio.Semaphore(_MAX_CALLS)
        self._open_until: float | None = None
        self._listeners: list[Callable[[Change], None]] = []

    async def execute(self, *command: Argument) -> Any:
        """One command's reply."""
        async with self._guard():
            return await self._redis.execute_command(*command)  # type: ignore[no-untyped-call]

    async def pipeline(self, *commands: Command) -> list[Any]:
        """Several commands in one round trip, each on its own."""
        return await self._run(commands, transaction=False)

    async def transaction(self, *commands: Command) -> list[Any]:
        """Several commands on keys of one slot, all or none."""
        return await self._run(commands, transaction=True)

    async def run_script(
        self, script: Script, keys: Sequence[str], arguments: Sequence[Argument] = ()
    ) -> Any:
        """Run a script on keys of one slot."""
        try:
            return await self.execute("EVALSHA", script.sha, len(keys), *keys, *arguments)
        except NoScriptError:
            return await self.execute("EVAL", script.text, len(keys), *keys, *arguments)

    async def run_script_on_each(
        self, script: Script, calls: Sequence[tuple[Sequence[str], Sequence[Argument]]]
    ) -> None:
        """Run a script for each of several keys and arguments, in few round trips.

        Where this raises, any of the calls may have been made.
        """
        commands: list[Command] = [
            ("EVALSHA", script.sha, len(keys), *keys, *arguments) for keys, arguments in calls
        ]
        for first in range(0, len(commands), _SCRIPTS_AT_ONCE):
            batch = commands[first : first + _SCRIPTS_AT_ONCE]
            try:
                await self.pipeline(*batch)
            except NoScriptError:
                # Not one of them has run then.
                await self.execute("SCRIPT LOAD", script.text)
                await self.pipeline(*batch)

    def pubsub(self) -> PubSub:
        """A subscription on a connection of its own, outside of the guard."""
        return self._redis.pubsub()

    def add_listener(self, listener: Callable[[Change], None]) -> None:
        """Have `listener` called with every change that is written or heard of here."""
        self._listeners.append(listener)

    def notify(self, change: Change) -> None:
        """Tell the listeners, which keep copies of what is in the store."""
        for listener in self._listeners:
            listener(change)

    async def close(self) -> None:
        """Close all connections."""
        await self._redis.aclose()

    async def _run(self, commands: Sequence[Command], transaction: bool) -> list[Any]:
        if not commands:
            return []
        async with self._guard(), self._redis.pipeline(transaction=transaction) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            replies: list[Any] = await pipeline.execute(raise_on_error=False)
            for reply in replies:
                if isinstance(reply, Exception):
                    raise reply
            return replies

    @contextlib.asynccontextmanager
    async def _guard(self) -> AsyncIterator[None]:
        self._fail_fast()
        await self._wait_for_turn()
        try:
            with self._watched():
                async with asyncio.timeout(self._timeout_seconds):
                    yield
        finally:
            self._turns.release()

    async def _wait_for_turn(self) -> None:
        if not self._turns.locked():
            await self._turns.acquire()
            return
        try:
            async with asyncio.timeout(_QUEUE_SECONDS):
                await self._turns.acquire()
        except TimeoutError:
            raise StoreUnavailable("too many calls wait for Redis") from None

    def _fail_fast(self) -> None:
        if self._open_until is not None and time.monotonic() < self._open_until:
            raise StoreUnavailable("Redis did not answer a moment ago")

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        self._fail_fast()  # others may have failed while this call waited
        if self._open_until is not None:
            # This call is the probe; others keep failing fast while it is under way.
            self._open_until = time.monotonic() + self._timeout_seconds
        try:
            with heeding_cancellation():
                yield
        except UNREACHABLE as error:
            self._open_until = time.monotonic() + _COOL_DOWN_SECONDS
            raise StoreUnavailable(f"Redis does not answer: {str(error) or 'timeout'}") from error
        except ResponseError as error:
            self._open_until = None
            code = error_code(error)
            if code in _OUR_FAULT:
                raise
            if code == "OOM":
                raise StoreFull(f"Redis has no memory left: {error}") from error
            raise StoreUnavailable(f"Redis refuses: {error}") from error
        else:
            self._open_until = None


def error_code(error: ResponseError) -> str:
    """The word that an error reply begins with."""
    # redis-py cuts the words off that it knows, and puts the command before those of a transaction.
    known: str | None = getattr(error, "status_code", None)
    return known or str(error).rpartition("caused error: ")[2].partition(" ")[0]


@contextlib.contextmanager
def heeding_cancellation() -> Iterator[None]:
    """Raises `CancelledError` after the block where the block has swallowed a cancellation.

    Before Python 3.12 `asyncio.wait_for`, with which redis-py sends commands, does so when both
    come at once; a loop that talks to Redis could then not be stopped.
    """
    task = asyncio.current_task()
    assert task is not None
    cancelled_before = task.cancelling()
    try:
        yield
    finally:
        if task.cancelling() > cancelled_before:
            raise asyncio.CancelledError


async def open_redis(url: str, timeout_seconds: float = TIMEOUT_SECONDS) -> GuardedRedis:
    """Connect to `redis://`, `rediss://` or `unix://` and check that the server will do.

    Raises `InvalidField` for a malformed URL, `StoreUnavailable` when nothing answers there,
    `StoreUnsupported` for anything older than Redis 7 or Valkey 8.
    """
    try:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=_MAX_CALLS + _MAX_SUBSCRIPTIONS,
            timeout=timeout_seconds,
            socket_timeout=timeout_seconds,
            socket_connect_timeout=timeout_seconds,
            retry=Retry(NoBackoff(), 0),
            protocol=2,  # a server without HELLO can then still say how old it is
        )
    except ValueError as error:
        raise InvalidField("redis_url", str(error)) from None
    redis = GuardedRedis(Redis.from_pool(pool), timeout_seconds)
    try:
        await _check_version(redis)
    except StoreUnavailable as error:
        await redis.close()
        raise StoreUnavailable(_not_to_be_had(url, error)) from error
    except StoreUnsupported:
        await redis.close()
        raise
    return redis


def _not_to_be_had(url: str, error: StoreUnavailable) -> str:
    place, cause = without_password(url), error.__cause__
    # redis-py wraps what it was told while it connected.
    refusal = cause and (cause.__cause__ or cause.__context__ or cause)
    if isinstance(refusal, AuthenticationError):
        return (
            f"Redis at {place} does not let this service in: {str(refusal).rstrip('.')}; correct "
            "redis_password_file, or the user in redis_url"
        )
    return f"no Redis at {place}: {str(error).rstrip('.')}; start it there, or correct redis_url"


async def _check_version(redis: GuardedRedis) -> None:
    info = await redis.execute("INFO", "server")
    product = str(info.get("server_name", "redis"))
    version = str(info.get(f"{product}_version", info.get("redis_version", "")))
    major = version.partition(".")[0]
    oldest = _MIN_MAJOR.get(product, _MIN_MAJOR["redis"])
    if not major.isdecimal() or int(major) < oldest:
        raise StoreUnsupported(
            f"Redis 7 or Valkey 8 (or newer) is needed; this is {product} {version}"
        )


def without_password(url: str) -> str:
    """`url` as it may be shown."""
    parts = urlsplit(url)
    _, at, address = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"***@{address}" if at else address, query="").geturl()
