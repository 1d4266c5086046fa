"""Replicas of a model that sees: doors bring them the pictures that their requests show."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from transformers import PreTrainedModel

from engine.api import TokenDelta
from tests.app.cluster.running import eventually, is_empty, processes, run
from tests.engine.pictures.seeing_models import (
    Part,
    Shown,
    picture,
    request,
    says,
    seeing_model,
)

if TYPE_CHECKING:
    from app.cluster.door.client import ClusterEngine

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.exhaustive,
    pytest.mark.timeout(600),
]
FAMILY = "qwen2_5_vl"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[PreTrainedModel, Path]:
    folder = tmp_path_factory.mktemp("model")
    return seeing_model(FAMILY, folder), folder


@pytest.fixture(scope="module")
def model(original: tuple[PreTrainedModel, Path]) -> Path:
    return original[1]


class Album:
    """The pictures that a door has, and how often each was asked for."""

    def __init__(self, *shown: Shown) -> None:
        self.shown = {one.name: one for one in shown}
        self.asked: Counter[bytes] = Counter()

    async def bring(self, name: bytes) -> AsyncIterator[bytes]:
        self.asked[name] += 1
        for piece in self.shown[name].pieces:
            yield piece


async def test_replicas_see_what_one_engine_does_and_go_on_where_one_is_killed(
    engine: ClusterEngine, original: tuple[PreTrainedModel, Path]
) -> None:
    album = Album(*(picture(FAMILY, seed, size=1 + seed % 2) for seed in range(4)))
    engine.source = album.bring
    whole = original[0]
    for number, shown in enumerate(album.shown.values()):
        parts: list[Part] = [*range(4, 30), shown, *range(40, 50)]
        heard: list[TokenDelta] = []
        said = await run(engine, request(f"first {number}", parts, 12), heard)
        assert said[0] == says(whole, FAMILY, parts)
        before = album.asked.total()
        again = await run(engine, request(f"again {number}", parts, 12), heard)
        assert again == said
        assert album.asked.total() - before <= 1  # it may go to a replica that has not seen it
    processes("ServeReplica:partywall")[0].kill()
    for number, shown in enumerate(album.shown.values()):
        parts = [*range(4, 30), shown, *range(50, 60)]
        said = await run(engine, request(f"killed {number}", parts, 12), [])
        assert said[0] == says(whole, FAMILY, parts)
    await eventually(lambda: engine.num_ready == 3)
    await is_empty(engine)
