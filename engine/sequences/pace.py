"""How many prompt tokens a step may compute while somebody waits for its end.

Sequences that decode wait for the whole step, so it should end within a target: Sarathi-Serve
(Agrawal et al., OSDI 2024) sizes chunks like this. And whoever comes next waits for the step that
is under way, which should be no longer than it has to be to be efficient. What a token takes
differs between machines, models and contexts, so it is learned from the steps themselves: a step
takes something however little it computes, and more by every sequence that decodes and every token
of a prompt, the more the farther behind the prompt's beginning it is, as it attends to all before
it. So tokens are counted by their worth: in tokens at the beginning.

While prompts wait they so have most of the time, since a pause below the target is not noticed and
a first token that is late is. What they have taken beyond half of it is remembered as a debt to
those that decode; whose prompts wait until it is paid, `engine.schedule.fairness` says. A step that
decodes little waits for its weights, and may compute some tokens meanwhile that hardly cost it
anything: so many of such prompts go on.
"""

from __future__ import annotations

import math

_WEIGHT = 0.2
"""Of a new observation."""
_LARGEST_RATIO = 4.0
"""An observation that is farther off was disturbed, and counts as if it were not."""
_LEAST_SHARE = 0.1
"""Of a step that is its prompts', whatever decoding seems to take; or fixed, whatever rows do."""
_FIXED_SHARE = 0.05
"""Of an efficient step, for what it takes however little it computes: weights are read once."""
_MOST_DEBT = 0.5
"""Seconds; what was taken long ago is forgiven."""
_HIDDEN_SHARE = 0.5
"""Of the time for reading weights, what may be computed meanwhile."""
_MOST_SHARED = 32
"""Steps in a row with prompts beside what decodes; then one without tells what that takes now."""
FEW_TOKENS = 16
"""A prompt is not cut into fewer."""
_TELLING_TOKENS = FEW_TOKENS / 4
"""Fewer say little about what a token takes. What is cut into few whole tokens must say it: who
computes no more would never learn that it may."""


class Pace:
    """Learns from steps what they take, and keeps those that decode to a target."""

    def __init__(self, target_seconds: float, doubling: float = math.inf) -> None:
        """A target of 0 leaves all steps as long as they are.

        A token of a prompt takes twice as long behind `doubling` others as it does behind none.
        """
        self._target = target_seconds
        self._doubling = doubling
        self._decode_step: float | None = None
        """Seconds of a step that decodes alone."""
        self._prompt_token: float | None = None
        """Seconds more for each token at the beginning of a prompt."""
        self._fixed: float | None = None
        """Seconds of a step that does next to nothing."""
        self._num_shared = 0
        """Steps since the newest one that was not shared."""
        self._debt = 0.0
        """Seconds by which prompts have had more than decoding."""

    @property
    def is_in_debt(self) -> bool:
        """Whether prompts have lately had more time than the sequences that decoded beside them.

        Without a target they may.
        """
        return self._target > 0 and self._debt > 0

    @property
    def hidden_rows(self) -> int:
        """Tokens of a step, those that decode included, that it computes while it reads weights.

        None where it is long ago that a step has shown what decoding alone takes.
        """
        return self._num_hidden if self._num_shared < _MOST_SHARED else 0

    def worth(self, start: int, count: int) -> float:
        """What `count` tokens of a prompt behind `start` others take, in tokens behind none."""
        return count * (1 + (start + count / 2) / self._doubling)

    def seconds(self, start: int, count: int) -> float | None:
        """To compute `count` tokens of a prompt behind `start` others; `None`: not known yet."""
        return None if self._prompt_token is None else self._prompt_token * self.worth(start, count)

    @property
    def tokens_per_second(self) -> float | None:
        """Of the beginning of a prompt; `None`: not known yet."""
        return None if not self._prompt_token else 1 / self._prompt_token

    def affordable(self, worth: float, start: int) -> int:
        """How many tokens behind `start` others are worth no more."""
        if worth <= 0 or math.isinf(self._doubling):
            return math.floor(worth)
        # The root of n^2 / 2 + (doubling + start) n = doubling * worth.
        sooner = self._doubling + start
        root = math.sqrt(sooner * sooner + 2 * self._doubling * worth) - sooner
        return max(math.floor(root), int(worth >= 1))  # they always get on

    @property
    def prompt_tokens(self) -> int | None:
        """Worth that a step may compute beside sequences that decode; `None`: any.

        Where decoding alone takes more than half of the target, prompts take as long as decoding.
        """
        if not self._target or self._prompt_token is None:
            return None
        decoding = self._decode_step or 0.0
        left = max(self._target, 2 * decoding) - decoding
        return max(FEW_TOKENS, int(left / self._prompt_token))

    @property
    def efficient_tokens(self) -> int | None:
        """Worth of prompts alone: a longer step would be hardly more efficient.

        `None`: not known yet.
        """
        if not self._target or self._fixed is None or self._prompt_token is None:
            return None
        return max(FEW_TOKENS, int(self._fixed / (_FIXED_SHARE * self._prompt_token)))

    def observe(self, num_decoding: int, prompt_worth: float, seconds: float) -> None:
        """A step has been computed."""
        is_shared = num_decoding > 0 and prompt_worth > 0
        is_hidden = is_shared and num_decoding + prompt_worth <= self._num_hidden
        if num_decoding and not prompt_worth:
            self._decode_step = _averaged(self._decode_step, seconds)
            if self._prompt_token is not None:  # a row takes about as much
                left = max(seconds - num_decoding * self._prompt_token, _LEAST_SHARE * seconds)
                self._fixed = _averaged(self._fixed, left)
        elif prompt_worth >= _TELLING_TOKENS and not is_hidden:
            left = max(seconds - (self._decode_step or 0.0), _LEAST_SHARE * seconds)
            self._prompt_token = _averaged(self._prompt_token, left / prompt_worth)
        self._num_shared = self._num_shared + 1 if is_shared else 0
        self._account(is_shared, seconds)

    @property
    def _num_hidden(self) -> int:
        if self._decode_step is None or self._prompt_token is None:
            return 0
        return int(_HIDDEN_SHARE * self._decode_step / self._prompt_token)

    def _account(self, is_shared: bool, seconds: float) -> None:
        """Prompts owe what they have taken of a shared step; any other time pays as much back."""
        decoding = min(seconds, self._decode_step or 0.0) if is_shared else seconds
        self._debt = min(max(self._debt + seconds - 2 * decoding, 0.0), _MOST_DEBT)


def _averaged(average: float | None, observed: float) -> float:
    if average is None:
        return observed
    observed = min(max(observed, average / _LARGEST_RATIO), average * _LARGEST_RATIO)
    return average + _WEIGHT * (observed - average)
