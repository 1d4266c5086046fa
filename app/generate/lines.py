"""One line of an answer: its tokens as text that is safe to show, piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from transformers import PreTrainedTokenizerBase

from app.generate.answer_reader import AnswerReader
from app.generate.detokenizer import Detokenizer
from app.generate.logprobs import TokenTexts
from app.generate.tool_formats.source import Kind, Part
from app.wire.events import EncodedLogprob
from engine.api import SamplingParams, TokenDelta

LineEnd = Literal["stop", "length"]


class Piece(msgspec.Struct, frozen=True):
    """What became safe to show: text, with the log-probabilities of its tokens where asked for.

    Of `kind` "call" it is the name of a function: a call begins; of "arguments" more of this call's
    arguments. `index` is its line's. The last piece of a line says how it ended, and may add
    nothing else.
    """

    text: str
    logprobs: list[EncodedLogprob] = []
    index: int = 0
    end: LineEnd | None = None
    kind: Kind = "text"

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show."""
        return not self.text and not self.logprobs


class Output:
    """A stretch of text in an answer, or the call of the function `name` with its arguments."""

    def __init__(self, name: str | None = None) -> None:
        self.name = name
        self.pieces: list[str] = []

    @property
    def text(self) -> str:
        """The text, or the arguments as JSON."""
        return "".join(self.pieces)


class Line:
    """What one sequence of a request has generated.

    `output_ids` and `outputs` grow until `end` is set. `generated` and `held` are what an earlier
    stream of the same line was left with. `score` is what a beam search gives its hypothesis. A
    `reader` finds the calls in the text. Behind a prompt that has log-probabilities a stop token
    has some as well.
    """

    def __init__(
        self,
        index: int,
        sampling: SamplingParams,
        tokenizer: PreTrainedTokenizerBase,
        stop: Sequence[str],
        generated: Sequence[int] = (),
        held: Sequence[EncodedLogprob] = (),
        reader: AnswerReader | None = None,
    ) -> None:
        self.index = index
        self.output_ids = list(generated)
        self.end: LineEnd | None = None
        self.score: float | None = None
        self.outputs: list[Output] = []
        self._sampling = sampling
        self._texts = None if sampling.logprobs is None else TokenTexts(tokenizer)
        self._reader = reader
        shown = () if reader is None else reader.markers
        self._detokenizer = Detokenizer(tokenizer, stop, sampling.min_tokens, shown)
        self._one_by_one = bool(stop) or sampling.logprobs is not None
        self._held: list[EncodedLogprob] = []
        self._logprob_sum = 0.0
        told = self._detokenizer.push(generated)
        if told:
            self._release(told)  # what an earlier stream has shown
        self._held = list(held)

    @property
    def text(self) -> str:
        """Everything said so far: what is no call."""
        return "".join(one.text for one in self.outputs if one.name is None)

    @property
    def calls(self) -> list[Output]:
        """The calls so far."""
        return [one for one in self.outputs if one.name is not None]

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
                pieces += self._release(text)
            if self._detokenizer.stopped or (self._reader is not None and self._reader.is_over):
                self._held.clear()
                self.end = "stop"
                return pieces + self._last("")
        if delta.finish_reason == "stop" or delta.finish_reason == "length":
            self.end, self.score = delta.finish_reason, delta.score
            pieces += self._last(self._detokenizer.finish())
        return pieces

    def rest(self) -> list[Piece]:
        """What is held back, given that no more tokens will come. Nothing when repeated."""
        return [piece for piece in self._last(self._detokenizer.finish()) if not piece.is_empty]

    def _note_logprobs(
        self, token_id: int, delta: TokenDelta, position: int, texts: TokenTexts
    ) -> None:
        assert delta.logprobs is not None
        logprobs = delta.logprobs[position]
        self._logprob_sum += logprobs.logprob
        is_last = position == len(delta.token_ids) - 1
        is_stop = token_id in self._sampling.stop_token_ids
        is_told = self._sampling.prompt_logprobs is not None
        if delta.finish_reason == "stop" and is_last and is_stop and not is_told:
            return
        top = self._sampling.logprobs or 0
        self._held.append(texts.describe(token_id, logprobs, top))

    def _last(self, text: str) -> list[Piece]:
        """The last text as pieces, the last of which says how the line ended."""
        if self._reader is None:
            return self._release(text)
        parts = [*self._reader.push(text), *self._reader.finish()]
        return [*self._pieces(parts), Piece("", [], self.index, self.end)]

    def _release(self, text: str) -> list[Piece]:
        """More text as pieces."""
        if self._reader is None:
            return self._pieces([Part("text", text)])
        return self._pieces(self._reader.push(text))

    def _pieces(self, parts: Sequence[Part]) -> list[Piece]:
        """Log-probabilities go with text; those of calls are not told."""
        pieces: list[Piece] = []
        for part in parts:
            held, self._held = self._held, []
            logprobs = held if part.kind == "text" else []
            if part.text or logprobs:
                self._note(part)
            end = self.end if self._reader is None else None
            pieces.append(Piece(part.text, logprobs, self.index, end, part.kind))
        return pieces

    def _note(self, part: Part) -> None:
        """Have `outputs` grow."""
        if part.kind == "call":
            self.outputs.append(Output(part.text))
            return
        is_text = part.kind == "text"
        if is_text and (not self.outputs or self.outputs[-1].name is not None):
            self.outputs.append(Output())
        self.outputs[-1].pieces.append(part.text)
