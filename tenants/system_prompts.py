"""Registered system prompts: versions, look-up by text, and the index of their KV blocks."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Mapping, Sequence
from hashlib import blake2b, sha256

import msgspec

from engine.hashing import block_hashes
from engine.request import EngineInfo, Namespaces
from tenants import changes, keyspace
from tenants.cache import ReadThroughCache
from tenants.connection import Command, GuardedRedis, Script
from tenants.errors import (
    InvalidField,
    MissingVariable,
    PromptNotFound,
    TenantNotFound,
    UnknownVariable,
)
from tenants.records import (
    Change,
    PromptIndex,
    SystemPrompt,
    Tenant,
    check_prompt_name,
    is_prompt_name,
)
from tenants.store import CACHE_SECONDS, STALE_SECONDS

MAX_TEXT_BYTES = 1 << 20
_FINGERPRINT_BYTES = 16
_VERSION = re.compile(r"[1-9][0-9]{0,14}")
_PLACEHOLDER = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")

_index_decoder = msgspec.msgpack.Decoder(PromptIndex)

# KEYS: meta, prompt, versions, names, text. ARGV: name, the body, the channel, the notice.
# Gives the version. A text that is current already stays the current version.
_PUT = Script("""
if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
local current = redis.call('HGET', KEYS[3], ARGV[1])
if current and redis.call('HEXISTS', KEYS[2], current) == 1
   and redis.call('SISMEMBER', KEYS[5], ARGV[1] .. ':' .. current) == 1 then
  return tonumber(current)
