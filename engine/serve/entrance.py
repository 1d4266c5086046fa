"""When an engine is given a stream: at once, or after a death one by one.

One of the streams that a dead engine had may have killed it. So the next engine is given a stream
only once the one before it has got further than with any engine before: should that one die, too,
the newest stream is the one to blame. New streams wait in the same queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from engine.serve.running_stream import RunningStream


class Entrance:
    """The streams that the engine does not have yet, in their order."""

    def __init__(self) -> None:
        self._waiting: deque[RunningStream] = deque()
        self._newest: RunningStream | None = None
        """The stream that the engine was given last."""
        self._is_careful = False
        """Whether one of the streams may have killed an engine."""

    def __contains__(self, stream: RunningStream) -> bool:
        """Whether a stream still waits."""
        return stream in self._waiting

    def queue(self, stream: RunningStream) -> None:
        """Let a new stream wait behind the others."""
        self._waiting.append(stream)

    def leave(self, stream: RunningStream) -> None:
        """Nobody reads the stream any more: it does not come in, and nobody waits for it."""
        if stream in self._waiting:
            self._waiting.remove(stream)
        if stream is self._newest:
            self._newest = None

    def let_in(self) -> Iterator[RunningStream]:
        """The streams that the engine is to have now; each is given to it before the next."""
        while self._waiting and not self._must_wait:
            stream = self._waiting.popleft()
            if not stream.has_ended:
                self._newest = stream
                yield stream
        if not self._waiting and not self._must_wait:
            self._is_careful = False

    def queue_again(self, streams: Iterable[RunningStream]) -> None:
        """The engine died: all of `streams` wait, those that it had after they have survived."""
        again = deque(streams)
        for stream in again:
            if stream not in self._waiting:
                self._is_careful = True
                stream.survive_death()
        self._waiting = again
        self._newest = None

    @property
    def _must_wait(self) -> bool:
        """Whether the newest stream in the engine has to show first that it does not kill it."""
        newest = self._newest
        return self._is_careful and newest is not None and not newest.has_progressed
