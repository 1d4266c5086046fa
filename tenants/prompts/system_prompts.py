"""Registered system prompts: versions, look-up by text, and the index of their KV blocks."""

from __future__ import annotations

import builtins
import functools
import operator
import re
import time
from collections.abc import Callable, Sequence
from hashlib import sha256

import msgspec
from msgspec.structs import replace

from tenants import redis_keys
from tenants.at_rest.records import decoded
from tenants.errors import InvalidField, PromptNotFound
from tenants.keyring import Keyring
from tenants.keys.key_store import CACHE_SECONDS, STALE_SECONDS
from tenants.owners import not_found
from tenants.prompts.room import MostBytes, PromptRoom, no_limit
from tenants.prompts.texts import PromptText, PromptTexts
from tenants.records import (
    Change,
    PromptIndex,
    SystemPrompt,
    check_prompt_name,
    is_owner,
    is_prompt_name,
)
from tenants.storage.cache import ReadThroughCache
from tenants.storage.commits import Check, exists, field_holds
from tenants.storage.connection import Command, GuardedRedis, Script
from tenants.writes import audit
from tenants.writes.writes import Writes, until_committed

MAX_TEXT_BYTES = 1 << 20
_VERSION = re.compile(r"[1-9][0-9]{0,14}")

# KEYS: prompt, index. ARGV: version, field, the index.
_SAVE_INDEX = Script("""
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
return 1
""")


class _Head(msgspec.Struct, frozen=True):
    """Which versions a prompt has; `active` is `None` when the prompt was deleted."""

    last: int
    active: int | None
    pinned: bool = False


