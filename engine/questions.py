"""Whatever an engine can be asked or told beside requests: one table, which every client carries.

An entry says what goes to the engine's loop, what comes back, and what answers it there, between
two steps. A client has each entry as a method; that of several engines says which of them is asked
(`app.cluster.door.client`).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar, Union

import msgspec

from engine.api import (
    AdapterState,
    BlockFate,
    ChainPage,
    EngineError,
    EngineInfo,
    EngineStats,
    Roll,
)

if TYPE_CHECKING:
    from engine.client import EngineClient
    from engine.serve.core import EngineCore


ADAPTERS_AT_ONCE: Final = 100
"""That are asked about together: each is looked for in the pool, between two steps."""


class Said(msgspec.Struct, frozen=True, tag=True):
    """What is asked or told: the argument of an entry."""

    def check(self, info: EngineInfo) -> None:
        """Raises `ValueError` for what an engine like this is not to be asked."""


class AskStats(Said, frozen=True):
    """How it goes."""


class AskFates(Said, frozen=True):
    """What has become of the blocks with these hashes, which only their tenant can have made
    (`engine.blocks.hashing`): whether each can be found, or else when it was evicted and why.

    There may be as many as the longest context has blocks.
    """

    hashes: Sequence[bytes]

    def check(self, info: EngineInfo) -> None:
        """Raises `ValueError` for more of them."""
        most = info.max_context_tokens // info.block_size
        if len(self.hashes) > most:
            raise ValueError(f"hashes: there may be {most}, not {len(self.hashes)}")


class AskChains(Said, frozen=True):
    """Some of what a tenant's conversations and registered prompts have in the cache: those used
    before number `before`, if it is given.
    """

    tenant: str
    before: int | None = None


class AskAdapters(Said, frozen=True):
    """Where the adapters of these names are, which only who knows their tenant's secret can name,
    and what it was like to have them there; nothing of what no request has named.
    """

    names: Sequence[bytes]

    def check(self, info: EngineInfo) -> None:  # noqa: ARG002 - all engines tell as many
        """Raises `ValueError` for more of them than are told at once."""
        if len(self.names) > ADAPTERS_AT_ONCE:
            raise ValueError(f"names: there may be {ADAPTERS_AT_ONCE}, not {len(self.names)}")


class AskWall(Said, frozen=True):
    """What has become of the blocks since this watcher asked last: a frame, as
    `engine.blocks.wall` describes it. One that is new, or has not asked for long, is told all;
    nothing where too many look already. Of several engines, those of one `replica`, by its place
    among those that are ready; there is an `EngineError` where there is no such.
    """

    watcher: str
    replica: int = 0


class AskRoll(Said, frozen=True):
    """Which requests there are, what each has found, and the blocks that it leans on; of one
    `replica`, as with `AskWall`. Those that have ended are told where somebody has asked lately.
    Besides, where the block in a `cell` of the wall lies in chains, if one is named; and how many
    blocks are on disk.
    """

    replica: int = 0
    cell: int | None = None


class Unwatch(Said, frozen=True):
    """This watcher looks no more, wherever it did. Unknown names are fine."""

    watcher: str


class Unpin(Said, frozen=True):
    """Let go of the blocks that a request with this `pin` holds. Unknown names are fine."""

    pin: str


class ForgetTenant(Said, frozen=True):
    """Drop a deleted tenant's pins and cached blocks, and whatever else is known of it."""

    tenant: str


class ForgetOthers(Said, frozen=True):
    """Remove what is kept on disk for all but these, each with what tells its namespaces' secret
    from former ones.

    The others were deleted, or their cache was switched off, while no engine could be told; or they
    had another secret.
    """

    tenants: dict[str, str]


class KeepUnder(Said, frozen=True):
    """What `ForgetOthers` tells, of one tenant: what is kept of it under another secret is
    removed.
    """

    tenant: str
    secret: str


class ServedElsewhere(Said, frozen=True):
    """What other engines have served tenants since this was told last (`TenantStats.served`)."""

    tenants: dict[str, float]


