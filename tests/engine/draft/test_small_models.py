"""Real models guess for real models, whose answers stay what they are."""

import json
import random
from pathlib import Path

import msgspec
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from engine.api import EngineError
from engine.assembly.assemble import load_core, make_draft_model, make_drafter, make_runner
from engine.assembly.parts import Parts, load_parts
from engine.config import EngineConfig
from engine.draft.drafter import LookupFirst
from engine.draft_model.drafter import DraftModel
from engine.serve.core import EngineCore
from tests.engine.clock import with_clock
from tests.engine.draft.test_models import answers
from tests.engine.model.test_model import generate, make_config, save_model
from tests.engine.run.test_batch_invariance import sampled_requests
from tests.engine.simulated_model import random_prompt
from tests.engine.simulation import make_request, run_to_end

BLOCK = 8


def config_of(folder: Path, draft: Path, **options: object) -> EngineConfig:
    fields = {
        "device": "cpu",
        "dtype": "float32",
        "block_size": BLOCK,
        "step_token_budget": 64,
        "max_running_requests": 16,
        "kv_memory_bytes": 8 << 20,
        "threads": 1,
        "speculation": "draft",
    }
    return EngineConfig(model_path=str(folder), draft_model_path=str(draft), **(fields | options))


def save_stranger(family: str, folder: Path, **changes: int) -> Path:
    """A model with other weights than that of `save_model`, which knows nothing about it."""
    torch.manual_seed(99)
    config = make_config(family)
    for name, value in changes.items():
        setattr(config, name, value)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return folder


def save_tokenizer(folder: Path, tokens: list[str]) -> None:
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token=tokens[0]))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)


def guessing(config: EngineConfig) -> tuple[EngineCore, DraftModel, Parts]:
    """An engine whose guesses are all a model's."""
    parts = load_parts(config)
    assert parts.draft is not None
    drafter = make_draft_model(parts, parts.draft)
    runner, _ = make_runner(parts)
    return EngineCore(parts.config, parts.info, runner, drafter=drafter), drafter, parts


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "mistral"])
def test_a_model_that_guesses_for_itself_is_always_right(family: str, tmp_path: Path) -> None:
    model = save_model(family, tmp_path)
    core, drafter, _ = guessing(config_of(tmp_path, tmp_path))
    rng = random.Random(7)
    prompts = [random_prompt(rng, rng.randrange(5, 90)) for _ in range(3)]
    expected = {str(i): generate(model, prompt, 24) for i, prompt in enumerate(prompts)}
    for index, prompt in enumerate(prompts):
        core.submit(make_request(str(index), prompt, max_tokens=24))
    assert run_to_end(core) == expected
    stats = core.stats()
    assert stats.accepted_tokens == stats.drafted_tokens > 45
    assert stats.steps < 15
    drafter.check()


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_stranger_is_never_right_and_does_no_harm(family: str, tmp_path: Path) -> None:
    model = save_model("llama", tmp_path / "model")
    stranger = save_stranger(family, tmp_path / "draft")
    core, drafter, _ = guessing(config_of(tmp_path / "model", stranger))
    rng = random.Random(7)
    prompts = [random_prompt(rng, rng.randrange(5, 90)) for _ in range(3)]
    expected = {str(i): generate(model, prompt, 30) for i, prompt in enumerate(prompts)}
    for index, prompt in enumerate(prompts):
        core.submit(make_request(str(index), prompt, max_tokens=30))
    assert run_to_end(core) == expected
    stats = core.stats()
    assert stats.drafted_tokens > 0
    assert stats.accepted_tokens < 5
    drafter.check()


def test_it_draws_as_the_model_does_with_seeds_penalties_and_bias(tmp_path: Path) -> None:
    save_model("llama", tmp_path)
    requests = sampled_requests()
    core, drafter, parts = guessing(config_of(tmp_path, tmp_path))
    drafted, _ = answers(core, requests)
    drafter.check()
    config = msgspec.structs.replace(parts.config, speculation="off", draft_model_path=None)
    plain, _ = answers(EngineCore(config, parts.info, make_runner(parts)[0]), requests)
    assert drafted == plain
    stats = core.stats()
    assert stats.accepted_tokens > 0.9 * stats.drafted_tokens > 50


def test_in_a_small_pool_answers_are_the_same(tmp_path: Path) -> None:
    model = save_model("llama", tmp_path)
    parts = load_parts(config_of(tmp_path, tmp_path, max_running_requests=8))
    block_bytes = 2 * parts.model.layout.block_bytes(BLOCK, torch.float32)
    core, drafter, _ = guessing(
        config_of(tmp_path, tmp_path, max_running_requests=8, kv_memory_bytes=20 * block_bytes)
    )
    assert core.info.num_blocks == 20, "blocks of both come out of one budget"
    rng = random.Random(7)
    prompts = [random_prompt(rng, rng.randrange(15, 30)) for _ in range(6)]
    expected = {str(i): generate(model, prompt, 50) for i, prompt in enumerate(prompts)}
    for index, prompt in enumerate(prompts):
        core.submit(make_request(str(index), prompt, max_tokens=50))
    assert run_to_end(core) == expected
    assert core.stats().preemptions > 0
    assert core.stats().accepted_tokens > 0
    drafter.check()


