"""Pictures looked at, before prompts are made of what is said with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import Final, Protocol

from app.pictures.fetching import Fetcher
from app.pictures.picture import BadPicture, Detail, Look
from app.pictures.sources import from_data_url
from app.recent import Recent
from app.transport.bounds import INLINE_BYTES
from app.wire.errors import ApiError, invalid_request
from app.wire.functions import Message, Picture, pictures_in
from app.workers import Workers
from engine.api import PictureHeader
from tenants.records import Tenant, TenantLimits

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
    tenant's limits say, or the `defaults`.
    """

    def __init__(
        self,
        eyes: Eyes | None,
        fetcher: Fetcher,
        workers: Workers,
        max_bytes: int,
        defaults: TenantLimits,
    ) -> None:
        self.eyes = eyes
        self._fetcher = fetcher
        self._workers = workers
        self._max_bytes = max_bytes
        self._defaults = defaults
        self._known = Recent[tuple[Space, bytes, Detail], Look](
            _MOST_KNOWN_TOKENS, lambda look: len(look.token_ids)
        )
        """What was seen lately, by a digest of the file: chats send theirs with each turn."""

    def check(self, tenant: Tenant, pictures: Sequence[Picture], num_before: int = 0) -> None:
        """Raise `ApiError` naming one that will not be looked at, before anything is done; there
        are `num_before` in the prompt already.
        """
        if not pictures:
            return
        if self.eyes is None:
            message = "image input: this model does not see pictures."
            raise invalid_request(message, pictures[0].param, "unsupported_value")
        most = tenant.limits.over(self._defaults).images
        if most is not None and num_before + len(pictures) > most:
            count = num_before + len(pictures)
            message = f"A conversation has {most} pictures at most; there are {count}."
            first_too_many = pictures[max(0, most - num_before)]
            raise invalid_request(message, first_too_many.param, "too_many_images")

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
        `check` does.
        """
        space = tenant.namespace_key, end_user or "", cache_key or ""
        pictures = pictures_in(messages)
        self.check(tenant, pictures, num_before)
        left, looked = self._max_bytes, list[Picture]()
        for picture in pictures:
            looked.append(await self._looked_at(tenant, space, picture, left))
            left -= len(looked[-1].file)
        found = iter(looked)
        return [
            {**one, "pictures": [next(found) for _ in one["pictures"]]}
            if "pictures" in one
            else one
            for one in messages
        ]

    async def file(self, tenant_id: str, url: str, most_bytes: int | None = None) -> bytes:
        """The bytes of the picture that a URL holds, or is the address of. Raises `BadPicture`."""
        most = self._max_bytes if most_bytes is None else most_bytes
        if not url.startswith("data:"):
            data = await self._fetcher.fetch(url)
            if len(data) > most:
                raise BadPicture(f"has more than {most} bytes")
            return data
        read = partial(from_data_url, url, most)
        return read() if len(url) <= INLINE_BYTES else await self._workers.run(tenant_id, read)

    async def _looked_at(
        self, tenant: Tenant, space: Space, picture: Picture, most_bytes: int
    ) -> Picture:
        assert self.eyes is not None
        try:
            data = await self.file(tenant.id, picture.url, most_bytes)
            digested = partial(_digest, data)
            short = len(data) <= INLINE_BYTES
            digest = digested() if short else await self._workers.run(tenant.id, digested)
            key = space, digest, picture.detail
            look = self._known.use(key)
            if look is None:
                look = await self.eyes.look(tenant.id, data, picture.detail)
                if tenant.cache == "on":
                    self._known.put(key, look)
        except BadPicture as error:
            raise refused(picture, str(error)) from None
        return replace(picture, file=data, token_ids=look.token_ids, digest=look.digest)


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=_DIGEST_BYTES).digest()


def refused(picture: Picture, why: str) -> ApiError:
    """An error for a picture that cannot be shown to the model."""
    return invalid_request(f"'{picture.param}' {why}.", picture.param, _CODE)
