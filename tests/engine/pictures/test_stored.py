"""What was seen stays among the keys of the pool, as long as it is worth that."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from engine.api import EngineRequest
from engine.assembly.assemble import load_core
from engine.serve.core import EngineCore
from tests.engine.model.states import config_of
from tests.engine.pictures.seeing_models import Part, Shown, picture, request, says, seeing_model
from tests.engine.pictures.test_pictures import run, words


def seen_by(core: EngineCore) -> dict[bytes, Any]:
    runner: Any = core._runner
    seen: dict[bytes, Any] = runner._model.seen
    return seen


def parts_of(shown: Shown, seed: int = 2) -> list[Part]:
    return [*words(1, 4), shown, *words(seed, 7)]


def uncached(name: str, parts: list[Part]) -> EngineRequest:
    made = request(name, parts)
    return structs.replace(made, cache=structs.replace(made.cache, up_to=0))


@pytest.mark.parametrize("family", ["gemma4", "llava", "qwen2_5_vl", "qwen3_5", "qwen3_vl"])
def test_what_nobody_shows_any_more_is_found_in_the_pool(family: str, tmp_path: Path) -> None:
    model = seeing_model(family, tmp_path)
    shown = [picture(family, seed, size=1 + seed % 2) for seed in range(4)]
    core = load_core(config_of(tmp_path, 400, 40))
    for seed in (2, 3, 4):  # other questions, of which the answers are new
        for one in shown:
            parts = parts_of(one, seed)
            assert run(core, [request("r", parts)], [one])["r"] == says(model, family, parts)
            assert seen_by(core).keys() == {one.name}
    assert core.stats().pictures_seen == 4


def test_it_goes_with_its_tenant_and_where_nothing_is_cached(tmp_path: Path) -> None:
    seeing_model("llava", tmp_path)
    one, other = picture("llava", 1), picture("llava", 2)
    core = load_core(config_of(tmp_path, 400, 0))
    for asked in (request("r", parts_of(one)), uncached("r", parts_of(one))):
        run(core, [asked], [one])
        run(core, [request("r", parts_of(other))], [other])
        core.forget_tenant("a")
        assert not seen_by(core)
    run(core, [uncached("r", parts_of(one))], [one])
    run(core, [request("r", parts_of(other))], [other])
    num_seen = core.stats().pictures_seen
    run(core, [request("r", parts_of(one))], [one])
    assert core.stats().pictures_seen == num_seen + 1


@pytest.mark.parametrize("when", ["asked for", "shown"])
def test_nothing_is_stored_of_a_tenant_that_is_gone(when: str, tmp_path: Path) -> None:
    seeing_model("llava", tmp_path)
    one, other = picture("llava", 1), picture("llava", 2)
    core = load_core(config_of(tmp_path, 400, 0))
    core.submit(request("r", parts_of(one)))
    assert core.take_wanted() == [one.name]
    while when == "shown" and one.name not in seen_by(core):
        one.bring(core)
        core.step()
    core.forget_tenant("a")
    one.bring(core)
    run(core, [], [])
    run(core, [request("r2", parts_of(other), tenant="b")], [other])
    pictures: Any = core.arrivals.pictures
    assert one.name not in pictures._stored


@pytest.mark.parametrize("worth", [0.0, 1000.0])
def test_it_goes_when_keys_are_worth_more(
    worth: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.pictures.stored.StoredPictures._worth", lambda *_: worth)
    model = seeing_model("llava", tmp_path)
    one, other = picture("llava", 1), picture("llava", 2)
    core = load_core(config_of(tmp_path, 40, 0))
    for shown in (one, other):
        run(core, [request("r", parts_of(shown))], [shown])
    for seed in range(9):
        run(core, [request("r", words(seed, 70))], [])
    parts = parts_of(one, 5)
    assert run(core, [request("r", parts)], [one])["r"] == says(model, "llava", parts)
    assert core.stats().pictures_seen == (2 if worth else 3)


@pytest.mark.parametrize(
    ("family", "text", "fields"),
    [
        ("llava", {"head_dim": 16}, {"kv_dtype": "int8"}),
        ("qwen3_vl", {}, {"dtype": "bfloat16"}),
    ],
)
def test_it_is_the_same_in_memory_of_other_types(
    family: str, text: dict[str, Any], fields: dict[str, Any], tmp_path: Path
) -> None:
    seeing_model(family, tmp_path, **text)
    one, other = picture(family, 1), picture(family, 2)
    core = load_core(config_of(tmp_path, 400, 0, **fields))
    run(core, [request("r", parts_of(one))], [one])
    before = [None if it is None else it.clone() for it in seen_by(core)[one.name].tensors]
    run(core, [request("r", parts_of(other))], [other])
    assert one.name not in seen_by(core)
    run(core, [request("r", parts_of(one, 3))], [])
    for tensor, expected in zip(seen_by(core)[one.name].tensors, before, strict=True):
        if expected is not None:
            assert tensor.dtype == expected.dtype
            assert tensor.equal(expected)


def test_no_more_is_shown_at_a_time_than_memory_is_for(tmp_path: Path) -> None:
    model = seeing_model("llava", tmp_path)
    shown = [picture("llava", seed) for seed in range(8)]
    size = 16 * 32 * 4
    core = load_core(config_of(tmp_path, 400, 0, picture_memory_bytes=2 * size))
    prompts = [[*parts_of(one), other] for one, other in pairwise(shown)]
    known = {one.name: one for one in shown}
    for number, parts in enumerate(prompts):
        core.submit(request(str(number), parts))
    said: dict[str, list[int]] = {}
    most = 0
    while not core.is_idle:
        for name in core.take_wanted():
            known[name].bring(core)
        for delta in core.step():
            assert delta.error is None
            said.setdefault(delta.request_id, []).extend(delta.token_ids)
        core.scheduler.check()
        most = max(most, len(seen_by(core)))
    assert said == {str(n): says(model, "llava", parts) for n, parts in enumerate(prompts)}
    assert most <= 4
