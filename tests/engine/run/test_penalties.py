"""Bias and penalties, from counts that are kept from step to step."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import torch

from engine.run.penalties import Adjustments, TokenCounts
from engine.sequences.plan import Draw
from engine.sequences.sequence import Sequence
from kernels.noise import noise_states
from kernels.sampling import draw
from tests.engine.run.test_sampler import VOCAB, logits, sample, sequence
from tests.kernels.sampling_cases import columns, numbers
from tests.kernels.test_sampling import chi_square


def counted(counts: TokenCounts, of: Sequence) -> dict[int, float]:
    tokens, numbers_of = counts.of(Draw(of))
    assert len(set(tokens.tolist())) == len(tokens)
    return dict(zip(tokens.tolist(), numbers_of.tolist(), strict=True))


def adjusted(scores: torch.Tensor, seq: Sequence) -> torch.Tensor:
    """What the options are defined to do, over the whole vocabulary."""
    there = Counter(seq.token_ids)
    output = Counter(seq.token_ids[seq.num_prompt_tokens :])
    result = scores.clone()
    for token in range(len(scores)):
        result[token] += seq.sampling.logit_bias.get(token, 0.0)
        if there[token]:
            factor = seq.sampling.repetition_penalty
            result[token] *= 1 / factor if result[token] > 0 else factor
        result[token] -= output[token] * seq.sampling.frequency_penalty
        result[token] -= (output[token] > 0) * seq.sampling.presence_penalty
    return result


def test_counts_follow_a_sequence_as_it_grows() -> None:
    counts, rng = TokenCounts(), np.random.default_rng(0)
    whole = sequence([1, 2, 2], [3], repetition_penalty=1.2)
    output = sequence([1, 2, 2], [3], frequency_penalty=0.2)
    for _ in range(200):
        for token in rng.integers(0, 60, rng.integers(0, 4)).tolist():
            whole.append(token)
            output.append(token)
        seen = Counter(output.token_ids[3:])
        assert counted(counts, output) == seen
        assert counted(counts, whole) == {1: seen[1], 2: seen[2]} | seen


def test_a_fork_counts_its_own_tokens() -> None:
    counts = TokenCounts()
    first = sequence([1], [5], presence_penalty=0.2)
    assert counted(counts, first) == {5: 1}
    second = first.fork()
    first.append(6)
    second.append(5)
    assert counted(counts, second) == {5: 2}
    assert counted(counts, first) == {5: 1, 6: 1}


def test_a_sequence_whose_tokens_are_replaced_is_counted_anew() -> None:
    counts = TokenCounts()
    seq = sequence([1], [5, 5], presence_penalty=0.2)
    counts.of(Draw(seq))
    seq.token_ids = [1, 7]
    assert counted(counts, seq) == {7: 1}


def test_drafts_count_and_are_not_kept() -> None:
    counts = TokenCounts()
    seq = sequence([1], [5], presence_penalty=0.2)
    tokens, times = counts.of(Draw(seq, (5, 8, 8)))
    assert dict(zip(tokens.tolist(), times.tolist(), strict=True)) == {5: 2, 8: 2}
    assert counted(counts, seq) == {5: 1}


def test_counts_are_forgotten_with_their_sequence() -> None:
    counts = TokenCounts()
    seq = sequence([1], [5], presence_penalty=0.2)
    counts.of(Draw(seq))
    assert len(counts) == 1
    del seq
    assert len(counts) == 0


def test_options_do_what_they_are_defined_to_do() -> None:
    rng = np.random.default_rng(1)
    for trial in range(30):
        rows = [
            sequence(
                rng.integers(0, VOCAB, 5).tolist(),
                rng.integers(0, VOCAB, rng.integers(0, 9)).tolist(),
                temperature=0,
                repetition_penalty=float(rng.choice([1, 1.7, 0.6])),
                frequency_penalty=float(rng.choice([0, 0.4, -1.0])),
                presence_penalty=float(rng.choice([0, 0.7])),
                logit_bias={int(rng.integers(VOCAB)): 1.5} if trial % 2 else {},
            )
            for _ in range(4)
        ]
        scores = logits(trial, 4)
        expected = torch.stack([adjusted(one, seq) for one, seq in zip(scores, rows, strict=True)])
        adjustments = Adjustments.of(list(map(Draw, rows)), TokenCounts())
        if adjustments is not None:
            torch.testing.assert_close(adjustments.apply(scores, None), expected)
        assert sample(scores, rows).token_ids == expected.argmax(-1).tolist()


def test_scores_of_the_model_stay_as_they_are() -> None:
    """They may be asked for as log-probabilities, or lie in a graph's memory."""
    scores = logits(3)
    before = scores.clone()
    sample(scores, [sequence([1], [2], presence_penalty=1.0, logit_bias={3: 1.0})])
    assert scores.equal(before)


def test_penalised_draws_have_their_distribution() -> None:
    count, scores = 20_000, logits(2)
    seq = sequence([3, 4], [5, 5, 6], repetition_penalty=1.4, frequency_penalty=0.5)
    adjustments = Adjustments.of([Draw(seq)], TokenCounts())
    assert adjustments is not None
    penalised = adjustments.apply(scores, None).expand(count, -1)
    states = torch.from_numpy(noise_states(range(count), [5] * count))
    tokens = draw(penalised, states, columns([numbers()] * count))
    expected = adjusted(scores[0], seq).double().softmax(-1).numpy()
    assert chi_square(np.bincount(tokens, minlength=VOCAB), expected * count) > 0.001


def test_no_stop_token_is_drawn_before_the_shortest_output() -> None:
    options = {"min_tokens": 3, "stop_token_ids": (5, 7), "logit_bias": {5: 100.0}}
    scores = torch.zeros(VOCAB)
    for output, drafts, is_free in (([1], (), False), ([1], (2, 3), True), ([1, 2, 3], (), True)):
        seq = sequence([4, 5], output, **options)
        adjustments = Adjustments.of([Draw(seq, drafts)], TokenCounts())
        assert adjustments is not None
        [row] = adjustments.apply(scores[None], None)
        assert row[[5, 7]].tolist() == ([100.0, 0.0] if is_free else [-math.inf, -math.inf])
        assert not row[[4, 6]].any()
