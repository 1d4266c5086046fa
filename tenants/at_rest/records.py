"""Tenants and share groups as Redis holds them: their namespace secrets wrapped by the pepper."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from tenants.errors import PepperMismatch, SealBroken, SealUnknown
from tenants.pepper import Peppers
from tenants.records import SECRET_BYTES, FormerSecret, ShareGroup, Tenant

_log = logging.getLogger(__name__)
Record = TypeVar("Record", Tenant, ShareGroup)
_tenant_decoder = msgspec.msgpack.Decoder(Tenant)
_group_decoder = msgspec.msgpack.Decoder(ShareGroup)


def unless_altered(
    read: Callable[[str, bytes], Record], record_id: str, blob: bytes
) -> Record | None:
    """What `read` makes of one record of several: one that was altered is told to the log, and must
    not keep the others from being served."""
    try:
        return read(record_id, blob)
    except SealBroken as error:
        _log.error("left out of a list: %s", error)
        return None


class WrappedRecords:
    """Reads and writes records; each secret in them is bound to its owner.

    To read raises `PepperMismatch` for a secret that an unknown pepper wraps, and `SealBroken` for
    one that was altered, or is another owner's.
    """

    def __init__(self, peppers: Peppers) -> None:
        self._sealer = peppers.sealer

    def encode(self, record: Tenant | ShareGroup) -> bytes:
        """A record as it is stored."""
        wrapped = replace(
            record,
            namespace_secret=self._sealer.seal(record.namespace_secret, record.owner),
            former_secrets=tuple(
                replace(one, secret=self._sealer.seal(one.secret, record.owner))
                for one in record.former_secrets
            ),
        )
        return msgspec.msgpack.encode(wrapped)

    def tenant(self, tenant_id: str, blob: bytes) -> Tenant:
        """The tenant that is stored under this id."""
        return self._unwrapped(tenant_id, _decoded(_tenant_decoder, tenant_id, blob))

    def group(self, group_id: str, blob: bytes) -> ShareGroup:
        """The share group that is stored under this id."""
        owner = f"@{group_id}"
        return self._unwrapped(owner, _decoded(_group_decoder, owner, blob))

    def of_owner(self, owner: str, blob: bytes) -> Tenant | ShareGroup:
        """The tenant, or the group, that is stored under this owner's name."""
        if owner.startswith("@"):
            return self.group(owner.removeprefix("@"), blob)
        return self.tenant(owner, blob)

    def is_current(self, owner: str, blob: bytes) -> bool:
        """Whether the newest pepper wraps all secrets of a stored record."""
        decoder = _group_decoder if owner.startswith("@") else _tenant_decoder
        record = decoder.decode(blob)
        wrapped = [record.namespace_secret, *(one.secret for one in record.former_secrets)]
        return all(map(self._sealer.is_newest, wrapped))

    def _unwrapped(self, owner: str, record: Record) -> Record:
        if record.owner != owner:
            raise SealBroken((owner,))

        def unwrapped(secret: bytes) -> bytes:
            try:
                opened = self._sealer.open(secret, owner)
            except SealUnknown as error:
                raise PepperMismatch(f"the secret of {owner!r}") from error
            if len(opened) != SECRET_BYTES:
                raise SealBroken((owner,))
            return opened

        former = tuple(
            FormerSecret(secret=unwrapped(one.secret), replaced_at=one.replaced_at)
            for one in record.former_secrets
        )
        secret = unwrapped(record.namespace_secret)
        return replace(record, namespace_secret=secret, former_secrets=former)


def _decoded(decoder: msgspec.msgpack.Decoder[Record], owner: str, blob: bytes) -> Record:
    try:
        return decoder.decode(blob)
    except (msgspec.DecodeError, ValueError) as error:
        raise SealBroken((owner,)) from error
