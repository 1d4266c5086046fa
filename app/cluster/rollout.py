"""Which settings replicas run with, where each door brings its own: the newest, and no way back.

Replicas tell a door what was deployed, and what that has replaced. A door with settings that are in
neither deploys its own; one whose settings were replaced was started with old ones, and joins. And
all are of one release of Partywall, or do not speak to each other.
"""

from __future__ import annotations

import asyncio
import logging
from functools import cache
from hashlib import blake2b
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final

import msgspec

from app.cluster.messages import Brought, ToDoor
from engine.api import EngineError
from engine.questions import QUESTIONS
from engine.serve.messages import ToEngine

if TYPE_CHECKING:
    from app.cluster.node.deployment import Cluster

_log = logging.getLogger(__name__)
_MOST_REPLACED: Final = 64


class Deployed(msgspec.Struct, frozen=True, kw_only=True):
    """What a door has deployed."""

    settings: str
    """Their digest."""
    model: str
    """The folder."""
    by: str
    """The host's name."""
    at: str
    """By its clock (ISO 8601)."""
    replaced: list[str] = []
    """Settings that ran before, the last ones at the end."""


class Greeting(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica says of itself to whoever asks."""

    release: str
    deployed: Deployed


@cache
def own_release() -> str:
    """The version of Partywall that runs here, and a digest of the messages that it understands."""
    answers = (question.answer for question in QUESTIONS.values())
    refs, schemas = msgspec.json.schema_components([ToDoor, ToEngine, Brought, *answers])
    understood = msgspec.json.encode([refs, schemas], order="deterministic")
    return f"{metadata.version('partywall')}+{blake2b(understood, digest_size=4).hexdigest()}"


async def join(cluster: Cluster) -> Any:
    """A handle to replicas, deployed if that is for this door to do. Raises `EngineError`."""
    handle = await asyncio.to_thread(cluster.connect)
    there = None if handle is None else await _greeted(handle)
    wanted = successor(cluster.own, there, redeploys=cluster.redeploys)
    if wanted is not None:
        handle = await asyncio.to_thread(cluster.deploy, wanted)
        await _greeted(handle)  # only who calls is told of replicas
    return handle


def successor(own: Deployed, there: Deployed | None, *, redeploys: bool) -> Deployed | None:
    """What to deploy in place of what is there; `None`: nothing.

    Raises `EngineError` for a door that was replaced, and has another model than what runs.
    """
    if there is None:
        return own
    if own.settings == there.settings:
        return None
    if own.settings not in there.replaced or redeploys:
        _log.warning("its settings replace those that %s deployed at %s", there.by, there.at)
        before = [one for one in there.replaced if one not in (own.settings, there.settings)]
        kept = [*before, there.settings][-_MOST_REPLACED:]
        return msgspec.structs.replace(own, replaced=kept)
    replaced = f"its settings were replaced by those that {there.by} deployed at {there.at}"
    if own.model != there.model:
        raise EngineError(
            f"the cluster: {replaced}, with the model {there.model} and not {own.model}: "
            "start it with those, or with redeploy"
        )
    _log.warning("%s, which it joins; with redeploy it would replace them", replaced)
    return None


async def _greeted(handle: Any) -> Deployed:
    """What a replica says was deployed. Raises `EngineError` for one of another release."""
    said = await handle.greet.remote()
    try:
        greeting = msgspec.msgpack.decode(said, type=Greeting)
    except (TypeError, msgspec.MsgspecError):
        raise EngineError(f"the cluster: {mismatch('an earlier version')}") from None
    if greeting.release != own_release():
        raise EngineError(f"the cluster: {mismatch(greeting.release)}")
    return greeting.deployed


def mismatch(other: str) -> str:
    """Says that a replica is of another release."""
    return (
        f"a replica runs Partywall {other}, and this door {own_release()}; "
        "all of one cluster have to run the same"
    )
