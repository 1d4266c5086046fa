"""The service's eyes: a process that looks at pictures, for whoever's turn it is.

It is started with the first picture, or when it is told to, and started again where one has killed
it, or took too long. Pictures are asked for by threads: no event loop ever handles their bytes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from app.pictures.picture import BadPicture, Detail, Greeting, Look, Seen, Wanted
from app.pictures.worker import receive, send
from app.workers import Workers
from engine.api import PictureHeader
from engine.system.secrecy import without_secrets

_log = logging.getLogger(__name__)
_START_SECONDS: Final = 120.0
_NOBODY: Final = ""
"""Whose turn it is to start it early."""


class Eyes:
    """Looks at pictures for tenants, in turn."""

    def __init__(self, folder: Path, most_pixels: int, seconds: float) -> None:
        """As the model of `folder` would be shown them, with at most so many pixels, and each for
        at most so many seconds.
        """
        self._arguments = [str(folder), str(most_pixels)]
        self._seconds = seconds
        self._workers = Workers(1)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Of the process that looks, while there is one."""
        return None if self._process is None else self._process.pid

    async def open(self) -> None:
        """Start it early: returns when it can look. Raises `BadPicture` where it never will."""
        await self._workers.run(_NOBODY, self._started)

    async def look(self, tenant: str, data: bytes, detail: Detail = "auto") -> Look:
        """What is known of the picture in a file's bytes. Raises `BadPicture`."""
        return (await self._workers.run(tenant, partial(self._ask, data, detail)))[0]

    async def inputs(
        self, tenant: str, data: bytes, detail: Detail = "auto"
    ) -> tuple[PictureHeader, bytes]:
        """What the model is given of it: the arrays' bytes in the header's order, without gaps.
        Raises `BadPicture`.
        """
        ask = partial(self._ask, data, detail, has_inputs=True)
        _, header, inputs = await self._workers.run(tenant, ask)
        assert header is not None, "it was wanted"
        return header, inputs

    def close(self) -> None:
        """Look at nothing any more."""
        self._workers.close()
        self._end()

    def _ask(
        self, data: bytes, detail: Detail, *, has_inputs: bool = False
    ) -> tuple[Look, PictureHeader | None, bytes]:
        """A process that ends may have done so for another reason: the picture has a second one."""
        for is_last in (False, True):
            try:
                return self._asked(data, detail, has_inputs=has_inputs)
            except BrokenPipeError:
                _log.warning("the process that looks at pictures has ended with one")
                if is_last:
                    break
        raise BadPicture("cannot be looked at")

    def _asked(
        self, data: bytes, detail: Detail, *, has_inputs: bool
    ) -> tuple[Look, PictureHeader | None, bytes]:
        """Raises `BrokenPipeError` where the process ends."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(self._seconds, process.kill)
        timer.start()
        try:
            send(process.stdin, Wanted(len(data), detail, has_inputs))  # type: ignore[arg-type]
            process.stdin.write(data)
            process.stdin.flush()
            seen: Seen | None = receive(process.stdout, Seen)  # type: ignore[arg-type]
            if seen is None:
                raise BrokenPipeError
            inputs = b""
            if seen.header is not None:
                size = _num_bytes(seen.header)
                inputs = process.stdout.read(size)
                if len(inputs) < size:
                    raise BrokenPipeError
        except OSError:
            took_long = not timer.is_alive()
            self._end()
            if took_long:
                raise BadPicture("takes too long to be looked at") from None
            raise BrokenPipeError from None
        finally:
            timer.cancel()
        if seen.look is None:
            raise BadPicture(seen.error or "cannot be looked at")
        return seen.look, seen.header, inputs

    def _started(self) -> subprocess.Popen[bytes]:
        """The process, which can look."""
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._end()
        environment = without_secrets(os.environ) | {"OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [sys.executable, "-m", "app.pictures.worker", *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self._process = process
        timer = threading.Timer(_START_SECONDS, process.kill)
        timer.start()
        greeting: Greeting | None = receive(process.stdout, Greeting)  # type: ignore[arg-type]
        timer.cancel()
        if greeting is None or greeting.error is not None:
            self._end()
            said = "it does not start" if greeting is None else greeting.error
            _log.error("the model's processor of pictures cannot be used: %s", said)
            raise BadPicture("cannot be looked at: the model's processor cannot be used")
        return process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def _num_bytes(header: PictureHeader) -> int:
    return sum(int(np.prod(one.shape)) * np.dtype(one.dtype).itemsize for one in header.inputs)
