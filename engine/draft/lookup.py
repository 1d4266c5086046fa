"""Guesses from what is there already: the conversation itself, and earlier answers of its
namespace.

Where the last tokens have occurred before, what followed them then may follow now (prompt lookup
decoding: Saxena, 2023; Yang et al., "Inference with reference", arXiv 2304.04487). The longest
match counts, and the newest of those. It is searched for by comparing arrays, a few microseconds
for a thousand tokens with nothing to keep in order; and only where the last match does not go on
with the tokens that have come since.

An answer is found only with the namespace key that its own tokens are cached under
(`engine.blocks.hashing`): how fast an answer comes would tell a neighbour what has been answered
(Wei et al., "When speculation spills secrets", arXiv 2411.01076).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from engine.draft.drafter import NO_DRAFT, Draft
from engine.sequences.sequence import Sequence

Tokens = npt.NDArray[np.int64]

_NAMESPACE_TOKENS = 8192
"""Of the newest answers that are kept for a namespace."""
_MOST_TOKENS = 1 << 20
"""Of all namespaces together, 8 bytes each; those not used for longest are forgotten first."""
BORDER = -1
"""Stands between two answers. It is no token."""
NOTHING: Tokens = np.empty(0, np.int64)
_WINDOW = 1 << 15
"""Tokens of a conversation that are searched, the newest."""
_LONGEST_MATCH = 16
_PROMPT_TAIL = 16
"""Tokens of a prompt that are kept with its answer."""
_LEAST_SPARE = 64
_PRIORS: Final = (0.1, 0.3, 0.45, 0.55, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9)
"""Of a token behind a match of one token, of two and so on; the last one of longer ones, too."""


@dataclass(slots=True)
class _Answers:
    """Of one namespace, oldest first, with a border before each."""

    tokens: Tokens = field(default_factory=lambda: NOTHING)
    tenants: set[str] = field(default_factory=set)
    """Whose requests they were."""


class AnswerHistory:
    """Keeps the newest answers of each namespace, as many as fit."""

    def __init__(
        self, namespace_tokens: int = _NAMESPACE_TOKENS, most_tokens: int = _MOST_TOKENS
    ) -> None:
        self._namespace_tokens = namespace_tokens
        self._most_tokens = most_tokens
        self._answers: OrderedDict[bytes, _Answers] = OrderedDict()
        self.num_tokens = 0
        """Kept now, borders included."""

    def of(self, namespace: bytes) -> Tokens:
        """All that is kept for a namespace, which counts as used."""
        answers = self._answers.get(namespace)
        if answers is None:
            return NOTHING
        self._answers.move_to_end(namespace)
        return answers.tokens

    def add(self, namespace: bytes, tenant: str, parts: Iterable[Ordered[int]]) -> None:
        """Keep an answer, and the little of its prompt by which its beginning is found."""
        answers = self._answers.setdefault(namespace, _Answers())
        answers.tenants.add(tenant)
        before = len(answers.tokens)
        new = [np.array(part, np.int64) for part in ([BORDER], *parts)]
        joined = np.concatenate([answers.tokens, *new])
        answers.tokens = joined[-self._namespace_tokens :].copy()
        self.num_tokens += len(answers.tokens) - before
        self._answers.move_to_end(namespace)
        while self.num_tokens > self._most_tokens:
            self._drop(next(iter(self._answers)))

    def forget_tenant(self, tenant: str) -> None:
        """Forget every namespace that has an answer to this tenant."""
        for namespace, answers in list(self._answers.items()):
            if tenant in answers.tenants:
                self._drop(namespace)

    def _drop(self, namespace: bytes) -> None:
        self.num_tokens -= len(self._answers.pop(namespace).tokens)


class PromptLookup:
    """Looks drafts up; a `Drafter`."""

    priors: Ordered[float] = _PRIORS

    def __init__(self, history: AnswerHistory | None = None) -> None:
        self._history = history or AnswerHistory()
        self._known: WeakKeyDictionary[Sequence, _Known] = WeakKeyDictionary()

    def propose(self, wanted: Ordered[tuple[Sequence, int]], _: float, /) -> list[Draft]:
        """See `Drafter`."""
        return [self._draft(sequence, most) for sequence, most in wanted]

    def ended(self, sequence: Sequence) -> None:
        """See `Drafter`. The answer is kept for the next ones, if its request may leave anything.

        That is what its table says, which is what blocks are cached by.
        """
        self._known.pop(sequence, None)
        first, request = sequence.num_prompt_tokens, sequence.request
        if len(sequence.token_ids) > first and sequence.table.keeps(sequence.num_tokens):
            tail = request.prompt[-_PROMPT_TAIL:]
            answer = sequence.token_ids[first:]
            self._history.add(request.answer_key, request.tenant, (tail, answer))

    def forget_tenant(self, tenant: str) -> None:
        """See `Drafter`."""
        self._history.forget_tenant(tenant)

    def _draft(self, sequence: Sequence, most: int) -> Draft:
        known = self._known.get(sequence)
        if known is None:
            known = self._known[sequence] = _Known()
        token_ids = sequence.token_ids
        length, end = known.follow(token_ids)
        # Where this comes to its own end it goes on with itself: what repeats, repeats.
        found = token_ids[end : end + most]
        found = (found * most)[:most] if len(found) < most else found
        if length < _LONGEST_MATCH and sequence.table.keeps(sequence.num_tokens):
            earlier = self._history.of(sequence.request.answer_key)
            if len(earlier):
                other, end = longest_match(known.tokens, earlier[:-1])
                if other > length:
                    length, found = other, _before_border(earlier[end : end + most].tolist())
        if not length:
            return NO_DRAFT
        levels = range(length - 1, length - 1 + len(found))
        return Draft(tuple(found), tuple(min(level, len(_PRIORS) - 1) for level in levels))


class _Known:
    """The newest tokens of a sequence as an array, which grows as they do, and their match."""

    def __init__(self) -> None:
        self._array = NOTHING
        self._first = self._length = 0
        """Of the sequence's tokens: where the array begins, and how many are known."""
        self._match = 0, 0

    @property
    def tokens(self) -> Tokens:
        """Those that are searched; they hold until the next call of `follow`."""
        return self._array[max(0, self._num_kept - _WINDOW) : self._num_kept]

    def follow(self, token_ids: list[int]) -> tuple[int, int]:
        """How long the longest ending is that has occurred before, and where it was followed."""
        new = token_ids[self._length :]
        length, end = self._match
        self._keep(token_ids)
        # No ending can match better than the last one did and the new tokens with it.
        if length and token_ids[end : end + len(new)] == new:
            self._match = length + len(new), end + len(new)
        else:
            tokens = self.tokens
            length, end = longest_match(tokens, tokens[:-1])
            self._match = length, end + self._length - len(tokens)
        return self._match

    @property
    def _num_kept(self) -> int:
        return self._length - self._first

    def _keep(self, token_ids: list[int]) -> None:
        """Take over the tokens that are new, of a long prompt the last ones."""
        if not self._length:
            self._first = max(0, len(token_ids) - _WINDOW)
        before = max(self._first, self._length) - self._first
        self._length = len(token_ids)
        if self._num_kept > len(self._array):
            grown = np.empty(self._num_kept + self._num_kept // 2 + _LEAST_SPARE, np.int64)
            grown[:before] = self._array[:before]
            self._array = grown
        self._array[before : self._num_kept] = token_ids[self._first + before :]


def longest_match(tokens: Tokens, source: Tokens) -> tuple[int, int]:
    """Where in `source` the longest of the endings of `tokens` has occurred, last.

    Returns its length, of a long one as much as was compared, and where `source` goes on behind it;
    (0, 0) if even the last token has never occurred.
    """
    *before, last = tokens[-_LONGEST_MATCH:].tolist()
    ends = np.flatnonzero(source == last)
    if not len(ends):
        return 0, 0
    length = 1
    for back, token in enumerate(reversed(before), 1):
        longer = ends[1:] if ends[0] < back else ends  # only the first may begin with the source
        longer = longer[source[longer - back] == token]
        if not len(longer):
            break
        ends, length = longer, length + 1
    return length, int(ends[-1]) + 1


def _before_border(token_ids: list[int]) -> list[int]:
    return token_ids[: token_ids.index(BORDER)] if BORDER in token_ids else token_ids