def test_what_is_longer_than_the_drafts_memory_is_not_guessed_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model's windows leave room for more tokens than the draft has, which remembers all."""
    model = save_model("gemma2", tmp_path)
    block_bytes = 2 * load_parts(config_of(tmp_path, tmp_path)).model.block_bytes
    few = {"step_token_budget": 24, "kv_memory_bytes": 24 * block_bytes}
    core, drafter, parts = guessing(config_of(tmp_path, tmp_path, **few))
    with_clock(core, monkeypatch, decoding=1.0, draft=0.01)
    room = parts.info.num_blocks * BLOCK
    assert room == 24 * BLOCK < parts.info.max_context_tokens
    assert len(parts.info.kinds) == 2
    rng = random.Random(5)
    long, crossing = random_prompt(rng, room + 5), random_prompt(rng, room - 12)
    for name, prompt in (("crossing", crossing), ("long", long)):
        core.submit(make_request(name, prompt, max_tokens=24))
        assert run_to_end(core)[name] == generate(model, prompt, 24)
        drafter.check()
    stats = core.stats()
    assert 0 < stats.accepted_tokens == stats.drafted_tokens <= 12, "none behind its memory's end"
    prompts = {str(i): random_prompt(rng, rng.randrange(50, 90)) for i in range(4)}
    for name, prompt in prompts.items():
        core.submit(make_request(name, prompt, max_tokens=24))
    expected = {name: generate(model, prompt, 24) for name, prompt in prompts.items()}
    assert run_to_end(core) == expected, "some have no room to be guessed for"
    assert core.stats().drafted_tokens > stats.drafted_tokens
    drafter.check()


def test_an_engine_loads_it_and_looks_up_first(tmp_path: Path) -> None:
    model = save_model("llama", tmp_path)
    parts = load_parts(config_of(tmp_path, tmp_path))
    drafter = make_drafter(parts)
    assert isinstance(drafter, LookupFirst)
    prompt = random_prompt(random.Random(3), 30)
    expected = generate(model, prompt, 24)
    free = EngineCore(parts.config, parts.info, make_runner(parts)[0], drafter=drafter)
    for core in (free, load_core(config_of(tmp_path, tmp_path))):
        core.submit(make_request("r", prompt, max_tokens=24))
        assert run_to_end(core)["r"] == expected
    assert free.stats().accepted_tokens > 15


def test_matrices_of_other_sizes_may_have_one_vocabulary(tmp_path: Path) -> None:
    model = save_model("llama", tmp_path / "model")
    draft = save_stranger("llama", tmp_path / "draft", vocab_size=960)
    for folder in (tmp_path / "model", draft):
        save_tokenizer(folder, [f"t{index}" for index in range(950)])
    core, _, _ = guessing(config_of(tmp_path / "model", draft))
    prompt = [*random_prompt(random.Random(3), 30), 998, 999]
    core.submit(make_request("r", prompt, max_tokens=24))
    assert run_to_end(core)["r"] == generate(model, prompt, 24)
    assert core.stats().drafted_tokens > 0


def test_another_vocabulary_of_the_same_size_is_refused(tmp_path: Path) -> None:
    save_model("llama", tmp_path / "model")
    draft = save_stranger("llama", tmp_path / "draft")
    tokens = [f"t{index}" for index in range(950)]
    save_tokenizer(tmp_path / "model", tokens)
    save_tokenizer(draft, [*tokens[:700], "odd", *tokens[701:]])
    with pytest.raises(EngineError, match=r"^draft_model: .*its token 700 is 'odd', .* 't700'"):
        load_parts(config_of(tmp_path / "model", draft))


def test_another_size_of_vocabulary_is_refused(tmp_path: Path) -> None:
    save_model("llama", tmp_path / "model")
    draft = save_stranger("llama", tmp_path / "draft", vocab_size=900)
    with pytest.raises(EngineError, match=r"^draft_model: .*draft has 900 tokens.* 1000"):
        load_parts(config_of(tmp_path / "model", draft))


def test_a_folder_that_is_not_there_is_refused_by_the_settings_name(tmp_path: Path) -> None:
    save_model("llama", tmp_path)
    with pytest.raises(EngineError, match=r"^draft_model: .*nothing"):
        load_parts(config_of(tmp_path, tmp_path / "nothing"))


def test_a_family_that_cannot_be_served_is_refused_by_the_settings_name(tmp_path: Path) -> None:
    save_model("llama", tmp_path / "model")
    save_model("llama", tmp_path / "draft")
    file = tmp_path / "draft" / "config.json"
    config = json.loads(file.read_text()) | {"quantization_config": {"quant_method": "gptq"}}
    file.write_text(json.dumps(config))
    with pytest.raises(EngineError, match=r"^draft_model: .*gptq"):
        load_parts(config_of(tmp_path / "model", tmp_path / "draft"))
