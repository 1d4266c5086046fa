import math

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engine.api import BeamParams, EngineRequest, Namespaces, SamplingParams
from engine.blocks.pool import BlockPool
from engine.blocks.table import BlockTable
from engine.run.sampler import sample as launch
from engine.sequences.plan import Draw, Sampled
from engine.sequences.sequence import Sequence
from tests.effort import scaled

VOCAB = 40


def sequence(prompt: list[int], output: list[int], **sampling: object) -> Sequence:
    namespaces = Namespaces(shared_key=b"k" * 32, private_key=b"k" * 32)
    request = EngineRequest(
        request_id="r",
        tenant="a",
        prompt=prompt,
        namespaces=namespaces,
        sampling=SamplingParams(max_tokens=1000, **sampling),  # type: ignore[arg-type]
    )
    result = Sequence(request, BlockTable(BlockPool(1), 16, "a", namespaces, b"", up_to=0))
    for token in output:
        result.append(token)
    return result


def sample(scores: torch.Tensor, rows: list[Sequence]) -> Sampled:
    return launch(scores, list(map(Draw, rows))).result()


def beam(prompt: list[int], output: list[int], **sampling: object) -> Sequence:
    """One of two beams: with one stop token its search needs 4 candidates."""
    result = sequence(prompt, output, stop_token_ids=(2,), **sampling)
    result.request = msgspec.structs.replace(result.request, beam=BeamParams(num_beams=2))
    return result


def logits(seed: int, rows: int = 1) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def drawn(scores: torch.Tensor, count: int = 4000, **sampling: object) -> np.ndarray:
    """Relative frequencies of the tokens over many seeds."""
    rows = [sequence([1], [], seed=seed, **sampling) for seed in range(count)]
    tokens = sample(scores.expand(count, -1), rows).token_ids
    return np.bincount(tokens, minlength=VOCAB) / count


def test_temperature_zero_takes_the_maximum() -> None:
    scores = logits(0, 3)
    rows = [sequence([1], [], temperature=0, seed=s) for s in range(3)]
    assert sample(scores, rows).token_ids == scores.argmax(-1).tolist()


@pytest.mark.parametrize(
    ("sampling", "warper"),
    [
        ({"temperature": 0.7}, TemperatureLogitsWarper(0.7)),
        ({"temperature": 1.0, "top_k": 5}, TopKLogitsWarper(5)),
        ({"temperature": 1.0, "top_p": 0.8}, TopPLogitsWarper(0.8)),
        ({"temperature": 1.0, "min_p": 0.1}, MinPLogitsWarper(0.1)),
    ],
)
def test_each_filter_draws_from_the_distribution_that_transformers_draws_from(
    sampling: dict[str, object], warper: object
) -> None:
    scores = logits(1)
    expected = warper(None, scores.clone()).softmax(-1)[0].numpy()  # type: ignore[operator]
    seen = drawn(scores, **sampling)
    assert set(np.flatnonzero(seen)) <= set(np.flatnonzero(expected > 0))
    assert np.abs(seen - expected).max() < 0.03


def test_repetition_penalty_is_that_of_transformers() -> None:
    scores = logits(2)
    row = sequence([3, 4, 4], [7], temperature=0, repetition_penalty=1.7)
    expected = RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor([[3, 4, 4, 7]]), scores.clone())
    assert sample(scores, [row]).token_ids == expected.argmax(-1).tolist()


def test_presence_and_frequency_penalties_count_the_output_only() -> None:
    scores = torch.zeros(1, VOCAB)
    scores[0, 5], scores[0, 6] = 2.0, 1.5
    plain = sequence([5, 5, 5], [6], temperature=0, frequency_penalty=1.0)
    assert sample(scores, [plain]).token_ids == [5]
    twice = sequence([1], [5, 5], temperature=0, frequency_penalty=0.4)
    assert sample(scores, [twice]).token_ids == [6]
    present = sequence([1], [5, 5], temperature=0, presence_penalty=0.4)
    assert sample(scores, [present]).token_ids == [5]


def test_logit_bias_moves_the_choice() -> None:
    scores = logits(3)
    row = sequence([1], [], temperature=0, logit_bias={9: 100.0})
    assert sample(scores, [row]).token_ids == [9]
    ban = sequence([1], [], temperature=0, logit_bias={int(scores.argmax()): -100.0})
    assert sample(scores, [ban]).token_ids != scores.argmax(-1).tolist()


@settings(max_examples=scaled(30))
@given(seed=st.integers(0, 2**63 - 1), length=st.integers(0, 50), mates=st.integers(0, 6))
def test_a_draw_depends_on_seed_and_position_not_on_batch_mates(
    seed: int, length: int, mates: int
) -> None:
    scores = logits(4)
    mine = sequence([1], [2] * length, seed=seed, temperature=1.3, top_p=0.95)
    alone = sample(scores, [mine]).token_ids[0]
    others = [
        sequence([1, 2], [3], seed=i, temperature=0.5 * i, top_k=i, repetition_penalty=1 + i)
        for i in range(mates)
    ]
    batch = torch.cat([scores, logits(5, mates)]) if mates else scores
    assert sample(batch, [mine, *others]).token_ids[0] == alone


def test_rounding_hardly_ever_changes_a_draw() -> None:
    """A rebuilt stream sees logits that are rounded differently; it must draw the same tokens."""
    generator = torch.Generator().manual_seed(8)
    flat = torch.randn(1, 5000, generator=generator)
    nudged = flat + 1e-5 * torch.randn(1, 5000, generator=generator)
    rows = [sequence([1], [], seed=seed, temperature=0.9) for seed in range(1000)]
    drawn, again = (sample(scores.expand(1000, -1), rows).token_ids for scores in (flat, nudged))
    assert sum(a != b for a, b in zip(drawn, again, strict=True)) <= 2