class SystemPrompts:
    """System prompts of all tenants and share groups over one Redis, each under its owner.

    An owner is a tenant's id or a group's `owner`. Everything raises `StoreUnavailable` while
    Redis is down, but for what `get` and `find_by_text` found or missed in the last
    `stale_seconds`. A version's number is never used twice, even for a prompt that was deleted and
    put again. A change tells what is new to who keeps copies, see `tenants.storage.changes`.
    """

    def __init__(
        self,
        redis: GuardedRedis,
        keyring: Keyring,
        *,
        cache_seconds: float = CACHE_SECONDS,
        stale_seconds: float = STALE_SECONDS,
        audit_max_entries: int = audit.MAX_ENTRIES,
        most_bytes: MostBytes = no_limit,
    ) -> None:
        """`most_bytes` tells how much an owner may store."""
        self._redis = redis
        self._room = PromptRoom(redis, most_bytes)
        self._texts = PromptTexts(redis, keyring)
        self._writes = Writes(redis, audit_max_entries)
        # Keys: (owner, name, version or "") and (owner, SHA-256 of the text).
        self._by_name: ReadThroughCache[tuple[str, str, str], SystemPrompt] = ReadThroughCache(
            cache_seconds, stale_seconds, keep_missing=True
        )
        self._by_text: ReadThroughCache[tuple[str, bytes], SystemPrompt] = ReadThroughCache(
            cache_seconds, stale_seconds, keep_missing=True
        )
        redis.add_listener(self._on_change)

    async def put(
        self,
        owner: str,
        name: str,
        text: str,
        *,
        adapter: str | None = None,
        activate: bool = True,
        actor: str = "system",
    ) -> SystemPrompt:
        """Register `text` as the newest version of prompt `name`, and make it the active one.

        `adapter` is meant where a request with it names none. A prompt's first version is active in
        any case. One that says what the newest version does makes no new one. Raises `InvalidField`
        ("name", "text", "adapter"), `TenantNotFound`, `GroupNotFound`, and `PromptsExceeded` for
        more than the owner may have.
        """
        check_prompt_name(name)
        _check_text(text)
        if adapter is not None:
            check_prompt_name(adapter, "adapter")

        async def attempt() -> SystemPrompt | None:
            blob, head = await self._read_head(owner, name)
            if head is None:
                head = _Head(last=0, active=None)
            newest = None if head.active is None else await self._texts.read(owner, name, head.last)
            if newest is not None and (newest.text, newest.adapter) == (text, adapter):
                body, commands, checks = newest, list[Command](), list[Check]()
                new = replace(head, active=head.last) if activate else head
            else:
                body, version = PromptText(text, time.time(), adapter), head.last + 1
                active = version if activate or head.active is None else head.active
                new = replace(head, last=version, active=active)
                checks, books = await self._room.adding(owner, name, text)
                commands = [*await self._texts.adding(owner, name, version, body), *books]
            committed = new == head or await self._commit(
                owner, name, blob, new, actor, "prompt.put", commands, checks
            )
            return _prompt(name, new.last, body, new) if committed else None

        return await until_committed(attempt)

    async def get(
        self, owner: str, name: str, version: int | str | None = None
    ) -> SystemPrompt | None:
        """A version of a prompt (the active one, unless told otherwise), or `None`."""
        wanted = "" if version is None else str(version)
        possible = version is None or _VERSION.fullmatch(wanted) is not None
        if not (possible and is_prompt_name(name)):
            return None
        load = functools.partial(self._load, owner, name, wanted)
        return await self._by_name.get((owner, name, wanted), load)

    async def list(
        self, owner: str, after: str | None = None, limit: int | None = None
    ) -> list[SystemPrompt]:
        """Each of an owner's prompts in its active version, by name: `limit` behind `after`."""
        blobs = await self._redis.execute("HGETALL", redis_keys.prompts(owner))
        heads = {name.decode(): _head(owner, name.decode(), blob) for name, blob in blobs.items()}
        live = [
            (name, head.active, head)
            for name, head in sorted(heads.items(), key=operator.itemgetter(0))
            if head is not None and head.active is not None and (after is None or name > after)
        ][:limit]
        bodies = await self._texts.read_each(owner, [(name, active) for name, active, _ in live])
        return [
            _prompt(name, active, body, head)
            for (name, active, head), body in zip(live, bodies, strict=True)
            if body is not None  # deleted a moment ago
        ]

    async def versions(
        self, owner: str, name: str, before: int | None = None, limit: int | None = None
    ) -> builtins.list[SystemPrompt]:
        """A prompt's versions, the newest first: `limit` older than `before`.

        Raises `PromptNotFound`.
        """
        head = (await self._live_head(owner, name))[1]
        versions = await self._texts.numbers(owner, name)
        older = (number for number in versions if before is None or number < before)
        page = sorted(older, reverse=True)[:limit]
        bodies = await self._texts.read_each(owner, [(name, version) for version in page])
        return [
            _prompt(name, version, body, head)
            for version, body in zip(page, bodies, strict=True)
            if body is not None  # deleted a moment ago
        ]

    async def activate(
        self, owner: str, name: str, version: int, *, actor: str = "system"
    ) -> SystemPrompt:
        """Make a version the one that is used where none is named. Raises `PromptNotFound`."""
        return await self._update(
            owner, name, version, lambda head: replace(head, active=version), actor, "activate"
        )

    async def set_pinned(
        self, owner: str, name: str, pinned: bool, *, actor: str = "system"
    ) -> SystemPrompt:
        """Keep the blocks of the prompt's active version in memory, or no longer.

        Raises `PromptNotFound`.
        """
        action = "pin" if pinned else "unpin"
        return await self._update(
            owner, name, None, lambda head: replace(head, pinned=pinned), actor, action
        )

    async def delete(self, owner: str, name: str, *, actor: str = "system") -> None:
        """Remove a prompt in all its versions, and their index. Raises `PromptNotFound`."""

        async def attempt() -> bool:
            blob, head = await self._live_head(owner, name)
            checks, books = await self._room.removing(owner, name)
            removed: Sequence[Command] = [
                *books,
                ("DEL", redis_keys.prompt_index(owner, name)),
                *await self._texts.removing(owner, name),
            ]
            gone = _Head(last=head.last, active=None)
            return await self._commit(
                owner, name, blob, gone, actor, "prompt.delete", removed, checks
            )

        await until_committed(attempt)

    async def find_by_text(self, owner: str, text: str) -> SystemPrompt | None:
        """A live version whose text is exactly `text`, or `None`."""
        # A lone surrogate cannot be in a registered text; it must not fail a look-up either.
        digest = sha256(text.encode(errors="surrogatepass")).digest()
        load = functools.partial(self._load_by_text, owner, text)
        return await self._by_text.get((owner, digest), load)

    async def rewrite(self, owner: str, name: str) -> tuple[int, int]:
        """See `PromptTexts.rewrite`."""
        return await self._texts.rewrite(owner, name)

    async def save_index(self, owner: str, index: PromptIndex) -> None:
        """Keep the index of a prompt version. Raises `PromptNotFound` if it was deleted since."""
        saved = await self._redis.run_script(
            _SAVE_INDEX,
            [redis_keys.prompt(owner, index.name), redis_keys.prompt_index(owner, index.name)],
            [
                index.version,
                f"{index.version}:{index.engine}",
                msgspec.msgpack.encode(index),
            ],
        )
        if not saved:
            raise PromptNotFound(index.name, index.version)

    async def newest_index(self, owner: str, prompt: SystemPrompt) -> PromptIndex | None:
        """The index of a prompt version that was saved last, whatever the engine, or `None`."""
        blobs = await self._redis.execute("HVALS", redis_keys.prompt_index(owner, prompt.name))
        indexes = _indexes(owner, blobs)
        ours = [index for index in indexes if index.version == prompt.version]
        return max(ours, key=lambda index: index.warmed_at, default=None)

    async def indexes(self, owner: str, engine: str) -> builtins.list[PromptIndex]:
        """Of all versions of an owner's prompts that this kind of engine has computed, by name."""
        names = sorted(await self._redis.execute("HKEYS", redis_keys.prompts(owner)))
        found = await self._redis.pipeline(
            *(("HVALS", redis_keys.prompt_index(owner, name.decode())) for name in names)
        )
        indexes = _indexes(owner, [blob for blobs in found for blob in blobs])
        return [index for index in indexes if index.engine == engine]

    async def _read_head(self, owner: str, name: str) -> tuple[bytes | None, _Head | None]:
        if not is_owner(owner):
            raise not_found(owner)
        exists, blob = await self._redis.pipeline(
            ("EXISTS", redis_keys.meta(owner)), ("HGET", redis_keys.prompts(owner), name)
        )
        if not exists:
            raise not_found(owner)
        return blob, _head(owner, name, blob)

    async def _live_head(self, owner: str, name: str) -> tuple[bytes | None, _Head]:
        """Raises `PromptNotFound`, also where the owner is not there."""
        if is_owner(owner) and is_prompt_name(name):
            blob = await self._redis.execute("HGET", redis_keys.prompts(owner), name)
            head = _head(owner, name, blob)
            if head is not None and head.active is not None:
                return blob, head
        raise PromptNotFound(name)

    async def _update(
        self,
        owner: str,
        name: str,
        version: int | None,
        edit: Callable[[_Head], _Head],
        actor: str,
        action: str,
    ) -> SystemPrompt:
        async def attempt() -> SystemPrompt | None:
            blob, head = await self._live_head(owner, name)
            new = edit(head)
            assert new.active is not None
            body = await self._texts.read(owner, name, new.active)
            if body is None:
                raise PromptNotFound(name, version)
            committed = new == head or await self._commit(
                owner, name, blob, new, actor, f"prompt.{action}", []
            )
            return _prompt(name, new.active, body, new) if committed else None

        return await until_committed(attempt)

    async def _commit(
        self,
        owner: str,
        name: str,
        blob: bytes | None,
        new: _Head,
        actor: str,
        action: str,
        commands: Sequence[Command],
        checks: Sequence[Check] = (),
    ) -> bool:
        """Write a prompt's new head, unless somebody else did since `blob` was read."""
        old = _head(owner, name, blob)
        return await self._writes.commit(
            [
                exists(redis_keys.meta(owner)),
                field_holds(redis_keys.prompts(owner), name, blob),
                *checks,
            ],
            [("HSET", redis_keys.prompts(owner), name, msgspec.msgpack.encode(new)), *commands],
            Change(kind="prompts", tenant_id=owner, name=name),
            audit.Note(
                actor=actor,
                action=action,
                owner=owner,
                target=name,
                before=_document(old),
                after=_document(new),
            ),
        )

    async def _load(self, owner: str, name: str, version: str) -> SystemPrompt | None:
        try:
            head = (await self._live_head(owner, name))[1]
        except PromptNotFound:
            return None
        number = int(version) if version else head.active
        assert number is not None
        body = await self._texts.read(owner, name, number)
        return None if body is None else _prompt(name, number, body, head)

    async def _load_by_text(self, owner: str, text: str) -> SystemPrompt | None:
        # Several prompts may share one text; the order makes all replicas pick the same.
        for name, version in await self._texts.with_text(owner, text):
            prompt = await self._load(owner, name, str(version))
            if prompt is not None and prompt.text == text:
                return prompt
        return None

    def _on_change(self, change: Change) -> None:
        if change.kind == "resync":
            self._by_name.expire()
            self._by_text.expire()
            return
        if change.kind in ("adapters", "cancel", "forget"):
            return
        owner = f"@{change.name}" if change.kind == "group" else change.tenant_id
        self._by_name.drop_if(lambda key, _: key[0] == owner)
        self._by_text.drop_if(lambda key, _: key[0] == owner)


