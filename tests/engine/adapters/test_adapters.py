"""Requests with adapters say what PEFT's models say, whatever else is served, found and lost."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from engine.adapters.memory import Image
from engine.api import BeamParams, CachePolicy, EngineRequest, SamplingParams
from engine.assembly.assemble import load_core, make_drafter, make_runner
from engine.assembly.parts import load_parts
from engine.run.adapters import ModelAdapters
from engine.run.runner import ModelRunner
from engine.serve.core import EngineCore
from kernels.types import Adapter
from tests.engine.adapters.peft_models import Made, make_adapter
from tests.engine.model.states import config_of, saved
from tests.engine.model.test_model import generate
from tests.engine.schedule.test_beams_in_blocks import results, searched, steps_to_end
from tests.engine.schedule.test_forks import forked
from tests.engine.sequences import test_beam as beams
from tests.engine.simulated_model import random_prompt
from tests.engine.simulation import make_request

OPTIONS: list[dict[str, Any]] = [{"r": 1}, {"r": 16, "use_rslora": True}, {"r": 128}, {}]

TARGETS: dict[str, dict[str, Any]] = {
    "qwen3_next": {"target_modules": ["q_proj", "o_proj", "in_proj_qkvz", "out_proj"]},
    "qwen3_moe": {
        "target_modules": ["q_proj", "o_proj"],
        "target_parameters": ["experts.gate_up_proj", "experts.down_proj"],
    },
}
"""Of families with experts, whom PEFT changes in another way."""


def asking(name: str, prompt: list[int], adapter: Made | None, tokens: int = 12) -> EngineRequest:
    use = None if adapter is None else adapter.use(prompt)
    return structs.replace(make_request(name, prompt, max_tokens=tokens), adapter=use)


def run(
    core: EngineCore, adapters: Iterable[Made], preempt_after: int = -1
) -> dict[str, list[int]]:
    """Step until idle, bringing what is wanted; returns each request's output."""
    known, outputs = {one.name: one for one in adapters}, dict[str, list[int]]()
    for number in range(100_000):
        if core.is_idle:
            return outputs
        if number == preempt_after:
            for group in list(core.scheduler.running.values()):
                core.scheduler.lifecycle.preempt(group)
        for delta in core.step():
            assert delta.error is None, delta.error
            outputs.setdefault(delta.request_id, []).extend(delta.token_ids)
        for name in core.take_wanted():
            known[name].bring(core)
        core.scheduler.check()
    raise AssertionError("it never ends")


def known_to_model(core: EngineCore) -> Mapping[bytes, Adapter]:
    runner = core._runner
    assert isinstance(runner, ModelRunner)
    return runner._model.adapters


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "qwen3_next", "qwen3_moe"])
def test_a_batch_of_adapters_and_base_rows_says_what_each_says_alone(
    family: str, tmp_path: Path
) -> None:
    model = saved(family, tmp_path / "model")
    adapters = [
        make_adapter(model, tmp_path / str(seed), seed, **options, **TARGETS.get(family, {}))
        for seed, options in enumerate(OPTIONS, 1)
    ]
    core = load_core(config_of(tmp_path / "model", 1500, 40))
    prompt = random_prompt(random.Random(1), 45)
    asked: list[Made | None] = [None, *adapters]
    for turn in range(2):
        for number, adapter in enumerate(asked):
            core.submit(asking(str(number), prompt, adapter))
        said = run(core, adapters)
        assert said["0"] == generate(model, prompt, 12)
        for number, adapter in enumerate(adapters, 1):
            assert said[str(number)] == adapter.says(model, prompt, 12)
        assert len({tuple(one) for one in said.values()}) == len(asked)
        if turn:
            assert core.stats().cached_tokens >= 5 * 40
    assert not core.scheduler.tiers.loading


INVOCATION = (7, 9, 11)


