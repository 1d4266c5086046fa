"""The answer to one prompt of a request: whole, or piece by piece."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec

from app.chat.completion import best
from app.generate.generation import Generation
from app.generate.lines import Piece
from app.generate.request import Candidates
from app.wire.completions import CompletionBody, CompletionChoice, CompletionLogprobs
from app.wire.errors import internal_error
from app.wire.events import EncodedLogprob, TokenLogprob, encode_json

_decode = msgspec.json.Decoder(TokenLogprob).decode


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
        self._candidates = candidates
        self._top = body.logprobs
        self._echoed = prompt if body.echo else ""
        self._first_token = first_token if body.scores else None
        self._first = first
        self._kept: list[list[EncodedLogprob]] = [[] for _ in generation.lines]
        self._offsets = [0 if body.scores else len(self._echoed) for _ in generation.lines]

    async def read(self) -> None:
        """Read it to its end, for `choices`. Raises `ApiError` if it fails.

        Log-probabilities are kept as they come, encoded, until the generation lets go of them.
        """
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
                logprobs=self._described(line.index, self._kept[line.index], opens=True),
                finish_reason=line.end,
            )
            for index, line in enumerate(best(self.generation.lines, self._candidates))
        ]

    async def growth(self) -> AsyncGenerator[CompletionChoice, None]:
        """What is added to the choices, as it comes; a failure is not told."""
        opened: set[int] = set()
        async with aclosing(self.generation.pieces()) as pieces:
            async for piece in pieces:
                yield self._grown(piece, opens=piece.index not in opened)
                opened.add(piece.index)

    def check(self) -> None:
        """Raises `ApiError` where the generation has failed."""
        if self.generation.outcome not in ("stop", "length"):
            raise self.generation.failure or internal_error()

    def _grown(self, piece: Piece, *, opens: bool) -> CompletionChoice:
        return CompletionChoice(
            index=self._first + piece.index,
            text=(self._echoed if opens else "") + piece.text,
            logprobs=self._described(piece.index, piece.logprobs, opens=opens),
            finish_reason=piece.end,
        )

    def _described(
        self, line: int, encoded: Sequence[EncodedLogprob], *, opens: bool
    ) -> CompletionLogprobs | None:
        if self._top is None:
            return None
        described = CompletionLogprobs(
            tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[]
        )
        if opens and self._first_token is not None:
            self._add(line, described, self._first_token, None, None)
        for one in map(_decode, encoded):
            likeliest = {other.token: other.logprob for other in one.top_logprobs[: self._top]}
            top = {**likeliest, one.token: one.logprob}
            self._add(line, described, one.token, one.logprob, top)
        return described

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
