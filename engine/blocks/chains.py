"""What requests have left in the cache, by the conversation that they belong to: for operators.

A *chain* is what the last request of a conversation has left: the hashes of its full blocks. The
part that lies in the shared namespace is a chain of its own, a registered prompt's. No token is
known here, and whether a block is still there is looked up when it is asked.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from engine.api import ChainPage, ChainPlace, ChainState, EngineRequest
from engine.blocks.hashing import HASH_BYTES
from engine.blocks.lookup import usable
from engine.blocks.tiers import Tiers

_BYTES: Final = 1 << 20
_BYTES_A_BLOCK: Final = 4 * HASH_BYTES
"""So much of the pool's size is known beside, of all tenants together."""
_TENANTS_PART: Final = 4
"""Such a part of it may be one tenant's, so that nobody's chains go for those of a flood."""
_CHAIN_BYTES: Final = 512
"""What a chain takes besides its hashes, about."""
_LOOKED_UP: Final = 2048
"""Blocks that one page looks up at most, but for its last chain: a millisecond or two."""
_LOOKED_THROUGH: Final = 4 << 20
"""Bytes of hashes, for one block's places."""
_PLACES: Final = 4


@dataclass(slots=True, eq=False)
class _Chain:
    tenant: str
    name: str | bytes
    """The conversation's; or the hash of a registered prompt's last block."""
    prompt: bytes
    """That hash; empty where there is no registered prompt."""
    begun: float
    number: int = 0
    """Grows with every use of any chain."""
    hashes: bytes = b""
    num_shared: int = 0
    used: float = 0.0
    num_requests: int = 0
    num_hits: int = 0

    @property
    def num_bytes(self) -> int:
        return _CHAIN_BYTES + len(self.hashes)

    def __iter__(self) -> Iterator[bytes]:
        packed = self.hashes
        return (packed[at : at + HASH_BYTES] for at in range(0, len(packed), HASH_BYTES))


@dataclass(slots=True)
class _Known:
    """One tenant's chains, the least recently used first, and by the hash of their last block."""

    chains: OrderedDict[str | bytes, _Chain] = field(default_factory=OrderedDict)
    by_end: dict[bytes, _Chain] = field(default_factory=dict)
    num_bytes: int = 0


