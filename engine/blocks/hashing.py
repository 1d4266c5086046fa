"""Block hashes: a keyed BLAKE2b chain over full blocks.

`hash(block) = BLAKE2b(key = namespace key, parent hash || extras || token ids)`. The hash is keyed
and cryptographic because a tenant chooses its own tokens: a collision would show it a neighbour's
text.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

from engine.api import Namespaces

HASH_BYTES = 16
KEY_BYTES = 32


def derive_key(secret: bytes, *labels: str) -> bytes:
    """A namespace key for `labels` under `secret`.

    Every label is length-prefixed, so that ("ab", "c") and ("a", "bc") give different keys.
    """
    digest = blake2b(key=secret, digest_size=KEY_BYTES)
    for label in labels:
        data = label.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()


def extras_for(extras: bytes, rotary_switch: int | None, num_tokens: int) -> bytes:
    """The `extras` of a sequence of `num_tokens`: longer than `rotary_switch` it has other KV."""
    is_long = rotary_switch is not None and num_tokens > rotary_switch
    return extras + b" long" if is_long else extras


def block_key(namespaces: Namespaces, index: int, block_size: int) -> bytes:
    """The namespace key of a sequence's block number `index`.

    A block that straddles the border `namespaces.shared_tokens` belongs to what follows.
    """
    shared = index < namespaces.shared_tokens // block_size
    return namespaces.shared_key if shared else namespaces.private_key


def parent_hash(hashes: Sequence[bytes], index: int) -> bytes:
    """The hash of the block before number `index` of a chain with these `hashes`."""
    return hashes[index - 1] if index else bytes(HASH_BYTES)


def extend_block_hashes(
    hashes: list[bytes],
    token_ids: Sequence[int],
    block_size: int,
    namespaces: Namespaces,
    extras: bytes = b"",
    most: int | None = None,
) -> None:
    """Append to `hashes` the hash of every full block of `token_ids` that it does not hold yet.

    Only of `most` more blocks, if that is given.
    """
    first = len(hashes)
    end = None if most is None else (first + most) * block_size
    packed = array("I", token_ids[first * block_size : end]).tobytes()
    width = block_size * 4
    prefix = len(extras).to_bytes(8, "little") + extras
    parent = parent_hash(hashes, first)
    # A hash that has taken in its key is copied in a third of the time of a new one.
    keyed = {
        key: blake2b(key=key, digest_size=HASH_BYTES)
        for key in (namespaces.shared_key, namespaces.private_key)
    }
    for index, start in enumerate(range(0, len(packed) - width + 1, width), first):
        digest = keyed[block_key(namespaces, index, block_size)].copy()
        digest.update(parent + prefix + packed[start : start + width])
        parent = digest.digest()
        hashes.append(parent)


def tail_hash(
    hashes: Sequence[bytes],
    token_ids: Sequence[int],
    block_size: int,
    namespaces: Namespaces,
    extras: bytes = b"",
) -> bytes:
    """The hash of the partly filled block behind the full ones of `token_ids`, which have `hashes`.

    It differs from that of every full block, whose tokens are more.
    """
    index = len(token_ids) // block_size
    prefix = len(extras).to_bytes(8, "little") + extras
    packed = array("I", token_ids[index * block_size :]).tobytes()
    key = block_key(namespaces, index, block_size)
    data = parent_hash(hashes, index) + prefix + packed
    return blake2b(data, key=key, digest_size=HASH_BYTES).digest()


def block_hashes(
    token_ids: Sequence[int], block_size: int, namespaces: Namespaces, extras: bytes = b""
) -> list[bytes]:
    """The hashes of all full blocks of `token_ids`."""
    hashes: list[bytes] = []
    extend_block_hashes(hashes, token_ids, block_size, namespaces, extras)
    return hashes
