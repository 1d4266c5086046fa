"""A Redis connection that fails fast: a dead or stalled server costs a caller a second at most."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from redis.asyncio.client import PubSub
from redis.exceptions import (
    AuthenticationError,
    NoScriptError,
    RedisClusterException,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from tenants.errors import InvalidField, StoreReadOnly, StoreUnavailable, StoreUnsupported
from tenants.records import Change
from tenants.storage.servers import Argument, Command, Servers, connect

__all__ = ["Argument", "Command", "GuardedRedis", "Script", "open_redis"]

_log = logging.getLogger(__name__)
TIMEOUT_SECONDS = 1.0
UNREACHABLE = (
    *(RedisConnectionError, RedisTimeoutError, RedisClusterException),
    *(OSError, TimeoutError),
)
_COOL_DOWN_SECONDS = 0.5
_MAX_CALLS = 64
_MAX_SUBSCRIPTIONS = 8
_QUEUE_SECONDS = 5.0
_SCRIPTS_AT_ONCE = 256
_MIN_MAJOR = {"redis": 7, "valkey": 8}
# What an error reply begins with when the command was wrong. With any other the server says what
# state it is in (LOADING, NOREPLICAS, BUSY, OOM, TRYAGAIN, ... and whatever comes to be).
_OUR_FAULT = frozenset({"ERR", "WRONGTYPE", "CROSSSLOT", "NOSCRIPT"})

# Why it takes no writes, though it can be read.
_READ_ONLY = {
    "OOM": "it is full",
    "MISCONF": "it cannot write to its disk",
    "NOREPLICAS": "too few replicas follow it",
    "READONLY": "it is a replica itself",
}


class Script:
    """A Lua script, which the server knows by its SHA-1 once it has run."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class GuardedRedis:
    """Redis behind deadlines and a circuit breaker; any trouble with it is `StoreUnavailable`.

    After a failure every call fails at once for half a second; then one call is let through, and
    its success closes the circuit. Each server of a Redis Cluster has a circuit of its own, so that
    one that is lost is not waited for by those whose keys are elsewhere. Nothing is retried: a
    write that timed out may have happened. More calls than there are connections wait for their
    turn, which is no failure of Redis; a call's deadline begins with its turn.
    """

    def __init__(self, servers: Servers, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._servers = servers
        self._timeout_seconds = timeout_seconds
        self._turns = asyncio.Semaphore(_MAX_CALLS)
        self._open_until: dict[str, float] = {}
        """By server: when a call is let through again."""
        self._listeners: list[Callable[[Change], None]] = []

    @property
    def is_cluster(self) -> bool:
        """Whether keys lie in slots: a script or a transaction then has keys of one slot only."""
        return self._servers.is_cluster

    def slot_of(self, key: str) -> int:
        """Of a key; all are in one where there is one server."""
        return self._servers.slot_of(key)

    async def execute(self, *command: Argument) -> Any:
        """One command's reply."""
        async with self._guard(command):
            return await self._servers.execute(*command)

    async def execute_on_each(self, *command: Argument) -> list[Any]:
        """Every server's reply to a command without a key."""
        async with self._guard(command):
            return await self._servers.execute_on_each(*command)

    async def pipeline(self, *commands: Command) -> list[Any]:
        """Several commands in one round trip, each on its own.

        Where this raises, those for other servers of a cluster have been run all the same.
        """
        return _raise_first(await self._replies(commands))

    async def each(self, *commands: Command) -> list[Any]:
        """As `pipeline`, for commands that have nothing to do with each other: `None` is the reply
        to one that Redis finds to be wrong, as where its key holds what no Partywall put there. The
        log says so, and the others are not kept from what is theirs.
        """
        replies = await self._replies(commands, tolerant=True)
        for number, reply in enumerate(replies):
            if isinstance(reply, ResponseError):
                replies[number] = None
                _tell_refused(commands[number], reply)
        return _raise_first(replies)

    async def transaction(self, *commands: Command) -> list[Any]:
        """Several commands on keys of one slot, all or none."""
        return _raise_first(await self._send(commands, transaction=True)) if commands else []

    async def scan(self, pattern: str, count: int) -> AsyncIterator[list[bytes]]:
        """All keys that match, some at a time; a key may come twice."""
        batches = self._servers.scan(pattern, count)
        while True:
            async with self._guard(("SCAN",)):
                names = await anext(batches, None)
            if names is None:
                return
            yield names

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
    ) -> list[int]:
        """Run a script for each of several keys and arguments, in few round trips, see `each`.

        Returns which calls Redis has refused. Where this raises, any may have been made.
        """
        refused = []
        for first in range(0, len(calls), _SCRIPTS_AT_ONCE):
            replies = await self._script_replies(script, calls[first : first + _SCRIPTS_AT_ONCE])
            refused += [first + at for at, one in enumerate(replies) if _is_refused(one)]
        return refused

    async def read_by_script(
        self, script: Script, calls: Sequence[tuple[Sequence[str], Sequence[Argument]]]
    ) -> AsyncIterator[tuple[int, Any]]:
        """As `run_script_on_each`: each reply with its call's place, but for those refused."""
        for first in range(0, len(calls), _SCRIPTS_AT_ONCE):
            replies = await self._script_replies(script, calls[first : first + _SCRIPTS_AT_ONCE])
            for at, reply in enumerate(replies):
                if not _is_refused(reply):
                    yield first + at, reply

    def pubsub(self) -> PubSub:
        """A subscription on a connection of its own, outside of the guard."""
        return self._servers.pubsub()

    def add_listener(self, listener: Callable[[Change], None]) -> None:
        """Have `listener` called with every change that is written or heard of here."""
        self._listeners.append(listener)

    def notify(self, change: Change) -> None:
        """Tell the listeners, which keep copies of what is in the store."""
        for listener in self._listeners:
            listener(change)

    async def close(self) -> None:
        """Close all connections."""
        await self._servers.close()

    async def _replies(self, commands: Sequence[Command], *, tolerant: bool = False) -> list[Any]:
        """Replies, and errors in the place of some; each server is asked by itself."""
        places: dict[str, list[int]] = defaultdict(list)
        for number, command in enumerate(commands):
            places[self._place_of(command)].append(number)
        replies: list[Any] = [None] * len(commands)

        async def ask(numbers: list[int]) -> None:
            some = [commands[number] for number in numbers]
            try:
                found = await self._send(some, transaction=False, tolerant=tolerant)
            except StoreUnavailable as error:
                found = [error] * len(some)
            for number, reply in zip(numbers, found, strict=True):
                replies[number] = reply

        await asyncio.gather(*map(ask, places.values()))
        return replies

    async def _send(
        self, commands: Sequence[Command], transaction: bool, *, tolerant: bool = False
    ) -> list[Any]:
        """The replies of one server. An error says something of the server, or of a command: only
        the latter stands among the replies, where that is tolerated.
        """
        async with self._guard(commands[0]):
            async with self._servers.pipeline(transaction=transaction) as pipeline:
                for command in commands:
                    pipeline.execute_command(*command)
                replies: list[Any] = await pipeline.execute(raise_on_error=False)
            for reply in replies:
                is_command = isinstance(reply, NoScriptError) or (
                    tolerant and isinstance(reply, ResponseError) and _is_our_fault(reply)
                )
                if isinstance(reply, Exception) and not is_command:
                    raise reply
            return replies

    async def _script_replies(
        self, script: Script, calls: Sequence[tuple[Sequence[str], Sequence[Argument]]]
    ) -> list[Any]:
        """Replies, and errors in the place of those that Redis refuses; the log says so."""
        commands: list[Command] = [
            ("EVALSHA", script.sha, len(keys), *keys, *arguments) for keys, arguments in calls
        ]
        replies = await self._replies(commands, tolerant=True)
        # It has not run where it is not known; at other servers it may have.
        missed = [at for at, one in enumerate(replies) if isinstance(one, NoScriptError)]
        again: list[Command] = [("EVAL", script.text, *commands[at][2:]) for at in missed]
        for at, reply in zip(missed, await self._replies(again, tolerant=True), strict=True):
            replies[at] = reply
        for at, reply in enumerate(replies):
            if isinstance(reply, ResponseError):
                _tell_refused(commands[at], reply)
            elif isinstance(reply, StoreUnavailable):
                raise reply
        return replies

    def _place_of(self, command: Command) -> str:
        try:
            return self._servers.place_of(command)
        except RedisClusterException as error:
            raise StoreUnavailable(f"Redis Cluster: {error}") from error

    @contextlib.asynccontextmanager
    async def _guard(self, command: Command) -> AsyncIterator[None]:
        place = self._place_of(command)
        self._fail_fast(place)
        await self._wait_for_turn()
        try:
            with self._watched(place):
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

    def _fail_fast(self, place: str) -> None:
        if time.monotonic() < self._open_until.get(place, 0.0):
            raise StoreUnavailable("Redis did not answer a moment ago")

    @contextlib.contextmanager
    def _watched(self, place: str) -> Iterator[None]:
        self._fail_fast(place)  # others may have failed while this call waited
        if place in self._open_until:
            # This call is the probe; others keep failing fast while it is under way.
            self._open_until[place] = time.monotonic() + self._timeout_seconds
        try:
            with heeding_cancellation():
                yield
        except UNREACHABLE as error:
            self._open_until[place] = time.monotonic() + _COOL_DOWN_SECONDS
            raise StoreUnavailable(f"Redis does not answer: {str(error) or 'timeout'}") from error
        except ResponseError as error:
            self._open_until.pop(place, None)
            code = error_code(error)
            if _is_our_fault(error):
                raise
            if code in _READ_ONLY:
                raise StoreReadOnly(_READ_ONLY[code], str(error)) from error
            raise StoreUnavailable(f"Redis refuses: {error}") from error
        else:
            self._open_until.pop(place, None)


def _raise_first(replies: list[Any]) -> list[Any]:
    """The replies, none of which is an error."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


def _tell_refused(command: Command, reply: ResponseError) -> None:
    """What it was is in the log alone now; a script's own text says nothing."""
    told = command[2:] if command[0] in ("EVAL", "EVALSHA") else command
    _log.error("the store refuses %.2000r: %s", told, reply)


def _is_refused(reply: Any) -> bool:
    return isinstance(reply, ResponseError)


def _is_our_fault(error: ResponseError) -> bool:
    """Whether the command was wrong, and not the server in some state."""
    return error_code(error) in _OUR_FAULT


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

    With `redis+cluster://` or `rediss+cluster://` it is any server of a Redis Cluster. Raises
    `InvalidField` for a malformed URL, `StoreUnavailable` when nothing answers there,
    `StoreUnsupported` for anything older than Redis 7 or Valkey 8.
    """
    try:
        redis = GuardedRedis(
            connect(url, timeout_seconds, _MAX_CALLS + _MAX_SUBSCRIPTIONS), timeout_seconds
        )
    except (ValueError, RedisClusterException) as error:
        raise InvalidField("redis_url", str(error)) from None
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
