"""Block hashes: a keyed BLAKE2b chain over full blocks.

`hash(block) = BLAKE2b(key = namespace key, parent hash || extras || token ids)`. The hash is keyed
and cryptographic because a tenant chooses its own tokens: a collision would show it a neighbour's
text.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from engine.api import AdapterUse, Namespaces, PictureUse

HASH_BYTES = 16
KEY_BYTES = 32


class Extras(NamedTuple):
    """What KV depends on besides tokens."""

    always: bytes = b""
    acting: bytes = b""
    """Beside that, in blocks with a token from `start` on."""
    start: int = 0
    pictures: tuple[PictureUse, ...] = ()
    """In blocks that show some of them: which, and where they lie."""

    def of(self, index: int, block_size: int) -> bytes:
        """Those of block number `index`."""
        start, end = index * block_size, (index + 1) * block_size
        extras = self.always + self.acting if end > self.start else self.always
        for one in self.pictures:
            if one.start < end and start < one.end:
                place = (one.start - start).to_bytes(8, "little", signed=True)
                extras += one.name + place + one.count.to_bytes(8, "little")
        return extras

    def at_places(self, block_size: int) -> set[int]:
        """The numbers of blocks that have extras of their own."""
        return {
            index
            for one in self.pictures
            for index in range(one.start // block_size, -(-one.end // block_size))
        }


NO_EXTRAS: Final = Extras()


def derive_key(secret: bytes, *labels: str) -> bytes:
    """A namespace key for `labels` under `secret`.

    Every label is length-prefixed, so that ("ab", "c") and ("a", "bc") give different keys.
    """
    digest = blake2b(key=secret, digest_size=KEY_BYTES)
    for label in labels:
        data = label.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()


def extras_for(
    always: bytes,
    rotary_switch: int | None,
    num_tokens: int,
    adapter: AdapterUse | None = None,
    pictures: tuple[PictureUse, ...] = (),
) -> Extras:
    """Those of a sequence of `num_tokens`: longer than `rotary_switch` it has other KV. So it has
    where an `adapter` acts, and none in common with one that it acts on elsewhere, and where it
    shows `pictures`.
    """
    is_long = rotary_switch is not None and num_tokens > rotary_switch
    always = always + b" long" if is_long else always
    if adapter is None:
        return Extras(always, pictures=pictures)
    acting = adapter.name + adapter.start.to_bytes(8, "little")
    return Extras(always, acting, adapter.start, pictures)


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
    extras: Extras = NO_EXTRAS,
    most: int | None = None,
) -> None:
    """Append to `hashes` the hash of every full block of `token_ids` that it does not hold yet.

    Only of `most` more blocks, if that is given.
    """
    first = len(hashes)
    end = None if most is None else (first + most) * block_size
    packed = array("I", token_ids[first * block_size : end]).tobytes()
    width = block_size * 4
    prefixes = _prefix(extras.always), _prefix(extras.always + extras.acting)
    apart = extras.at_places(block_size)
    parent = parent_hash(hashes, first)
    # A hash that has taken in its key is copied in a third of the time of a new one.
    keyed = {
        key: blake2b(key=key, digest_size=HASH_BYTES)
        for key in (namespaces.shared_key, namespaces.private_key)
    }
    for index, start in enumerate(range(0, len(packed) - width + 1, width), first):
        digest = keyed[block_key(namespaces, index, block_size)].copy()
        if index in apart:
            prefix = _prefix(extras.of(index, block_size))
        else:
            prefix = prefixes[(index + 1) * block_size > extras.start]
        digest.update(parent + prefix + packed[start : start + width])
        parent = digest.digest()
        hashes.append(parent)


def tail_hash(
    hashes: Sequence[bytes],
    token_ids: Sequence[int],
    block_size: int,
    namespaces: Namespaces,
    extras: Extras = NO_EXTRAS,
) -> bytes:
    """The hash of the partly filled block behind the full ones of `token_ids`, which have `hashes`.

    It differs from that of every full block, whose tokens are more.
    """
    index = len(token_ids) // block_size
    packed = array("I", token_ids[index * block_size :]).tobytes()
    key = block_key(namespaces, index, block_size)
    data = parent_hash(hashes, index) + _prefix(extras.of(index, block_size)) + packed
    return blake2b(data, key=key, digest_size=HASH_BYTES).digest()


def block_hashes(
    token_ids: Sequence[int], block_size: int, namespaces: Namespaces, extras: Extras = NO_EXTRAS
) -> list[bytes]:
    """The hashes of all full blocks of `token_ids`."""
    hashes: list[bytes] = []
    extend_block_hashes(hashes, token_ids, block_size, namespaces, extras)
    return hashes


def _prefix(extras: bytes) -> bytes:
    return len(extras).to_bytes(8, "little") + extras
