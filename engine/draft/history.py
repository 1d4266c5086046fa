"""What has been answered before, by namespace: what a next answer may repeat.

An answer is found only with the namespace key that its own tokens are cached under
(`engine.blocks.hashing`): how fast an answer comes would tell a neighbour what has been answered
(Wei et al., "When speculation spills secrets", arXiv 2411.01076).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int64]

_NAMESPACE_TOKENS = 8192
"""Of the newest answers that are kept for a namespace."""
_MOST_TOKENS = 1 << 20
"""Of all namespaces together, 8 bytes each; those not used for longest are forgotten first."""
BORDER = -1
"""Stands between two answers. It is no token."""
NOTHING: Tokens = np.empty(0, np.int64)


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

    def add(self, namespace: bytes, tenant: str, parts: Iterable[Sequence[int]]) -> None:
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
