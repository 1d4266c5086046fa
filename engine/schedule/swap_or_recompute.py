"""Two ways back for what lost its blocks: copy them from the host, or compute them again.

Both costs are predicted: a copy from its bandwidth, a computation from the time of a step, a token
and an attended pair of tokens. Steps are of two kinds, since a GPU replays those that only decode.
The predictions are calibrated at start (`engine.model.calibration`) and corrected by what is
observed since. Kwon et al., SOSP 2023, section 4.5, compares the two ways.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Policy = Literal["auto", "swap", "recompute"]
Way = Literal["swap", "recompute"]
Span = tuple[int, int]
"""Tokens to compute: how many the sequence has in blocks before them, and their number."""

_LEAST_WEIGHT = 0.05
"""Of a new observation in a correction; the first ones weigh more."""
_FEW_TOKENS = 4
_LARGEST_RATIO = 10.0
"""An observation that is farther off was disturbed (by a page fault, another process)."""


@dataclass(frozen=True, slots=True)
class CopyCost:
    """Seconds of copying pages one way, in one batch."""

    per_batch: float
    per_page: float

    def seconds(self, num_pages: int) -> float:
        """Predicted for a batch of `num_pages`."""
        return self.per_batch + self.per_page * num_pages if num_pages else 0.0


@dataclass(frozen=True, slots=True)
class ComputeCost:
    """Seconds of forward passes of at most `step_tokens` tokens each."""

    per_step: float
    """Of a step that prefills, besides its tokens."""
    per_token: float
    per_pair: float
    """Of a token and one that it attends to."""
    step_tokens: int
    per_decode_step: float
    """Of a step in which every sequence computes one token, besides these."""

    @property
    def doubling(self) -> float:
        """Tokens behind which one takes twice as long as behind none, but for the step.

        A token that seems to take nothing by itself was measured beside other work: none are known.
        """
        is_known = self.per_token > 0 and self.per_pair > 0
        return self.per_token / self.per_pair if is_known else math.inf

    def parts(self, spans: Sequence[Span]) -> tuple[float, float]:
        """Predicted for computing `spans`, chunked into full steps: for the steps, and the rest."""
        tokens = sum(count for _, count in spans)
        pairs = sum(count * start + count * (count + 1) / 2 for start, count in spans)
        steps = -(-tokens // self.step_tokens)
        per_step = self.per_decode_step if is_decode(spans) else self.per_step
        return per_step * steps, self.per_token * tokens + self.per_pair * pairs

    def seconds(self, spans: Sequence[Span]) -> float:
        """Predicted for both together."""
        return sum(self.parts(spans))


def is_decode(spans: Sequence[Span]) -> bool:
    """Whether a step of these computes one token of each sequence."""
    return all(count == 1 for _, count in spans)


@dataclass(slots=True)
class _Correction:
    """Observed over predicted, a moving average."""

    factor: float = 1.0
    num_seen: int = 1
    """Observations; the calibration counts as one."""

    def observe(self, predicted: float, observed: float) -> None:
        if predicted <= 0:
            return
        self.num_seen += 1
        ratio = min(max(observed / predicted, 1 / _LARGEST_RATIO), _LARGEST_RATIO)
        self.factor += max(_LEAST_WEIGHT, 1 / self.num_seen) * (ratio - self.factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What a request that is to be preempted needs for its way back.

    `swap_outs` pages have no copy in the host tier yet; `swap_ins` will have to come back. After
    that `remaining` is to be computed; without swapping, `lost` is.
    """

    swap_outs: int
    swap_ins: int
    remaining: Sequence[Span]
    lost: Sequence[Span]


@dataclass(slots=True)
class CostModel:
    """Predicts what either way takes, from calibrated costs and their corrections."""

    swap_out: CopyCost
    swap_in: CopyCost
    compute: ComputeCost
    _swap_out_correction: _Correction = field(default_factory=_Correction)
    _swap_in_correction: _Correction = field(default_factory=_Correction)
    _step_correction: _Correction = field(default_factory=_Correction)
    _decode_step_correction: _Correction = field(default_factory=_Correction)
    _token_correction: _Correction = field(default_factory=_Correction)

    def swap_out_seconds(self, num_pages: int) -> float:
        """To copy pages to the host."""
        return self._swap_out_correction.factor * self.swap_out.seconds(num_pages)

    def swap_in_seconds(self, num_pages: int) -> float:
        """To copy pages back."""
        return self._swap_in_correction.factor * self.swap_in.seconds(num_pages)

    def compute_seconds(self, spans: Sequence[Span]) -> float:
        """To compute tokens."""
        steps, tokens = self.compute.parts(spans)
        correction = self._correction_of_steps(spans)
        return correction.factor * steps + self._token_correction.factor * tokens

    @property
    def token_seconds(self) -> float:
        """To compute a token of a prompt, in a full step from its beginning."""
        count = self.compute.step_tokens
        return self.compute_seconds([(0, count)]) / count

    def observe_swap_out(self, num_pages: int, seconds: float) -> None:
        """A batch has been copied to the host."""
        self._swap_out_correction.observe(self.swap_out.seconds(num_pages), seconds)

    def observe_swap_in(self, num_pages: int, seconds: float) -> None:
        """A batch has been copied back."""
        self._swap_in_correction.observe(self.swap_in.seconds(num_pages), seconds)

    def observe_compute(self, spans: Sequence[Span], seconds: float) -> None:
        """A step has been computed.

        One of few tokens says what a step of its kind costs, one that mostly prefills what a token
        does; one that decodes many says little about either.
        """
        steps, tokens = self.compute.parts(spans)
        total = sum(count for _, count in spans)
        prefill = sum(count for _, count in spans if count > 1)
        if total <= _FEW_TOKENS:
            rest = self._token_correction.factor * tokens
            self._correction_of_steps(spans).observe(steps, seconds - rest)
        elif 2 * prefill > total:
            rest = self._step_correction.factor * steps
            self._token_correction.observe(tokens, seconds - rest)

    def _correction_of_steps(self, spans: Sequence[Span]) -> _Correction:
        return self._decode_step_correction if is_decode(spans) else self._step_correction


FREE_COPIES = CostModel(CopyCost(0.0, 0.0), CopyCost(0.0, 0.0), ComputeCost(1.0, 1.0, 0.0, 1, 1.0))
"""For engines whose model was not measured; it is never corrected."""


class SwapOrRecompute:
    """Decides how what has lost its blocks comes back."""

    def __init__(self, policy: Policy, costs: CostModel) -> None:
        self.policy = policy
        self.costs = costs

    def way_back(self, loss: Loss) -> Way:
        """How a request that is preempted now is to resume."""
        if self.policy != "auto":
            return self.policy
        costs = self.costs
        swap = costs.swap_out_seconds(loss.swap_outs) + costs.swap_in_seconds(loss.swap_ins)
        swap += costs.compute_seconds(loss.remaining)
        return "swap" if swap < costs.compute_seconds(loss.lost) else "recompute"

    def should_bring_back(self, num_pages: int, without: Span, having: Span) -> bool:
        """Whether pages found in the host tier are cheaper copied than computed.

        `without` them that span is to be computed, `having` them this one. It does not depend on
        the policy, which is for preempted requests.
        """
        swap = self.costs.swap_in_seconds(num_pages) + self.costs.compute_seconds([having])
        return swap < self.costs.compute_seconds([without])