@pytest.mark.parametrize("budget", [5, 48])
@pytest.mark.parametrize("family", ["llama", "qwen3_next"])
def test_what_is_before_an_invocation_is_the_bases_own(
    family: str, budget: int, tmp_path: Path
) -> None:
    model = saved(family, tmp_path / "model")
    one, other = (
        make_adapter(
            model, tmp_path / str(seed), seed, invocation=INVOCATION, **TARGETS.get(family, {})
        )
        for seed in (1, 2)
    )
    core = load_core(
        config_of(tmp_path / "model", 400, 40, step_token_budget=budget, max_running_requests=4)
    )
    said = random_prompt(random.Random(1), 48)
    core.submit(make_request("base", said, max_tokens=1))
    run(core, [])
    prompt = [*said, *INVOCATION, 13, 14]
    for adapter in (one, other, one):
        before = core.stats().cached_tokens
        core.submit(asking("judge", prompt, adapter))
        assert run(core, [one, other])["judge"] == adapter.says(model, prompt, 12)
        assert core.stats().cached_tokens - before >= 48
    core.submit(asking("base", prompt, None))
    assert run(core, [])["base"] == generate(model, prompt, 12)
    # The last invocation counts, wherever those before it are.
    twice = [*prompt, 15, *INVOCATION]
    core.submit(asking("judge", twice, one))
    assert run(core, [one])["judge"] == one.says(model, twice, 12)


def test_adapters_come_and_go_in_a_memory_that_holds_few(tmp_path: Path) -> None:
    model = saved("llama", tmp_path / "model")
    adapters = [make_adapter(model, tmp_path / str(seed), seed, r=8) for seed in range(1, 7)]
    core = load_core(config_of(tmp_path / "model", 60, 0, adapter_memory_bytes=100_000))
    prompts = [random_prompt(random.Random(seed), 20) for seed in range(12)]
    expected = {str(n): adapters[n % 6].says(model, prompt, 8) for n, prompt in enumerate(prompts)}
    for _ in range(3):
        for number, prompt in enumerate(prompts):
            core.submit(asking(str(number), prompt, adapters[number % 6], tokens=8))
        assert run(core, adapters, preempt_after=5) == expected
        assert len(known_to_model(core)) < 6  # what is evicted is forgotten
        loaded = {one.name: one.seconds for one in core.stats().adapters}
        assert loaded.keys() <= known_to_model(core).keys()
        assert loaded, "the last one is there"
        assert all(seconds > 0 for seconds in loaded.values())
    core.forget_tenant("a")
    for number in range(9):  # they need all memory
        core.submit(asking(str(number), random_prompt(random.Random(number), 250), None, tokens=8))
    run(core, [])
    assert not core.stats().adapters


MODES: dict[str, dict[str, Any]] = {
    "speculation": {"speculation": "lookup"},
    "a draft model": {"speculation": "draft"},
    "batch invariance": {"batch_invariant": True},
    "no groups": {"prefix_grouping": False},
    "swaps": {"host_memory_bytes": 1 << 20, "recovery": "swap", "min_run_tokens": 1},
    "recomputation": {"recovery": "recompute", "min_run_tokens": 1},
    "small steps": {"step_token_budget": 7, "max_running_requests": 7},
}


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_says_the_same(mode: str, tmp_path: Path) -> None:
    model = saved("llama", tmp_path / "model")
    adapters = [
        make_adapter(model, tmp_path / "1", 1),
        make_adapter(model, tmp_path / "2", 2, invocation=INVOCATION),
    ]
    fields = MODES[mode]
    if mode == "a draft model":
        fields = fields | {"draft_model_path": str(tmp_path / "model")}
    parts = load_parts(config_of(tmp_path / "model", 200, 0, **fields))
    runner, _ = make_runner(parts)
    # As if all guesses that find room were worth it.
    core = EngineCore(parts.config, parts.info, runner, parts.costs, drafter=make_drafter(parts))
    head = random_prompt(random.Random(1), 30)
    prompts = [[*head, *INVOCATION, *random_prompt(random.Random(seed), 9)] for seed in range(4)]
    cases = [(prompt, adapter) for prompt in prompts for adapter in (None, *adapters)]
    for _ in range(2):
        for number, (prompt, adapter) in enumerate(cases):
            core.submit(asking(str(number), prompt, adapter, tokens=20))
        said = run(core, adapters, preempt_after=9)
        for number, (prompt, adapter) in enumerate(cases):
            says = (
                generate(model, prompt, 20) if adapter is None else adapter.says(model, prompt, 20)
            )
            assert said[str(number)] == says
    if "speculation" in MODES[mode]:
        assert core.stats().accepted_tokens > 0
    if mode == "swaps":
        assert core.stats().swapped_in > 0


