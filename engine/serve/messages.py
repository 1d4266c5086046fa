"""What the service and the engine say to each other across the process border (MessagePack)."""

from __future__ import annotations

import msgspec

from engine.api import (
    BlockFate,
    ChainPage,
    EngineInfo,
    EngineRequest,
    EngineStats,
    Roll,
    TokenDelta,
)


class Submit(msgspec.Struct, frozen=True, tag=True):
    """Serve this request."""

    request: EngineRequest


class Abort(msgspec.Struct, frozen=True, tag=True):
    """End this request, or only its sequence `index`, if it is still alive."""

    request_id: str
    index: int | None = None


class Unpin(msgspec.Struct, frozen=True, tag=True):
    """Let go of the blocks pinned under this name."""

    pin: str


class ForgetTenant(msgspec.Struct, frozen=True, tag=True):
    """Drop a tenant's pins and make its blocks unfindable."""

    tenant: str


class ServedElsewhere(msgspec.Struct, frozen=True, tag=True):
    """What other engines have served tenants since the last such message (`TenantStats.served`)."""

    tenants: dict[str, float]


class ForgetOthers(msgspec.Struct, frozen=True, tag=True):
    """Remove what is kept on disk for all but these tenants, with these secrets."""

    tenants: dict[str, str]


class KeepUnder(msgspec.Struct, frozen=True, tag=True):
    """Remove what is kept on disk for this tenant with another secret."""

    tenant: str
    secret: str


class Probe(msgspec.Struct, frozen=True, tag=True):
    """Answer with `ProbeReply` from inside the loop."""

    probe_id: int


class AskFates(msgspec.Struct, frozen=True, tag=True):
    """Answer with `FatesReply`, from inside the loop, what has become of blocks."""

    ask_id: int
    hashes: list[bytes]


class AskChains(msgspec.Struct, frozen=True, tag=True):
    """Answer with `ChainsReply`, from inside the loop, what of a tenant's is in the cache."""

    ask_id: int
    tenant: str
    before: int | None = None


class AskWall(msgspec.Struct, frozen=True, tag=True):
    """Answer with `WallReply`, from inside the loop, what a watcher of the blocks is to be told."""

    ask_id: int
    watcher: str


class AskRoll(msgspec.Struct, frozen=True, tag=True):
    """Answer with `RollReply`, from inside the loop, which requests there are; and where the block
    in a `cell` lies in chains.
    """

    ask_id: int
    cell: int | None = None


class Unwatch(msgspec.Struct, frozen=True, tag=True):
    """This watcher of the blocks looks no more."""

    watcher: str


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """End every request and leave the loop."""


class Loading(msgspec.Struct, frozen=True, tag=True):
    """The engine starts, and this is there already."""

    what: str


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The model is loaded; requests are served from now on."""

    info: EngineInfo


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The engine could not start."""

    message: str


class Down(msgspec.Struct, frozen=True, tag=True):
    """The engine is lost, with these requests in it, and alone if it had no others."""

    requests: list[str]
    alone: bool


class Deltas(msgspec.Struct, frozen=True, tag=True):
    """What one step produced, for all requests together."""

    deltas: list[TokenDelta]


class ProbeReply(msgspec.Struct, frozen=True, tag=True):
    """The answer to `Probe`."""

    probe_id: int
    stats: EngineStats


class FatesReply(msgspec.Struct, frozen=True, tag=True):
    """The answer to `AskFates`, in the order of the hashes."""

    ask_id: int
    fates: list[BlockFate]


class ChainsReply(msgspec.Struct, frozen=True, tag=True):
    """The answer to `AskChains`."""

    ask_id: int
    page: ChainPage


class WallReply(msgspec.Struct, frozen=True, tag=True):
    """The answer to `AskWall`: a frame, as `engine.blocks.wall` describes it."""

    ask_id: int
    frame: bytes


class RollReply(msgspec.Struct, frozen=True, tag=True):
    """The answer to `AskRoll`."""

    ask_id: int
    roll: Roll


ToEngine = (
    Submit
    | Abort
    | Unpin
    | ForgetTenant
    | ServedElsewhere
    | ForgetOthers
    | KeepUnder
    | Probe
    | AskFates
    | AskChains
    | AskWall
    | AskRoll
    | Unwatch
    | Shutdown
)
FromEngine = (
    Loading
    | Ready
    | Failed
    | Deltas
    | ProbeReply
    | FatesReply
    | ChainsReply
    | WallReply
    | RollReply
)

encode = msgspec.msgpack.Encoder().encode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode
