"""Real models and the real sampler verify drafts as they compute single tokens."""

import random
from collections.abc import Sequence as Ordered
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from engine.api import EngineRequest, TokenLogprobs
from engine.draft.drafter import Draft
from engine.run.runner import AheadRunner, ModelRunner
from engine.run.sampler import sample
from engine.sequences.plan import Sampled, StepPlan
from engine.sequences.sequence import Sequence
from engine.serve.core import EngineCore
from tests.engine.model.test_model import generate, save_model
from tests.engine.run.test_batch_invariance import sampled_requests
from tests.engine.run.test_graphs import load, recorded
from tests.engine.simulated_model import random_prompt
from tests.engine.simulation import make_request, run_to_end, simulated_core

Outputs = dict[str, dict[int, list[int]]]


class Hindsight:
    """Has seen the outputs before, and remembers most of each."""

    priors = (0.8,)

    def __init__(self, outputs: Outputs, vocab: int, right: float = 0.8) -> None:
        self._outputs = outputs
        self._vocab = vocab
        self._right = right
        self._rng = random.Random(1)

    def propose(self, wanted: Ordered[tuple[Sequence, int]], _: float, /) -> list[Draft]:
        return [self._draft(sequence, most) for sequence, most in wanted]

    def _draft(self, sequence: Sequence, most: int) -> Draft:
        known = len(sequence.token_ids) - sequence.num_prompt_tokens
        rest = self._outputs[sequence.request_id][sequence.index][known : known + most]
        guesses = tuple(
            token if self._rng.random() < self._right else self._rng.randrange(self._vocab)
            for token in rest
        )
        return Draft(guesses, (0,) * len(guesses))

    def ended(self, sequence: Sequence) -> None: ...

    def forget_tenant(self, tenant: str) -> None: ...


def answers(
    core: EngineCore, requests: list[EngineRequest]
) -> tuple[Outputs, dict[str, list[TokenLogprobs]]]:
    """Each request's tokens by sequence, and the log-probabilities of the first one."""
    tokens: Outputs = {}
    logprobs: dict[str, list[TokenLogprobs]] = {}
    for request in requests:
        core.submit(request)
    while not core.is_idle:
        for delta in core.step():
            own = tokens.setdefault(delta.request_id, {})
            own.setdefault(delta.index, []).extend(delta.token_ids)
            if delta.logprobs is not None:
                assert len(delta.logprobs) == len(delta.token_ids)
                if delta.index == 0:
                    logprobs.setdefault(delta.request_id, []).extend(delta.logprobs)
        core.scheduler.check()
    return tokens, logprobs


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "phi3", "mixtral", "gpt2"])
def test_every_family_says_what_generate_says(family: str, tmp_path: Path) -> None:
    model = save_model(family, tmp_path)
    rng = random.Random(7)
    head = random_prompt(rng, 60)
    prompts = [head + random_prompt(rng, rng.randrange(1, 40)) for _ in range(4)]
    expected = {str(i): generate(model, prompt, 24) for i, prompt in enumerate(prompts)}
    parts = load(tmp_path, num_blocks=40)
    drafter = Hindsight({name: {0: output} for name, output in expected.items()}, 1000)
    core = EngineCore(parts.config, parts.info, ModelRunner(parts.model), drafter=drafter)
    for index, prompt in enumerate(prompts):
        core.submit(make_request(str(index), prompt, max_tokens=24))
    assert run_to_end(core) == expected
    stats = core.stats()
    assert 0 < stats.accepted_tokens < stats.drafted_tokens


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_drafts_are_rows_of_recorded_decode_steps(tmp_path: Path, runs_ahead: bool) -> None:
    model = save_model("llama", tmp_path)
    rng = random.Random(8)
    prompts = [random_prompt(rng, rng.randrange(20, 40)) for _ in range(3)]
    expected = {str(i): generate(model, prompt, 30) for i, prompt in enumerate(prompts)}
    parts = load(tmp_path)
    graphs = recorded(parts)
    runner = (AheadRunner if runs_ahead else ModelRunner)(parts.model, graphs=graphs)
    drafter = Hindsight({name: {0: output} for name, output in expected.items()}, 1000)
    core = EngineCore(parts.config, parts.info, runner, drafter=drafter)
    for index, prompt in enumerate(prompts):
        core.submit(make_request(str(index), prompt, max_tokens=30))
    assert run_to_end(core) == expected
    assert core.stats().accepted_tokens > 0
    assert core.stats().steps < 30
    assert max(graphs.replayed) == 8, "more rows than sequences"


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_sampled_tokens_penalties_and_logprobs_are_those_of_single_steps(
    tmp_path: Path, runs_ahead: bool
) -> None:
    save_model("llama", tmp_path)
    requests = [
        msgspec.structs.replace(
            request, sampling=msgspec.structs.replace(request.sampling, logprobs=2)
        )
        for request in sampled_requests()
    ]
    parts = load(tmp_path, num_blocks=120)
    kind = AheadRunner if runs_ahead else ModelRunner
    plain, known = answers(EngineCore(parts.config, parts.info, kind(parts.model)), requests)
    core = EngineCore(parts.config, parts.info, kind(parts.model), drafter=Hindsight(plain, 1000))
    drafted, found = answers(core, requests)
    assert drafted == plain
    assert core.stats().accepted_tokens > 20
    for name, values in known.items():
        assert [one.logprob for one in found[name]] == pytest.approx(
            [one.logprob for one in values], abs=1e-4
        )


class MarkovRunner:
    """Draws with the engine's own sampler; the scores hang on the newest token alone."""

    def __init__(self, scores: torch.Tensor) -> None:
        self._scores = scores

    def execute(self, plan: StepPlan) -> Sampled:
        newest = [(draw.drafts or draw.sequence.token_ids)[-1] for draw in plan.draws]
        return sample(self._scores[newest], plan.draws).result()


SIZE, DRAWS, LINES = 8, 100, 200


@pytest.fixture(scope="module")
def scores() -> torch.Tensor:
    """Of each token behind each other one."""
    return torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(4)) * 1.5


@pytest.fixture(scope="module")
def lines() -> list[EngineRequest]:
    requests = []
    for seed in range(LINES):
        request = make_request(str(seed), [1 + seed % (SIZE - 1)], DRAWS, cache=False)
        params = msgspec.structs.replace(
            request.sampling, temperature=0.8, seed=1000 + seed, stop_token_ids=()
        )
        requests.append(msgspec.structs.replace(request, sampling=params))
    return requests


def drawn(
    scores: torch.Tensor, lines: list[EngineRequest], drafter: Hindsight | None = None
) -> tuple[Outputs, EngineCore]:
    core = simulated_core(4000, step_token_budget=256, max_running_requests=LINES, drafter=drafter)
    core._runner = MarkovRunner(scores)
    return answers(core, lines)[0], core


@pytest.fixture(scope="module")
def undrafted(scores: torch.Tensor, lines: list[EngineRequest]) -> Outputs:
    return drawn(scores, lines)[0]


@pytest.mark.parametrize("right", [0.0, 0.5, 1.0])
def test_tokens_behind_drafts_are_those_drawn_without_any(
    right: float, scores: torch.Tensor, lines: list[EngineRequest], undrafted: Outputs
) -> None:
    found, core = drawn(scores, lines, Hindsight(undrafted, SIZE, right))
    assert found == undrafted
    assert core.stats().drafted_tokens > 400


def test_they_are_distributed_as_the_model_says(
    scores: torch.Tensor, lines: list[EngineRequest], undrafted: Outputs
) -> None:
    """20,000 draws, with drafts and without the same, against the exact probabilities."""
    counts = np.zeros((SIZE, SIZE))
    for request in lines:
        tokens = [*request.prompt, *undrafted[request.request_id][0]]
        np.add.at(counts, (tokens[:-1], tokens[1:]), 1)
    assert counts.sum() == 20_000
    expected = (scores / 0.8).softmax(-1).numpy() * counts.sum(1, keepdims=True)
    enough = expected >= 5
    statistic = (((counts - expected) ** 2) / np.maximum(expected, 1e-9))[enough].sum()
    degrees = torch.tensor(int(enough.sum()) - SIZE, dtype=torch.float64)
    # The probability of a larger chi-square.
    assert torch.special.gammaincc(degrees / 2, torch.tensor(statistic / 2)) > 0.001