def test_forks_and_beams_are_those_of_the_changed_model(tmp_path: Path) -> None:
    model = saved("llama", tmp_path / "model")
    adapter = make_adapter(model, tmp_path / "1", 1)
    core = load_core(config_of(tmp_path / "model", 200, 0))
    prompt, beam = random_prompt(random.Random(3), 20), BeamParams(num_beams=3, num_return=3)
    stops = tuple(range(3, 33))
    sampling = SamplingParams(max_tokens=12, temperature=0, stop_token_ids=stops)
    with adapter.changing(model) as changed:
        expected = beams.generate(changed, prompt, beam, stops, 12)
    core.submit(
        structs.replace(
            searched("beams", prompt, 12, beam, sampling=sampling), adapter=adapter.use(prompt)
        )
    )
    core.step()
    core.take_wanted()
    adapter.bring(core)
    found = results(steps_to_end(core))
    beams.assert_equal(found["beams"], expected, stops)
    core.submit(structs.replace(forked("forks", prompt, 12, 2), adapter=adapter.use(prompt)))
    said: dict[int, list[int]] = {0: [], 1: []}
    for delta in steps_to_end(core):
        said[delta.index] += delta.token_ids
    assert said[0] == said[1] == adapter.says(model, prompt, 12)


def test_what_is_kept_on_disk_is_the_adapters_own(tmp_path: Path) -> None:
    model = saved("llama", tmp_path / "model")
    adapters = [make_adapter(model, tmp_path / str(seed), seed) for seed in (1, 2)]
    fields = {"kept_dir": str(tmp_path / "kept"), "kept_seconds": 0.001}
    prompt = random_prompt(random.Random(1), 45)
    lasting = CachePolicy(lease_s=60.0)
    for life in range(2):
        core = load_core(config_of(tmp_path / "model", 200, 0, **fields))
        for name, adapter in (("base", None), ("one", adapters[0])):
            core.submit(structs.replace(asking(name, prompt, adapter), cache=lasting))
        said = run(core, adapters)
        assert said == {
            "base": generate(model, prompt, 12),
            "one": adapters[0].says(model, prompt, 12),
        }
        core.submit(asking("other", prompt, adapters[1]))
        assert run(core, adapters)["other"] == adapters[1].says(model, prompt, 12)
        assert (core.stats().restored_blocks > 0) == (life > 0)
        core.close(5.0)


def test_requests_come_and_go_at_any_time(tmp_path: Path) -> None:
    model = saved("llama", tmp_path / "model")
    adapters = [make_adapter(model, tmp_path / str(seed), seed, r=seed) for seed in range(1, 6)]
    core = load_core(config_of(tmp_path / "model", 70, 0, adapter_memory_bytes=1 << 16))
    rng, live, known = random.Random(7), dict[str, list[int]](), {one.name: one for one in adapters}
    wanted: list[bytes] = []
    for number in range(400):
        if rng.random() < 0.5 and len(live) < 12:
            name, prompt = f"r{number}", random_prompt(rng, rng.randrange(2, 60))
            adapter = rng.choice([None, *adapters])
            fields = {"tenant": rng.choice("ab")}
            use = None if adapter is None else adapter.use(prompt)
            core.submit(structs.replace(make_request(name, prompt, 9), adapter=use, **fields))
            live[name] = []
        if live and rng.random() < 0.1:
            name = rng.choice(list(live))
            if any(one.finish_reason for one in core.abort(name)):
                live.pop(name)
        if core.scheduler.running and rng.random() < 0.05:
            core.scheduler.lifecycle.preempt(rng.choice(list(core.scheduler.running.values())))
        if rng.random() < 0.02:
            core.forget_tenant(rng.choice("ab"))
        for delta in core.step():
            assert delta.error is None
            if delta.finish_reason is not None:
                live.pop(delta.request_id, None)
        wanted += core.take_wanted()
        if wanted and rng.random() < 0.5:
            known[wanted.pop(rng.randrange(len(wanted)))].bring(core)
        core.scheduler.check()
    for name in wanted:
        known[name].bring(core)
    run(core, adapters)
    assert core.stats().blocks_in_use == 0


