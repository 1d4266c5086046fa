"""One line of an answer: its tokens as text that is safe to show, piece by piece."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, cast

import msgspec
from transformers import PreTrainedTokenizerBase

from app.formats.reasoning.parser import ReasoningParser
from app.formats.tools.parser import ToolParser
from app.formats.tools.source import Kind, Part
from app.generation.detokenizer import Detokenizer
from app.generation.token_texts import TokenTexts
from app.wire.events import EncodedLogprob
from engine.api import SamplingParams, TokenDelta

LineEnd = Literal["stop", "length"]


class Piece(msgspec.Struct, frozen=True):
    """What became safe to show: text, with the log-probabilities of its tokens where asked for.

    Of `kind` "call" it is the name of a function: a call begins; of "arguments" more of this call's
    arguments; of "custom" and "input" the same of a custom tool. Text of kind "reasoning" is none
    of what is said. `index` is its line's. The last piece of a line says how it ended, and may add
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


OutputKind = Literal["text", "reasoning", "call", "custom"]
_CALLS: Final[Mapping[Kind, OutputKind]] = {"arguments": "call", "input": "custom"}
"""Of which kind the call is that such a piece goes on."""


def output_kind(kind: Kind) -> OutputKind:
    """Which kind of output pieces of a kind belong to."""
    return _CALLS.get(kind) or cast("OutputKind", kind)


class Output:
    """A stretch of text or reasoning in an answer, or the call of the function `name`, or of the
    custom tool.
    """

    def __init__(self, kind: OutputKind = "text", name: str = "") -> None:
        self.kind = kind
        self.name = name
        self.pieces: list[str] = []

    @property
    def text(self) -> str:
        """The text, or a call's arguments as JSON, or its input."""
        return "".join(self.pieces)


