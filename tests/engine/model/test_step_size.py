"""How large steps are where nobody says it: as the CPU's always were, and by what a GPU has."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from engine.config import EngineConfig
from engine.model.step_size import CPU_STEP, StepSize, cpu_tokens, gpu_step, sized, with_step_size

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "memory", "processors", "size"),
    [
        ("T4", 15 * GIB, 40, StepSize(1024, 64)),
        ("L4", 22 * GIB, 58, StepSize(1024, 64)),
        ("A100", 40 * GIB, 108, StepSize(2048, 128)),
        ("H100", 79 * GIB, 132, StepSize(4096, 256)),
        ("H200", 140 * GIB, 132, StepSize(4096, 512)),
        ("of tomorrow", 900 * GIB, 900, StepSize(8192, 512)),
        ("a small one", 4 * GIB, 10, StepSize(1024, 64)),
    ],
)
def test_a_gpus_steps_grow_with_its_memory_and_its_processors(
    name: str, memory: int, processors: int, size: StepSize
) -> None:
    assert gpu_step(memory, processors) == size


def test_a_cpus_steps_are_small_and_what_is_configured_counts() -> None:
    cpu = torch.device("cpu")

    def chosen(**given: int) -> tuple[int | None, int | None]:
        config = with_step_size(EngineConfig(model_path="", **given), cpu)
        return config.step_token_budget, config.max_running_requests

    assert chosen() == tuple(CPU_STEP) == (512, 64)
    assert chosen(step_token_budget=100) == (100, 64)
    assert chosen(max_running_requests=9) == (512, 9)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_steps_have_room_for_what_is_computed_together_beside_all_that_decodes(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = SimpleNamespace(total_memory=15 * GIB, multi_processor_count=40)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    config = EngineConfig(model_path="", max_running_requests=1000)
    found = with_step_size(config, torch.device(device), together=256)
    assert (found.step_token_budget, found.max_running_requests) == (1256, 1000)


@pytest.mark.parametrize(
    ("fixed", "token", "tokens"),
    [
        (0.0105, 0.00062, 512),  # two cores of Zen 4
        (0.0095, 0.00070, 512),  # the same, measured again
        (0.0100, 0.00016, 2048),  # matrix tiles
        (0.0010, 0.00100, 128),
        (1e-9, 1.0, 128),
        (1.0, 1e-9, 2048),
        (0.0100, 0.0, 512),  # disturbed
    ],
)
def test_a_cpus_steps_of_prompts_are_as_long_as_their_fixed_part_asks_for(
    fixed: float, token: float, tokens: int
) -> None:
    assert cpu_tokens(fixed, token) == tokens


@pytest.mark.parametrize("given", [{"step_token_budget": 20}, {"max_running_requests": 9000}])
def test_whoever_runs_can_decode_in_every_step(given: dict[str, int]) -> None:
    config = sized(EngineConfig(model_path="", **given), gpu_step(79 * GIB, 132))
    assert config.step_token_budget is not None
    assert config.max_running_requests is not None
    assert config.max_running_requests <= config.step_token_budget
    assert {name: getattr(config, name) for name in given} == given
    with pytest.raises(ValueError, match="step_token_budget"):
        EngineConfig(model_path="", step_token_budget=20, max_running_requests=21)
