"""The probe with a stored response: what somebody is told who asks for it by its id.

Whoever has stored it is told what is in it (the control); anybody else should be told what is told
about an id that nobody has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from app.isolation_audit.observing import Feature, Observation, told
from app.isolation_audit.probes import Scene
from app.isolation_audit.server import AuditError, Reply, RequestFailed, Tenant

_PATH: Final = "/v1/responses"
_FEWEST_TOKENS: Final = (1, 16)
"""Of an answer, by the server: the first that it takes."""
_TOLD_BY_ERRORS: Final = ("type", "code", "param", "message")


class StoredProbe:
    """Shows a response by its id, goes on from it, and has a prompt compared with its."""

    channels: Sequence[str] = ("ids", "errors", "diagnostics")

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._tokens = 0
        self._has_diagnostics = False

    async def is_served(self) -> bool:
        """See `Probe`: whether a response is there for whoever has stored it."""
        owner = self._scene.owner
        for tokens in _FEWEST_TOKENS:
            self._tokens = tokens
            if created := _id_of(await self._ask(owner)):
                break
        else:
            return False
        shown = await self._scene.server.ask(owner, "GET", f"{_PATH}/{created}")
        diagnosed = await self._compared(owner, created)
        self._has_diagnostics = bool(diagnosed)
        return shown.status == 200

    async def observe(self, prober: Tenant, is_sent: bool) -> Observation:
        """See `Probe`."""
        server = self._scene.server
        stored = _id_of(await self._ask(self._scene.owner))
        if not stored:
            raise RequestFailed("a response was not stored")
        named = stored if is_sent else self._scene.texts.id_like(stored)
        shown = await server.ask(prober, "GET", f"{_PATH}/{named}")
        continued = await self._ask(prober, previous_response_id=named)
        found: Observation = {
            Feature("ids", "answer"): _gist(shown, named),
            Feature("ids", "seconds"): shown.seconds,
            Feature("errors", "answer"): _gist(continued, named),
            Feature("errors", "seconds"): continued.seconds,
        }
        return found | (await self._compared(prober, named) if self._has_diagnostics else {})

    async def _ask(self, tenant: Tenant, **more: Any) -> Reply:
        body = {
            "model": self._scene.server.model,
            "input": self._scene.texts.prompt(),
            "max_output_tokens": self._tokens,
            "store": True,
        }
        return await self._scene.server.ask(tenant, "POST", _PATH, body | more)

    async def _compared(self, tenant: Tenant, named: str) -> Observation:
        """What the server says of a new prompt beside a response; nothing if it says nothing."""
        reply = await self._ask(tenant, prompt_cache_options={"comparison_response_id": named})
        if reply.status != 200 or not isinstance(reply.document, dict):
            return {}
        return told("diagnostics", reply.document.get("prompt_cache_diagnostics") or {})


def _id_of(reply: Reply) -> str:
    """The id of a response that was made; empty if none was. Raises `AuditError` for a bad one."""
    if reply.status != 200 or not isinstance(reply.document, dict):
        return ""
    named = reply.document.get("id")
    if not isinstance(named, str) or not named.replace("_", "").replace("-", "").isalnum():
        raise AuditError(f"a response has the id {named!r}, which cannot be asked for")
    return named


def _gist(reply: Reply, named: str) -> str:
    """Status and error, alike for all ids. What a response says is the same for no two."""
    if reply.status < 300 or not isinstance(reply.document, dict):
        return str(reply.status)
    error = reply.document.get("error")
    error = error if isinstance(error, dict) else reply.document
    parts = [str(error.get(name)).replace(named, "ID") for name in _TOLD_BY_ERRORS]
    return " · ".join([str(reply.status), *(part for part in parts if part != "None")])
