"""With `batch_invariant` what is computed for a token has the same bits whatever else is computed:
beside other sequences, in chunks of any length, and by any number of threads.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from engine.api import CachePolicy, EngineRequest
from engine.assembly.assemble import load_core
from engine.assembly.parts import load_parts
from engine.batch.batch import pack
from engine.config import EngineConfig
from engine.model.layers.paged_model import PagedModel
from engine.model.load import load_model
from engine.run.runner import AheadRunner
from engine.schedule.swap_or_recompute import Policy
from engine.serve.core import EngineCore
from kernels.native import library
from kernels.prefix_groups import GroupFinder, HostGroups, Integers, rule_for
from kernels.types import PrefixGroups, StateRuns
from tests.engine.model.test_model import FAMILIES, SMALL
from tests.engine.simulated_model import random_prompt
from tests.engine.simulation import make_request, run_all_to_end

Part = tuple[list[int], int, int, list[int]]
"""Token ids, the first one to compute, how many, and the sequence's pages."""
Group = Callable[[Integers, Integers, Integers], PrefixGroups | None]
BLOCK_SIZE = 16
LENGTH = 300
"""Tokens; more than attention has in a split."""
NUM_BLOCKS = -(-LENGTH // BLOCK_SIZE)
WIDE = {"hidden_size": 128, "intermediate_size": 160, "head_dim": 32}
VARIANTS = {
    "bfloat16": ("llama", {"dtype": "bfloat16"}),
    "float32": ("llama", {"dtype": "float32"}),
    "int8": ("llama", {"dtype": "bfloat16", "quantize": "int8"}),
    "int4": ("llama", {"dtype": "bfloat16", "quantize": "int4"}),
    "window and soft caps": ("gemma2", {"dtype": "bfloat16"}),
    "norms over all heads": ("olmo2", {"dtype": "bfloat16"}),
    "layer norms, attention beside a plain network": ("phi", {"dtype": "bfloat16"}),
    "experts": ("mixtral", {"dtype": "bfloat16"}),
    "experts, something shared": ("qwen2_moe", {"dtype": "bfloat16", "quantize": "int8"}),
    "experts with biases, sinks": ("gpt_oss", {"dtype": "bfloat16"}),
    "gated delta rule": ("qwen3_next", {"dtype": "float32"}),
    "scans": ("granitemoehybrid", {"dtype": "float32"}),
    "scans of limited steps": ("nemotron_h", {"dtype": "bfloat16"}),
    "convolutions": ("lfm2", {"dtype": "bfloat16", "quantize": "int8"}),
}
DENSE = {
    "qwen3_next": {"mlp_only_layers": [0, 1, 2], "intermediate_size": 232},
    "granitemoehybrid": {
        **{"num_local_experts": 0, "mamba_n_heads": 6, "mamba_d_head": 64, "mamba_expand": 3},
        **{"mamba_d_state": 24, "layer_types": ["mamba", "attention", "mamba"]},
    },
    "nemotron_h": {"time_step_min": 0.5},
}
"""Of families with states, those without experts."""

pytestmark = pytest.mark.skipif(not library.available(), reason="kernels/native is not built")


def save(family: str, folder: Path) -> None:
    fields = SMALL | FAMILIES.get(family, {}) | WIDE | DENSE.get(family, {})
    shape = AutoConfig.for_model(family, **fields)
    AutoModelForCausalLM.from_config(shape, dtype=torch.bfloat16).save_pretrained(folder)


@pytest.fixture(scope="module", params=VARIANTS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PagedModel:
    tmp_path = tmp_path_factory.mktemp("model")
    family, options = VARIANTS[request.param]
    torch.manual_seed(0)  # of experts, roundings choose others where scores are nearly alike
    save(family, tmp_path)
    config = EngineConfig(
        model_path=str(tmp_path),
        device="cpu",
        batch_invariant=True,
        block_size=BLOCK_SIZE,
        **options,
    )
    model = load_model(config)
    model.allocate(3 * (NUM_BLOCKS + model.pages.state_pages))
    return model


@pytest.fixture(params=library.LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[None]:
    before = library.level()
    library.limit_level(request.param)
    threads = torch.get_num_threads()
    yield
    library.limit_level(before)
    set_threads(threads)


def set_threads(count: int) -> None:
    library.set_threads(count)
    torch.set_num_threads(count)


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
        found.append(forward(model, parts, rows, [0] if beside is None else [1, 0, 2]))
        start += count
    return torch.cat(found)


def forward(
    model: PagedModel,
    parts: list[Part],
    rows: Sequence[int],
    places: list[int],
    group: Group | None = None,
) -> Tensor:
    """Logits of such rows. States go on in place, each in one of three places behind all blocks."""
    batch = pack(parts, rows, BLOCK_SIZE, model.device, group)
    counts = [count for _, _, count, _ in parts]
    pages = torch.arange(3 * model.pages.state_pages, dtype=torch.int32).view(3, -1)
    targets = 3 * NUM_BLOCKS + pages[places]
    begun = torch.tensor([start > 0 for _, start, _, _ in parts])
    runs = StateRuns(
        starts=torch.tensor([0, *itertools.accumulate(counts)], dtype=torch.int32),
        sources=targets.where(begun[:, None], -1),
        targets=targets,
        drawn=torch.zeros(sum(counts), dtype=torch.bool),
    )
    return model.forward(replace(batch, states=runs))


def test_a_token_has_the_same_bits_alone_and_among_others(model: PagedModel, level: None) -> None:
    set_threads(1)
    alone = logits(model, [LENGTH])
    assert torch.equal(logits(model, [1, 2, 17, 30, 100, 150]), alone)
    for threads in (1, 2, 3):
        set_threads(threads)
        together = logits(model, [7, 16, 64, 1, 100, 112], [1, 90, 1, 40, 17, 2])
        assert torch.equal(together, alone)
    few = [1] * 20
    assert torch.equal(logits(model, [*few, LENGTH - 40, *few]), alone)


def test_a_token_has_the_same_bits_in_a_group(model: PagedModel, level: None) -> None:
    """Three sequences behind more shared blocks than a split has keys, and one of its own."""
    set_threads(2)
    shared = LENGTH // BLOCK_SIZE * BLOCK_SIZE
    prompts = [
        random_prompt(random.Random(0), LENGTH)[:shared] + random_prompt(random.Random(row), 12)
        for row in range(3)
    ]
    tables = [[*range(1, NUM_BLOCKS), NUM_BLOCKS + row] for row in range(3)]
    finder = GroupFinder(BLOCK_SIZE, rule_for(model.device, batch_invariant=True))
    found: list[HostGroups | None] = []

    def group(tables: Integers, counts: Integers, contexts: Integers) -> PrefixGroups | None:
        found.append(finder.find(tables, counts, contexts))
        return None if found[-1] is None else found[-1].to(model.device)

    last = shared + 11
    for row, (tokens, table) in enumerate(zip(prompts, tables, strict=True)):
        forward(model, [(tokens, 0, last, table)], [0], [row])
    parts = [(tokens, last, 1, table) for tokens, table in zip(prompts, tables, strict=True)]
    before = model.memory.clone()
    alone = [forward(model, [part], [0], [row]) for row, part in enumerate(parts)]
    model.memory.copy_(before)
    together = forward(model, parts, [0, 1, 2], [0, 1, 2], group)
    assert torch.equal(together, torch.cat(alone))
    [groups] = found
    assert groups is not None
    assert groups.private_starts.tolist() == 3 * [256]


@pytest.mark.parametrize("family", ["llama", "qwen3_next", "granitemoehybrid", "lfm2"])
def test_answers_have_the_same_bits_however_their_prompts_came_to_the_cache(
    family: str, tmp_path: Path
) -> None:
    """Cold, from the cache, in chunks, among siblings in a group, and from disk."""
    save(family, tmp_path / "model")
    rng = random.Random(4)
    system = random_prompt(rng, 400)
    prompts = [system + random_prompt(rng, 10) for _ in range(4)]

    def core_of(**options: object) -> EngineCore:
        config = EngineConfig(
            model_path=str(tmp_path / "model"),
            device="cpu",
            dtype="bfloat16",
            batch_invariant=True,
            kv_memory_bytes=8 << 20,
            **options,  # type: ignore[arg-type]
        )
        return load_core(config)

    def answers(core: EngineCore, count: int) -> list[list[tuple[list[int], list[float]]]]:
        """Tokens and their log-probabilities."""
        names = [str(next(numbers)) for _ in range(count)]
        for name, prompt in zip(names, prompts, strict=False):
            request = make_request(name, prompt, cache=CachePolicy(lease_s=60.0))
            params = msgspec.structs.replace(request.sampling, max_tokens=8, logprobs=0)
            core.submit(msgspec.structs.replace(request, sampling=params))
        found: dict[str, list[tuple[list[int], list[float]]]] = {name: [] for name in names}
        while not core.is_idle:
            for delta in core.step():
                scores = [one.logprob for one in delta.logprobs or []]
                found[delta.request_id].append((delta.token_ids, scores))
        core.scheduler.pool.check()
        return list(found.values())

    numbers = itertools.count()
    kept = str(tmp_path / "kept")
    core = core_of(kept_dir=kept, kept_seconds=3600.0)
    [cold] = answers(core, 1)
    assert answers(core, 1) == [cold]
    assert core.stats().cached_tokens >= len(system)
    among = answers(core, 4)
    assert among[0] == cold
    assert core.stats().spared_keys > 0
    core.close(patience_seconds=10.0)
    restored = core_of(kept_dir=kept, kept_seconds=3600.0)
    assert answers(restored, 4) == among
    assert restored.stats().restored_blocks >= len(system) // BLOCK_SIZE
    restored.close()
    chunked = core_of(step_token_budget=37, prefix_grouping=False, prefix_cache=False)
    assert answers(chunked, 4) == among


def sampled_requests() -> list[EngineRequest]:
    rng = random.Random(3)
    options: list[dict[str, object]] = [
        {"temperature": 0.9, "seed": 5, "frequency_penalty": 0.7},
        {"temperature": 1.2, "seed": 6, "top_k": 40, "repetition_penalty": 1.3},
        {"temperature": 0.0, "repetition_penalty": 1.3, "presence_penalty": 0.5},
        {"temperature": 0.8, "seed": 7, "min_p": 0.02, "logit_bias": {7: 2.0}},
    ]
    requests = []
    for index, option in enumerate(options):
        request = make_request(str(index), random_prompt(rng, 30), num_sequences=1 + index % 2)
        params = msgspec.structs.replace(request.sampling, max_tokens=40, **option)
        requests.append(msgspec.structs.replace(request, sampling=params))
    return requests


@pytest.mark.parametrize("recovery", ["swap", "recompute"])
def test_sampled_tokens_are_the_same_after_preemptions_and_in_another_engine(
    tmp_path: Path, recovery: Policy
) -> None:
    AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **SMALL)).save_pretrained(
        tmp_path
    )

    def core_of(num_blocks: int) -> EngineCore:
        block_bytes = 2 * 3 * 2 * BLOCK_SIZE * 16 * 4
        config = EngineConfig(
            model_path=str(tmp_path),
            device="cpu",
            dtype="float32",
            batch_invariant=True,
            recovery=recovery,
            kv_memory_bytes=num_blocks * block_bytes,
            host_memory_bytes=40 * block_bytes,
            step_token_budget=24,
            max_running_requests=8,
            min_run_tokens=4,
        )
        parts = load_parts(config)
        return EngineCore(parts.config, parts.info, AheadRunner(parts.model), parts.costs)

    requests = sampled_requests()
    alone: dict[str, dict[int, list[int]]] = {}
    undisturbed = core_of(60)
    for request in requests:
        undisturbed.submit(request)
        alone |= run_all_to_end(undisturbed)
    crowded = core_of(14)
    for request in requests:
        crowded.submit(request)
    assert run_all_to_end(crowded) == alone
    assert crowded.stats().preemptions > 0
    rebuilt = core_of(60)
    for request in requests:
        generated = [tokens[: 5 + index] for index, tokens in alone[request.request_id].items()]
        rebuilt.submit(msgspec.structs.replace(request, generated=generated))
    rest = {
        name: {index: tokens[5 + index :] for index, tokens in outputs.items()}
        for name, outputs in alone.items()
    }
    assert run_all_to_end(rebuilt) == rest
