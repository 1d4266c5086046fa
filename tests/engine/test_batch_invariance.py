"""With `batch_invariant` what is computed for a token has the same bits whatever else is computed:
beside other sequences, in chunks of any length, and by any number of threads.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from engine.batch import pack
from engine.checkpoint import load_model
from engine.config import EngineConfig
from engine.model import PagedModel
from kernels import native
from tests.engine.simulation import random_prompt
from tests.engine.test_model import FAMILIES, SMALL

BLOCK_SIZE = 16
LENGTH = 300
"""Tokens; more than attention has in a split."""
NUM_BLOCKS = -(-LENGTH // BLOCK_SIZE)
WIDE = {"hidden_size": 128, "intermediate_size": 160, "head_dim": 32}
VARIANTS = {
    "bfloat16": ("llama", {"dtype": "bfloat16"}),
    "float32": ("llama", {"dtype": "float32"}),
    "int8": ("llama", {"dtype": "bfloat16", "quantize": "int8"}),
    "window and soft caps": ("gemma2", {"dtype": "bfloat16"}),
}

pytestmark = pytest.mark.skipif(not native.available(), reason="kernels/native is not built")


@pytest.fixture(params=VARIANTS)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> PagedModel:
    family, options = VARIANTS[request.param]
    shape = AutoConfig.for_model(family, **(SMALL | FAMILIES[family] | WIDE))
    AutoModelForCausalLM.from_config(shape, dtype=torch.bfloat16).save_pretrained(tmp_path)
    config = EngineConfig(
        model_path=str(tmp_path),
        device="cpu",
        batch_invariant=True,
        block_size=BLOCK_SIZE,
        **options,
    )
    model = load_model(config)
    model.allocate(3 * NUM_BLOCKS)
    return model


@pytest.fixture(params=native.LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[None]:
    limit = native.function("pw_linear_limit", native.integer)
    before = native.level()
    native.limit_level(request.param)
    limit({"plain": 0, "avx2": 1, "amx": 3}.get(request.param, 2))
    yield
    native.limit_level(before)
    native.set_threads(torch.get_num_threads())
    limit(3)


def logits(model: PagedModel, chunks: list[int], beside: list[int] | None = None) -> Tensor:
    """Of all tokens of a prompt, computed in `chunks`; with `beside` a sequence that decodes comes
    before it in each batch, and a chunk of another prompt of those lengths behind it.
    """
    tokens, *others = (random_prompt(random.Random(seed), LENGTH) for seed in range(3))
    own, *tables = torch.arange(3 * NUM_BLOCKS).view(3, -1).tolist()
    model.memory.zero_()
    found: list[Tensor] = []
    start = 0
    for step, count in enumerate(chunks):
        parts = [(tokens, start, count, own)]
        if beside is not None:
            parts.insert(0, (others[0], step, 1, tables[0]))
            parts.append((others[1], sum(beside[:step]), beside[step], tables[1]))
        first = 0 if beside is None else 1
        rows = range(first, first + count)
        found.append(model.forward(pack(parts, rows, BLOCK_SIZE, model.device)))
        start += count
    return torch.cat(found)


def test_a_token_has_the_same_bits_alone_and_among_others(model: PagedModel, level: None) -> None:
    native.set_threads(1)
    alone = logits(model, [LENGTH])
    assert torch.equal(logits(model, [1, 2, 17, 30, 100, 150]), alone)
    for threads in (1, 2, 3):
        native.set_threads(threads)
        together = logits(model, [7, 16, 64, 1, 100, 112], [1, 90, 1, 40, 17, 2])
        assert torch.equal(together, alone)
    assert torch.equal(logits(model, [1] * LENGTH), alone)
