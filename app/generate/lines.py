"""One line of an answer: its tokens as text that is safe to show, piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from transformers import PreTrainedTokenizerBase

from app.generate.detokenizer import Detokenizer
from app.generate.logprobs import TokenTexts
from app.wire.events import EncodedLogprob
from engine.api import SamplingParams, TokenDelta

LineEnd = Literal["stop", "length"]


class Piece(msgspec.Struct, frozen=True):
    """Text that became safe to show, with the log-probabilities of its tokens where asked for.

    `index` is its line's. The last piece of a line says how it ended, and may add nothing else.
    """

    text: str
    logprobs: list[EncodedLogprob] = []
    index: int = 0
    end: LineEnd | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show."""
        return not self.text and not self.logprobs


class Line:
    """What one sequence of a request has generated.

    `output_ids` and `text` grow until `end` is set. `generated` and `held` are what an earlier
    stream of the same line was left with. `score` is what a beam search gives its hypothesis.
    """

    def __init__(
        self,
        index: int,
        sampling: SamplingParams,
        tokenizer: PreTrainedTokenizerBase,
        stop: Sequence[str],
        generated: Sequence[int] = (),
        held: Sequence[EncodedLogprob] = (),
    ) -> None:
        self.index = index
        self.output_ids = list(generated)
        self.end: LineEnd | None = None
        self.score: float | None = None
        self._sampling = sampling
        self._texts = None if sampling.logprobs is None else TokenTexts(tokenizer)
        self._detokenizer = Detokenizer(tokenizer, stop, sampling.min_tokens)
        self._detokenizer.push(generated)
        self._one_by_one = bool(stop) or sampling.logprobs is not None
        self._held = list(held)
        self._logprob_sum = 0.0

    @property
    def text(self) -> str:
        """Everything shown so far."""
        return self._detokenizer.text

    @property
    def held(self) -> list[EncodedLogprob]:
        """The log-probabilities of tokens whose text is not safe to show yet."""
        return self._held

    @property
    def mean_logprob(self) -> float:
        """Of its tokens, an end token included. Needs a request that asks for logprobs."""
        return self._logprob_sum / max(1, len(self.output_ids))

    def take(self, delta: TokenDelta) -> list[Piece]:
        """Account for tokens; returns what they let us show. Sets `end` where they end the line."""
        pieces: list[Piece] = []
        step = 1 if self._one_by_one else max(1, len(delta.token_ids))
        for start in range(0, len(delta.token_ids), step):
            ids = delta.token_ids[start : start + step]
            self.output_ids.extend(ids)
            if delta.logprobs is not None and self._texts is not None:
                self._note_logprobs(ids[0], delta, start, self._texts)
            text = self._detokenizer.push(ids)
            if text:
                pieces.append(self._release(text))
            if self._detokenizer.stopped:
                self._held.clear()
                self.end = "stop"
                return [*pieces, self._release("")]
        if delta.finish_reason == "stop" or delta.finish_reason == "length":
            self.end, self.score = delta.finish_reason, delta.score
            pieces.append(self._release(self._detokenizer.finish()))
        return pieces

    def rest(self) -> Piece:
        """What is held back, given that no more tokens will come. Empty when repeated."""
        return self._release(self._detokenizer.finish())

    def _note_logprobs(
        self, token_id: int, delta: TokenDelta, position: int, texts: TokenTexts
    ) -> None:
        assert delta.logprobs is not None
        logprobs = delta.logprobs[position]
        self._logprob_sum += logprobs.logprob
        is_last = position == len(delta.token_ids) - 1
        if delta.finish_reason == "stop" and is_last and token_id in self._sampling.stop_token_ids:
            return
        top = self._sampling.logprobs or 0
        self._held.append(texts.describe(token_id, logprobs, top))

    def _release(self, text: str) -> Piece:
        held, self._held = self._held, []
        return Piece(text, held, self.index, self.end)
