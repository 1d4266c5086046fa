"""An audit from its first request to its report."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Final

from app.isolation_audit.adapter_probes import ALL_PROBES
from app.isolation_audit.findings import findings
from app.isolation_audit.observing import ARMS, CHANNELS, Arm, Observation, Samples
from app.isolation_audit.probes import NO_ADAPTERS, AdapterNames, Probe, Scene
from app.isolation_audit.report import Report
from app.isolation_audit.server import AuditError, RequestFailed, Server, Tenant
from app.isolation_audit.texts import Texts

_WARM_UPS: Final = 2
"""Of each arm, which are not counted."""
_FEW_FAILURES: Final = 5
_MOST_FAILURES_SHARE: Final = 0.05
_NOT_SERVED: Final = (500, 501)
"""What servers answer where they have a path and cannot do what it is for."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is looked at, and how closely."""

    words: int = 160
    channels: Collection[str] = tuple(CHANNELS)
    samples: int = 250
    seed: int
    """Of what is sent, and in which order: what a server has heard before is not new to it."""
    alpha: float = 0.05
    adapters: AdapterNames = NO_ADAPTERS
    """Without any, nothing is said of them."""


Progress = Callable[[int, int], None]
"""Called with how many observations are made, and how many there are to be."""


async def audit(
    server: Server,
    owner: Tenant,
    neighbour: Tenant,
    plan: Plan,
    on_progress: Progress | None = None,
) -> Report:
    """Ask, compare and judge. Raises `AuditError`."""
    await server.find_model(owner)
    for tenant, name in ((owner, "first"), (neighbour, "second")):
        await _greet(server, tenant, name)
    scene = Scene(server, owner, neighbour, Texts(plan.seed, plan.words), plan.adapters)
    wanted = [
        probe
        for probe in (make(scene) for make in ALL_PROBES)
        if set(probe.channels) & set(plan.channels) and await _is_served(probe)
    ]
    draw = random.Random(plan.seed)
    total = len(wanted) * len(ARMS) * plan.samples
    done = 0

    def note() -> None:
        nonlocal done
        done += 1
        if on_progress is not None:
            on_progress(done, total)

    probers = {"neighbour": neighbour, "control": owner}
    taken = [await _sample(probe, server, probers, plan.samples, draw, note) for probe in wanted]
    parameters = {"url": server.url, "model": server.model} | asdict(plan)
    parameters |= {"channels": list(plan.channels), "adapters": len(plan.adapters.owner)}
    parameters |= {"same_tenant": owner == neighbour}
    return Report(parameters, findings(taken, plan.channels, plan.alpha))


async def _greet(server: Server, tenant: Tenant, name: str) -> None:
    """See that the server answers a tenant at all."""
    try:
        await server.chat(tenant, "Tell me about walls.", 4)
    except RequestFailed as error:
        raise AuditError(f"the {name} tenant is not answered: {error}") from error


async def _is_served(probe: Probe) -> bool:
    try:
        return await probe.is_served()
    except RequestFailed as error:
        if error.status in _NOT_SERVED:
            return False
        raise AuditError(f"whether {probe.channels[0]} is served: {error}") from error


async def _sample(
    probe: Probe,
    server: Server,
    probers: Mapping[str, Tenant],
    size: int,
    draw: random.Random,
    on_observed: Callable[[], None],
) -> Samples:
    """`size` observations of each arm. `probers` says who probes in an arm.

    One that fails is made again, with something else that nobody has sent. Raises `AuditError`
    where too many fail.
    """
    order = [arm for arm in ARMS for _ in range(size)]
    draw.shuffle(order)
    found: dict[Arm, list[Observation]] = {arm: [] for arm in ARMS}
    patience = _FEW_FAILURES + int(_MOST_FAILURES_SHARE * len(order))
    for number, arm in enumerate([*ARMS * _WARM_UPS, *order]):
        while True:
            try:
                observed = await probe.observe(probers[arm.prober], arm.is_sent)
                break
            except RequestFailed as error:
                patience -= 1
                if patience < 0:
                    raise AuditError(f"too many requests fail, the last one: {error}") from error
                await server.wait(error.wait_seconds)
        if number >= _WARM_UPS * len(ARMS):
            found[arm].append(observed)
            on_observed()
    return found
