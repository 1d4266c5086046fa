"""Beam search chooses and scores as `generate(num_beams=...)` does."""

import random

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from engine.api import BeamParams
from engine.sequences.beam import BeamSearch, Hypothesis, num_candidates
from tests.effort import scaled

VOCAB = 60
STOPS = (3, 17, 29, 44)
MAX_TOKENS = 12


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    """Peaked enough for scores to lie apart, with stop tokens in a tenth of all places."""
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.3,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=None,
    )
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


@torch.inference_mode()
def search(
    model: PreTrainedModel,
    prompt: list[int],
    params: BeamParams,
    stops: tuple[int, ...] = STOPS,
    max_tokens: int = MAX_TOKENS,
) -> list[Hypothesis]:
    """Drive a search with the plain model, which computes every beam from its first token on."""
    beams = BeamSearch(params, max_tokens, stops)
    width = min(num_candidates(params, stops), VOCAB)
    for step in range(max_tokens):
        rows = torch.tensor([prompt + output for output in beams.outputs])
        logprobs = model(rows).logits[:, -1].log_softmax(-1)
        values, tokens = (t.tolist() for t in logprobs.topk(width))
        before = beams.outputs
        live = beams.advance(
            [list(zip(*row, strict=True)) for row in zip(tokens, values, strict=True)]
        )
        if beams.is_done:
            assert live == []
            return beams.hypotheses
        assert beams.outputs == [[*before[parent], token] for parent, token in live]
        assert len(live) == params.num_beams
        assert all(len(output) == step + 1 for output in beams.outputs)
    raise AssertionError("the search did not end at max_tokens")


def generate(
    model: PreTrainedModel,
    prompt: list[int],
    params: BeamParams,
    stops: tuple[int, ...] = STOPS,
    max_tokens: int = MAX_TOKENS,
    **options: float,
) -> tuple[list[list[int]], list[float]]:
    """The reference: outputs up to their stop tokens, and their scores."""
    ids = torch.tensor([prompt])
    result = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=max_tokens,
        do_sample=False,
        num_beams=params.num_beams,
        num_return_sequences=params.num_return,
        length_penalty=params.length_penalty,
        early_stopping="never" if params.early_stopping is None else params.early_stopping,
        eos_token_id=list(stops) or None,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    outputs = [row[len(prompt) :].tolist() for row in result.sequences]
    ends = [[i for i, token in enumerate(row) if token in stops] for row in outputs]
    return (
        [row[: end[0] + 1] if end else row for row, end in zip(outputs, ends, strict=True)],
        result.sequences_scores.tolist(),
    )


def assert_equal(
    found: list[Hypothesis],
    expected: tuple[list[list[int]], list[float]],
    stops: tuple[int, ...] = STOPS,
) -> None:
    assert [hypothesis.token_ids for hypothesis in found] == expected[0]
    assert [hypothesis.score for hypothesis in found] == pytest.approx(expected[1], rel=1e-5)
    for hypothesis in found:
        stopped = hypothesis.token_ids[-1] in stops
        assert hypothesis.finish_reason == ("stop" if stopped else "length")


@pytest.mark.scaled
@pytest.mark.parametrize("early_stopping", [False, True, None])
@pytest.mark.parametrize("num_beams", [2, 3, 5])
def test_hypotheses_and_scores_are_those_of_generate(
    model: PreTrainedModel, num_beams: int, early_stopping: bool | None
) -> None:
    rng = random.Random(num_beams)
    ends = set()
    for length_penalty in (-1.0, 0.0, 0.7, 1.0, 2.0):
        for attempt in range(scaled(3, most=5)):
            params = BeamParams(
                num_beams=num_beams,
                num_return=num_beams - attempt % num_beams,
                length_penalty=length_penalty,
                early_stopping=early_stopping,
            )
            prompt = [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 20))]
            found = search(model, prompt, params)
            assert len(found) == params.num_return
            assert_equal(found, generate(model, prompt, params))
            ends |= {(hypothesis.finish_reason, len(hypothesis.token_ids)) for hypothesis in found}
    assert {reason for reason, _ in ends} == {"stop", "length"}, "one way to end never occurred"
    assert len(ends) > 4


@pytest.mark.parametrize("stops", [(), (3,)])
@pytest.mark.parametrize("max_tokens", [1, 2, 9])
def test_few_stop_tokens_and_short_outputs_end_as_those_of_generate(
    model: PreTrainedModel, stops: tuple[int, ...], max_tokens: int
) -> None:
    rng = random.Random(max_tokens)
    params = BeamParams(num_beams=4, num_return=4)
    for _ in range(5):
        prompt = [rng.randrange(VOCAB) for _ in range(6)]
        found = search(model, prompt, params, stops, max_tokens)
        assert_equal(found, generate(model, prompt, params, stops, max_tokens), stops)


def test_early_stopping_says_how_much_hope_a_search_goes_on_with() -> None:
    """Two hypotheses end in two steps (-3 and -1.05); then every token costs 9."""
    steps = {}
    for early_stopping in (True, False, None):
        beams = BeamSearch(BeamParams(num_beams=2, early_stopping=early_stopping), 8, (0,))
        beams.advance([[(5, -0.1), (0, -3.0), (6, -20.0), (7, -20.0)]])
        beams.advance([[(5, -0.1), (0, -2.0), (6, -20.0), (7, -20.0)]] * 2)
        steps[early_stopping] = 2
        while not beams.is_done:
            beams.advance([[(5, -9.0), (6, -9.5), (7, -20.0), (8, -20.0)]] * 2)
            steps[early_stopping] += 1
        assert [h.token_ids for h in beams.hypotheses] == [[5, 0]]
    assert steps == {True: 2, False: 3, None: 5}  # -9.2 / 3 < -3 at the third, -27.2 / 8 at the 5th


def test_with_a_negative_length_penalty_no_hope_lies_in_the_longest_output() -> None:
    """The worst of two hypotheses scores -2.1 * 2; the live beam -1.2 * 3, then -2.2 * 4."""
    params = BeamParams(num_beams=2, length_penalty=-1.0, early_stopping=None)
    beams = BeamSearch(params, 8, (0,))
    beams.advance([[(5, -0.1), (0, -3.0), (6, -20.0), (7, -20.0)]])
    beams.advance([[(5, -0.1), (0, -2.0), (6, -20.0), (7, -20.0)]] * 2)
    beams.advance([[(5, -1.0), (6, -1.5), (7, -20.0), (8, -20.0)]] * 2)
    assert not beams.is_done
    beams.advance([[(5, -1.0), (6, -1.5), (7, -20.0), (8, -20.0)]] * 2)
    assert beams.is_done


def test_a_beam_dies_when_the_others_children_are_all_better() -> None:
    beams = BeamSearch(BeamParams(num_beams=2), max_tokens=4)
    first = beams.advance([[(5, -0.1), (6, -3.0), (7, -9.0), (8, -9.0)]])
    assert first == [(0, 5), (0, 6)]
    both_of_the_best = beams.advance([[(1, -0.5), (2, -0.6), (3, -9.0), (4, -9.0)]] * 2)
    assert both_of_the_best == [(0, 1), (0, 2)]
    assert beams.outputs == [[5, 1], [5, 2]]
