"""Replicas of a model whose layers keep a state: what they serve, and where its turns go."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from engine.api import TokenDelta
from tests.app.cluster.running import (
    Outputs,
    eventually,
    is_empty,
    processes,
    run,
    run_all,
)
from tests.engine.model.test_model import save_model
from tests.engine.simulated_model import random_prompt
from tests.engine.simulation import make_request

if TYPE_CHECKING:
    from app.cluster.door.client import ClusterEngine

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.exhaustive,
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_model("lfm2", folder)
    return folder


async def test_replicas_serve_what_one_engine_does(
    engine: ClusterEngine, undisturbed: list[Outputs]
) -> None:
    assert await run_all(engine, "calm") == undisturbed
    await is_empty(engine)


async def test_streams_of_a_killed_replica_and_of_a_killed_engine_go_on(
    engine: ClusterEngine, undisturbed: list[Outputs]
) -> None:
    for part in ("ServeReplica:partywall", "partywall-replica-"):
        assert await run_all(engine, part, processes(part)[0].kill) == undisturbed
        await eventually(lambda: engine.num_ready == 3)
        await is_empty(engine)


@pytest.mark.usefixtures("only_caches_count")
async def test_turns_go_where_their_states_are(engine: ClusterEngine) -> None:
    rng = random.Random(1)
    chats = [random_prompt(rng, 300) for _ in range(6)]
    for turn in range(3):
        for number, chat in enumerate(chats):
            request = make_request(f"{turn} of {number}", list(chat), 40)
            heard: list[TokenDelta] = []
            outputs = await run(engine, request, heard)
            assert turn == 0 or heard[-1].cached_tokens > len(chat) - 60
            chat += outputs[0]
            hashes = await engine._hashes(make_request("told", [*chat, 5]))
            told = hashes[: (len(chat) - 1) // 16]
            await eventually(lambda told=told: engine._fleet.is_held(told))
            chat += random_prompt(rng, 9)
