"""`python -m app.pictures.worker`: looks at pictures for the service, one after the other.

A file that makes a decoder crash, take for ever or fill the memory, does so here, where nothing
else is. Who asks kills it when it takes too long, and starts another one.
"""

from __future__ import annotations

import logging
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from app.pictures.picture import BadPicture, Greeting, Seen, Wanted

LENGTH_BYTES: Final = 8
_NICENESS: Final = 10
"""Streams that run have the processors first."""
_ROOM_BYTES: Final = 3 << 30
"""Of memory for a picture, beside what libraries take."""


def main() -> None:
    """Serve on standard input and output until the input ends: see `app.pictures.picture`."""
    folder, most_pixels = Path(sys.argv[1]), int(sys.argv[2])
    asked, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever libraries print
    os.nice(_NICENESS)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    try:
        from app.pictures.processing import Processor

        processor = Processor(folder)
    except Exception as error:  # noqa: BLE001 - whatever a folder makes transformers raise
        _send(answers, Greeting(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"))
        return
    _send(answers, Greeting())
    _limit_memory()
    while wanted := receive(asked, Wanted):
        data = asked.read(wanted.num_bytes)
        _answer(answers, wanted, data, processor, most_pixels)


def receive(stream: BinaryIO, kind: type[Any]) -> Any:
    """A message of that kind; `None` behind the last one."""
    length = stream.read(LENGTH_BYTES)
    if len(length) < LENGTH_BYTES:
        return None
    return msgspec.msgpack.decode(stream.read(int.from_bytes(length)), type=kind)


def send(stream: BinaryIO, message: msgspec.Struct) -> None:
    """A message, which the stream may keep until it is flushed."""
    data = msgspec.msgpack.encode(message)
    stream.write(len(data).to_bytes(LENGTH_BYTES) + data)


def _send(stream: BinaryIO, message: msgspec.Struct) -> None:
    send(stream, message)
    stream.flush()


def _answer(
    answers: BinaryIO, wanted: Wanted, data: bytes, processor: Any, most_pixels: int
) -> None:
    from app.pictures.decoding import decode
    from app.pictures.processing import header_of

    try:
        look, inputs = processor.look(decode(data, wanted.detail, most_pixels))
    except BadPicture as error:
        _send(answers, Seen(error=str(error)))
        return
    except MemoryError:
        _send(answers, Seen(error="takes too much memory to be looked at"))
        return
    except Exception as error:
        logging.getLogger(__name__).exception("a picture cannot be looked at")
        _send(answers, Seen(error=f"cannot be looked at ({type(error).__name__})"))
        return
    send(answers, Seen(look, header_of(inputs) if wanted.has_inputs else None))
    for array in inputs.values() if wanted.has_inputs else ():
        answers.write(array.data)
    answers.flush()


def _limit_memory() -> None:
    """What it may map beside what it has, where the system tells what that is."""
    with suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + _ROOM_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    main()
