"""Stop strings: text ends before the first one, and no part of one is ever shown."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Holds text back while it ends in what may become one of `stop`.

    What the first `min_tokens` spell stops nothing.
    """

    def __init__(self, stop: Sequence[str], min_tokens: int) -> None:
        self.found: str | None = None
        """The one that was seen; neither it nor what follows is ever shown."""
        self._stop = tuple(stop)
        self._longest = max(map(len, stop))
        self._unstopped_tokens = min_tokens
        self._held = ""

    def push(self, new: str) -> str:
        """The text of one more token; returns what is safe to show now."""
        if self._unstopped_tokens:
            self._unstopped_tokens -= 1
            return new
        if self._find(new):
            return self._release(len(self._held))
        return self._release(len(self._held) - self._possible_length())

    def finish(self, rest: str) -> str:
        """The last text, and no more will come; returns what is to be shown of all that is left."""
        self._find(rest)
        return self._release(len(self._held))

    def _find(self, new: str) -> bool:
        """Hold back `new`, and nothing from a stop string on; whether there is one."""
        self._held += new
        places = [(at, stop) for stop in self._stop if (at := self._held.find(stop)) >= 0]
        if places:
            at, self.found = min(places, key=lambda place: place[0])
            self._held = self._held[:at]
        return self.found is not None

    def _release(self, length: int) -> str:
        ready, self._held = self._held[:length], self._held[length:]
        return ready

    def _possible_length(self) -> int:
        """Of the longest end of the held text that starts some stop string."""
        for length in range(min(len(self._held), self._longest - 1), 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stop):
                return length
        return 0
