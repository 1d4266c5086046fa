"""What the service and the engine say to each other across the process border (MessagePack)."""

from __future__ import annotations

import msgspec

from engine.api import EngineInfo, EngineRequest, TokenDelta
from engine.questions import AnyOrder, AnyQuestion


class Submit(msgspec.Struct, frozen=True, tag=True):
    """Serve this request."""

    request: EngineRequest


class Abort(msgspec.Struct, frozen=True, tag=True):
    """End this request, or only its sequence `index`, if it is still alive."""

    request_id: str
    index: int | None = None


class Piece(msgspec.Struct, frozen=True, tag=True):
    """Of an adapter or a picture that was wanted, as `engine.client.Source` brings it. With an
    `error` there is none, or no more of it.
    """

    name: bytes
    data: bytes
    is_first: bool = False
    is_last: bool = False
    error: str | None = None


class Ask(msgspec.Struct, frozen=True, tag=True):
    """Answer with an `Answer` of this number, from inside the loop."""

    number: int
    question: AnyQuestion


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """End every request and leave the loop."""


class Loading(msgspec.Struct, frozen=True, tag=True):
    """The engine starts, and this is there already."""

    what: str


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The model is loaded; requests are served from now on."""

    info: EngineInfo


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The engine could not start."""

    message: str


class Down(msgspec.Struct, frozen=True, tag=True):
    """The engine is lost, with these requests in it, and alone if it had no others."""

    requests: list[str]
    alone: bool


class Deltas(msgspec.Struct, frozen=True, tag=True):
    """What one step produced, for all requests together."""

    deltas: list[TokenDelta]


class Want(msgspec.Struct, frozen=True, tag=True):
    """Requests wait for the adapters or pictures of these names."""

    names: list[bytes]


class Answer(msgspec.Struct, frozen=True, tag=True):
    """The answer to an `Ask`, in MessagePack again: what it is the question's entry says."""

    number: int
    answer: msgspec.Raw


ToEngine = Submit | Abort | Piece | Ask | AnyOrder | Shutdown
FromEngine = Loading | Ready | Failed | Deltas | Want | Answer

encode = msgspec.msgpack.Encoder().encode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_question = msgspec.msgpack.Decoder(AnyQuestion).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode


def answer(number: int, said: object) -> bytes:
    """An encoded `Answer`."""
    return encode(Answer(number, msgspec.Raw(encode(said))))
