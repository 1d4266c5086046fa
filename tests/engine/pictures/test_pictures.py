"""Prompts with pictures: greedy float32 output is `generate()`'s, in every way it is computed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from engine.api import EngineRequest
from engine.serve.core import EngineCore
from tests.engine.model.test_model import make_core
from tests.engine.pictures.seeing_models import (
    FAMILIES,
    Shown,
    picture,
    request,
    says,
    seeing_model,
)


def drain(
    core: EngineCore, requests: list[EngineRequest], shown: list[Shown]
) -> dict[str, list[int]]:
    """What becomes of requests that come together; the service has the pictures that are shown."""
    known = {one.name: one for one in shown}
    said: dict[str, list[int]] = {one.request_id: [] for one in requests}
    deltas = [delta for one in requests for delta in core.submit(one)]
    while True:
        for delta in deltas:
            assert delta.error is None, delta.error
            said[delta.request_id] += delta.token_ids
        if core.is_idle:
            break
        deltas = core.step()
        for name in core.take_wanted():
            known[name].bring(core)
        core.scheduler.check()
    return said


def words(seed: int, count: int) -> list[int | Shown]:
    return list(random.Random(seed).sample(range(4, 80), count))


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_seen_is_what_transformers_sees(family: str, tmp_path: Path) -> None:
    model = seeing_model(family, tmp_path)
    one, other = picture(family, 1), picture(family, 2, size=2)
    prompts = [
        [*words(1, 9), one, *words(2, 7)],
        [one, 40, other, *words(3, 5)],
        [*words(4, 30), other, *words(5, 3), one, *words(6, 20)],
        words(7, 12),
    ]
    core = make_core(tmp_path, 64)
    requests = [request(str(i), parts, 12) for i, parts in enumerate(prompts)]
    said = drain(core, requests, [one, other])
    for number, parts in enumerate(prompts):
        assert said[str(number)] == says(model, family, parts, 12), number
