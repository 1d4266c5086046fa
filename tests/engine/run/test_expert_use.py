"""What is told of experts: those that steps have read, and how evenly their tokens are spread."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from engine.assembly.assemble import load_core
from engine.config import EngineConfig
from engine.model.calibration import calibrate_rows
from engine.model.load import load_model
from engine.run import expert_use as subject
from engine.run.expert_use import ExpertUse, expert_use
from engine.serve.core import EngineCore
from kernels.experts import pack_experts
from kernels.types import Experts
from tests.engine.model.test_model import SMALL, save_model
from tests.engine.simulated_model import random_prompt
from tests.engine.simulation import make_request, run_to_end

EXPERTS, PER_TOKEN = 4, 2
LAYERS = SMALL["num_hidden_layers"]


def config_of(family: str, folder: Path) -> EngineConfig:
    save_model(family, folder)
    return EngineConfig(
        model_path=str(folder), device="cpu", dtype="float32", block_size=8, threads=1,
        kv_memory_bytes=1 << 20, step_token_budget=64,
    )  # fmt: skip


def served(core: EngineCore, *prompts: Sequence[int]) -> None:
    """Each has one token."""
    for number, prompt in enumerate(prompts):
        core.submit(make_request(f"r{number}", list(prompt), 1, cache=False))
    run_to_end(core)


def test_steps_count_what_they_read_and_nothing_before_them(tmp_path: Path) -> None:
    core = load_core(config_of("mixtral", tmp_path))
    before = core.stats()
    assert (before.num_experts, before.expert_passes, before.expert_rows) == (EXPERTS, 0, 0)
    served(core, [7])
    one = core.stats()
    assert (one.expert_passes, one.experts_read) == (LAYERS, LAYERS * PER_TOKEN)
    assert one.expert_rows == LAYERS * PER_TOKEN
    served(core, random_prompt(random.Random(0), 50))
    many = core.stats()
    assert many.expert_passes == 2 * LAYERS
    assert many.expert_rows == LAYERS * PER_TOKEN * 51
    read = many.experts_read - one.experts_read
    assert LAYERS * PER_TOKEN < read <= LAYERS * EXPERTS


@pytest.mark.parametrize("family", ["llama", "llama4_text"])
def test_without_experts_or_where_the_models_own_modules_are_those_nothing_is_told(
    family: str, tmp_path: Path
) -> None:
    core = load_core(config_of(family, tmp_path))
    served(core, [7, 8])
    said = core.stats()
    assert (said.num_experts, said.expert_passes, said.expert_imbalance) == (0, 0, None)


def uneven(num_experts: int) -> Experts:
    gate_up, down = torch.randn(num_experts, 8, 4), torch.randn(num_experts, 4, 4)
    return pack_experts(list(gate_up), list(down), "silu")


def test_the_busiest_expert_is_compared_with_the_mean_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subject, "_WINDOW", 10)
    layers = [uneven(4), uneven(5)]
    use = ExpertUse(layers)

    def compute(*experts: int) -> object:
        chosen = torch.tensor(experts, dtype=torch.int32)[:, None]
        for layer in layers:
            layer(torch.randn(len(chosen), 4), chosen, torch.ones(len(chosen), 1))
        return use.figures()["expert_imbalance"]

    assert compute(*[0] * 49) is None, "too few to tell"
    assert compute(1) == pytest.approx((49 / (50 / 4) + 49 / (50 / 5)) / 2)
    assert compute(*[0, 1, 2, 3] * 12) == pytest.approx((49 / 12.5 + 49 / 10) / 2), "as before"
    assert compute(*[0, 1, 2, 3] * 12) == pytest.approx((1 + 5 / 4) / 2), "of what came since"
    use.begin()
    assert use.figures() == {
        "num_experts": 5, "expert_rows": 0, "experts_read": 0, "expert_passes": 0,
        "expert_imbalance": None,
    }  # fmt: skip


def test_rows_that_are_timed_read_experts_of_their_own(tmp_path: Path) -> None:
    model = load_model(config_of("mixtral", tmp_path))
    model.allocate(20)
    use = expert_use(model)
    assert use is not None
    calibrate_rows(model, 1, 8, None)
    alone = use.figures()
    assert alone["experts_read"] == PER_TOKEN * int(alone["expert_passes"] or 0)
    use.begin()
    calibrate_rows(model, 8, 8, None)
    several = use.figures()
    assert several["experts_read"] > (PER_TOKEN + 0.5) * int(several["expert_passes"] or 0)
