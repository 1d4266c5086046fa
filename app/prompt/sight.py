"""Pictures looked at, before prompts are made of what is said with them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import Final, Protocol

from app.pictures.fetching import Fetcher
from app.pictures.picture import BadPicture, Detail, Look
from app.pictures.sources import from_data_url
from app.recent import Recent
from app.transport.bodies import Intake
from app.transport.bounds import INLINE_BYTES
from app.wire.errors import ApiError, file_not_found, invalid_request
from app.wire.functions import Message, Picture, pictures_in
from app.workers import Workers
from engine.api import PictureHeader
from tenants.errors import FileGone
from tenants.records import Tenant, TenantLimits
from tenants.stored.files import FileRecord, StoredFiles

_CODE: Final = "invalid_image"
_MOST_KNOWN_TOKENS: Final = 1_000_000
_DIGEST_BYTES: Final = 32
Space = tuple[bytes, str, str]
"""Those who may share what was seen: a tenant's key, its end user, and the key of the cache."""


class Eyes(Protocol):
    """What looks at pictures, see `app.pictures.eyes`."""

    async def look(self, tenant: str, data: bytes, detail: Detail = "auto") -> Look:
        """What is known of the picture in a file's bytes. Raises `BadPicture`."""
        ...

    async def inputs(
        self, tenant: str, data: bytes, detail: Detail = "auto"
    ) -> tuple[PictureHeader, bytes]:
        """What the model is given of it. Raises `BadPicture`."""
        ...


