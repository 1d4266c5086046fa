"""Where no compiler built the library plain torch computes the same tokens, and the log says so."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.model.load import load_model
from kernels.native import library
from tests.engine.model.test_model import generate, make_core, save_model
from tests.engine.run.test_batch_invariance import BLOCK_SIZE, LENGTH, NUM_BLOCKS, logits
from tests.engine.simulated_model import random_prompt
from tests.engine.simulation import make_request, run_to_end


@pytest.fixture(autouse=True)
def _no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_library", None)


@pytest.mark.parametrize(
    "family",
    [
        "gemma2",  # of fused layers, with all that attention can be asked for
        "gpt2",  # of others
        *(pytest.param(one, marks=pytest.mark.exhaustive) for one in ("llama", "qwen3", "mistral")),
    ],
)
def test_paged_output_equals_generate_cold_cached_chunked_batched_and_preempted(
    family: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = save_model(family, tmp_path)
    core = make_core(tmp_path, num_blocks=20)
    assert sum("kernels/native is not built" in line for line in caplog.messages) == 1
    rng = random.Random(7)
    head = random_prompt(rng, 60)  # longer than a step, and than a window
    prompts = [head + random_prompt(rng, rng.randrange(1, 40)) for _ in range(4)]
    expected = {str(i): generate(model, prompt, 16) for i, prompt in enumerate(prompts)}
    for attempt in ("cold", "cached"):
        for index, prompt in enumerate(prompts):
            core.submit(make_request(str(index), prompt, max_tokens=16))
        assert run_to_end(core, preempt_after=4) == expected, attempt
    stats = core.stats()
    assert stats.preemptions > 0
    assert stats.cached_tokens > 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_token_has_the_same_bits_alone_and_among_others(dtype: str, tmp_path: Path) -> None:
    save_model("gemma2", tmp_path)
    folder = str(tmp_path)
    options = {"device": "cpu", "dtype": dtype, "block_size": BLOCK_SIZE, "batch_invariant": True}
    model = load_model(EngineConfig(model_path=folder, **options))  # type: ignore[arg-type]
    model.allocate(3 * NUM_BLOCKS)
    alone = logits(model, [LENGTH])
    together = logits(model, [7, 16, 64, 1, 100, 112], [1, 90, 1, 40, 17, 2])
    assert torch.equal(together, alone)
