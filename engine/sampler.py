"""Choosing the next token of every row at once.

The order is: logit bias, repetition, presence and frequency penalties; greedy rows take the
maximum; the others divide by the temperature, keep the tokens that top_k, top_p and min_p allow,
and draw. A draw depends on (seed, position) only, never on batch-mates: every token gets Gumbel
noise from a counter-based generator, and the largest sum of score and noise wins. Other batch-mates
also round the scores differently; this race then changes its winner far more rarely (once in 96,000
draws of the default model in float32) than an inverted distribution does (89 to 174 times).

Rows of a beam search are not drawn from: bias and penalties apply to their log-probabilities, as in
transformers, and the best tokens are listed.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.beam import Candidate, num_candidates
from engine.request import SamplingParams, TokenLogprobs
from engine.sequence import Sequence

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class Sampled:
    """The drawn tokens, and log-probabilities for the rows that asked for them.

    Rows of a beam search have candidates instead, best first, from which `engine.beam` chooses.
    """

    token_ids: list[int]
    logprobs: list[TokenLogprobs | None]
    candidates: dict[int, list[Candidate]] = field(default_factory=dict)
    """By row; the token of such a row is its first candidate."""


def sample(logits: Tensor, sequences: Rows[Sequence]) -> Sampled:
    """Draw one token a row, or list the candidates of a beam's row.

    `logits` is [num_rows, vocab_size] in any float dtype; row i belongs to `sequences[i]`.
    Log-probabilities are those of the model itself, before bias, penalties and temperature.
    """
    raw = logits.float()
    widths = {
        row: num_candidates(seq.request.beam, seq.sampling.stop_token_ids)
        for row, seq in enumerate(sequences)
        if seq.request.beam is not None
    }
    scores = _normalised(raw, widths) if widths else raw
    scores = _apply_penalties(_apply_bias(scores, sequences), sequences)
    tokens = scores.argmax(dim=-1)
    random_rows = [i for i, seq in enumerate(sequences) if seq.sampling.temperature > 0]
    if random_rows:
        index = torch.tensor(random_rows, device=logits.device)
        chosen = [sequences[i] for i in random_rows]
        tokens[index] = _draw(scores[index], chosen)
    token_ids: list[int] = tokens.tolist()
    candidates = _candidates(scores, widths) if widths else {}
    return Sampled(token_ids, _logprobs(raw, token_ids, sequences), candidates)


def gumbel(seeds: Rows[int], positions: Rows[int], size: int) -> Tensor:
    """Standard Gumbel noise for tokens 0 ... size - 1 at each (seed, position).

    The result is [num_rows, size], float64, on the CPU. The bits are those of SplitMix64 over a mix
    of the two (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
    """
    seed = np.array([value & 0xFFFFFFFFFFFFFFFF for value in seeds], dtype=np.uint64)
    counter = np.array(positions, dtype=np.uint64)
    state = _mix64(_mix64(seed + _GOLDEN) + (counter + np.uint64(1)) * _GOLDEN)
    bits = _mix64(state[:, None] + np.arange(1, size + 1, dtype=np.uint64) * _GOLDEN)
    # The middle of one of 2**52 cells: never 0 and never 1, so that both logarithms are finite.
    uniform = torch.from_numpy((bits >> np.uint64(12)).astype(np.float64) + 0.5).mul_(2.0**-52)
    return uniform.log_().neg_().log_().neg_()


def _mix64(value: np.ndarray[Any, np.dtype[np.uint64]]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def _apply_bias(scores: Tensor, sequences: Rows[Sequence]) -> Tensor:
    """Add each row's `logit_bias`."""
    biases = [seq.sampling.logit_bias for seq in sequences]
    if not any(biases):
        return scores
    rows = np.repeat(np.arange(len(biases)), [len(bias) for bias in biases])
    columns = [token for bias in biases for token in bias]
    values = [value for bias in biases for value in bias.values()]
    device = scores.device
    index = (torch.from_numpy(rows).to(device), torch.tensor(columns, device=device))
    return scores.index_put(index, torch.tensor(values, device=device), accumulate=True)


def _apply_penalties(scores: Tensor, sequences: Rows[Sequence]) -> Tensor:
    """Repetition penalty over prompt and output (Keskar et al., 2019); presence and frequency
    penalties over the output, as OpenAI defines them.
    """
    params = [seq.sampling for seq in sequences]
    if any(p.repetition_penalty != 1 for p in params):
        penalised = [
            seq.token_ids if seq.sampling.repetition_penalty != 1 else [] for seq in sequences
        ]
        factor = _column(scores, [p.repetition_penalty for p in params])
        seen = _token_counts(scores, penalised) > 0
        scores = torch.where(
            seen, torch.where(scores > 0, scores / factor, scores * factor), scores
        )
    if any(p.presence_penalty or p.frequency_penalty for p in params):
        outputs = [
            seq.token_ids[seq.num_prompt_tokens :]
            if seq.sampling.presence_penalty or seq.sampling.frequency_penalty
            else []
            for seq in sequences
        ]
        counts = _token_counts(scores, outputs)
        scores = scores - counts * _column(scores, [p.frequency_penalty for p in params])
        scores = scores - (counts > 0) * _column(scores, [p.presence_penalty for p in params])
    return scores


def _token_counts(scores: Tensor, histories: Rows[Rows[int]]) -> Tensor:
    """How often each token occurs in each history: [num_rows, vocab_size], float."""
    rows = np.repeat(np.arange(len(histories)), [len(history) for history in histories])
    flat = np.concatenate([np.asarray(history, dtype=np.int64) for history in histories])
    index = (torch.from_numpy(rows).to(scores.device), torch.from_numpy(flat).to(scores.device))
    ones = torch.ones(len(flat), device=scores.device)
    return torch.zeros_like(scores).index_put(index, ones, accumulate=True)


def _draw(scores: Tensor, sequences: Rows[Sequence]) -> Tensor:
    """Draw from the filtered distributions: [num_rows], int64. Source: Maddison, Tarlow and Minka,
    "A* sampling", 2014 (the Gumbel-max trick).
    """
    params = [seq.sampling for seq in sequences]
    scores = _filtered(scores / _column(scores, [p.temperature for p in params]), params)
    noise = gumbel([p.seed for p in params], [seq.num_tokens for seq in sequences], scores.shape[1])
    return (scores + noise.to(scores.device)).argmax(dim=-1)


def _filtered(scores: Tensor, params: Rows[SamplingParams]) -> Tensor:
    """The scores of the tokens that top_k, then top_p, then min_p allow; the others' are -inf."""
    if any(p.top_k > 0 or p.top_p < 1 for p in params):
        ordered, order = scores.sort(dim=-1, descending=True, stable=True)
        rank = torch.arange(ordered.shape[-1], device=scores.device)
        top_k = _column(scores, [p.top_k if p.top_k > 0 else ordered.shape[-1] for p in params])
        ordered = ordered.masked_fill(rank >= top_k, float("-inf"))
        probs = ordered.softmax(dim=-1, dtype=torch.float64)
        # A token stays if the mass before it is short of top_p, so the first one always does.
        before = probs.cumsum(dim=-1) - probs
        top_p = _column(before, [p.top_p for p in params])
        ordered = ordered.masked_fill((before >= top_p) & (rank > 0) & (top_p < 1), float("-inf"))
        scores = torch.empty_like(scores).scatter_(-1, order, ordered)
    if any(p.min_p > 0 for p in params):
        least = _column(scores, [math.log(p.min_p) if p.min_p else -math.inf for p in params])
        scores = scores.masked_fill(
            scores < scores.amax(dim=-1, keepdim=True) + least, float("-inf")
        )
    return scores


def _normalised(raw: Tensor, rows: Collection[int]) -> Tensor:
    """The scores, turned into log-probabilities in `rows`: beams are ranked by sums of these."""
    index = torch.tensor(list(rows), device=raw.device)
    return raw.index_copy(0, index, raw[index].log_softmax(dim=-1))


def _candidates(scores: Tensor, widths: dict[int, int]) -> dict[int, list[Candidate]]:
    """The best tokens of each row of `widths`, at most that many, with their scores."""
    index = torch.tensor(list(widths), device=scores.device)
    best = scores[index].topk(min(max(widths.values()), scores.shape[1]), dim=-1)
    tokens, values = best.indices.tolist(), best.values.tolist()
    return {
        row: list(zip(tokens[k][:width], values[k][:width], strict=True))
        for k, (row, width) in enumerate(widths.items())
    }


def _logprobs(
    raw: Tensor, token_ids: Rows[int], sequences: Rows[Sequence]
) -> list[TokenLogprobs | None]:
    wanted = [i for i, seq in enumerate(sequences) if seq.sampling.logprobs is not None]
    result: list[TokenLogprobs | None] = [None] * len(sequences)
    if not wanted:
        return result
    rows = torch.tensor(wanted, device=raw.device)
    logprobs = raw[rows].log_softmax(dim=-1)
    chosen = torch.tensor([token_ids[i] for i in wanted], device=raw.device)
    own = logprobs.gather(-1, chosen[:, None])[:, 0].tolist()
    most = max(sequences[i].sampling.logprobs or 0 for i in wanted)
    values, tokens = (t.tolist() for t in logprobs.topk(most, dim=-1))
    for k, i in enumerate(wanted):
        count = sequences[i].sampling.logprobs or 0
        top = list(zip(tokens[k][:count], values[k][:count], strict=True))
        result[i] = TokenLogprobs(own[k], top)
    return result


def _column(like: Tensor, values: Rows[float]) -> Tensor:
    """One value a row, ready to broadcast over the vocabulary: [num_rows, 1]."""
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]