def test_logprobs_are_those_of_the_model_before_any_option() -> None:
    scores = logits(6, 2)
    rows = [
        sequence([1], [], temperature=0, logprobs=3, logit_bias={8: 100.0}),
        sequence([1], [], temperature=0),
    ]
    result = sample(scores, rows)
    expected = scores[0].log_softmax(-1)
    first = result.logprobs[0]
    assert first is not None
    assert math.isclose(first.logprob, expected[8].item(), rel_tol=1e-5)
    assert [token for token, _ in first.top] == expected.topk(3).indices.tolist()
    assert result.logprobs[1] is None


def test_zero_alternatives_still_report_the_chosen_token() -> None:
    result = sample(logits(7), [sequence([1], [], temperature=0, logprobs=0)])
    assert result.logprobs[0] is not None
    assert result.logprobs[0].top == []


def test_a_beam_lists_its_best_tokens_with_their_log_probabilities() -> None:
    scores = logits(8, 3)
    rows = [sequence([1], [], temperature=0), beam([1], [], temperature=0), beam([1], [2])]
    result = sample(scores, rows)
    assert result.token_ids[0] == scores[0].argmax()
    assert result.candidates.keys() == {1, 2}
    for row, candidates in result.candidates.items():
        best = scores[row].log_softmax(-1).topk(4)
        assert candidates == list(zip(best.indices.tolist(), best.values.tolist(), strict=True))


def test_a_beam_s_bias_and_penalties_apply_to_log_probabilities_as_in_transformers() -> None:
    scores = logits(9)
    row = beam([3, 4, 4], [7], temperature=0, repetition_penalty=1.7, logit_bias={9: 6.5})
    expected = scores.log_softmax(-1)
    expected = SequenceBiasLogitsProcessor([[[9], 6.5]])(torch.tensor([[3, 4, 4, 7]]), expected)
    expected = RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor([[3, 4, 4, 7]]), expected)
    best = expected[0].topk(4)
    assert sample(scores, [row]).candidates[0] == list(
        zip(best.indices.tolist(), best.values.tolist(), strict=True)
    )


def test_a_search_wider_than_the_vocabulary_gets_all_of_it() -> None:
    row = beam([1], [], temperature=0)
    row.request = msgspec.structs.replace(row.request, beam=BeamParams(num_beams=VOCAB))
    assert len(sample(logits(10), [row]).candidates[0]) == VOCAB


def test_a_token_that_only_the_device_knows_counts_like_any_other() -> None:
    options: list[dict[str, object]] = [
        {"temperature": 0, "repetition_penalty": 1.7},
        {"temperature": 0.9, "frequency_penalty": 1.1, "presence_penalty": 0.4, "seed": 3},
        {"temperature": 0, "presence_penalty": 3.0},
        {"temperature": 1.2, "top_k": 7, "top_p": 0.9, "min_p": 0.01, "seed": 5},
        {"temperature": 0},
    ]
    for trial in range(20):
        scores = logits(trial, len(options))
        newest = scores.topk(2).indices[:, trial % 2]
        known = [sequence([1, 2], [3], **option) for option in options]
        hidden = [sequence([1, 2], [3], **option) for option in options]
        for one, other, token in zip(known, hidden, newest.tolist(), strict=True):
            one.append(token)
            other.num_drawn += 1
        drawn = launch(scores, list(map(Draw, hidden)), newest).result()
        assert drawn == sample(scores, known)


def test_drafts_count_like_tokens_that_are_known() -> None:
    options: list[dict[str, object]] = [
        {"temperature": 0, "repetition_penalty": 1.7},
        {"temperature": 0.9, "frequency_penalty": 1.1, "presence_penalty": 0.4, "seed": 3},
        {"temperature": 0, "presence_penalty": 3.0},
        {"temperature": 1.2, "top_k": 7, "top_p": 0.9, "seed": 5, "logprobs": 2},
    ]
    drafts = (7, 3, 7)
    for trial in range(20):
        for output in ([], [3]):
            scores = logits(trial, len(options)).repeat_interleave(4, dim=0)
            drafted = [sequence([1, 2], output, **option) for option in options]
            known = [
                sequence([1, 2], [*output, *drafts[:count]], **option)
                for option in options
                for count in range(4)
            ]
            rows = [Draw(one, drafts[:count]) for one in drafted for count in range(4)]
            newest = torch.tensor([(draw.drafts or draw.sequence.token_ids)[-1] for draw in rows])
            assert launch(scores, rows).result() == sample(scores, known)
            assert launch(scores, rows, newest).result() == sample(scores, known)


def test_nothing_of_a_draw_is_read_before_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors without data refuse to be read."""

    def drawn(scores: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        return torch.empty(len(scores), dtype=torch.int64, device="meta")

    monkeypatch.setattr("kernels.sampling.draw", drawn)
    rows = [
        beam([1], [5], temperature=0),
        sequence([1], [4], temperature=0.8, top_p=0.9, logprobs=2, logit_bias={3: 1.0}),
        sequence([1], [4], temperature=0, repetition_penalty=1.2, logprobs=0),
    ]
    rows[2].num_drawn = 1
    meta = torch.empty(3, VOCAB, device="meta")
    with pytest.raises(NotImplementedError):
        meta.argmax(-1).tolist()
    launch(meta, list(map(Draw, rows)), torch.empty(3, dtype=torch.int64, device="meta"))
