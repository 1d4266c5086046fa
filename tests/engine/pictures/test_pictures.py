"""Prompts with pictures: greedy float32 output is `generate()`'s, however it is computed."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from engine.api import (
    BeamParams,
    EngineRequest,
    Namespaces,
    SamplingParams,
)
from engine.assembly.assemble import load_core, make_drafter, make_runner
from engine.assembly.parts import load_parts
from engine.serve.core import EngineCore
from tests.engine.adapters.test_adapters import MODES
from tests.engine.model.states import config_of
from tests.engine.pictures.seeing_models import (
    FAMILIES,
    Part,
    Shown,
    generated,
    logprobs,
    picture,
    request,
    says,
    seeing_model,
)
from tests.engine.schedule.test_beams_in_blocks import results

UNCUT = {"gemma3": 16, "gemma4": 8}
"""Tokens of a picture that are computed in one step."""
SOME = ("smolvlm", "qwen2_5_vl", "qwen3_vl", "gemma3")
"""Tiles and marks, positions of three parts of either kind, and tokens that see each other."""


def run(
    core: EngineCore,
    requests: Iterable[EngineRequest],
    shown: Iterable[Shown],
    preempt_after: int = -1,
) -> dict[str, list[int]]:
    """What becomes of requests that come together; the service has the pictures that are shown."""
    known = {one.name: one for one in shown}
    said: dict[str, list[int]] = {}
    deltas = [delta for one in requests for delta in core.submit(one)]
    for number in range(100_000):
        for delta in deltas:
            assert delta.error is None, delta.error
            said.setdefault(delta.request_id, []).extend(delta.token_ids)
        if core.is_idle:
            assert core.stats().blocks_in_use == 0
            return said
        if number == preempt_after:
            for group in list(core.scheduler.running.values()):
                core.scheduler.lifecycle.preempt(group)
        deltas = core.step()
        for name in core.take_wanted():
            known[name].bring(core)
        core.scheduler.check()
    raise AssertionError("it never ends")


def words(seed: int, count: int) -> list[Part]:
    return list(random.Random(seed).sample(range(4, 80), count))


def prompts_of(one: Shown, other: Shown) -> list[list[Part]]:
    """With pictures before, behind and between words, and none."""
    return [
        [*words(1, 9), one, *words(2, 7)],
        [one, 41, other, *words(3, 5)],
        [*words(4, 30), other, *words(5, 3), one, *words(6, 20)],
        words(7, 12),
    ]


@pytest.mark.parametrize("budget", [pytest.param(7, marks=pytest.mark.exhaustive), 48])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_seen_is_what_transformers_sees(family: str, budget: int, tmp_path: Path) -> None:
    model = seeing_model(family, tmp_path)
    one, other = picture(family, 1), picture(family, 2, size=2)
    running = min(budget, 8)
    if family in UNCUT:
        budget = max(budget, running + UNCUT[family])
    fields = {"step_token_budget": budget, "max_running_requests": running}
    core = load_core(config_of(tmp_path, 200, 40, **fields))
    prompts = prompts_of(one, other)
    expected = {str(n): says(model, family, parts) for n, parts in enumerate(prompts)}
    for _ in range(2):  # with nothing in the cache, and with all of it
        requests = [request(str(n), parts) for n, parts in enumerate(prompts)]
        assert run(core, requests, [one, other]) == expected
    assert core.stats().cached_tokens > core.stats().prompt_tokens / 4
    assert core.stats().pictures_seen == 2
    assert core.stats().picture_seconds > 0


@pytest.mark.parametrize("family", ["mistral3", "qwen2_5_vl", "smolvlm"])
def test_however_often_a_tower_pauses_it_sees_the_same(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.model.sight.pausing._MOST_PRODUCTS", 1 << 12)
    monkeypatch.setattr("engine.pictures.pictures._ALONE_SECONDS", 0.0)
    model = seeing_model(family, tmp_path)
    shown = picture(family, 1, size=2)
    parts: list[Part] = [*words(1, 9), shown, *words(2, 7)]
    core = load_core(config_of(tmp_path, 60, 20))
    assert run(core, [request("r", parts)], [shown])["r"] == says(model, family, parts)


@pytest.mark.parametrize("family", FAMILIES)
def test_its_log_probabilities_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    model = seeing_model(family, tmp_path)
    one, other = picture(family, 3), picture(family, 4, size=2)
    parts = [*words(1, 9), one, *words(2, 3), other, *words(3, 4)]
    expected = logprobs(model, family, parts)
    core, found = load_core(config_of(tmp_path, 60, 20)), list[float]()
    core.submit(request("r", parts))
    known = {picture.name: picture for picture in (one, other)}
    while not core.is_idle:
        for delta in core.step():
            found += [token.logprob for token in delta.logprobs or ()]
        for name in core.take_wanted():
            known[name].bring(core)
    assert found == pytest.approx(expected, abs=1e-4)


def test_in_bfloat16_the_same_is_seen_but_for_rounding(tmp_path: Path) -> None:
    model = seeing_model("qwen3_vl", tmp_path)
    shown = picture("qwen3_vl", 1, size=2)
    parts: list[Part] = [*words(1, 9), shown, *words(2, 3)]
    expected = logprobs(model, "qwen3_vl", parts, 1)
    core = load_core(config_of(tmp_path, 60, 20, dtype="bfloat16"))
    core.submit(request("r", parts, 1))
    found = []
    while not core.is_idle:
        found += [token.logprob for delta in core.step() for token in delta.logprobs or ()]
        for name in core.take_wanted():
            assert name == shown.name
            shown.bring(core)
    assert found == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize(
    "mode",
    [pytest.param(one, marks=() if one == "swaps" else pytest.mark.exhaustive) for one in MODES],
)
@pytest.mark.parametrize("family", SOME)
def test_every_mode_says_the_same(family: str, mode: str, tmp_path: Path) -> None:
    model = seeing_model(family, tmp_path)
    fields: dict[str, Any] = MODES[mode]
    if mode == "a draft model":
        fields = fields | {"draft_model_path": str(tmp_path)}
    parts = load_parts(config_of(tmp_path, 200, 40, **fields))
    runner, _ = make_runner(parts)
    core = EngineCore(parts.config, parts.info, runner, parts.costs, drafter=make_drafter(parts))
    one, other = picture(family, 1), picture(family, 2, size=2)
    prompts = prompts_of(one, other)
    expected = {str(n): says(model, family, parts, 20) for n, parts in enumerate(prompts)}
    for _ in range(2):
        requests = [request(str(n), parts, 20) for n, parts in enumerate(prompts)]
        assert run(core, requests, [one, other], preempt_after=9) == expected
    if mode == "swaps":
        assert core.stats().swapped_in > 0


@pytest.mark.parametrize("family", SOME)
def test_a_stream_goes_on_where_another_engine_has_left_it(family: str, tmp_path: Path) -> None:
    model = seeing_model(family, tmp_path)
    one = picture(family, 1, size=2)
    parts: list[Part] = [*words(1, 9), one, *words(2, 7)]
    expected = says(model, family, parts)
    for count in (1, 5):
        asked = structs.replace(request("r", parts), generated=[expected[:count]])
        core = load_core(config_of(tmp_path, 60, 20))
        assert run(core, [asked], [one])["r"] == expected[count:]


@pytest.mark.parametrize("family", SOME)
def test_forks_and_beams_see_the_same(family: str, tmp_path: Path) -> None:
    model = seeing_model(family, tmp_path)
    one, beam = picture(family, 1), BeamParams(num_beams=3, num_return=3)
    parts: list[Part] = [*words(1, 9), one, *words(2, 7)]
    core = load_core(config_of(tmp_path, 200, 40))
    twice = request("forks", parts, num_sequences=2)
    expected = says(model, family, parts)
    assert sorted(run(core, [twice], [one])["forks"]) == sorted(expected * 2)
    stops = tuple(range(2, 33))
    sampling = SamplingParams(max_tokens=12, temperature=0, stop_token_ids=stops)
    core.submit(request("beams", parts, beam=beam, sampling=sampling))
    deltas = []
    while not core.is_idle:
        deltas += core.step()
        core.scheduler.check()
    found = generated(
        model,
        family,
        parts,
        12,
        num_beams=3,
        num_return_sequences=3,
        eos_token_id=list(stops),
        output_scores=True,
    )
    size = len(twice.prompt)
    for own, sequence, score in zip(
        results(deltas)["beams"], found.sequences, found.sequences_scores, strict=True
    ):
        assert own.token_ids == sequence[size : size + len(own.token_ids)].tolist()
        assert own.score == pytest.approx(float(score), abs=1e-4)


def test_equal_tokens_of_other_pictures_are_never_found(tmp_path: Path) -> None:
    family = "llava"
    model = seeing_model(family, tmp_path)
    one, other = picture(family, 1), picture(family, 2)
    core = load_core(config_of(tmp_path, 200, 40))
    head, tail = words(1, 16), words(2, 7)
    cached = []
    for shown in (one, other, one, other):
        before = core.stats().cached_tokens
        parts: list[Part] = [*head, shown, *tail]
        assert run(core, [request("r", parts)], [shown])["r"] == says(model, family, parts)
        cached.append(core.stats().cached_tokens - before)
    assert cached == [0, 16, 38, 38]
    # Nor are those of the same picture that lies elsewhere, or of a text that looks like it.
    for parts in ([*head, 5, one, *tail], [*head, *one.token_ids, *tail]):
        before = core.stats().cached_tokens
        run(core, [request("r", parts)], [one])
        assert core.stats().cached_tokens - before == 16
    assert not core.take_wanted()


@pytest.mark.parametrize("family", ["gemma3", "llava"])
def test_a_hit_ends_within_a_picture_that_others_have_no_more_of(
    family: str, tmp_path: Path
) -> None:
    model = seeing_model(family, tmp_path)
    shown = picture(family, 1)
    core = load_core(config_of(tmp_path, 200, 40))
    parts: list[Part] = [*words(1, 4), shown, *words(2, 7)]
    short = structs.replace(request("short", parts), cache=request("", parts).cache)
    up_to = structs.replace(short.cache, up_to=16)
    run(core, [structs.replace(short, cache=up_to)], [shown])
    before = core.stats().cached_tokens
    assert run(core, [request("r", parts)], [])["r"] == says(model, family, parts)
    assert core.stats().cached_tokens - before == 16


def test_a_tenants_picture_is_not_found_by_another(tmp_path: Path) -> None:
    family = "llava"
    seeing_model(family, tmp_path)
    shown = picture(family, 1)
    core = load_core(config_of(tmp_path, 200, 40))
    parts: list[Part] = [*words(1, 4), shown, *words(2, 7)]
    run(core, [request("a", parts)], [shown])
    key = b"b".ljust(32, b".")
    theirs = structs.replace(
        request("b", parts), tenant="b", namespaces=Namespaces(shared_key=key, private_key=key)
    )
    (use,) = theirs.pictures
    theirs = structs.replace(theirs, pictures=(structs.replace(use, name=b"theirs"),))
    core.submit(theirs)
    assert core.take_wanted() == [b"theirs"]
    core.abort("b")
    assert core.stats().cached_tokens == 0


def test_what_does_not_come_or_cannot_be_seen_ends_alone(tmp_path: Path) -> None:
    family = "llava"
    model = seeing_model(family, tmp_path)
    shown, broken = picture(family, 1), picture(family, 2)
    core = load_core(config_of(tmp_path, 60, 20))
    core.submit(request("gone", [*words(1, 4), broken]))
    (name,) = core.take_wanted()
    (end,) = core.lack(name, "it was deleted")
    assert end.error == "a picture cannot be used: it was deleted"
    broken.inputs["pixel_values"] = broken.inputs["pixel_values"][:, :, :8]
    core.submit(request("broken", [*words(1, 4), broken]))
    parts: list[Part] = [*words(1, 4), shown]
    core.submit(request("whole", parts))
    known = {one.name: one for one in (shown, broken)}
    deltas = []
    while not core.is_idle:
        for name in core.take_wanted():
            known[name].bring(core)
        deltas += core.step()
    errors = {one.request_id: one.error for one in deltas if one.error is not None}
    assert errors.keys() == {"broken"}
    said = [token for one in deltas if one.request_id == "whole" for token in one.token_ids]
    assert said == says(model, family, parts)
    assert core.stats().blocks_in_use == 0


@pytest.mark.parametrize("family", ["gemma3", "qwen2_5_vl"])
def test_requests_come_and_go_at_any_time(family: str, tmp_path: Path) -> None:
    seeing_model(family, tmp_path)
    shown = [picture(family, seed, size=1 + seed % 3) for seed in range(8)]
    fields = {"step_token_budget": 28, "max_running_requests": 12}
    core = load_core(config_of(tmp_path, 40, 0, picture_memory_bytes=4000, **fields))
    rng, live, known = random.Random(7), set[str](), {one.name: one for one in shown}
    wanted: list[bytes] = []
    for number in range(500):
        if rng.random() < 0.5 and len(live) < 12:
            parts = words(number, rng.randrange(1, 30))
            for one in rng.sample(shown, rng.randrange(3)):
                parts.insert(rng.randrange(len(parts)), one)
                parts.append(rng.randrange(4, 80))
            core.submit(request(f"r{number}", parts, 9, tenant=rng.choice("ab")))
            live.add(f"r{number}")
        if live and rng.random() < 0.1:
            name = rng.choice(sorted(live))
            if any(one.finish_reason for one in core.abort(name)):
                live.discard(name)
        if core.scheduler.running and rng.random() < 0.05:
            core.scheduler.lifecycle.preempt(rng.choice(list(core.scheduler.running.values())))
        if rng.random() < 0.02:
            core.forget_tenant(rng.choice("ab"))
        for delta in core.step():
            assert delta.error is None, delta.error
            if delta.finish_reason is not None:
                live.discard(delta.request_id)
        wanted += core.take_wanted()
        if wanted and rng.random() < 0.5:
            known[wanted.pop(rng.randrange(len(wanted)))].bring(core)
        core.scheduler.check()
    for name in wanted:
        known[name].bring(core)
    run(core, [], shown)
