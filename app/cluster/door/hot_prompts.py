"""Prompts that a new replica computes before it takes requests."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec import structs

from app.cluster.routing.router import ranked
from engine.api import EngineRequest, SamplingParams

_MOST_TOKENS: Final = 1_000_000
"""Of all that are remembered; the ones that were used last are."""


@dataclass(frozen=True, slots=True)
class Head:
    """Leading tokens of prompts, in whole blocks."""

    request: EngineRequest
    """Computes them, and generates nothing."""
    hashes: Sequence[bytes]
    leased_until: float | None
    """`None`: a registered prompt, for as long as it is one."""


@dataclass(slots=True)
class Heads:
    """Registered and leased prompts that were sent to replicas, by their last blocks."""

    _heads: OrderedDict[bytes, Head] = field(default_factory=OrderedDict)
    _num_tokens: int = 0

    def note(
        self, request: EngineRequest, hashes: Sequence[bytes], block_size: int, now: float
    ) -> None:
        """A prompt was sent; `hashes` are those of its full blocks."""
        cache, size = request.cache, len(request.prompt)
        is_registered = request.namespaces.shared_tokens == size and not request.sampling.max_tokens
        if is_registered:
            until = None
        elif cache.lease_s:
            size = size if cache.up_to is None else min(size, cache.up_to)
            until = now + cache.lease_s
        else:
            return
        if request.pictures:  # what they show is gone when this is computed
            size = min(size, request.pictures[0].start)
        if size >= block_size:
            own = hashes[: size // block_size]
            self._add(Head(_computing(request, size), own, until))

    def forget_tenant(self, tenant: str) -> None:
        """Nothing of it may be found any more."""
        for key in [key for key, one in self._heads.items() if one.request.tenant == tenant]:
            self._drop(key)

    def unpin(self, pin: str) -> None:
        """What is pinned under this name is registered no more, or need not be everywhere."""
        for key in [key for key, one in self._heads.items() if one.request.pin == pin]:
            self._drop(key)

    def share_of(
        self,
        replica: int,
        replicas: Iterable[int],
        now: float,
        is_held: Callable[[Sequence[bytes]], bool],
    ) -> list[Head]:
        """What `replica`, one of `replicas`, is to compute.

        What is pinned; of other registered prompts those for which it is preferred; and of leased
        ones those that no replica holds any more.
        """
        numbers = list(replicas)
        for key in [key for key, one in self._heads.items() if (one.leased_until or now) < now]:
            self._drop(key)
        return [
            head
            for key, head in self._heads.items()
            if head.request.pin is not None
            or (
                ranked(key, numbers)[0] == replica
                and (head.leased_until is None or not is_held(head.hashes))
            )
        ]

    def _add(self, head: Head) -> None:
        key = head.hashes[-1]
        self._drop(key)
        self._heads[key] = head
        self._num_tokens += len(head.request.prompt)
        while self._num_tokens > _MOST_TOKENS:
            self._drop(next(iter(self._heads)))

    def _drop(self, key: bytes) -> None:
        head = self._heads.pop(key, None)
        if head is not None:
            self._num_tokens -= len(head.request.prompt)


def _computing(request: EngineRequest, size: int) -> EngineRequest:
    """Computes the first `size` tokens as `request` does."""
    adapter = request.adapter
    return EngineRequest(
        request_id=f"head_{secrets.token_hex(8)}",
        tenant=request.tenant,
        prompt=request.prompt[:size],
        namespaces=request.namespaces,
        sampling=SamplingParams(max_tokens=0, temperature=0.0),
        share=request.share,
        cache=structs.replace(request.cache, up_to=None),
        pin=request.pin,
        adapter=None if adapter is None or adapter.start >= size else adapter,
    )
