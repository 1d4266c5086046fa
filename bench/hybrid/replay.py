"""A trace through a policy: tokens found, and how long first tokens take on one server.

The cache changes as requests arrive, one after the other. The server computes prompts in the same
order, each alone, as many operations a second as make it busy for `LOAD` of the trace's time
without a cache; answers are computed beside that. So the time of the first token is the wait for
prompts that came before, and the prompt's own, of which a hit saves the beginning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from bench.common.figures import percentile
from bench.hybrid.rules.cache import Policy
from bench.hybrid.shapes import BLOCK, Shape
from bench.hybrid.traces.requests import Tree

LOAD: Final = 0.8


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of a policy with so much memory."""

    found: int
    """Tokens of prompts."""
    first_token_seconds: list[float]

    @property
    def mean(self) -> float:
        """Seconds to the first token."""
        return float(np.mean(self.first_token_seconds))

    @property
    def p95(self) -> float:
        """The 95th percentile of that."""
        return percentile(self.first_token_seconds, 95)


def speed(tree: Tree, shape: Shape) -> float:
    """Operations a second of a server that such a trace keeps busy."""
    prompts = [one.request.prompt_tokens for one in tree.served]
    span = tree.served[-1].request.at - tree.served[0].request.at
    return sum(map(shape.operations, prompts)) / (LOAD * max(span, 1.0))


def replay(tree: Tree, shape: Shape, policy: Policy) -> Outcome:
    """Serve all requests."""
    rate = speed(tree, shape)
    total, free_at = 0, 0.0
    waited = []
    for one in tree.served:
        found = policy.serve(one) * BLOCK
        total += found
        request = one.request
        operations = shape.operations(request.prompt_tokens) - shape.operations(found)
        free_at = max(free_at, request.at) + operations / rate
        waited.append(free_at - request.at)
    return Outcome(total, waited)
