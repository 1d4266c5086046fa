"""A model in two processes says with adapters what PEFT's models say, from pages on both ranks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from transformers import PreTrainedModel

from engine.api import EngineBroken
from engine.assembly.assemble import make_core
from engine.assembly.parts import Parts, load_parts
from engine.config import EngineConfig
from engine.model.load import load_model
from engine.serve.core import EngineCore
from kernels.native import library
from tests.engine.adapters.peft_models import Made, make_adapter
from tests.engine.adapters.test_adapters import INVOCATION, asking, known_to_model, run
from tests.engine.model import states
from tests.engine.model.layers.variants import VARIANTS, Variant
from tests.engine.model.test_model import generate
from tests.engine.model.test_parallel import UNEVEN, config_of, leading, save
from tests.engine.model.test_parallel_states import in_two_processes
from tests.engine.simulated_model import random_prompt

TOKENS = 24
PACKED = ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]
FAMILIES: dict[str, tuple[Variant, dict[str, Any]]] = {
    "uneven": (UNEVEN, {}),
    "one product for several layers": (VARIANTS["phi3"], {"target_modules": PACKED}),
    "heads in pairs": (VARIANTS["cohere"], {}),
    "experts, one of them shared": (
        VARIANTS["qwen2_moe"],
        {"target_modules": r".*(self_attn|shared_expert)\.\w+_proj"},
    ),
}


def with_blocks(config: EngineConfig, count: int) -> EngineConfig:
    whole = msgspec.structs.replace(config, tensor_parallel=1)
    return msgspec.structs.replace(config, kv_memory_bytes=count * load_model(whole).block_bytes)


@contextmanager
def on_two_ranks(folder: Path, num_blocks: int, **options: Any) -> Iterator[Parts]:
    parts = load_parts(with_blocks(config_of(folder, 2, **options), num_blocks))
    try:
        yield parts
    finally:
        leading(parts).followers.close()


def check_said(
    core: EngineCore, model: PreTrainedModel, adapters: list[Made], turns: int = 2
) -> None:
    """All together beside base rows, cold and cached, and preempted on their way."""
    head = random_prompt(random.Random(1), 30)
    prompts = [[*head, *INVOCATION, *random_prompt(random.Random(seed), 9)] for seed in range(3)]
    cases = [(prompt, adapter) for prompt in prompts for adapter in (None, *adapters)]
    expected = {
        str(number): generate(model, prompt, TOKENS)
        if adapter is None
        else adapter.says(model, prompt, TOKENS)
        for number, (prompt, adapter) in enumerate(cases)
    }
    for _ in range(turns):
        for number, (prompt, adapter) in enumerate(cases):
            core.submit(asking(str(number), prompt, adapter, TOKENS))
        assert run(core, adapters, preempt_after=12) == expected
    assert core.stats().preemptions > 0
    assert core.stats().blocks_in_use == 0
    assert len(set(map(tuple, expected.values()))) > len(prompts)


OTHERS = [pytest.param(one, marks=pytest.mark.exhaustive) for one in FAMILIES if one != "uneven"]


@pytest.mark.parametrize("name", ["uneven", *OTHERS])
def test_two_ranks_say_what_each_adapter_says_alone(name: str, tmp_path: Path) -> None:
    variant, targets = FAMILIES[name]
    model = save(variant, tmp_path / "model")
    adapters = [
        make_adapter(model, tmp_path / "1", 1, **targets),
        make_adapter(model, tmp_path / "2", 2, r=16, use_rslora=True, **targets),
    ]
    if "experts" not in name:  # which PEFT does not activate
        adapters.append(make_adapter(model, tmp_path / "3", 3, INVOCATION, **targets))
    with on_two_ranks(tmp_path / "model", 300) as parts:
        whole = load_parts(config_of(tmp_path / "model", 1)).info.linears or {}
        # What changes experts is refused there by name.
        assert parts.info.linears == {name: size for name, size in whole.items() if len(size) == 2}
        check_said(make_core(parts), model, adapters)


@pytest.mark.parametrize(
    "recovery", ["swap", pytest.param("recompute", marks=pytest.mark.exhaustive)]
)
def test_adapters_come_and_go_in_a_memory_that_holds_few(recovery: str, tmp_path: Path) -> None:
    model = save(UNEVEN, tmp_path / "model")
    adapters = [make_adapter(model, tmp_path / str(seed), seed, r=8) for seed in range(1, 5)]
    options = {"adapter_memory_bytes": 100_000, "host_memory_bytes": 1 << 20}
    with on_two_ranks(tmp_path / "model", 90, recovery=recovery, **options) as parts:
        core = make_core(parts)
        check_said(core, model, adapters, turns=3)
        assert len(known_to_model(core)) < len(adapters), "what is evicted is forgotten"


@pytest.mark.skipif(not library.available(), reason="kernels/native is not built")
def test_modules_of_their_own_add_it_on_every_rank(tmp_path: Path) -> None:
    model = states.saved("lfm2", tmp_path / "model")
    targets = {"target_modules": ["in_proj", "out_proj", "q_proj", "w1", "w2", "w3"]}
    adapters = [
        make_adapter(model, tmp_path / "1", 1, **targets),
        make_adapter(model, tmp_path / "2", 2, invocation=INVOCATION, **targets),
    ]
    config = states.config_of(tmp_path / "model", 400, 40)
    with in_two_processes(config) as parts:
        check_said(make_core(parts), model, adapters)


@pytest.mark.exhaustive
def test_a_rank_that_ends_while_it_is_filled_breaks_the_engine(tmp_path: Path) -> None:
    model = save(UNEVEN, tmp_path / "model")
    adapter = make_adapter(model, tmp_path / "1", 1)
    with on_two_ranks(tmp_path / "model", 90) as parts:
        core = make_core(parts)
        core.submit(asking("one", random_prompt(random.Random(1), 20), adapter))
        core.step()
        core.take_wanted()
        (process,) = leading(parts).followers._processes
        process.kill()
        process.join()
        adapter.bring(core)
        with pytest.raises(EngineBroken, match="fell apart"):
            run(core, [])