_P = ParamSpec("_P")
SaidT = TypeVar("SaidT", bound=Said)
AnswerT = TypeVar("AnswerT")
_Engine = TypeVar("_Engine")


class Question(Generic[_P, SaidT, AnswerT]):
    """An entry with an answer."""

    def __init__(
        self,
        argument: Callable[_P, SaidT],
        answer: type[AnswerT],
        handle: Callable[[EngineCore, SaidT], AnswerT],
    ) -> None:
        """`argument` is a class of `Said`; `handle` runs in the engine's loop."""
        self.argument, self.answer, self.handle = argument, answer, handle
        self.decode = msgspec.msgpack.Decoder(answer).decode

    def __get__(
        self, client: EngineClient, owner: object
    ) -> Callable[_P, Coroutine[Any, Any, AnswerT]]:
        """Have the engine behind a client asked. See `EngineClient.ask`."""
        return lambda *args, **named: client.ask(self, self.argument(*args, **named))


class Order(Generic[_P, SaidT]):
    """An entry without: an engine that does not run has nothing that it could be told about."""

    def __init__(
        self, argument: Callable[_P, SaidT], handle: Callable[[EngineCore, SaidT], object]
    ) -> None:
        """See `Question`."""
        self.argument, self.handle = argument, handle

    def __get__(
        self, client: EngineClient, owner: object
    ) -> Callable[_P, Coroutine[Any, Any, None]]:
        """Have the engine behind a client told. See `EngineClient.tell`."""
        return lambda *args, **named: client.tell(self.argument(*args, **named))


class Questions:
    """The table."""

    stats = Question(AskStats, EngineStats, lambda core, _: core.stats())
    block_fates = Question(
        AskFates, list[BlockFate], lambda core, said: core.scheduler.tiers.fates(said.hashes)
    )
    chains = Question(
        AskChains,
        ChainPage,
        lambda core, said: core.scheduler.lifecycle.chains.page(said.tenant, said.before),
    )
    adapter_states = Question(
        AskAdapters,
        list[AdapterState | None],
        lambda core, said: core.adapter_states(said.names),
    )
    wall = Question(AskWall, bytes, lambda core, said: core.wall.frame(said.watcher))
    roll = Question(AskRoll, Roll, lambda core, said: core.roll(said.cell))
    unwatch = Order(Unwatch, lambda core, said: core.wall.unwatch(said.watcher))
    unpin = Order(Unpin, lambda core, said: core.scheduler.pins.unpin(said.pin))
    forget_tenant = Order(ForgetTenant, lambda core, said: core.forget_tenant(said.tenant))
    forget_others = Order(ForgetOthers, lambda core, said: core.forget_others(said.tenants))
    keep_under = Order(KeepUnder, lambda core, said: core.keep_under(said.tenant, said.secret))
    served_elsewhere = Order(
        ServedElsewhere, lambda core, said: core.scheduler.served_elsewhere(said.tenants)
    )


QUESTIONS: Final[Mapping[object, Question[..., Any, Any]]] = {
    entry.argument: entry for entry in vars(Questions).values() if isinstance(entry, Question)
}
ORDERS: Final[Mapping[object, Order[..., Any]]] = {
    entry.argument: entry for entry in vars(Questions).values() if isinstance(entry, Order)
}
if TYPE_CHECKING:
    AnyQuestion = Said
    AnyOrder = Said
else:  # as `msgspec` tells them from each other
    AnyQuestion = Union[tuple(QUESTIONS)]  # noqa: UP007
    AnyOrder = Union[tuple(ORDERS)]  # noqa: UP007


def for_one_of(engines: Sequence[_Engine], said: SaidT) -> tuple[_Engine, SaidT]:
    """Which of these is meant, and what it is to hear. Raises `EngineError` where there is no such.

    What has no `replica` is for the first one.
    """
    number: int = getattr(said, "replica", 0)
    if number >= len(engines):
        count = "one engine" if len(engines) == 1 else f"{len(engines)} of them"
        raise EngineError(f"replica: there is no number {number}, but {count}")
    return engines[number], msgspec.structs.replace(said, replica=0) if number else said