def test_what_has_no_room_or_does_not_come_ends_alone(tmp_path: Path) -> None:
    model = saved("llama", tmp_path / "model")
    large = make_adapter(model, tmp_path / "1", 1, r=128)
    core = load_core(config_of(tmp_path / "model", 9, 0))
    core.submit(asking("large", random_prompt(random.Random(1), 9), large))
    core.submit(asking("base", random_prompt(random.Random(2), 9), None))
    deltas = []
    while not core.is_idle:
        deltas += core.step()
        if core.take_wanted():
            large.bring(core)
    ends = {one.request_id: one for one in deltas if one.finish_reason is not None}
    assert ends["large"].error is not None
    assert "no room" in ends["large"].error
    assert ends["base"].error is None
    assert core.stats().blocks_in_use == 0
    again = core.submit(asking("again", random_prompt(random.Random(1), 9), large))
    assert [one.error for one in again] == [ends["large"].error]
    assert not core.take_wanted()  # nor is it brought for that
    gone = make_adapter(model, tmp_path / "2", 2)
    core.submit(asking("gone", random_prompt(random.Random(1), 9), gone))
    core.step()
    (end,) = core.lack(core.take_wanted()[0], "it was deleted")
    assert end.error == "the adapter cannot be used: it was deleted"
    assert core.is_idle
    core.scheduler.check()


def test_an_error_that_comes_too_late_ends_nobody_and_holds_no_blocks(tmp_path: Path) -> None:
    model = saved("llama", tmp_path / "model")
    adapter = make_adapter(model, tmp_path / "1", 1)
    core = load_core(config_of(tmp_path / "model", 60, 0))
    prompt = random_prompt(random.Random(1), 20)
    core.submit(asking("one", prompt, adapter))
    core.step()
    (name,) = core.take_wanted()
    adapter.bring(core)
    while not core.scheduler.tiers.loading:
        core.step()
    assert not core.lack(name, "it comes too late")
    assert run(core, [adapter])["one"] == adapter.says(model, prompt, 12)
    assert core.stats().blocks_in_use == 0


def test_a_head_of_whatever_name_is_not_changed(tmp_path: Path) -> None:
    saved("biogpt", tmp_path / "model")
    linears = load_core(config_of(tmp_path / "model", 60, 0)).info.linears
    assert linears
    assert "biogpt.layers.0.self_attn.q_proj" in linears
    assert "output_projection" not in linears


def test_what_there_is_no_memory_for_ends_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacks_memory(*_: object) -> Image:
        raise MemoryError

    monkeypatch.setattr(ModelAdapters, "prepare", lacks_memory)
    model = saved("llama", tmp_path / "model")
    adapter = make_adapter(model, tmp_path / "1", 1)
    core = load_core(config_of(tmp_path / "model", 60, 0))
    prompt = random_prompt(random.Random(1), 20)
    for name, one in (("changed", adapter), ("base", None)):
        core.submit(asking(name, prompt, one))
    ends = {}
    while not core.is_idle:
        ends |= {delta.request_id: delta.error for delta in core.step() if delta.finish_reason}
        if core.take_wanted():
            adapter.bring(core)
    assert ends == {"changed": "the adapter cannot be used: it cannot be read", "base": None}


def test_what_comes_late_of_an_adapter_is_not_taken_for_a_new_ones(tmp_path: Path) -> None:
    model = saved("llama", tmp_path / "model")
    adapter = make_adapter(model, tmp_path / "1", 1)
    core = load_core(config_of(tmp_path / "model", 60, 0))
    prompt = random_prompt(random.Random(1), 20)
    core.submit(asking("one", prompt, adapter))
    core.step()
    core.bring(adapter.name, b"{}", is_first=True)
    assert core.lack(adapter.name, "it took too long")
    core.submit(asking("one", prompt, adapter))
    core.step()
    core.take_wanted()
    core.bring(adapter.name, b"of before")
    adapter.bring(core)
    assert run(core, [adapter])["one"] == adapter.says(model, prompt, 12)


def test_a_large_adapter_finds_room_beside_a_flood_of_small_requests(tmp_path: Path) -> None:
    model = saved("llama", tmp_path / "model")
    adapter = make_adapter(model, tmp_path / "1", 1, r=12)
    core = load_core(config_of(tmp_path / "model", 64, 0))
    rng, live, number = random.Random(5), 0, 0
    for step in range(4000):
        while live < 40:
            core.submit(make_request(f"x{number}", random_prompt(rng, 20), 10, tenant="flood"))
            number, live = number + 1, live + 1
        if step == 40:
            use = asking("adapted", random_prompt(rng, 20), adapter, 4)
            core.submit(structs.replace(use, tenant="b"))
        for delta in core.step():
            assert delta.error is None
            live -= delta.finish_reason is not None
            if delta.request_id == "adapted":
                return
        for _ in core.take_wanted():
            adapter.bring(core)
        core.scheduler.check()
    raise AssertionError("it never begins")
