"""An engine without a model: every running request gets one token a step, at a fixed pace.

Run as `partywall serve` with it in place of the real one (`python -m bench.service.null_engine
serve ...`), it speaks the real engine's messages from a process of its own, so that all that the
service does for a token is done. A request's `seed` is the time of a step in microseconds; the
newest counts, unless it is more than a minute, as random ones are. Whenever its last request has
ended, what it has emitted is appended as JSON to `emitted.jsonl` in the folder that the environment
variable `NULL_ENGINE_NOTES` names: see `Emitted`.

Where `answer.txt` lies there, a request ends with its text, if not before.

Where `late.txt` lies there, a task on the service's event loop asks to be woken every millisecond.
Whenever it is late, when that was (seconds of the system's monotonic clock, which all processes of
a machine share) and how late (seconds) are appended.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import msgspec
import zmq
from starlette.applications import Starlette

from bench.common.service import Service, running_service, variable
from engine.api import EngineInfo, EngineRequest, EngineStats, TokenDelta
from engine.assembly.process import ProcessEngine, die_with
from engine.config import EngineConfig
from engine.serve.messages import (
    Abort,
    Ask,
    Deltas,
    Ready,
    Shutdown,
    Submit,
    ToEngine,
    answer,
    decode_to_engine,
    encode,
)

_PROGRAM = "bench.service.null_engine"
_NOTES = "NULL_ENGINE_NOTES"
EMITTED, LATE, ANSWER = "emitted.jsonl", "late.txt", "answer.txt"
_CONTEXT_TOKENS = 1_000_000
_TEXT = "The wall between the two gardens is old and dry; roses climb over it from both sides. " * 4
_LONGEST_STEP_US = 60_000_000
_GATHERING_SECONDS = 0.25
"""How long no request must have come before the first step: what is measured is a steady pace."""
_PERIOD_SECONDS = 0.001
_NOTED_SECONDS = 0.002


@contextmanager
def null_service(
    options: Sequence[str], *, watches: bool = False, answer: str = ""
) -> Iterator[tuple[Service, Path]]:
    """Such a service, and the folder of its notes; its event loop is watched if that is asked for.

    With an `answer`, every request has that one.

    Raises `BenchError` as `running_service` does.
    """
    with tempfile.TemporaryDirectory(prefix="partywall-bench-") as folder:
        if watches:
            Path(folder, LATE).touch()
        if answer:
            Path(folder, ANSWER).write_text(answer)
        with variable(_NOTES, folder), running_service(options, _PROGRAM) as service:
            yield service, Path(folder)


class Emitted(msgspec.Struct):
    """When each step was emitted (seconds of the monotonic clock), and each request's first one.

    A request has had one token in each step from its first on.
    """

    steps: list[float]
    first: dict[str, int]


class NullEngine:
    """The state of the loop: who runs, and what has been emitted since all was idle."""

    def __init__(
        self, info: EngineInfo, token_ids: Sequence[int], log: Path, most: int = _CONTEXT_TOKENS
    ) -> None:
        self._info = info
        self._tokens: Iterator[int] = cycle(token_ids)
        self._most = most
        self._log = log
        self._left: dict[str, int] = {}
        self._emitted = Emitted([], {})
        self._period = 0.0
        self._due = 0.0

    def serve(self, socket: zmq.SyncSocket) -> None:
        """Answer until told to shut down."""
        socket.send(encode(Ready(self._info)))
        while True:
            if socket.poll(self._patience_ms()):
                message: ToEngine = decode_to_engine(socket.recv())
                if isinstance(message, Shutdown):
                    return
                self._take(message, socket)
            else:
                # Asleep: the clients may have no other core, and it is noted when a step was.
                time.sleep(max(0.0, self._due - time.monotonic()))
                self._step(socket)

    def _patience_ms(self) -> int | None:
        """The whole milliseconds before the next step, in which a message is taken at once."""
        if not self._left:
            return None
        return int(max(0.0, self._due - time.monotonic()) * 1000)

    def _take(self, message: ToEngine, socket: zmq.SyncSocket) -> None:
        if isinstance(message, Submit):
            self._begin(message.request)
        elif isinstance(message, Abort):
            if self._left.pop(message.request_id, None) is not None:
                delta = TokenDelta(request_id=message.request_id, finish_reason="aborted")
                socket.send(encode(Deltas([delta])))
                self._write_if_idle()
        elif isinstance(message, Ask):  # how it goes: nothing else is
            socket.send(answer(message.number, _stats(len(self._left))))

    def _begin(self, request: EngineRequest) -> None:
        if request.sampling.seed < _LONGEST_STEP_US:
            self._period = request.sampling.seed / 1e6
        if not self._emitted.steps:
            self._due = time.monotonic() + _GATHERING_SECONDS
        self._left[request.request_id] = min(request.sampling.max_tokens, self._most)
        self._emitted.first[request.request_id] = len(self._emitted.steps)

    def _step(self, socket: zmq.SyncSocket) -> None:
        token_ids = [next(self._tokens)]
        deltas = [
            TokenDelta(
                request_id=request_id,
                token_ids=token_ids,
                finish_reason="length" if left == 1 else None,
            )
            for request_id, left in self._left.items()
        ]
        now = time.monotonic()
        self._emitted.steps.append(now)
        socket.send(encode(Deltas(deltas)))
        self._left = {one: left - 1 for one, left in self._left.items() if left > 1}
        # What it comes late is not made up for by a burst of steps, which no engine makes.
        self._due = max(self._due + self._period, now + self._period / 2)
        self._write_if_idle()

    def _write_if_idle(self) -> None:
        if not self._left:
            with self._log.open("ab") as log:
                log.write(msgspec.json.encode(self._emitted) + b"\n")
            self._emitted = Emitted([], {})


def _stats(running: int) -> EngineStats:
    fields = msgspec.structs.fields(EngineStats)
    zeros = {one.name: 0 for one in fields if one.required}
    return msgspec.convert(zeros | {"running": running}, EngineStats)


def _info(config: EngineConfig, vocab_size: int) -> EngineInfo:
    return EngineInfo(
        model=config.model_path,
        device="none",
        dtype="none",
        block_size=config.block_size,
        num_blocks=_CONTEXT_TOKENS,
        max_context_tokens=config.max_context_tokens or _CONTEXT_TOKENS,
        max_running_sequences=_CONTEXT_TOKENS,
        vocab_size=vocab_size,
        eos_token_ids=(),
        hash_extras=b"",
    )


def _child(address: str, parent_pid: str, config_json: str) -> None:
    """What `engine.assembly.process` does, without an engine."""
    from app.prompt.tokenizer import load_tokenizer

    die_with(int(parent_pid))
    config = msgspec.json.decode(config_json, type=EngineConfig)
    tokenizer = load_tokenizer(Path(config.model_path))
    own = Path(os.environ[_NOTES], ANSWER)
    text = own.read_text() if own.exists() else _TEXT
    token_ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    most = len(token_ids) if own.exists() else _CONTEXT_TOKENS
    socket = zmq.Context().socket(zmq.PAIR)
    socket.set_hwm(0)
    socket.connect(address)
    log = Path(os.environ[_NOTES], EMITTED)
    NullEngine(_info(config, len(tokenizer)), token_ids, log, most).serve(socket)
    socket.close(linger=0)


async def _watch(late: Path) -> None:
    with late.open("a", buffering=1) as log:  # lines of a few bytes
        while True:
            asked = time.monotonic()
            await asyncio.sleep(_PERIOD_SECONDS)
            seconds = time.monotonic() - asked - _PERIOD_SECONDS
            if seconds > _NOTED_SECONDS:
                log.write(f"{asked:.6f} {seconds:.6f}\n")


def _watched(app: Starlette, late: Path) -> Starlette:
    lifespan = app.router.lifespan_context

    @asynccontextmanager
    async def watched(served: Starlette) -> AsyncIterator[Any]:
        watch = asyncio.create_task(_watch(late))
        try:
            async with lifespan(served) as state:
                yield state
        finally:
            watch.cancel()

    app.router.lifespan_context = watched
    return app


def main() -> None:
    """The service's command line, or the engine's process that it starts."""
    if sys.argv[1].startswith("ipc:"):
        _child(*sys.argv[1:])
        return
    from app import cli
    from app.assembly import service

    late = Path(os.environ.get(_NOTES, os.devnull), LATE)
    if late.exists():
        create_app = service.create_app
        service.create_app = lambda *given: _watched(create_app(*given), late)
    ProcessEngine.program = _PROGRAM
    cli.main()


if __name__ == "__main__":
    main()
