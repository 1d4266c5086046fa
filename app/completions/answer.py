"""The answer to one prompt of a request: whole, or piece by piece."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing

import msgspec
from msgspec import UNSET, UnsetType

from app.chat.completion import best
from app.generation.generation import Generation
from app.generation.lines import Piece
from app.request.request import Candidates
from app.wire.completions import CompletionBody, CompletionChoice, CompletionLogprobs
from app.wire.errors import internal_error
from app.wire.events import EncodedLogprob, PromptLogprob, TokenLogprob, encode_json

_decode = msgspec.json.Decoder(TokenLogprob).decode
_decode_prompt = msgspec.json.Decoder(dict[str, PromptLogprob]).decode
_SCORES_OF_A_CHUNK = 64
"""Tokens of a prompt."""


class Answer:
    """The choices of one prompt, numbered from `first`; `prompt` is its text where it is echoed.

    Whoever has it must read it or close its generation.
    """

    def __init__(
        self,
        body: CompletionBody,
        candidates: Candidates,
        generation: Generation,
        prompt: str,
        first_token: str,
        first: int,
    ) -> None:
        self.generation = generation
        self._body = body
        self._candidates = candidates
        self._top = body.logprobs
        self._echoed = prompt
        self._first_token = first_token
        self._first = first
        self._kept: list[list[EncodedLogprob]] = [[] for _ in generation.lines]
        self._offsets = [0] * len(generation.lines)

    async def read(self) -> None:
        """Read it to its end, for `choices`. Raises `ApiError` if it fails.

        Log-probabilities are kept as they come, encoded, until the generation lets go of them.
        """
        self.generation.keep((), past_end=True)
        async with aclosing(self.generation.pieces()) as pieces:
            async for piece in pieces:
                if self._top is not None:
                    self._kept[piece.index].extend(piece.logprobs)
                    self.generation.keep(piece.logprobs, past_end=True)
        self.check()

    def choices(self) -> list[CompletionChoice]:
        """Every choice of what was read, whole."""
        return [
            CompletionChoice(
                index=self._first + index,
                text=self._echoed + line.text,
                logprobs=self._whole_logprobs(line.index),
                finish_reason=line.end,
                prompt_logprobs=self._prompt_logprobs(),
            )
            for index, line in enumerate(best(self.generation.lines, self._candidates))
        ]

    async def growth(self) -> AsyncGenerator[CompletionChoice, None]:
        """What is added to the choices, as it comes; a failure is not told."""
        opened: set[int] = set()
        async with aclosing(self.generation.pieces()) as pieces:
            async for piece in pieces:
                if self._body.echo and piece.index not in opened:
                    for choice in self._opening(piece.index):
                        yield choice
                opened.add(piece.index)
                yield self._grown(piece)

    def check(self) -> None:
        """Raises `ApiError` where the generation has failed."""
        if self.generation.outcome not in ("stop", "length"):
            raise self.generation.failure or internal_error()

    def _opening(self, line: int) -> Iterator[CompletionChoice]:
        """The prompt that is echoed, with few of its scores at a time."""
        scored = self.generation.prompt_logprobs if self._body.echoes_scores else []
        for start in range(0, max(1, len(scored)), _SCORES_OF_A_CHUNK):
            described = _nothing() if self._body.echoes_scores else None
            if described is not None:
                part = scored[start : start + _SCORES_OF_A_CHUNK]
                self._add_prompt(line, described, part, opens=start == 0)
            text = "" if start else self._echoed
            yield CompletionChoice(index=self._first + line, text=text, logprobs=described)

    def _grown(self, piece: Piece) -> CompletionChoice:
        described = None if self._top is None else _nothing()
        if described is not None:
            self._add_answer(piece.index, described, piece.logprobs)
        return CompletionChoice(
            index=self._first + piece.index,
            text=piece.text,
            logprobs=described,
            finish_reason=piece.end,
        )

    def _whole_logprobs(self, line: int) -> CompletionLogprobs | None:
        if self._top is None:
            return None
        described = _nothing()
        if self._body.echoes_scores:
            self._add_prompt(line, described, self.generation.prompt_logprobs, opens=True)
        self._add_answer(line, described, self._kept[line])
        return described

    def _prompt_logprobs(self) -> list[msgspec.Raw | None] | UnsetType:
        """As vLLM tells them, if they are asked for: nothing foretells the first token."""
        most = self._body.prompt_logprobs
        if most is None:
            return UNSET
        told = self.generation.prompt_logprobs
        if most == self._body.scored:
            return [None, *told]
        return [None, *(msgspec.Raw(encode_json(_likeliest(one, most))) for one in told)]

    def _add_prompt(
        self,
        line: int,
        described: CompletionLogprobs,
        scored: Sequence[EncodedLogprob],
        *,
        opens: bool,
    ) -> None:
        if opens:
            self._add(line, described, self._first_token, None, None)
        for one in scored:
            entries = list(_likeliest(one, self._top or 0).values())
            own, top = entries[0], sorted(entries, key=lambda entry: entry.rank)
            chances = {entry.decoded_token: entry.logprob for entry in top}
            self._add(line, described, own.decoded_token, own.logprob, chances)

    def _add_answer(
        self, line: int, described: CompletionLogprobs, encoded: Sequence[EncodedLogprob]
    ) -> None:
        for one in map(_decode, encoded):
            likeliest = {other.token: other.logprob for other in one.top_logprobs[: self._top]}
            top = {**likeliest, one.token: one.logprob}
            self._add(line, described, one.token, one.logprob, top)

    def _add(
        self,
        line: int,
        described: CompletionLogprobs,
        token: str,
        logprob: float | None,
        top: dict[str, float] | None,
    ) -> None:
        described.tokens.append(token)
        described.token_logprobs.append(logprob)
        described.top_logprobs.append(None if top is None else msgspec.Raw(encode_json(top)))
        described.text_offset.append(self._offsets[line])
        self._offsets[line] += len(token)


def _nothing() -> CompletionLogprobs:
    return CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])


def _likeliest(encoded: EncodedLogprob, most: int) -> dict[str, PromptLogprob]:
    """A prompt's token, first, and `most` of its alternatives, by their ids."""
    own, *others = _decode_prompt(encoded).items()
    return dict([own, *(other for other in others if other[1].rank <= most)])
