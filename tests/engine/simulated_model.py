"""A model without weights: the next token is a function of the whole sequence so far."""

from __future__ import annotations

import random

from engine.api import BeamParams, PromptLogprobs
from engine.sequences.beam import BeamSearch, Candidate, Hypothesis, num_candidates

VOCAB = 997
EOS = 3


def next_token(history: list[int], index: int = 0) -> int:
    """The simulated model and its sampler: a hash of all tokens and of the sequence's index."""
    value = len(history) + 1009 * index
    for token in history:
        value = (value * 31 + token + 7) % 1_000_003
    return value % VOCAB


def expected_output(prompt: list[int], max_tokens: int, index: int = 0) -> list[int]:
    """What sequence `index` of an undisturbed run generates."""
    history = list(prompt)
    for _ in range(max_tokens):
        history.append(next_token(history, index))
        if history[-1] == EOS:
            break
    return history[len(prompt) :]


def expected_scores(prompt: list[int]) -> list[PromptLogprobs]:
    """What the simulated model says of a prompt's tokens behind the first."""
    return [
        PromptLogprobs(-next_token(prompt[:end]), [], prompt[end]) for end in range(1, len(prompt))
    ]


def candidates(history: list[int], count: int) -> list[Candidate]:
    """What the simulated model lists for a beam: any tokens, often the stop token among them."""
    rng = random.Random(next_token(history))
    tokens = rng.sample(range(EOS + 1, VOCAB), count)
    if rng.random() < 0.3:
        tokens[rng.randrange(count)] = EOS
    return list(zip(tokens, sorted((-8 * rng.random() for _ in tokens), reverse=True), strict=True))


def expected_hypotheses(prompt: list[int], max_tokens: int, beam: BeamParams) -> list[Hypothesis]:
    """What an undisturbed search finds."""
    search = BeamSearch(beam, max_tokens, (EOS,))
    while not search.is_done:
        width = num_candidates(beam, (EOS,))
        search.advance([candidates(prompt + output, width) for output in search.outputs])
    return search.hypotheses


def random_prompt(rng: random.Random, length: int) -> list[int]:
    """Tokens without meaning."""
    return [rng.randrange(4, VOCAB) for _ in range(length)]
