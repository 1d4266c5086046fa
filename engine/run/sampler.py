"""Choosing the next token of every row at once, on the device of the logits, without waiting.

The order is: logit bias, repetition, presence and frequency penalties; what a grammar does not
allow is out (`engine.constraint.masks`); greedy rows take the maximum; the others divide by the
temperature, keep the tokens that top_k, top_p and min_p allow, and draw (`kernels.sampling`). A
draw depends on (seed, position) only, never on batch-mates: every token has Gumbel noise from a
counter-based generator, and the largest sum of score and noise wins. Other batch-mates also round
the scores differently; this race then changes its winner far more rarely (once in 96,000 draws of
the default model in float32) than an inverted distribution does (89 to 174 times).

Rows of a beam search are not drawn from: bias and penalties apply to their log-probabilities, as in
transformers, and the best tokens are listed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.api import PromptLogprobs, SamplingParams, TokenLogprobs
from engine.batch.staging import Download, upload
from engine.constraint.masks import RowMasks
from engine.run.device_counts import Counts, token_counts
from engine.sequences.beam import Candidate, num_candidates
from engine.sequences.plan import Draw, Sampled, ScheduledChunk
from kernels import sampling
from kernels.noise import noise_states
from kernels.types import Masks

_INVERSE_TEMPERATURES = (1e-30, 1e30)
"""What a row may be multiplied by and stay finite where it was."""


@dataclass(frozen=True, slots=True)
class Draws:
    """What was drawn, on its way to the host."""

    tokens: Tensor  # [num_rows] int64, on the device
    _download: Download
    _logprobs: dict[int, int]
    """How many alternatives each row that wants log-probabilities has asked for."""
    _widths: dict[int, int]
    """How many candidates each row of a beam search needs."""
    _failures: dict[int, str]
    """Why rows have no token, whatever was drawn in them."""
    _late: frozenset[int]
    """Rows behind drafts in which nothing could be drawn in time."""

    def token_ids(self) -> list[int]:
        """Wait for the tokens alone."""
        token_ids: list[int] = self._download.wait()[0].tolist()
        return token_ids

    def result(self) -> Sampled:
        """Wait for it."""
        tensors = [tensor.tolist() for tensor in self._download.wait()]
        token_ids: list[int] = tensors[0]
        logprobs: list[TokenLogprobs | None] = [None] * len(token_ids)
        candidates: dict[int, list[Candidate]] = {}
        if self._logprobs:
            own, tokens, values = tensors[1:4]
            for k, (row, count) in enumerate(self._logprobs.items()):
                top = list(zip(tokens[k][:count], values[k][:count], strict=True))
                logprobs[row] = TokenLogprobs(own[k], top)
        if self._widths:
            tokens, values = tensors[-2:]
            for k, (row, width) in enumerate(self._widths.items()):
                best = zip(tokens[k][:width], values[k][:width], strict=True)
                candidates[row] = list(best)
        return Sampled(token_ids, logprobs, candidates, failures=self._failures, late=self._late)


def sample(
    logits: Tensor,
    draws: Sequence[Draw],
    newest: Tensor | None = None,
    counts: Counts | None = None,
    masks: RowMasks | None = None,
) -> Draws:
    """Draw one token a row, or list the candidates of a beam's row.

    `logits` is [num_rows, vocab_size] in a dtype of the engine; row i belongs to `draws[i]`.
    `newest` ([num_rows] int64) are the tokens that were computed last, beside the logits: the host
    may not know them. Without it, it does. `counts` are those of earlier steps; without them, all
    tokens that have penalties are counted. `masks` are what grammars allow. Log-probabilities are
    those of the model itself, before bias, penalties, masks and temperature.
    """
    wanted = {
        row: draw.sequence.sampling.logprobs
        for row, draw in enumerate(draws)
        if draw.sequence.sampling.logprobs is not None
    }
    widths = {
        row: num_candidates(draw.sequence.request.beam, draw.sequence.sampling.stop_token_ids)
        for row, draw in enumerate(draws)
        if draw.sequence.request.beam is not None
    }
    scores = logits
    if widths:
        scores = _normalised(logits.float(), widths)
    counts = token_counts(logits.device) if counts is None else counts
    scores = counts.adjust(scores, draws, newest)
    params = [draw.sequence.sampling for draw in draws]
    states = noise_states([p.seed for p in params], [draw.num_tokens for draw in draws])
    of_rows = [states, _numbers(params), *(() if masks is None else (masks.places, masks.words))]
    on_device = upload(of_rows, scores.device)
    allowed = None if masks is None else Masks(*on_device[2:])
    tokens = sampling.draw(scores, on_device[0], on_device[1], allowed)
    results = [tokens]
    if wanted:
        results += _logprobs(logits.float(), tokens, wanted)
    if widths:
        results += _candidates(scores, widths)
    failures = {} if masks is None else masks.failures
    late = frozenset[int]() if masks is None else masks.late
    return Draws(tokens, Download.of(results), wanted, widths, failures, late)


def _numbers(params: list[SamplingParams]) -> npt.NDArray[np.float64]:
    """What `kernels.sampling.draw` is told of each row: [4, num_rows]."""
    least, most = _INVERSE_TEMPERATURES
    numbers = [
        (
            min(max(1 / p.temperature, least), most) if p.temperature > 0 else 0.0,
            p.top_k,
            p.top_p,
            abs(math.log(p.min_p)) if p.min_p else math.inf,
        )
        for p in params
    ]
    columns = np.array(numbers, dtype=np.float64).reshape(-1, 4).T.copy()
    columns[[0, 3]] = columns[[0, 3]].astype(np.float32)
    return columns


def _normalised(raw: Tensor, rows: Collection[int]) -> Tensor:
    """The scores, turned into log-probabilities in `rows`: beams are ranked by sums of these."""
    (index,) = upload([np.array(list(rows), dtype=np.int64)], raw.device)
    return raw.index_copy(0, index, raw[index].log_softmax(dim=-1))


def _candidates(scores: Tensor, widths: dict[int, int]) -> list[Tensor]:
    """The best tokens of each row of `widths`, as many as one of them needs, and their scores."""
    (index,) = upload([np.array(list(widths), dtype=np.int64)], scores.device)
    best = scores[index].topk(min(max(widths.values()), scores.shape[1]), dim=-1)
    return [best.indices, best.values]


def _logprobs(raw: Tensor, tokens: Tensor, wanted: dict[int, int]) -> list[Tensor]:
    """For the rows of `wanted`: their tokens' log-probabilities, the likeliest tokens, and theirs,
    as many as one of them asks for.
    """
    (index,) = upload([np.array(list(wanted), dtype=np.int64)], raw.device)
    logprobs = raw[index].log_softmax(dim=-1)
    own = logprobs.gather(-1, tokens[index][:, None])[:, 0]
    best = logprobs.topk(max(wanted.values()), dim=-1)
    return [own, best.indices, best.values]


@dataclass(frozen=True, slots=True)
class PromptScores:
    """Log-probabilities on their way to the host."""

    _download: Download
    _counts: list[int]
    """How many alternatives each row has asked for."""

    def result(self) -> list[PromptLogprobs]:
        """Wait for them."""
        own, ranks, *best = (tensor.tolist() for tensor in self._download.wait())
        tokens, values = best or ([[]] * len(own), [[]] * len(own))
        told = []
        for row, count in enumerate(self._counts):
            top = zip(tokens[row][:count], values[row][:count], strict=True)
            told.append(PromptLogprobs(own[row], list(top), ranks[row]))
        return told


def score(logits: Tensor, chunks: Sequence[ScheduledChunk]) -> PromptScores:
    """Of the scored positions of `chunks`, whose `logits` are [num_rows, vocab_size].

    Those of the model itself, as in `engine.run.sampler`: nothing that a request adds counts.
    """
    following, counts = [], []
    for chunk in chunks:
        scored = chunk.scored
        following += chunk.sequence.token_ids[scored.start + 1 : scored.stop + 1]
        counts += [chunk.sequence.sampling.prompt_logprobs or 0] * len(scored)
    (tokens,) = upload([np.array(following, np.int64)], logits.device)
    logprobs = logits.float().log_softmax(dim=-1)
    own = logprobs.gather(-1, tokens[:, None])
    likelier = (logprobs > own).view(torch.uint8)  # whose sums are found faster than those of bools
    found = [own[:, 0], likelier.sum(-1, dtype=torch.int32) + 1]
    if most := max(counts):
        best = logprobs.topk(most, dim=-1)
        found += [best.indices, best.values]
    return PromptScores(Download.of(found), counts)
