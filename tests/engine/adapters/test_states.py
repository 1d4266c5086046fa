"""What an engine says of adapters: where they are, how they came, how often they were meant."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from msgspec import structs

from engine.api import AdapterState
from engine.assembly.assemble import load_core
from engine.questions import ADAPTERS_AT_ONCE, QUESTIONS, AskAdapters
from engine.serve.core import EngineCore
from engine.serve.messages import encode
from tests.engine.adapters.peft_models import Made, make_adapter
from tests.engine.adapters.test_adapters import asking, run
from tests.engine.model.states import config_of, saved
from tests.engine.simulated_model import random_prompt
from tests.engine.simulation import simulated_core


def state(core: EngineCore, adapter: Made) -> AdapterState:
    (one,) = core.adapter_states([adapter.name])
    assert one is not None
    return one


def test_an_adapter_is_where_it_is_said_to_be(tmp_path: Path) -> None:
    model = saved("llama", tmp_path / "model")
    adapter, other = (make_adapter(model, tmp_path / str(seed), seed) for seed in (1, 2))
    core = load_core(config_of(tmp_path / "model", 60, 0))
    assert core.adapter_states([adapter.name]) == [None]
    prompt = random_prompt(random.Random(1), 20)
    core.submit(asking("one", prompt, adapter, 2))
    waiting = state(core, adapter)
    assert waiting == AdapterState(
        on_device=False,
        in_host=False,
        num_bytes=0,
        uses=0,
        idle_seconds=None,
        fetch_seconds=None,
        load_seconds=None,
    )
    run(core, [adapter])
    loaded = state(core, adapter)
    assert (loaded.on_device, loaded.in_host, loaded.uses) == (True, True, 1)
    assert loaded.num_bytes > (adapter.folder / "adapter_model.safetensors").stat().st_size / 4
    assert loaded.idle_seconds is not None
    assert loaded.idle_seconds >= 0
    assert (loaded.fetch_seconds or 0) > 0
    assert (loaded.load_seconds or 0) > 0
    core.submit(asking("again", prompt, adapter, 2))
    run(core, [adapter])
    again = state(core, adapter)
    assert again.uses == 2
    assert (again.fetch_seconds, again.load_seconds) == (loaded.fetch_seconds, loaded.load_seconds)
    both = core.adapter_states([other.name, adapter.name])
    assert both[0] is None
    assert QUESTIONS[AskAdapters].decode(encode(both))[1].uses == 2
    core.scheduler.check()


def test_what_is_evicted_is_on_the_device_no_more_until_it_is_loaded_again(tmp_path: Path) -> None:
    model = saved("llama", tmp_path / "model")
    adapter = make_adapter(model, tmp_path / "1", 1)
    core = load_core(config_of(tmp_path / "model", 60, 0))
    prompt = random_prompt(random.Random(1), 20)
    core.submit(asking("one", prompt, adapter, 2))
    run(core, [adapter])
    first = state(core, adapter)
    for number in range(12):  # they need all blocks
        core.submit(asking(f"{number}", random_prompt(random.Random(number), 200), None, 2))
    run(core, [])
    evicted = state(core, adapter)
    assert (evicted.on_device, evicted.in_host, evicted.uses) == (False, True, 1)
    core.submit(asking("two", prompt, adapter, 2))
    run(core, [])  # it is asked for no more: it is in the host's memory
    back = state(core, adapter)
    assert (back.on_device, back.uses) == (True, 2)
    assert back.fetch_seconds == first.fetch_seconds
    assert back.load_seconds != first.load_seconds
    core.scheduler.check()


def test_without_memory_for_images_an_adapter_is_on_the_device_alone(tmp_path: Path) -> None:
    model = saved("llama", tmp_path / "model")
    adapters = [make_adapter(model, tmp_path / str(seed), seed) for seed in (1, 2)]
    core = load_core(config_of(tmp_path / "model", 60, 0, adapter_memory_bytes=0))
    for number, adapter in enumerate(adapters):
        core.submit(asking(str(number), random_prompt(random.Random(1), 20), adapter, 2))
        run(core, adapters)
    core.submit(asking("base", random_prompt(random.Random(1), 20), adapters[1], 2))
    run(core, adapters)
    states = [state(core, adapter) for adapter in adapters]
    assert [one.on_device for one in states] == [True, True]
    assert [one.in_host for one in states] == [False, False]


def test_what_is_known_of_a_tenants_adapters_is_gone_with_it(tmp_path: Path) -> None:
    model = saved("llama", tmp_path / "model")
    own, others = (make_adapter(model, tmp_path / str(seed), seed) for seed in (1, 2))
    core = load_core(config_of(tmp_path / "model", 60, 0))
    for tenant, adapter in (("a", own), ("b", others)):
        request = asking(tenant, random_prompt(random.Random(1), 20), adapter, 2)
        core.submit(structs.replace(request, tenant=tenant))
        run(core, [own, others])
    core.forget_tenant("a")
    assert core.adapter_states([own.name]) == [None]
    assert state(core, others).on_device


def test_an_engine_that_serves_none_knows_none() -> None:
    assert simulated_core().adapter_states([b"one", b"two"]) == [None, None]


def test_no_more_are_asked_about_at_once_than_a_step_can_wait_for() -> None:
    info = simulated_core().info
    AskAdapters([b"name"] * ADAPTERS_AT_ONCE).check(info)
    with pytest.raises(ValueError, match="names"):
        AskAdapters([b"name"] * (ADAPTERS_AT_ONCE + 1)).check(info)
