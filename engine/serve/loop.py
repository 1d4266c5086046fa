"""The engine's loop over a socket: what is said to it, then a step, and what that has produced."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Final

from engine.api import TokenDelta
from engine.questions import ORDERS, QUESTIONS
from engine.serve.core import EngineCore
from engine.serve.messages import (
    Abort,
    Ask,
    Deltas,
    Piece,
    Ready,
    Shutdown,
    Submit,
    Want,
    answer,
    decode_to_engine,
    encode,
)

if TYPE_CHECKING:
    import zmq

    from engine.serve.kv_events import KVEventPublisher

_SAVING_SECONDS: Final = 4.0
"""For blocks that are to be kept, at the end: less than who ends the engine waits for it."""


def serve(
    core: EngineCore, socket: zmq.SyncSocket, publisher: KVEventPublisher | None = None
) -> None:
    """Announce readiness, then run the loop over `socket` until told to shut down.

    Messages are taken before every step, so an abort frees its blocks within one step. A
    `publisher` tells of blocks after each. Raises `EngineBroken` as `EngineCore.step` does.
    """
    socket.send(encode(Ready(core.info)))
    while True:
        while socket.poll(_milliseconds(core.rest_seconds)):
            match decode_to_engine(socket.recv()):
                case Submit(request):
                    _send(socket, core.submit(request))
                case Abort(request_id, index):
                    _send(socket, core.abort(request_id, index))
                case Piece() as piece:
                    _send(socket, _bring(core, piece))
                case Ask(number, question):
                    said = QUESTIONS[type(question)].handle(core, question)
                    socket.send(answer(number, said))
                case Shutdown():
                    core.close(_SAVING_SECONDS)
                    return
                case order:
                    ORDERS[type(order)].handle(core, order)
            if publisher is not None:  # a tenant may have been forgotten
                publisher.publish()
        _send(socket, core.step())
        wanted = core.take_wanted()
        if wanted:
            socket.send(encode(Want(wanted)))
        if publisher is not None:
            publisher.publish()
        if core.is_idle:
            core.check()


def _bring(core: EngineCore, piece: Piece) -> list[TokenDelta]:
    if piece.error is not None:
        return core.lack(piece.name, piece.error)
    core.bring(piece.name, piece.data, is_first=piece.is_first, is_last=piece.is_last)
    return []


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else ceil(1000 * seconds)


def _send(socket: zmq.SyncSocket, deltas: list[TokenDelta]) -> None:
    if deltas:
        socket.send(encode(Deltas(deltas)))