class Chains:
    """The chains of all tenants that were used last. A request's end takes constant time, but for
    its hashes, which are copied.
    """

    def __init__(self, tiers: Tiers, most_bytes: int | None = None) -> None:
        self._tiers = tiers
        self._clock = tiers.clock
        self._most = most_bytes or _BYTES + _BYTES_A_BLOCK * tiers.num_findable
        self._num_bytes = 0
        self._numbers = count(1)
        self._tenants: dict[str, _Known] = {}
        self._order: OrderedDict[_Chain, None] = OrderedDict()

    def note(self, request: EngineRequest, hashes: Sequence[bytes], found_tokens: int) -> None:
        """A request is over that leaves full blocks with these hashes. When it began, so many of
        its tokens were found.
        """
        block_size, shared_tokens = self._tiers.block_size, request.namespaces.shared_tokens
        num_shared = shared_tokens // block_size
        if not hashes or len(hashes) < num_shared:
            return
        name, num_found = request.conversation, found_tokens // block_size
        prompt = hashes[num_shared - 1] if num_shared else b""
        if prompt:
            chain = self._taken(request.tenant, prompt, prompt)
            self._use(chain, hashes[:num_shared], num_shared)
            if name is not None:
                chain.num_requests += 1
                chain.num_hits += num_found >= num_shared
        if name is not None and len(hashes) > num_shared:
            # What ends where the known part of this ends has gone on as this.
            before = hashes[num_found - 1] if num_found > num_shared else b""
            chain = self._taken(request.tenant, name, prompt, before)
            self._use(chain, hashes, num_shared)
            chain.num_requests += 1
            chain.num_hits += num_found > num_shared

    def forget(self, tenant: str) -> None:
        """Forget a tenant's chains."""
        known = self._tenants.get(tenant)
        for chain in [*known.chains.values()] if known is not None else ():
            self._drop(chain)

    def page(self, tenant: str, before: int | None = None) -> ChainPage:
        """Some of a tenant's chains of which something can be found, the last used ones first.

        Those used before number `before`, if it is given. Takes a few milliseconds at most.
        """
        known, found = self._tenants.get(tenant), list[ChainState]()
        num_looked_up, last = 0, None
        for chain in reversed(known.chains.values()) if known is not None else ():
            if before is not None and chain.number >= before:
                continue
            if num_looked_up >= _LOOKED_UP:
                return ChainPage(chains=found, next=last)
            state = self._state(chain)
            num_looked_up += len(chain.hashes) // HASH_BYTES
            last = chain.number
            if state.found_tokens > (state.shared_tokens if state.conversation else 0):
                found.append(state)
        return ChainPage(chains=found)

    def places(self, block_hash: bytes) -> list[ChainPlace]:
        """Where a block lies in the chains that were used last. Takes some milliseconds at most."""
        found: list[ChainPlace] = []
        num_looked_through = 0
        for chain in reversed(self._order):
            if len(found) == _PLACES or num_looked_through > _LOOKED_THROUGH:
                break
            num_looked_through += len(chain.hashes)
            at = chain.hashes.find(block_hash)
            while at % HASH_BYTES and at > 0:  # by chance across two hashes
                at = chain.hashes.find(block_hash, at + 1)
            if at >= 0:
                found.append(self._place(chain, at // HASH_BYTES))
        return found

    def check(self) -> None:
        """Verify the books. Raises `AssertionError`."""
        chains = [one for known in self._tenants.values() for one in known.chains.values()]
        assert set(chains) == self._order.keys(), "a chain is in one order only"
        assert sum(chain.num_bytes for chain in chains) == self._num_bytes <= self._most, "bytes"
        for tenant, known in self._tenants.items():
            assert known.chains, f"{tenant!r} is kept for nothing"
            assert known.num_bytes == sum(one.num_bytes for one in known.chains.values())
            for end, chain in known.by_end.items():
                assert known.chains[chain.name] is chain, "a chain that was dropped"
                assert chain.hashes.endswith(end), "a chain that ends elsewhere"

    def _taken(self, tenant: str, name: str | bytes, prompt: bytes, before: bytes = b"") -> _Chain:
        """The chain of that name, or the one that ends with `before`, out of the books; or a new
        one.
        """
        known = self._tenants.get(tenant)
        chain = None
        if known is not None:
            chain = known.chains.get(name) or known.by_end.get(before)
        if chain is None:
            return _Chain(tenant, name, prompt, self._clock())
        self._drop(chain)
        chain.name, chain.prompt = name, prompt
        return chain

    def _use(self, chain: _Chain, hashes: Sequence[bytes], num_shared: int) -> None:
        chain.hashes, chain.num_shared = b"".join(hashes), num_shared
        chain.number, chain.used = next(self._numbers), self._clock()
        if chain.num_bytes > self._most // _TENANTS_PART:
            return
        known = self._tenants.setdefault(chain.tenant, _Known())
        known.chains[chain.name] = chain
        if isinstance(chain.name, str):
            known.by_end[hashes[-1]] = chain
        known.num_bytes += chain.num_bytes
        self._order[chain] = None
        self._num_bytes += chain.num_bytes
        while known.num_bytes > self._most // _TENANTS_PART:
            self._drop(next(iter(known.chains.values())))
        while self._num_bytes > self._most:
            self._drop(next(iter(self._order)))

    def _drop(self, chain: _Chain) -> None:
        known = self._tenants[chain.tenant]
        del known.chains[chain.name], self._order[chain]
        end = chain.hashes[-HASH_BYTES:]
        if known.by_end.get(end) is chain:
            del known.by_end[end]
        known.num_bytes -= chain.num_bytes
        self._num_bytes -= chain.num_bytes
        if not known.chains:
            del self._tenants[chain.tenant]

    def _place(self, chain: _Chain, index: int) -> ChainPlace:
        now = self._clock()
        return ChainPlace(
            tenant=chain.tenant,
            conversation=chain.name if isinstance(chain.name, str) else None,
            number=index + 1,
            blocks=len(chain.hashes) // HASH_BYTES,
            age_seconds=now - chain.begun,
            idle_seconds=now - chain.used,
            requests=chain.num_requests,
            hits=chain.num_hits,
        )

    def _state(self, chain: _Chain) -> ChainState:
        pool, host, size = self._tiers.pool, self._tiers.host, self._tiers.block_size
        leases, now = pool.leases.of(chain.tenant).leases, self._clock()
        hashes = list(chain)
        found = usable(pool, hashes, size)
        num_in_host = len(host.find(hashes[len(found) :]))
        num_leased, until = 0, now
        for blocks in found:
            ends = [leases[one].until for one in blocks if one in leases]
            if ends:
                num_leased, until = num_leased + 1, max(until, *ends)
        return ChainState(
            number=chain.number,
            conversation=chain.name if isinstance(chain.name, str) else None,
            prompt=chain.prompt,
            tokens=len(chain.hashes) // HASH_BYTES * size,
            shared_tokens=chain.num_shared * size,
            found_tokens=(len(found) + num_in_host) * size,
            host_tokens=num_in_host * size,
            references=max((pool.references[one] for one in found[-1]), default=0) if found else 0,
            leased_tokens=num_leased * size,
            lease_seconds=until - now,
            age_seconds=now - chain.begun,
            idle_seconds=now - chain.used,
            requests=chain.num_requests,
            hits=chain.num_hits,
        )
