"""Log-probabilities of prompts are those of the `transformers` model."""

import random
from pathlib import Path

import pytest
import torch
from msgspec import structs

from engine.api import PromptLogprobs, SamplingParams
from engine.run.runner import AheadRunner
from engine.serve.core import EngineCore
from tests.engine.model.test_model import make_core, save_model
from tests.engine.run.test_graphs import load, recorded
from tests.engine.simulated_model import random_prompt
from tests.engine.simulation import make_request


@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
def test_a_prompt_has_the_log_probabilities_that_the_model_gives_it(
    tmp_path: Path, family: str
) -> None:
    model, rng = save_model(family, tmp_path), random.Random(6)
    core = make_core(tmp_path, num_blocks=18)
    text = random_prompt(rng, 40)
    texts = {str(end): text[:end] + random_prompt(rng, 40 - end) for end in (0, 9, 30, 40)}
    wanted = dict(zip(texts, (0, 2, 5, 5), strict=True))
    for name, prompt in texts.items():
        sampling = SamplingParams(
            max_tokens=20, temperature=0.7, prompt_logprobs=wanted[name], seed=1,
            repetition_penalty=5.0, logit_bias={prompt[5]: -100.0},
        )  # fmt: skip
        core.submit(make_request(name, prompt, sampling=sampling))
    told: dict[str, list[PromptLogprobs]] = {name: [] for name in texts}
    while not core.is_idle:
        for delta in core.step():
            told[delta.request_id] += delta.prompt_logprobs
        core.scheduler.check()
    assert core.stats().preemptions > 0, "the pool was meant to be too small"
    for name, prompt in texts.items():
        with torch.inference_mode():
            logits = model(torch.tensor([prompt])).logits[0].float()
        expected = logits.log_softmax(-1)[:-1]
        assert len(told[name]) == len(expected) == 39
        for row, token, one in zip(expected, prompt[1:], told[name], strict=True):
            assert one.logprob == pytest.approx(float(row[token]), abs=1e-4)
            assert one.rank == 1 + int((row > row[token]).sum())
            values, tokens = row.topk(wanted[name])
            assert [token for token, _ in one.top] == tokens.tolist()
            assert [value for _, value in one.top] == pytest.approx(values.tolist(), abs=1e-4)


def test_recorded_steps_of_single_tokens_score_them(tmp_path: Path) -> None:
    model, rng = save_model("llama", tmp_path), random.Random(7)
    parts = load(tmp_path, num_blocks=60)
    graphs = recorded(parts)
    config = structs.replace(parts.config, step_token_budget=8)
    core = EngineCore(config, parts.info, AheadRunner(parts.model, graphs=graphs), parts.costs)
    for index in range(7):  # they leave one token of a step for prompts
        core.submit(make_request(str(index), random_prompt(rng, 3), max_tokens=60))
    for _ in range(8):
        core.step()
    prompt = random_prompt(rng, 20)
    sampling = SamplingParams(max_tokens=0, prompt_logprobs=0)
    core.submit(make_request("scored", prompt, sampling=sampling))
    told: list[float] = []
    chunks: list[int] = []
    while not core.is_idle:
        for delta in core.step():
            chunks += [len(delta.prompt_logprobs)] * bool(delta.prompt_logprobs)
            told += [one.logprob for one in delta.prompt_logprobs]
    with torch.inference_mode():
        logprobs = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
    expected = logprobs[:-1].gather(-1, torch.tensor(prompt)[1:, None])[:, 0]
    assert told == pytest.approx(expected.tolist(), abs=1e-4)
    assert chunks == [1] * 19
    assert graphs.replayed.count(8) > 0  # type: ignore[attr-defined]