end
local version = redis.call('HINCRBY', KEYS[3], ARGV[1], 1)
redis.call('HSET', KEYS[2], version, ARGV[2])
redis.call('SADD', KEYS[4], ARGV[1])
redis.call('SADD', KEYS[5], ARGV[1] .. ':' .. version)
redis.call('PUBLISH', ARGV[3], ARGV[4])
return version
""")

# KEYS: prompt, index. ARGV: version, field, the index.
_SAVE_INDEX = Script("""
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
return 1
""")


class _Body(msgspec.Struct, frozen=True):
    """A version as Redis holds it; name and version are where it lies."""

    text: str
    created_at: float


_body_decoder = msgspec.msgpack.Decoder(_Body)


class SystemPrompts:
    """System prompts of all tenants over one Redis.

    Everything raises `StoreUnavailable` while it is down, but for what `get` and `find_by_text`
    found or missed in the last `stale_seconds`. A version's number is never used twice, even for a
    prompt that was deleted and put again.
    """

    def __init__(
        self,
        redis: GuardedRedis,
        *,
        cache_seconds: float = CACHE_SECONDS,
        stale_seconds: float = STALE_SECONDS,
    ) -> None:
        self._redis = redis
        # Keys: (tenant id, name, version or "") and (tenant id, SHA-256 of the text).
        self._by_name: ReadThroughCache[tuple[str, str, str], SystemPrompt] = ReadThroughCache(
            cache_seconds, stale_seconds, keep_missing=True
        )
        self._by_text: ReadThroughCache[tuple[str, bytes], SystemPrompt] = ReadThroughCache(
            cache_seconds, stale_seconds, keep_missing=True
        )
        redis.add_listener(self._on_change)

    async def put(self, tenant_id: str, name: str, text: str) -> SystemPrompt:
        """Register `text` as the newest version of prompt `name`.

        A text equal to the newest version's changes nothing and returns that version.
        Raises `InvalidField` ("name", "text"), `TenantNotFound`.
        """
        check_prompt_name(name)
        digest = _text_digest(_checked(text))
        change = Change(kind="prompts", tenant_id=tenant_id, name=name)
        version = await self._redis.run_script(
            _PUT,
            [
                keyspace.meta(tenant_id),
                keyspace.prompt(tenant_id, name),
                keyspace.prompt_versions(tenant_id),
                keyspace.prompts(tenant_id),
                keyspace.prompt_text(tenant_id, digest),
            ],
            [
                name,
                msgspec.msgpack.encode(_Body(text, time.time())),
                keyspace.CHANGES,
                changes.encode(change),
            ],
        )
        if version < 0:
            raise TenantNotFound(tenant_id)
        self._redis.notify(change)
        prompt = await self._load(tenant_id, name, str(version))
        if prompt is None:  # deleted by somebody else in this moment
            raise PromptNotFound(name, version)
        return prompt

    async def get(
        self, tenant_id: str, name: str, version: int | str | None = None
    ) -> SystemPrompt | None:
        """A version of a prompt (the newest, unless told otherwise), or `None`."""
        wanted = "" if version is None else str(version)
        possible = version is None or _VERSION.fullmatch(wanted) is not None
        if not (possible and is_prompt_name(name)):
            return None
        load = functools.partial(self._load, tenant_id, name, wanted)
        return await self._by_name.get((tenant_id, name, wanted), load)

    async def list(self, tenant_id: str) -> list[SystemPrompt]:
        """The newest version of each of a tenant's prompts, by name."""
        members = await self._redis.execute("SMEMBERS", keyspace.prompts(tenant_id))
        names = sorted(member.decode() for member in members)
        hashes = await self._redis.pipeline(
            *(("HGETALL", keyspace.prompt(tenant_id, name)) for name in names)
        )
        found = [_newest(name, bodies) for name, bodies in zip(names, hashes, strict=True)]
        return [prompt for prompt in found if prompt is not None]

    async def delete(self, tenant_id: str, name: str) -> None:
        """Remove a prompt in all its versions, and their index. Raises `PromptNotFound`."""
        if not is_prompt_name(name):
            raise PromptNotFound(name)
        bodies = await self._redis.execute("HGETALL", keyspace.prompt(tenant_id, name))
        change = Change(kind="prompts", tenant_id=tenant_id, name=name)
        removed, *_ = await self._redis.transaction(
            ("DEL", keyspace.prompt(tenant_id, name)),
            ("DEL", keyspace.prompt_index(tenant_id, name)),
            ("SREM", keyspace.prompts(tenant_id), name),
            *(_forget_text(tenant_id, name, version, body) for version, body in bodies.items()),
            changes.publication(change),
        )
        if not removed:
            raise PromptNotFound(name)
        self._redis.notify(change)

    async def find_by_text(self, tenant_id: str, text: str) -> SystemPrompt | None:
        """A live version whose text is exactly `text`, or `None`."""
        digest = _text_digest(text)
        load = functools.partial(self._load_by_text, tenant_id, text, digest)
        return await self._by_text.get((tenant_id, digest), load)

    async def save_index(self, tenant_id: str, index: PromptIndex) -> None:
        """Keep the index of a prompt version. Raises `PromptNotFound` if it was deleted since."""
        saved = await self._redis.run_script(
            _SAVE_INDEX,
            [
                keyspace.prompt(tenant_id, index.name),
                keyspace.prompt_index(tenant_id, index.name),
            ],
            [
                index.version,
                _index_field(index.version, index.engine),
                msgspec.msgpack.encode(index),
            ],
        )
        if not saved:
            raise PromptNotFound(index.name, index.version)

    async def load_index(
        self, tenant_id: str, name: str, version: int, engine: str
    ) -> PromptIndex | None:
        """The index of a prompt version for the engine with this fingerprint, or `None`."""
        blob = await self._redis.execute(
            "HGET", keyspace.prompt_index(tenant_id, name), _index_field(version, engine)
        )
        return None if blob is None else _index_decoder.decode(blob)

    async def newest_index(self, tenant_id: str, prompt: SystemPrompt) -> PromptIndex | None:
        """The index of a prompt version that was saved last, whatever the engine, or `None`."""
        blobs = await self._redis.execute("HVALS", keyspace.prompt_index(tenant_id, prompt.name))
        indexes = [_index_decoder.decode(blob) for blob in blobs]
        ours = [index for index in indexes if index.version == prompt.version]
        return max(ours, key=lambda index: index.warmed_at, default=None)

    async def _load(self, tenant_id: str, name: str, version: str) -> SystemPrompt | None:
        key = keyspace.prompt(tenant_id, name)
        if not version:
            return _newest(name, await self._redis.execute("HGETALL", key))
        body = await self._redis.execute("HGET", key, version)
        return None if body is None else _decode(name, int(version), body)

    async def _load_by_text(self, tenant_id: str, text: str, digest: bytes) -> SystemPrompt | None:
        members = await self._redis.execute("SMEMBERS", keyspace.prompt_text(tenant_id, digest))
        # Several prompts may share one text; the order makes all replicas pick the same.
        for member in sorted(members):
            name, _, version = member.decode().rpartition(":")
            prompt = await self._load(tenant_id, name, version)
            if prompt is not None and prompt.text == text:
                return prompt
        return None

    def _on_change(self, change: Change) -> None:
        if change.kind == "resync":
            self._by_name.expire()
            self._by_text.expire()
        elif change.kind in ("tenant", "prompts"):
            self._by_name.drop_if(lambda key, _: key[0] == change.tenant_id)
            self._by_text.drop_if(lambda key, _: key[0] == change.tenant_id)