def _head(owner: str, name: str, blob: bytes | None) -> _Head | None:
    """What is stored as a prompt's head; what is none is as good as gone."""
    return None if blob is None else decoded(blob, _Head, f"{redis_keys.prompts(owner)} {name}")


def _indexes(owner: str, blobs: Sequence[bytes]) -> builtins.list[PromptIndex]:
    """Those among what is stored as an owner's."""
    place = redis_keys.prompt_index(owner, "*")
    return [index for blob in blobs if (index := decoded(blob, PromptIndex, place)) is not None]


def _check_text(text: str) -> None:
    if not text:
        raise InvalidField("text", "must not be empty")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidField("text", "is not valid Unicode") from None
    if size > MAX_TEXT_BYTES:
        raise InvalidField("text", f"{size} bytes, more than {MAX_TEXT_BYTES}")


def _prompt(name: str, version: int, body: PromptText, head: _Head) -> SystemPrompt:
    return SystemPrompt(
        name=name,
        version=version,
        text=body.text,
        created_at=body.created_at,
        active=version == head.active,
        pinned=head.pinned,
        adapter=body.adapter,
    )


def _document(head: _Head | None) -> audit.Document | None:
    if head is None or head.active is None:
        return None
    return {"active_version": head.active, "last_version": head.last, "pinned": head.pinned}