class Sight:
    """Looks at the pictures of requests, if the model sees any: that has `eyes`.

    Those of one request have `max_bytes` together at most, as files, and are as many as the
    tenant's limits say, or the `defaults`. Uploaded ones are among `files`, and take room of the
    `intake` while they are looked at: a short request names them.
    """

    def __init__(
        self,
        eyes: Eyes | None,
        fetcher: Fetcher,
        files: StoredFiles,
        intake: Intake,
        workers: Workers,
        max_bytes: int,
        defaults: TenantLimits,
    ) -> None:
        self.eyes = eyes
        self._fetcher = fetcher
        self._files = files
        self._intake = intake
        self._workers = workers
        self._max_bytes = max_bytes
        self._defaults = defaults
        self._known = Recent[tuple[Space, bytes, Detail], Look](
            _MOST_KNOWN_TOKENS, lambda look: len(look.token_ids)
        )
        """What was seen lately, by a digest of the file, or by its id: chats send theirs with each
        turn.
        """

    @property
    def sees(self) -> bool:
        """Whether the model does."""
        return self.eyes is not None

    def check(self, tenant: Tenant, pictures: Sequence[Picture], num_before: int = 0) -> None:
        """Raise `ApiError` naming one that will not be looked at, before anything is done; there
        are `num_before` in the prompt already.
        """
        if not pictures:
            return
        self.check_sees(pictures[0].param)
        most = tenant.limits.over(self._defaults).images
        if most is not None and num_before + len(pictures) > most:
            count = num_before + len(pictures)
            message = f"A conversation has {most} pictures at most; there are {count}."
            first_too_many = pictures[max(0, most - num_before)]
            raise invalid_request(message, first_too_many.param, "too_many_images")

    def check_sees(self, param: str) -> None:
        """Raise `ApiError` naming a field that has a picture, where the model sees none."""
        if not self.sees:
            message = "image input: this model does not see pictures."
            raise invalid_request(message, param, "unsupported_value")

    async def check_file(self, tenant: Tenant, data: bytes, param: str) -> None:
        """Raise `ApiError` naming a field unless its file is a picture, which the model sees."""
        self.check_sees(param)
        assert self.eyes is not None
        try:
            await self.eyes.look(tenant.id, data)
        except BadPicture as error:
            raise _refused(param, error) from None

    async def looked_at(
        self,
        tenant: Tenant,
        messages: Sequence[Message],
        num_before: int = 0,
        end_user: str | None = None,
        cache_key: str | None = None,
    ) -> list[Message]:
        """The messages with what is known of their pictures, to be found again by the same
        `end_user` under the same `cache_key`. Raises `ApiError` naming one that is refused, and as
        `check` does, and `StoreUnavailable`.
        """
        space = tenant.namespace_key, end_user or "", cache_key or ""
        pictures = pictures_in(messages)
        self.check(tenant, pictures, num_before)
        left, looked = self._max_bytes, list[Picture]()
        for picture in pictures:
            look_at = self._looked_at_file if picture.file_id else self._looked_at
            try:
                one, num_bytes = await look_at(tenant, space, picture, left)
            except BadPicture as error:
                raise _refused(picture.param, error) from None
            looked.append(one)
            left -= num_bytes
        found = iter(looked)
        return [
            {**one, "pictures": [next(found) for _ in one["pictures"]]}
            if "pictures" in one
            else one
            for one in messages
        ]

    async def file(self, tenant_id: str, picture: Picture, most_bytes: int | None = None) -> bytes:
        """The bytes of a picture, which its URL holds or is the address of, or which was uploaded.

        Raises `BadPicture`, and `StoreUnavailable`.
        """
        most, url = self._max_bytes if most_bytes is None else most_bytes, picture.url
        if picture.file_id:
            record = await self._files.get(tenant_id, picture.file_id)
            if record is None:
                raise BadPicture("is not kept any more")
            return await self._read(tenant_id, record)
        if not url.startswith("data:"):
            data = await self._fetcher.fetch(url)
            if len(data) > most:
                raise BadPicture(f"has more than {most} bytes")
            return data
        read = partial(from_data_url, url, most)
        return read() if len(url) <= INLINE_BYTES else await self._workers.run(tenant_id, read)

    async def _looked_at(
        self, tenant: Tenant, space: Space, picture: Picture, most_bytes: int
    ) -> tuple[Picture, int]:
        """A picture that was sent, and its bytes. Raises `BadPicture`."""
        data = await self.file(tenant.id, picture, most_bytes)
        digested = partial(_digest, data)
        short = len(data) <= INLINE_BYTES
        digest = digested() if short else await self._workers.run(tenant.id, digested)
        key = space, digest, picture.detail
        look = self._known.use(key)
        if look is None:
            look = await self._look(tenant, key, data)
        seen = replace(picture, file=data, token_ids=look.token_ids, digest=look.digest)
        return seen, len(data)

    async def _looked_at_file(
        self, tenant: Tenant, space: Space, picture: Picture, most_bytes: int
    ) -> tuple[Picture, int]:
        """The same of one that was uploaded, which is read only where it was not seen lately."""
        record = await self._files.get(tenant.id, picture.file_id)
        if record is None:
            raise file_not_found(picture.file_id, param=picture.param)
        if record.num_bytes > most_bytes:
            raise BadPicture(f"has more than {most_bytes} bytes")
        key = space, picture.file_id.encode(), picture.detail
        look = self._known.use(key)
        if look is None:
            with self._intake.body(tenant.id) as incoming:
                incoming.hold(record.num_bytes)
                look = await self._look(tenant, key, await self._read(tenant.id, record))
        seen = replace(picture, token_ids=look.token_ids, digest=look.digest)
        return seen, record.num_bytes

    async def _look(self, tenant: Tenant, key: tuple[Space, bytes, Detail], data: bytes) -> Look:
        assert self.eyes is not None
        look = await self.eyes.look(tenant.id, data, key[2])
        if tenant.cache == "on":
            self._known.put(key, look)
        return look

    async def _read(self, tenant_id: str, record: FileRecord) -> bytes:
        data = io.BytesIO()
        try:
            async for piece in self._files.read(tenant_id, record):
                data.write(piece)
        except FileGone:
            raise BadPicture("is not kept any more") from None
        return data.getvalue()


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=_DIGEST_BYTES).digest()


def _refused(param: str, why: BadPicture) -> ApiError:
    """An error for a picture that cannot be shown to the model."""
    return invalid_request(f"'{param}' {why}.", param, _CODE)
