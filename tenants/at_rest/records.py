"""What says who is who, as Redis holds it: sealed under the pepper, each record for its own place.

Who can write to Redis can delete such a record, or bring back an earlier one of the same owner, and
nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from tenants import redis_keys
from tenants.at_rest.pepper import Peppers
from tenants.errors import PepperMismatch, SealBroken, SealError, SealUnknown
from tenants.records import ApiKey, ShareGroup, Tenant

_log = logging.getLogger(__name__)
Record = TypeVar("Record", Tenant, ShareGroup)
T = TypeVar("T")
Content = TypeVar("Content")
_tenant_decoder = msgspec.msgpack.Decoder(Tenant)
_group_decoder = msgspec.msgpack.Decoder(ShareGroup)
_keys_decoder = msgspec.msgpack.Decoder(list[ApiKey])


def decoded(content: bytes, kind: type[Content], name: str) -> Content | None:
    """The content of the record of that name; `None` where it is of no such kind.

    One in clear may be anything, and one of another kind may be sealed for the same place. That is
    as good as gone, and the log says so.
    """
    try:
        return msgspec.msgpack.decode(content, type=kind)
    except (msgspec.DecodeError, ValueError) as error:
        _log.error("a stored record is not read: %s is no %s: %s", name, kind.__name__, error)
        return None


def unless_altered(read: Callable[[str, bytes], T], record_id: str, blob: bytes | None) -> T | None:
    """What `read` makes of one record of several, if it is there: one that it cannot read is told
    to the log, and must not keep the others from being served."""
    try:
        return None if blob is None else read(record_id, blob)
    except SealError as error:
        _log.error("a stored record is not read: %s", error)
        return None


class SealedRecords:
    """Reads and writes tenants, share groups and tenants' lists of API keys.

    To read raises `PepperMismatch` for what an unknown pepper has sealed, and `SealBroken` for what
    was altered, is another's, or is in clear.
    """

    def __init__(self, peppers: Peppers) -> None:
        self._sealer = peppers.sealer

    def encode(self, record: Tenant | ShareGroup) -> bytes:
        """A record as it is stored."""
        content = msgspec.msgpack.encode(record)
        return self._sealer.seal(content, redis_keys.meta(record.owner))

    def tenant(self, tenant_id: str, blob: bytes) -> Tenant:
        """The tenant that is stored under this id."""
        return self._owner(_tenant_decoder, tenant_id, blob)

    def group(self, group_id: str, blob: bytes) -> ShareGroup:
        """The share group that is stored under this id."""
        return self._owner(_group_decoder, f"@{group_id}", blob)

    def of_owner(self, owner: str, blob: bytes) -> Tenant | ShareGroup:
        """The tenant, or the group, that is stored under this owner's name."""
        if owner.startswith("@"):
            return self.group(owner.removeprefix("@"), blob)
        return self.tenant(owner, blob)

    def encode_keys(self, tenant: Tenant, keys: Sequence[ApiKey]) -> bytes:
        """A list as it is stored: of no other tenant, and of none that has the id later."""
        content = msgspec.msgpack.encode(keys)
        return self._sealer.seal(content, redis_keys.keys(tenant.id), tenant.generation)

    def keys(self, tenant: Tenant, blob: bytes | None) -> list[ApiKey]:
        """The list that is stored as a tenant's."""
        if blob is None:
            return []
        place = redis_keys.keys(tenant.id)
        keys = self._content(_keys_decoder, blob, tenant.id, place, tenant.generation)
        if any(key.tenant_id != tenant.id for key in keys):
            raise SealBroken((place,))
        return keys

    def is_current(self, blob: bytes) -> bool:
        """Whether the newest pepper seals a stored tenant, group or list."""
        return self._sealer.is_newest(blob)

    def _owner(self, decoder: msgspec.msgpack.Decoder[Record], owner: str, blob: bytes) -> Record:
        place = redis_keys.meta(owner)
        record = self._content(decoder, blob, owner, place)
        if record.owner != owner:
            raise SealBroken((place,))
        return record

    def _content(
        self, decoder: msgspec.msgpack.Decoder[T], sealed: bytes, owner: str, *place: str
    ) -> T:
        try:
            return decoder.decode(self._sealer.open(sealed, *place))
        except SealUnknown as error:
            raise PepperMismatch(f"a record of {owner!r}") from error
        except (msgspec.DecodeError, ValueError) as error:
            raise SealBroken(place) from error