class Line:
    """What one sequence of a request has generated.

    `output_ids` and `outputs` grow until `end` is set. `generated` and `held` are what an earlier
    stream of the same line was left with. `score` is what a beam search gives its hypothesis. A
    `sifter` takes reasoning out of the text, and a `reader` finds the calls in it. Behind a prompt
    that has log-probabilities a stop token has some as well.
    """

    def __init__(
        self,
        index: int,
        sampling: SamplingParams,
        tokenizer: PreTrainedTokenizerBase,
        stop: Sequence[str],
        generated: Sequence[int] = (),
        held: Sequence[EncodedLogprob] = (),
        reader: ToolParser | None = None,
        sifter: ReasoningParser | None = None,
    ) -> None:
        self.index = index
        self.output_ids = list(generated)
        self.asides: list[tuple[int, int]] = []
        """Where among them reasoning begins and ends, with the markers around it."""
        self.end: LineEnd | None = None
        self.score: float | None = None
        self.outputs: list[Output] = []
        self._sampling = sampling
        self._texts = None if sampling.logprobs is None else TokenTexts(tokenizer)
        self._reader = reader
        self._sifter = sifter
        shown = tuple(one for by in (sifter, reader) if by is not None for one in by.markers)
        self._detokenizer = Detokenizer(tokenizer, stop, sampling.min_tokens, shown, sifter)
        self._undecided: int | None = None
        """The first of the newest tokens that may be reasoning or not."""
        self._one_by_one = bool(stop) or sampling.logprobs is not None or sifter is not None
        self.held: list[EncodedLogprob] = []
        """The log-probabilities of tokens whose text is not safe to show yet."""
        self._logprob_sum = 0.0
        step = self._step(len(generated))
        for start in range(0, len(generated), step):
            self._read(generated[start : start + step], start)  # what an earlier stream has shown
        self.held = list(held)

    @property
    def text(self) -> str:
        """Everything said so far: what is no call, and was not reasoned."""
        return "".join(one.text for one in self.outputs if one.kind == "text")

    @property
    def reasoning(self) -> str:
        """Everything reasoned so far."""
        return "\n\n".join(one.text for one in self.outputs if one.kind == "reasoning")

    @property
    def num_reasoning_tokens(self) -> int:
        """Tokens of the reasoning, with the markers around it."""
        reasons = any(one.kind == "reasoning" for one in self.outputs)
        return sum(end - start for start, end in self.asides) if reasons else 0

    @property
    def calls(self) -> list[Output]:
        """The calls so far."""
        return [one for one in self.outputs if one.kind in ("call", "custom")]

    @property
    def stop_string(self) -> str | None:
        """The one that has ended it, if one has."""
        return self._detokenizer.stop_string

    @property
    def is_cut(self) -> bool:
        """Whether a stop string has ended it within a call, whose arguments are not whole, or whose
        input may not be.
        """
        last = self.outputs[-1] if self.outputs else None
        if not self._detokenizer.stopped or last is None or last not in self.calls:
            return False
        if last.kind == "custom":
            return self._reader is None or not self._reader.has_whole_input
        try:
            msgspec.json.decode(last.text, type=msgspec.Raw)
        except msgspec.DecodeError:
            return True
        return False

    @property
    def mean_logprob(self) -> float:
        """Of its tokens, an end token included. Needs a request that asks for logprobs."""
        return self._logprob_sum / max(1, len(self.output_ids))

    def take(self, delta: TokenDelta) -> list[Piece]:
        """Account for tokens; returns what they let us show. Sets `end` where they end the line."""
        pieces: list[Piece] = []
        step = self._step(len(delta.token_ids))
        for start in range(0, len(delta.token_ids), step):
            ids = delta.token_ids[start : start + step]
            self.output_ids.extend(ids)
            if delta.logprobs is not None and self._texts is not None:
                self._note_logprobs(ids[0], delta, start, self._texts)
            pieces += self._read(ids, len(self.output_ids) - len(ids))
            if self._detokenizer.stopped or (self._reader is not None and self._reader.is_over):
                self.held.clear()
                self.end = "stop"
                return pieces + self._last("")
        if delta.finish_reason == "stop" or delta.finish_reason == "length":
            self.end, self.score = delta.finish_reason, delta.score
            pieces += self._last(self._detokenizer.finish(cut=self._is_unfinished))
        return pieces

    def rest(self) -> list[Piece]:
        """What is held back, given that no more tokens will come. Nothing when repeated."""
        last = self._last(self._detokenizer.finish(cut=self._is_unfinished))
        return [piece for piece in last if not piece.is_empty]

    @property
    def _is_unfinished(self) -> bool:
        """Whether it might have gone on."""
        return self.end != "stop"

    def _step(self, count: int) -> int:
        """How many of so many tokens are read at once."""
        return 1 if self._one_by_one else max(1, count)

    def _read(self, ids: Sequence[int], position: int) -> list[Piece]:
        """Tokens that stand at a position of the output, as pieces."""
        text = self._detokenizer.push(ids)
        pieces = self._reasoned()
        if self._sifter is not None:
            self._note_aside(position, self._sifter)
        return pieces + self._release(text) if text else pieces

    def _note_aside(self, position: int, sifter: ReasoningParser) -> None:
        """The token at a position has been sifted; those before it may have waited for that."""
        begin = position if self._undecided is None else self._undecided
        self._undecided = begin if sifter.holds and not sifter.is_aside else None
        if not sifter.is_aside:
            return
        if self.asides and self.asides[-1][1] >= begin:
            begin, _ = self.asides.pop()
        self.asides.append((begin, position + 1))

    def _reasoned(self) -> list[Piece]:
        """What was taken out of the text. Its log-probabilities are not told."""
        if self._sifter is None:
            return []
        if self._sifter.drops:
            self.held.clear()
        reasoning = self._sifter.take()
        return self._pieces([Part("reasoning", reasoning)]) if reasoning else []

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
        self.held.append(texts.describe(token_id, logprobs, top))

    def _last(self, text: str) -> list[Piece]:
        """The last text as pieces, the last of which says how the line ended."""
        pieces = self._reasoned()
        if self._reader is None:
            return pieces + self._release(text)
        parts = [*self._reader.push(text), *self._reader.finish(cut=self._is_unfinished)]
        return [*pieces, *self._pieces(parts), Piece("", [], self.index, self.end)]

    def _release(self, text: str) -> list[Piece]:
        """More text as pieces."""
        if self._reader is None:
            return self._pieces([Part("text", text)])
        return self._pieces(self._reader.push(text))

    def _pieces(self, parts: Sequence[Part]) -> list[Piece]:
        """Log-probabilities go with text; those of calls are not told."""
        pieces: list[Piece] = []
        for part in parts:
            held, self.held = self.held, []
            logprobs = held if part.kind == "text" else []
            if part.text or logprobs:
                self._note(part)
            end = self.end if self._reader is None and part.kind == "text" else None
            pieces.append(Piece(part.text, logprobs, self.index, end, part.kind))
        return pieces

    def _note(self, part: Part) -> None:
        """Have `outputs` grow."""
        kind = output_kind(part.kind)
        if part.kind in ("call", "custom"):
            self.outputs.append(Output(kind, part.text))
            return
        if not self.outputs or self.outputs[-1].kind != kind:
            self.outputs.append(Output(kind))
        self.outputs[-1].pieces.append(part.text)