def variables(text: str) -> list[str]:
    """Names of the placeholders `{{name}}` in `text`, each once, in order of appearance."""
    return list(dict.fromkeys(_PLACEHOLDER.findall(text)))


def render(text: str, values: Mapping[str, str]) -> str:
    """`text` with a value for every placeholder; values are not looked into for placeholders.

    Raises `MissingVariable` or `UnknownVariable`, which name the variable.
    """
    expected = variables(text)
    for name in expected:
        if name not in values:
            raise MissingVariable(name)
    for name in values:
        if name not in expected:
            raise UnknownVariable(name)
    return _PLACEHOLDER.sub(lambda match: values[match[1]], text)


def static_head(text: str) -> str:
    """What comes before the first placeholder: the same in every rendering."""
    match = _PLACEHOLDER.search(text)
    return text if match is None else text[: match.start()]


def engine_fingerprint(info: EngineInfo) -> str:
    """What a block hash depends on besides tenant and tokens: weights, dtype, block size."""
    data = info.block_size.to_bytes(8, "little") + info.hash_extras
    return blake2b(data, digest_size=_FINGERPRINT_BYTES).hexdigest()


def index_prompt(
    tenant: Tenant,
    prompt: SystemPrompt,
    token_ids: Sequence[int],
    info: EngineInfo,
    warmed_at: float,
) -> PromptIndex:
    """The full blocks of a prompt, `token_ids` long, in its tenant's namespace."""
    key = tenant.namespace_key
    namespaces = Namespaces(shared_key=key, private_key=key, shared_tokens=len(token_ids))
    return PromptIndex(
        name=prompt.name,
        version=prompt.version,
        engine=engine_fingerprint(info),
        token_count=len(token_ids),
        block_hashes=block_hashes(token_ids, info.block_size, namespaces, info.hash_extras),
        warmed_at=warmed_at,
    )


def _checked(text: str) -> str:
    if not text:
        raise InvalidField("text", "must not be empty")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidField("text", "is not valid Unicode") from None
    if size > MAX_TEXT_BYTES:
        raise InvalidField("text", f"{size} bytes, more than {MAX_TEXT_BYTES}")
    return text


def _text_digest(text: str) -> bytes:
    # A lone surrogate cannot be in a registered text; it must not fail a look-up either.
    return sha256(text.encode(errors="surrogatepass")).digest()


def _decode(name: str, version: int, body: bytes) -> SystemPrompt:
    stored = _body_decoder.decode(body)
    return SystemPrompt(name=name, version=version, text=stored.text, created_at=stored.created_at)


def _newest(name: str, bodies: Mapping[bytes, bytes]) -> SystemPrompt | None:
    if not bodies:
        return None
    version = max(bodies, key=int)
    return _decode(name, int(version), bodies[version])


def _forget_text(tenant_id: str, name: str, version: bytes, body: bytes) -> Command:
    digest = _text_digest(_body_decoder.decode(body).text)
    return ("SREM", keyspace.prompt_text(tenant_id, digest), f"{name}:{int(version)}")


def _index_field(version: int, engine: str) -> str:
    return f"{version}:{engine}"
