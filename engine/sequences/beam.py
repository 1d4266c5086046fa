"""Beam search over token candidates: which beams go on with which token, and what they end as.

The search holds tokens and scores only. Whoever drives it owns the model, and forks or drops the
beams' blocks as `BeamSearch.advance` tells. Choices and scores are those of
`generate(num_beams=...)` in transformers, down to the order of its float32 operations.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from engine.api import BeamParams, FinishReason

Candidate = tuple[int, float]
"""A token, and its log-probability (natural logarithm) behind one beam."""


class Continuation(NamedTuple):
    """A beam of the next step: the beam that it continues, and the token behind that one."""

    parent: int
    token_id: int


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished output; `token_ids` ends with the stop token if it ended with one.

    `score` is the sum of the tokens' log-probabilities divided by
    `len(token_ids) ** length_penalty`.
    """

    token_ids: list[int]
    score: float
    finish_reason: FinishReason


class BeamSearch:
    """The state of one search. It starts with one beam, the prompt."""

    def __init__(
        self, params: BeamParams, max_tokens: int, stop_token_ids: Collection[int] = ()
    ) -> None:
        assert max_tokens > 0
        self._params = params
        self._max_tokens = max_tokens
        self._stop_token_ids = frozenset(stop_token_ids)
        self._num_candidates = num_candidates(params, stop_token_ids)
        self.outputs: list[list[int]] = [[]]
        """What each live beam has generated, best beam first."""
        self._scores = np.zeros(1, dtype=np.float32)  # [num_live], best first
        self._finished: list[Hypothesis] = []
        self.is_done = False
        """Whether there is nothing left to advance; `hypotheses` are final then."""

    @property
    def hypotheses(self) -> list[Hypothesis]:
        """The best finished outputs so far, best first: once done, as many as were asked for."""
        return self._finished[: self._params.num_return]

    def advance(self, candidates: Sequence[Sequence[Candidate]]) -> list[Continuation]:
        """Take each live beam's best candidates; returns the beams that are live from now on.

        `candidates[i]` holds the same number of distinct tokens for each beam, `num_candidates` of
        them or the whole vocabulary. The answer is empty when the search is done.
        """
        assert not self.is_done
        ranked = self._rank(candidates)
        length = len(self.outputs[0]) + 1
        at_limit = length == self._max_tokens
        self._finish(ranked[: self._params.num_beams], length, at_limit)
        live = [] if at_limit else [c for c in ranked if not self._is_stop(c[0])]
        live = live[: self._params.num_beams]
        self.outputs = [[*self.outputs[parent], token] for (parent, token), _ in live]
        self._scores = np.array([score for _, score in live], dtype=np.float32)
        self.is_done = not live or not self._can_improve(length)
        return [] if self.is_done else [continuation for continuation, _ in live]

    def _rank(
        self, candidates: Sequence[Sequence[Candidate]]
    ) -> list[tuple[Continuation, np.float32]]:
        """The best continuations of all beams together, with their summed log-probabilities."""
        assert len(candidates) == len(self.outputs)
        tokens = np.array([[token for token, _ in row] for row in candidates])
        logprobs = np.array([[value for _, value in row] for row in candidates], dtype=np.float32)
        totals = (logprobs + self._scores[:, None]).ravel()
        order = np.argsort(-totals, kind="stable")[: self._num_candidates]
        width = tokens.shape[1]
        return [
            (Continuation(int(i) // width, int(tokens.flat[i])), np.float32(totals[i]))
            for i in order
        ]

    def _is_stop(self, continuation: Continuation) -> bool:
        return continuation.token_id in self._stop_token_ids

    def _finish(
        self, best: Sequence[tuple[Continuation, np.float32]], length: int, at_limit: bool
    ) -> None:
        """Keep what ends among the best continuations, if it beats what has ended before."""
        for continuation, total in best:
            is_stop = self._is_stop(continuation)
            if is_stop or at_limit:
                output = [*self.outputs[continuation.parent], continuation.token_id]
                score = float(self._normalised(total, length))
                self._finished.append(Hypothesis(output, score, "stop" if is_stop else "length"))
        self._finished.sort(key=lambda hypothesis: -hypothesis.score)
        del self._finished[self._params.num_beams :]

    def _can_improve(self, length: int) -> bool:
        """Whether a live beam is expected to end better than the worst hypothesis kept."""
        params = self._params
        if len(self._finished) < params.num_beams:
            return True
        if params.early_stopping:
            return False
        if params.early_stopping is None and params.length_penalty > 0:
            length = self._max_tokens
        return float(self._normalised(self._scores[0], length)) > self._finished[-1].score

    def _normalised(self, total: np.float32, length: int) -> np.float32:
        return total / np.float32(length**self._params.length_penalty)


def num_candidates(params: BeamParams, stop_token_ids: Collection[int]) -> int:
    """How many candidates of each beam the search needs.

    They are so many that `num_beams` of them can go on even if every beam's best are stop tokens.
    """
    return max(2, 1 + len(set(stop_token_ids))) * params.num_beams
