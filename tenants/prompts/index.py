"""The index of a system prompt: the hashes of its KV blocks, as one kind of engine makes them."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from engine.api import EngineInfo, Namespaces
from engine.blocks.hashing import block_hashes, extras_for
from tenants.records import PromptIndex, SystemPrompt

_FINGERPRINT_BYTES = 16


def engine_fingerprint(info: EngineInfo) -> str:
    """What a block hash depends on besides tenant and tokens: weights, dtype, block size."""
    data = info.block_size.to_bytes(8, "little") + info.hash_extras
    return blake2b(data, digest_size=_FINGERPRINT_BYTES).hexdigest()


def index_prompt(
    namespace_key: bytes,
    prompt: SystemPrompt,
    token_ids: Sequence[int],
    info: EngineInfo,
    warmed_at: float,
) -> PromptIndex:
    """The full blocks of a prompt, `token_ids` long, in the namespace of its owner."""
    namespaces = Namespaces(
        shared_key=namespace_key, private_key=namespace_key, shared_tokens=len(token_ids)
    )
    extras = extras_for(info.hash_extras, info.rotary_switch, len(token_ids), None)
    return PromptIndex(
        name=prompt.name,
        version=prompt.version,
        engine=engine_fingerprint(info),
        token_count=len(token_ids),
        block_hashes=block_hashes(token_ids, info.block_size, namespaces, extras),
        warmed_at=warmed_at,
    )
