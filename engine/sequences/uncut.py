"""Runs of a prompt's tokens that are computed in one step, as each of them sees all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from engine.sequences.sequence import Sequence


class Uncut:
    """Those of pictures: tokens side by side that stand for one."""

    def __init__(self, token_id: int | None) -> None:
        """`None`: there are none."""
        self._token_id = token_id

    def least(self, sequence: Sequence, count: int) -> int:
        """How many of a sequence's next `count` tokens can be computed: none of a run's first ones,
        so that there may be none at all.
        """
        start, _ = self._around(sequence, sequence.num_computed + count)
        return max(0, start - sequence.num_computed)

    def most(self, sequence: Sequence, count: int, left: int | None) -> int:
        """The same, but for a run that they begin with: it is computed to its end, unless more
        tokens would be than there are `left` beside others in the step (`None`: there are none).
        """
        _, end = self._around(sequence, sequence.num_computed + count)
        to_end = end - sequence.num_computed
        return self.least(sequence, count) or (to_end if left is None or to_end <= left else 0)

    def reached(self, sequence: Sequence, wanted: int, reach: Callable[[int], int]) -> int:
        """How many of `wanted` tokens, see `most`, there is room for, where `reach` takes some for
        as many as it is told, or for fewer: these may end within a run for all of which there is.
        """
        return self.least(sequence, reach(wanted)) or self.least(
            sequence, reach(self.most(sequence, 1, None))
        )

    def _around(self, sequence: Sequence, end: int) -> tuple[int, int]:
        """The run that reaches beyond `end` from before it: its bounds, or `end` as both."""
        prompt, start = sequence.request.prompt, end
        for use in sequence.request.pictures if self._token_id is not None else ():
            if use.start < end < use.end and prompt[end - 1] == self._token_id == prompt[end]:
                while start > use.start and prompt[start - 1] == self._token_id:
                    start -= 1
                while end < use.end and prompt[end] == self._token_id:
                    end += 1
                break
        return start, end


NOTHING_UNCUT: Final = Uncut(None)
