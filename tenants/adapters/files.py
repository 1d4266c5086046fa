"""The files of adapters: encrypted pieces of bounded size, which nobody finds before all are there.

Number 0 is the configuration, the others are the weights. While they come they expire, and so they
are gone when whoever sends them is; what makes an adapter of them makes them stay.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from typing import Final

from tenants import redis_keys
from tenants.at_rest.sealer import PIECE_BYTES
from tenants.errors import AdapterNotFound, StoreConflict, StoreUnavailable
from tenants.keyring import Keyring
from tenants.owners import not_found
from tenants.records import AdapterRecord
from tenants.storage.commits import Check, commit_if, exists, holds
from tenants.storage.connection import Command, GuardedRedis

_SILENCE_SECONDS: Final = 300
"""After so long without a piece somebody else may begin."""
_UPLOAD_SECONDS: Final = 3600
"""How long a piece waits for the rest."""
_KEYS_AT_ONCE: Final = 500
_NAME_BYTES: Final = 16


class Upload:
    """An adapter's files as they come, of one owner; no others come of it meanwhile."""

    def __init__(self, redis: GuardedRedis, keyring: Keyring, owner: str) -> None:
        self._redis = redis
        self._keyring = keyring
        self._owner = owner
        self._lock = redis_keys.adapter_upload(owner)
        self.files = secrets.token_hex(_NAME_BYTES)
        self.pieces = 0

    async def begin(self) -> None:
        """Raises `TenantNotFound`, `GroupNotFound`, and `StoreConflict` while others come."""
        taken: Command = ("SET", self._lock, self.files, "NX", "EX", _SILENCE_SECONDS)
        is_there = exists(redis_keys.meta(self._owner))
        if not await commit_if(self._redis, [is_there], [taken]):
            raise not_found(self._owner)
        if await self._redis.execute("GET", self._lock) != self.files.encode():
            raise StoreConflict(f"another adapter of {self._owner!r} is being put; try again later")

    async def add(self, piece: bytes) -> None:
        """Keep the next `PIECE_BYTES`, or fewer. Raises `StoreConflict` for one that is too late,
        and where the owner was deleted meanwhile.
        """
        assert len(piece) <= PIECE_BYTES
        key = redis_keys.adapter_piece(self._owner, self.files, self.pieces)
        sealed = await self._keyring.seal(self._owner, piece, key)
        if sealed is None:
            raise not_found(self._owner)
        written: list[Command] = [
            ("SET", key, sealed, "EX", _UPLOAD_SECONDS),
            ("EXPIRE", self._lock, _SILENCE_SECONDS),
        ]
        self.pieces += 1
        if not await commit_if(self._redis, [self._is_ours], written):
            raise _too_late()

    def keeping(self) -> tuple[list[Check], list[Command]]:
        """What must still be so for all pieces to stay, and what makes them."""
        keys = piece_keys(self._owner, self.files, self.pieces)
        there: list[Check] = [
            (("EXISTS", *some), str(len(some)).encode()) for some in _batches(keys)
        ]
        stay: list[Command] = [("PERSIST", key) for key in keys]
        return [self._is_ours, *there], [*stay, ("DEL", self._lock)]

    async def require(self) -> None:
        """Raises `StoreConflict` unless all pieces are there that came."""
        if not await commit_if(self._redis, self.keeping()[0], []):
            raise _too_late()

    async def end(self) -> None:
        """Remove the pieces, unless they stay by now."""
        keys = piece_keys(self._owner, self.files, self.pieces)
        gone = [*unlinking(keys), ("DEL", self._lock)]
        with contextlib.suppress(StoreUnavailable):  # they expire
            await commit_if(self._redis, [self._is_ours], gone)

    @property
    def _is_ours(self) -> Check:
        return holds(self._lock, self.files.encode())


def _too_late() -> StoreConflict:
    return StoreConflict("the files took too long to come, or their owner is gone")


class AdapterFiles:
    """The files of all owners' adapters. Raises `StoreUnavailable` while Redis is down."""

    def __init__(self, redis: GuardedRedis, keyring: Keyring) -> None:
        self._redis = redis
        self._keyring = keyring

    @contextlib.asynccontextmanager
    async def uploading(self, owner: str) -> AsyncIterator[Upload]:
        """Files that come within the block. Raises what `Upload.begin` raises."""
        upload = Upload(self._redis, self._keyring, owner)
        await upload.begin()
        try:
            yield upload
        finally:
            await upload.end()

    async def config(self, adapter: AdapterRecord) -> bytes:
        """The bytes of `adapter_config.json`. Raises `AdapterNotFound` where it was deleted."""
        return await self._piece(adapter, 0)

    async def tensors(self, adapter: AdapterRecord) -> AsyncIterator[bytes]:
        """The bytes of `adapter_model.safetensors`, `PIECE_BYTES` at a time.

        Raises `AdapterNotFound`, also on the way, where it was deleted.
        """
        for number in range(1, adapter.pieces):
            yield await self._piece(adapter, number)

    async def _piece(self, adapter: AdapterRecord, number: int) -> bytes:
        key = redis_keys.adapter_piece(adapter.owner, adapter.files, number)
        blob = await self._redis.execute("GET", key)
        piece = None if blob is None else await self._keyring.open(adapter.owner, blob, key)
        if piece is None:
            raise AdapterNotFound(adapter.name, adapter.version)
        return piece


def piece_keys(owner: str, files: str, count: int) -> list[str]:
    """Where the pieces lie."""
    return [redis_keys.adapter_piece(owner, files, number) for number in range(count)]


def unlinking(keys: Sequence[str]) -> list[Command]:
    """What removes them."""
    return [("UNLINK", *some) for some in _batches(keys)]


async def in_pieces(chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """What comes, in pieces of `PIECE_BYTES`, the last one perhaps shorter."""
    waiting = bytearray()
    async for chunk in chunks:
        waiting += chunk
        while len(waiting) >= PIECE_BYTES:
            yield bytes(waiting[:PIECE_BYTES])
            del waiting[:PIECE_BYTES]
    if waiting:
        yield bytes(waiting)


def _batches(keys: Sequence[str]) -> list[Sequence[str]]:
    """A script takes so many words of a command, and not many more."""
    return [keys[at : at + _KEYS_AT_ONCE] for at in range(0, len(keys), _KEYS_AT_ONCE)]
