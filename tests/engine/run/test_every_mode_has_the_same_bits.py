"""With `batch_invariant` answers and their log-probabilities have the same bits in every mode:
alone and cold, found and grouped, in short chunks, swapped, recomputed, guessed.
"""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from engine.api import EngineRequest
from engine.assembly.assemble import make_runner
from engine.assembly.parts import load_parts
from engine.config import EngineConfig
from engine.serve.core import EngineCore
from kernels.native import library
from tests.engine.draft.test_models import Hindsight
from tests.engine.model.test_model import FAMILIES, SMALL
from tests.engine.run.test_batch_invariance import DENSE
from tests.engine.simulated_model import random_prompt
from tests.engine.simulation import make_request

Scored = dict[str, dict[int, list[tuple[int, float]]]]
"""Tokens with their log-probabilities, by request and sequence."""

BLOCK_SIZE = 16
ENOUGH, CROWDED = 300, 78
"""Blocks: for all that is asked, and for its prompts, but not for the answers as well."""
ROW_BYTES = {
    ("bfloat16", "auto"): 64,
    ("bfloat16", "int8"): 36,
    ("float32", "auto"): 128,
    ("float32", "int8"): 36,
}
"""Of a head, by the types of weights and of the KV memory."""
KINDS = [
    pytest.param(kind, marks=marks, id="-".join(kind))
    for kind in ROW_BYTES
    for marks in [() if kind == ("bfloat16", "int8") else pytest.mark.exhaustive]
]
HYBRIDS = ("qwen3_next", "granitemoehybrid", "lfm2")
MODES: dict[str, dict[str, object]] = {
    "found and grouped": {},
    "in chunks": {"prefix_cache": False, "step_token_budget": 29},
    "swapped": {"recovery": "swap", "prefix_cache": False, "min_run_tokens": 4},
    "recomputed": {"recovery": "recompute", "prefix_cache": False, "min_run_tokens": 4},
    "guessed": {},
}

pytestmark = pytest.mark.skipif(not library.available(), reason="kernels/native is not built")


@pytest.fixture(scope="module", params=["llama", "qwen3_moe", *HYBRIDS])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(3)
    wide = {"hidden_size": 128, "intermediate_size": 160, "head_dim": 32}
    experts = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    own = FAMILIES.get(request.param, {}) | DENSE.get(request.param, {})
    shape = AutoConfig.for_model(request.param, **(SMALL | wide | experts | own))
    path = tmp_path_factory.mktemp(request.param)
    AutoModelForCausalLM.from_config(shape, dtype=torch.bfloat16).save_pretrained(path)
    return path


def requests() -> list[EngineRequest]:
    """Of several sequences, greedy and sampled, whose prompts share more than a split of keys."""
    rng = random.Random(4)
    system = random_prompt(rng, 17 * BLOCK_SIZE)
    made = []
    for index in range(4):
        prompt = system + random_prompt(rng, 9 + index)
        request = make_request(str(index), prompt, num_sequences=1 + index % 2)
        params = msgspec.structs.replace(
            request.sampling, max_tokens=24, logprobs=0, temperature=0.4 * index, seed=index
        )
        made.append(msgspec.structs.replace(request, sampling=params))
    return made


def core_of(
    folder: Path,
    kind: tuple[str, str],
    num_blocks: int = ENOUGH,
    drafter: Hindsight | None = None,
    **options: object,
) -> EngineCore:
    block_bytes = 3 * 2 * 2 * BLOCK_SIZE * ROW_BYTES[kind]
    fields: dict[str, object] = {
        "device": "cpu",
        "dtype": kind[0],
        "kv_dtype": kind[1],
        "batch_invariant": True,
        "block_size": BLOCK_SIZE,
        "kv_memory_bytes": num_blocks * block_bytes,
        "host_memory_bytes": ENOUGH * block_bytes if "recovery" in options else 0,
        "step_token_budget": 512,
        "threads": 1,
        "max_running_requests": 8,
    }
    config = EngineConfig(model_path=str(folder), **(fields | options))  # type: ignore[arg-type]
    parts = load_parts(config)
    runner, _ = make_runner(parts)
    return EngineCore(parts.config, parts.info, runner, parts.costs, drafter=drafter)


def answered(
    core: EngineCore, asked: list[EngineRequest], preempt_after: int | None = None
) -> Scored:
    """Of requests that run together; pool and scheduler are checked after each step. Behind
    `preempt_after` of these all that runs is preempted.
    """
    found: Scored = {}
    for request in asked:
        core.submit(request)
    steps = 0
    while not core.is_idle:
        if steps == preempt_after:
            for group in list(core.scheduler.running.values()):
                core.scheduler.lifecycle.preempt(group)
        steps += 1
        for delta in core.step():
            assert delta.error is None
            own = found.setdefault(delta.request_id, {}).setdefault(delta.index, [])
            scores = [one.logprob for one in delta.logprobs or []]
            own.extend(zip(delta.token_ids, scores, strict=True))
        core.scheduler.check()
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_answers_have_the_bits_of_those_that_are_alone_and_cold(
    folder: Path, kind: tuple[str, str]
) -> None:
    alone: Scored = {}
    core = core_of(folder, kind, prefix_cache=False)
    for request in requests():
        alone |= answered(core, [request])
    known = {
        name: {index: [token for token, _ in scored] for index, scored in own.items()}
        for name, own in alone.items()
    }
    for mode, options in MODES.items():
        crowded, has_states = "recovery" in options, folder.name.startswith(HYBRIDS)
        drafter = Hindsight(known, SMALL["vocab_size"]) if mode == "guessed" else None
        num_blocks = CROWDED if crowded and not has_states else ENOUGH
        core = core_of(folder, kind, num_blocks, drafter, **options)
        assert answered(core, requests()[:1]) == {"0": alone["0"]}, mode
        preempt_after = 12 if crowded and has_states else None
        assert answered(core, requests(), preempt_after) == alone, mode
        stats = core.stats()
        assert (stats.preemptions > 0) == crowded, mode
        assert (stats.recomputed > 0) == (mode == "recomputed"), mode
        assert (stats.accepted_tokens > 0) == (mode == "guessed"), mode
        if mode == "found and grouped":
            assert stats.cached_tokens > 0
            assert stats.spared_keys > 0


def test_blocks_that_the_default_mode_has_computed_are_not_found(folder: Path) -> None:
    """On disk there may be such; chunks of other lengths have given them other bits."""
    invariant, default = (
        core_of(folder, ("bfloat16", "auto"), batch_invariant=one) for one in (True, False)
    )
    assert invariant.info.hash_extras != default.info.hash_extras
