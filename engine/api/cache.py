"""What is told of blocks, of chains of them, and of the requests that lean on them."""

from __future__ import annotations

from typing import Literal

import msgspec

Loss = Literal["pressure", "own_quota", "expired", "deleted"]
"""Why a block was evicted: there was no other memory; so it was, and its lease had ended before
because the tenant leased too much, or because it had run out; or its tenant was deleted."""


class BlockFate(msgspec.Struct, frozen=True):
    """What has become of a block: `evicted` so many seconds ago, and why.

    `lost_long_ago` is what was evicted so many seconds ago or more, and no cause is remembered any
    more; `never_seen` what was not here since the engine's start, or not for very long. Where
    layers keep a state there may be keys, and `no_state` behind them to go on from.
    """

    state: Literal["present", "evicted", "no_state", "lost_long_ago", "never_seen"]
    seconds_ago: float = 0.0
    why: Loss | None = None
    by: str = ""
    """Whose request got its memory, if anybody's; for operators alone."""


class ChainState(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant's conversation, or a registered prompt in its requests, has in the cache now.

    Tokens are those of full blocks: `tokens` were left by the last request, the first
    `shared_tokens` of them in the shared namespace, as the registered prompt whose last block has
    the hash `prompt` (empty: none). The first `found_tokens` of them would be found, `host_tokens`
    of these in the host tier; the tenant leases `leased_tokens`, the last ones for `lease_seconds`
    more. The last block found on the device is held by so many sequences and pins: `references`.
    Of the conversation's `requests`, `hits` have found something behind the prompt; of those under
    the prompt, all of it. It was begun, and used last, so many seconds ago: `age_seconds`,
    `idle_seconds`. What has a higher `number` was used later.
    """

    number: int
    conversation: str | None
    """`None`: it is the registered prompt's."""
    prompt: bytes
    tokens: int
    shared_tokens: int
    found_tokens: int
    host_tokens: int
    references: int
    leased_tokens: int
    lease_seconds: float
    age_seconds: float
    idle_seconds: float
    requests: int
    hits: int


class ChainPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some of a tenant's chains, the last used ones first."""

    chains: list[ChainState]
    next: int | None = None
    """There may be more, used before this number."""


class ChainBreak(msgspec.Struct, frozen=True, kw_only=True):
    """Where what a request found of its prompt ended, behind so many `tokens`, and why.

    All that may be found was, but for a part of a block (`prompt_ends`), or that is less than a
    block; it asks for nothing of the cache; or the next block was `evicted`, so many seconds ago,
    for the loss `evicted_by` and the tenant `evicted_for`; or so long ago that no more is known
    (`lost_long_ago`); it was there, but computed again all the same (`not_used`), as that is
    faster, or is to tell log-probabilities; the keys of `keys_tokens` more were there, but no state
    behind any of them (`no_state`); it is new (`never_seen`); or nothing is known of it.
    """

    tokens: int
    why: Literal[
        "prompt_ends",
        "prefix_shorter_than_block",
        "not_asked",
        "evicted",
        "not_used",
        "no_state",
        "lost_long_ago",
        "never_seen",
        "unknown",
    ]
    evicted_by: Loss | None = None
    evicted_for: str = ""
    keys_tokens: int = 0
    seconds_ago: float = 0.0


class ChainPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a block lies in a chain: as block number `number`, from 1, of `blocks`.

    The chain is a tenant's `conversation`, or, where that is `None`, a registered prompt in its
    requests; the times and counts are the chain's, as in `ChainState`.
    """

    tenant: str
    conversation: str | None
    number: int
    blocks: int
    age_seconds: float
    idle_seconds: float
    requests: int
    hits: int


class RequestState(msgspec.Struct, frozen=True, kw_only=True):
    """A request, and the cells of the wall (`engine.blocks.wall`) that it leans on.

    While it runs, `lines` are the beginnings of its sequences' block tables. Of one that was
    swapped, they are host slots; of any other, the one line is what can be found of its full
    blocks, as far as these are known. `num_blocks` is how long the longest line really is, or was
    or will be, and `num_shared` counts the distinct cells of `lines` that others hold as well.
    """

    request_id: str
    tenant: str
    age_seconds: float
    """Since it came."""
    state: Literal["running", "waiting", "preempted", "finished"]
    prompt_tokens: int
    output_tokens: int
    found_tokens: int | None
    """Of the prompt, when it was admitted first; `None`: it has not been."""
    broke: ChainBreak | None
    num_blocks: int
    num_shared: int
    lines: list[list[int]]


class Roll(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of an engine, in the order in which they came, and behind them those that ended
    lately, the last one first; some of each, where there are many.
    """

    requests: list[RequestState]
    places: list[ChainPlace] = []
    """Some of those of the cell that was asked about, in the chains that were used last."""
    on_disk: dict[str, int] = {}
    """Blocks that are kept on disk, by owner."""
    gain_of_twice: float = 0.0
    """Which part more of what was asked for a pool of twice the size would have found."""
    replicas: int = 1
    """How many engines there are to be asked."""
