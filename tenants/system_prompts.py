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
from tenants.connection import GuardedRedis, Script
from tenants.errors import (
    InvalidField,
    MissingVariable,
    PromptNotFound,
    TenantNotFound,
    UnknownVariable,
)
from tenants.records import Change, PromptIndex, SystemPrompt, Tenant, check_prompt_name
from tenants.store import CACHE_SECONDS, STALE_SECONDS

MAX_TEXT_BYTES = 1 << 20
_FINGERPRINT_BYTES = 16
_PLACEHOLDER = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")

_index_decoder = msgspec.msgpack.Decoder(PromptIndex)

# KEYS: meta, prompt, versions, names, text. ARGV: name, text, time, the channel, the notice.
# Gives the version and whether it is new. A text that is current already stays the current version.
_PUT = Script("""
if redis.call('EXISTS', KEYS[1]) == 0 then return {-1, 0} end
local current = redis.call('HGET', KEYS[3], ARGV[1])
if current and redis.call('HEXISTS', KEYS[2], current) == 1
   and redis.call('SISMEMBER', KEYS[5], ARGV[1] .. ':' .. current) == 1 then
  return {tonumber(current), 0}
end
local version = redis.call('HINCRBY', KEYS[3], ARGV[1], 1)
redis.call('HSET', KEYS[2], version, cmsgpack.pack({text = ARGV[2], created_at = ARGV[3]}))
redis.call('SADD', KEYS[4], ARGV[1])
redis.call('SADD', KEYS[5], ARGV[1] .. ':' .. version)
redis.call('PUBLISH', ARGV[4], ARGV[5])
return {version, 1}
""")

# KEYS: prompt, index. ARGV: version, field, the index.
_SAVE_INDEX = Script("""
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
return 1
""")


class _Stored(msgspec.Struct, frozen=True):
    text: str
    created_at: str


_stored_decoder = msgspec.msgpack.Decoder(_Stored)
