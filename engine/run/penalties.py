"""What a request adds to the scores of tokens before one is chosen: its bias, and penalties for
tokens that are there already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from engine.run.staging import Array, upload
from engine.schedule.plan import Draw


@dataclass(frozen=True, slots=True)
class _Tokens:
    """Some tokens of each row of a batch, on the host."""

    rows: Array  # [num_entries] int64
    tokens: Array  # [num_entries] int64

    @classmethod
    def of(cls, lists: list[list[int]]) -> _Tokens:
        counts = [len(tokens) for tokens in lists]
        flat = np.fromiter(chain.from_iterable(lists), np.int64, sum(counts))
        return cls(np.arange(len(lists)).repeat(counts), flat)


@dataclass(frozen=True, slots=True)
class Adjustments:
    """Bias and penalties of a batch's rows."""

    _bias: _Tokens
    _bias_values: Array  # [num_entries] float32
    _seen: _Tokens
    """Prompt and output of rows with a repetition penalty, but for each one's newest token."""
    _output: _Tokens
    """The output of rows with a presence or frequency penalty, but for the newest token."""
    _numbers: Array  # [5, num_rows] float32, see `of`
    _last: list[int]
    """Each row's newest token, where the host knows it; 0 where not."""

    @classmethod
    def of(cls, draws: Sequence[Draw]) -> Adjustments | None:
        """What `draws` want; `None` if that is nothing."""
        params = [draw.sequence.sampling for draw in draws]
        repeats = [p.repetition_penalty != 1 for p in params]
        outputs = [bool(p.presence_penalty or p.frequency_penalty) for p in params]
        if not (any(repeats) or any(outputs) or any(p.logit_bias for p in params)):
            return None
        numbers = [
            [p.repetition_penalty for p in params],
            [p.frequency_penalty for p in params],
            [p.presence_penalty for p in params],
            repeats,
            [has and draw.num_output_tokens > 0 for has, draw in zip(outputs, draws, strict=True)],
        ]
        return cls(
            _Tokens.of([list(p.logit_bias) for p in params]),
            np.array([value for p in params for value in p.logit_bias.values()], np.float32),
            _Tokens.of(
                [_older(draw, 0) if r else [] for r, draw in zip(repeats, draws, strict=True)]
            ),
            _Tokens.of(
                [
                    _older(draw, draw.sequence.num_prompt_tokens) if has else []
                    for has, draw in zip(outputs, draws, strict=True)
                ]
            ),
            np.array(numbers, np.float32),
            [(draw.drafts or draw.sequence.token_ids)[-1] for draw in draws],
        )

    def apply(self, scores: Tensor, newest: Tensor | None) -> Tensor:
        """Bias, then a repetition penalty over prompt and output (Keskar et al., 2019), then
        presence and frequency penalties over the output, as OpenAI defines them.

        `scores` is [num_rows, vocab_size] float32; of `newest`, see `engine.run.sampler.sample`.
        """
        host = [
            self._bias.rows,
            self._bias.tokens,
            self._bias_values,
            self._seen.rows,
            self._seen.tokens,
            self._output.rows,
            self._output.tokens,
            self._numbers,
            np.array(self._last, np.int64),
        ]
        bias_rows, bias_tokens, bias, *index, numbers, last = upload(host, scores.device)
        if len(self._bias_values):
            scores = scores.index_put((bias_rows, bias_tokens), bias, accumulate=True)
        newest = last if newest is None else newest
        factor, frequency, presence, repeats, has_output = numbers[:, :, None].unbind()
        if self._numbers[3].any():
            seen = _counts(scores, index[0], index[1], newest, repeats) > 0
            scores = torch.where(
                seen, torch.where(scores > 0, scores / factor, scores * factor), scores
            )
        if self._numbers[1].any() or self._numbers[2].any():
            counts = _counts(scores, index[2], index[3], newest, has_output)
            scores = scores - counts * frequency
            scores = scores - (counts > 0) * presence
        return scores


def _older(draw: Draw, start: int) -> list[int]:
    """The tokens from `start` on that come before it, but for the newest one."""
    known = draw.sequence.token_ids[start : draw.num_tokens - 1]
    return [*known, *draw.drafts[:-1]]


def _counts(scores: Tensor, rows: Tensor, tokens: Tensor, newest: Tensor, counts: Tensor) -> Tensor:
    """How often each token occurs in a row: [num_rows, vocab_size], in the type of `scores`.

    `newest` is one more in each row, to be counted `counts` times ([num_rows, 1]).
    """
    ones = torch.ones(len(tokens), dtype=scores.dtype, device=scores.device)
    found = torch.zeros_like(scores).index_put_((rows, tokens), ones, accumulate=True)
    return found.scatter_add_(1, newest[:, None], counts.to(scores.dtype))
