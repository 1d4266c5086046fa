"""When an engine is given a stream: at once, or after a death one by one.

One of the streams that a dead engine had may have killed it. So the next engine is given a stream
only once the one before it has got somewhere, its first decoding step included: should that engine
die, too, the newest stream is suspect. But one before it may kill later. So who is suspect comes
first in the engine after that, alone, and is to blame for the death of that one only. New streams
wait in the same queue, but nobody waits long for a long prompt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from engine.serve.running_stream import RunningStream

TRIAL_SECONDS = 10.0
"""After which a stream that has shown nothing in an engine is taken for harmless."""


class Entrance:
    """The streams that the engine does not have yet, in their order."""

    def __init__(self) -> None:
        self._waiting: deque[RunningStream] = deque()
        self._newest: RunningStream | None = None
        """The stream that the engine was given last."""
        self._newest_since = 0.0
        self._left: set[str] = set()
        """Streams that the engine may still have, though nobody reads them."""
        self.is_careful = False
        """Whether one of the streams may have killed an engine."""

    def __contains__(self, stream: RunningStream) -> bool:
        """Whether a stream still waits."""
        return stream in self._waiting

    def queue(self, stream: RunningStream) -> None:
        """Let a new stream wait behind the others, carefully if it comes from a dead engine."""
        self._waiting.append(stream)
        self.is_careful = self.is_careful or stream.deaths > 0

    def leave(self, stream: RunningStream) -> None:
        """Nobody reads the stream any more: it does not come in.

        In the engine it may still do harm, until that says that the stream has ended.
        """
        if stream in self._waiting:
            self._waiting.remove(stream)
        elif not stream.has_ended:
            self._left.add(stream.request_id)

    def heard_of(self, request_id: str) -> None:
        """The engine lives, and has done with a stream that nobody reads any more."""
        self._left.discard(request_id)
        if self._newest is not None and self._newest.request_id == request_id:
            self._newest = None

    def let_in(self, now: float) -> Iterator[RunningStream]:
        """The streams that the engine is to have at `now`, in seconds of any clock."""
        while self._waiting and not self._must_wait(now):
            stream = self._waiting.popleft()
            if not stream.has_ended:
                self._newest, self._newest_since = stream, now
                yield stream
        if not self._waiting and not self._must_wait(now):
            self.is_careful = False

    def inside(self, streams: Iterable[RunningStream]) -> tuple[list[RunningStream], bool]:
        """Those of `streams` that the engine has, and whether they are one that is alone there."""
        inside = [stream for stream in streams if stream not in self._waiting]
        return inside, len(inside) == 1 and not self._left

    def queue_again(self, streams: Iterable[RunningStream]) -> None:
        """The engine died: all of `streams` wait, those that it had after they have survived."""
        again = list(streams)
        survivors, alone = self.inside(again)
        for stream in survivors:
            self.is_careful = True
            stream.survive_death(alone=alone)
        again.sort(key=lambda stream: stream.deaths, reverse=True)
        self._waiting = deque(again)
        self._newest = None
        self._left.clear()

    def _must_wait(self, now: float) -> bool:
        """Whether the newest stream in the engine has to show first that it does not kill it."""
        newest = self._newest
        if not self.is_careful or newest is None or newest.is_harmless:
            return False
        return now - self._newest_since < TRIAL_SECONDS
