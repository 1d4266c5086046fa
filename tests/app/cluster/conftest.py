"""Three replicas of a module's `model` on a Ray cluster of this machine, and one engine alone."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from app.cluster.launch import ENVIRONMENT
from app.cluster.routing import router
from engine.assembly.process import ProcessEngine
from engine.config import EngineConfig
from tests.app.cluster.running import CONFIG, Outputs, eventually, run_all, wanted

if TYPE_CHECKING:
    from app.cluster.door.client import ClusterEngine


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(model: Path) -> AsyncIterator[ClusterEngine]:
    os.environ |= ENVIRONMENT
    pytest.importorskip("ray", reason="needs the extra partywall[cluster]")
    from app.cluster.door.client import ClusterEngine
    from app.cluster.node.deployment import Cluster

    engine = ClusterEngine(Cluster(wanted(model)), ready_seconds=300)
    await engine.start()
    await eventually(lambda: engine.num_ready == 3)
    yield engine
    await engine.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def undisturbed(model: Path) -> AsyncIterator[list[Outputs]]:
    """What one engine makes of them."""
    alone = ProcessEngine(EngineConfig(model_path=str(model), **CONFIG))  # type: ignore[arg-type]
    await alone.start()
    yield await run_all(alone, "alone")
    await alone.close()


@pytest.fixture
def only_caches_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queues and silences are as long as a machine is busy: the door's router overlooks them, and
    goes by who has an adapter, and then by who has the blocks.
    """
    monkeypatch.setattr(router, "LOAD_WEIGHT", 1e12)
    monkeypatch.setattr(router, "WORK_WEIGHT", 1e6)
    monkeypatch.setattr(router, "STALE_SECONDS", 1e6)
