"""Takes the samples of one probe: all arms in one random order, so that time is in all alike."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Final

from app.isolation_audit.observing import ARMS, Arm, Observation
from app.isolation_audit.probes import Probe
from app.isolation_audit.server import AuditError, RequestFailed, Server, Tenant

_WARM_UPS: Final = 2
"""Of each arm, which are not counted."""
_FEW_FAILURES: Final = 5
_MOST_FAILURES_SHARE: Final = 0.05

Samples = Mapping[Arm, list[Observation]]


async def sample(
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
