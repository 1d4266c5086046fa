"""Probes for adapters: does it show to a tenant which ones another has, or has just used?

Each tenant has as many, of the same files in the same order, by names of its own: a server that
knew them by what they are, and not by whose they are, would find a neighbour's loaded. They are
asked for in turn, so that whatever a server keeps of the last few (names that it has looked up,
adapters that it has loaded) meets all kinds of probes alike. But for what was used just now, none
should be loaded any more when its turn comes again.
"""

from __future__ import annotations

from itertools import cycle
from typing import Final

from app.isolation_audit.observing import Feature, Observation
from app.isolation_audit.probes import PROBES, Probe, Scene, gist
from app.isolation_audit.server import Tenant

_TOKENS: Final = 1


class _AdapterProbe(Probe):
    """A probe that uses adapters of both tenants."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._turns = cycle(range(len(scene.adapters.owner)))

    async def is_served(self) -> bool:
        """See `Probe`: whether there are any. Raises `RequestFailed` if one cannot be used."""
        names, scene = self._scene.adapters, self._scene
        for tenant, own in ((scene.owner, names.owner), (scene.neighbour, names.neighbour)):
            for name in own[:1]:
                await self._use(tenant, name)
        return bool(names.owner)

    def _own(self, prober: Tenant, number: int) -> str:
        """What the prober calls one of them."""
        names = self._scene.adapters
        return (names.owner if prober == self._scene.owner else names.neighbour)[number]

    async def _use(self, tenant: Tenant, adapter: str | None) -> float:
        """Seconds to the first token of the answer to a new prompt."""
        server, prompt = self._scene.server, self._scene.texts.short_prompt()
        return (await server.chat(tenant, prompt, _TOKENS, model=adapter)).ttft_seconds


class AdapterProbe(_AdapterProbe):
    """Uses an adapter of its own, of the same files as the one that was used."""

    channels = ("adapters",)

    async def observe(self, prober: Tenant, is_sent: bool) -> Observation:
        """See `Probe`."""
        used = next(self._turns)
        await self._use(self._scene.owner, self._own(self._scene.owner, used))
        asked = used if is_sent else next(self._turns)
        seconds = await self._use(prober, self._own(prober, asked))
        return {Feature("adapters", "seconds"): seconds}


class AdapterUseProbe(_AdapterProbe):
    """Uses what it always uses, behind a request for an adapter or for the model.

    Whoever has sent that request itself asks for that adapter instead (the control).
    """

    channels = ("adapter_use",)

    async def observe(self, prober: Tenant, is_sent: bool) -> Observation:
        """See `Probe`."""
        scene, used = self._scene, next(self._turns)
        await self._use(scene.owner, self._own(scene.owner, used) if is_sent else None)
        asked = used if prober == scene.owner else 0
        return {
            Feature("adapter_use", "own adapter seconds"): await self._use(
                prober, self._own(prober, asked)
            ),
            Feature("adapter_use", "model seconds"): await self._use(prober, None),
        }


class AdapterNameProbe(_AdapterProbe):
    """Asks for an adapter by the owner's name for it, or by one that nobody has."""

    channels = ("adapter_names",)

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._unknown = cycle([scene.texts.name_like(name) for name in scene.adapters.owner])

    async def observe(self, prober: Tenant, is_sent: bool) -> Observation:
        """See `Probe`."""
        scene = self._scene
        known, unknown = self._own(scene.owner, next(self._turns)), next(self._unknown)
        await self._use(scene.owner, known)
        asked = known if is_sent else unknown
        body = {
            "model": asked,
            "messages": [{"role": "user", "content": scene.texts.short_prompt()}],
            "max_tokens": _TOKENS,
        }
        reply = await scene.server.ask(prober, "POST", "/v1/chat/completions", body)
        return {
            Feature("adapter_names", "answer"): gist(reply, asked),
            Feature("adapter_names", "seconds"): reply.seconds,
        }


ALL_PROBES: Final[tuple[type[Probe], ...]] = (
    *PROBES,
    AdapterProbe,
    AdapterUseProbe,
    AdapterNameProbe,
)
