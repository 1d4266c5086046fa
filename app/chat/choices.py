"""How the lines of a chat completion come about: sampled from one prompt, or searched by beams."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from app.generate.lines import Line
from app.wire.chat import ChatBody
from app.wire.errors import invalid_request
from engine.api import BeamParams

_NEUTRAL: dict[str, object] = {
    "stream": False,
    "temperature": 0,
    "best_of": None,
    "top_p": 1,
    "top_k": 0,
    "min_p": 0,
    "seed": None,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "repetition_penalty": 1,
    "logit_bias": {},
    "logprobs": False,
    "stop": [],
}
"""What must not change how beams are searched or shown, and the values that ask for nothing."""


@dataclass(frozen=True)
class Decoding:
    """`num_sequences` sampled lines, of which the best `num_choices` are the answer, or a search.

    `ranks` says whether lines are dropped, which takes their log-probabilities.
    """

    num_choices: int
    num_sequences: int
    beam: BeamParams | None = None

    @classmethod
    def of(cls, body: ChatBody, most: int) -> Decoding:
        """What a body asks for, of an engine that computes `most` lines at once.

        Raises `ApiError` naming a field that does not go with others, or asks for more.
        """
        one = _sampled(body) if body.num_beams is None else _searched(body, body.num_beams)
        if one.width > most:
            fields = ("num_beams", "best_of", "n")
            field = next(field for field in fields if getattr(body, field) is not None)
            raise invalid_request(f"'{field}' can be {most} at most: so many run at once.", field)
        return one

    @property
    def width(self) -> int:
        """Lines that are computed side by side, each as long as an answer may be."""
        return self.num_sequences if self.beam is None else self.beam.num_beams

    @property
    def ranks(self) -> bool:
        """Whether more lines are sampled than the answer has."""
        return self.num_sequences > self.num_choices

    def chosen(self, lines: Sequence[Line]) -> Sequence[Line]:
        """The answer's lines, in order. Ranked ones go by the mean log-probability of a token."""
        if not self.ranks:
            return lines
        return heapq.nlargest(self.num_choices, lines, key=lambda line: line.mean_logprob)


def _sampled(body: ChatBody) -> Decoding:
    for field in ("length_penalty", "early_stopping"):
        if getattr(body, field) is not None:
            raise invalid_request(f"'{field}' needs 'num_beams'.", field)
    n = body.n or 1
    best_of = n if body.best_of is None else body.best_of
    if best_of < n:
        raise invalid_request(f"'best_of' must be at least 'n', which is {n}.", "best_of")
    if best_of > n and body.stream:
        message = (
            "'best_of' cannot choose among answers that are streamed; give it the value of 'n'."
        )
        raise invalid_request(message, "best_of")
    return Decoding(num_choices=n, num_sequences=best_of)


def _searched(body: ChatBody, num_beams: int) -> Decoding:
    for field, neutral in _NEUTRAL.items():
        if getattr(body, field) not in (None, neutral):
            raise invalid_request(f"'{field}' cannot go with 'num_beams'.", field)
    n = body.n or 1
    if n > num_beams:
        raise invalid_request(f"{num_beams} beams have no {n} hypotheses to return.", "n")
    never = body.early_stopping == "never"
    beam = BeamParams(
        num_beams=num_beams,
        num_return=n,
        length_penalty=1.0 if body.length_penalty is None else body.length_penalty,
        early_stopping=None if never else bool(body.early_stopping),
    )
    return Decoding(num_choices=n, num_sequences=1, beam=beam)
