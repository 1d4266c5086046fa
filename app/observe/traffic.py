"""What each of many names has done, for Prometheus: series of their own for those that do most.

Series are few however many tenants there are. Who has most traffic of late has series of its own,
and all others together are `other`, as is who has that name. A name whose place another one takes
goes on there; should it come back, its series begin at nothing again, as after a restart.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, Generic, TypeVar

from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

OTHER: Final = "other"
BUCKETS: Final = (
    *(0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
"""Seconds."""
_BOUNDS: Final = (*map(floatToGoString, BUCKETS), "+Inf")
_MOST_NAMES: Final = 4096
"""Without series that are remembered for what they do."""
_LEAD: Final = 2.0
"""By how much a name must do more than another one to take its place."""

_Series = TypeVar("_Series")


@dataclass(slots=True)
class Histogram:
    """Seconds, observed from the event loop for every token: it takes no lock."""

    counts: list[int] = field(default_factory=lambda: [0] * len(_BOUNDS))
    total: float = 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        """It was met so many times."""
        self.counts[bisect_left(BUCKETS, seconds)] += times
        self.total += seconds * times


class Busiest(Generic[_Series]):
    """Series by name, for the names that do most."""

    def __init__(self, most: int, new: Callable[[], _Series]) -> None:
        """Up to `most` names have series of their own, made by `new`."""
        self._most = most
        self._new = new
        self._series: dict[str, _Series] = {}
        self._other = new()
        self._done: Counter[str] = Counter()
        """What each has done of late, with series or without."""

    def __iter__(self) -> Iterator[tuple[str, _Series]]:
        yield from self._series.items()
        yield OTHER, self._other

    def of(self, name: str) -> _Series:
        """Where to count what this one does."""
        return self._series.get(name, self._other)

    def did(self, name: str, amount: float) -> _Series:
        """It has done so much; returns where to count it."""
        self._done[name] += amount  # type: ignore[assignment]
        if name not in self._series and name != OTHER and len(self._series) < self._most:
            self._series[name] = self._new()
        if len(self._done) > _MOST_NAMES + self._most:
            self._forget_half()
        return self.of(name)

    def rank(self) -> None:
        """Give places to who does more; what was done before counts half from now on."""
        without = self._done.keys() - self._series.keys() - {OTHER}
        waiting = sorted(without, key=self._done.__getitem__)
        for least in sorted(self._series, key=self._done.__getitem__):
            if not waiting or self._done[waiting[-1]] <= _LEAD * self._done[least]:
                break
            del self._series[least]
            self._series[waiting.pop()] = self._new()
        for name in self._done:
            self._done[name] /= 2  # type: ignore[assignment]

    def _forget_half(self) -> None:
        kept = self._done.most_common(len(self._done) // 2)
        names = {name for name, _ in kept} | self._series.keys()
        self._done = Counter({name: self._done[name] for name in names})


@dataclass(slots=True)
class TenantSeries:
    """One tenant's."""

    time_to_first_token: Histogram = field(default_factory=Histogram)
    inter_token_latency: Histogram = field(default_factory=Histogram)
    queue_time: Histogram = field(default_factory=Histogram)
    move_time: Histogram = field(default_factory=Histogram)
    tokens: Counter[str] = field(default_factory=Counter)
    saved_seconds: float = 0.0
    finished: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class PromptSeries:
    """A registered prompt's."""

    requests: int = 0
    tokens: int = 0
    cached: int = 0


@dataclass(slots=True)
class AdapterSeries:
    """An adapter's in its tenant's requests."""

    requests: int = 0
    prompt_tokens: int = 0
    prompt_tokens_cached: int = 0
    generation_tokens: int = 0


class Traffic(Collector):
    """What tenants, registered prompts and adapters were asked for, and how they were served."""

    def __init__(self, most: int) -> None:
        """Up to `most` of each have series of their own."""
        self.tenants = Busiest(most, TenantSeries)
        self.prompts = Busiest(most, PromptSeries)
        self.adapters = Busiest(most, AdapterSeries)
        """By tenant, slash, and what the tenant's usage calls the adapter."""

    def rank(self) -> None:
        """See `Busiest.rank`."""
        for busiest in (self.tenants, self.prompts, self.adapters):
            busiest.rank()

    def count_answer(
        self,
        tenant: str,
        prompt: int,
        cached: int,
        output: int,
        reason: str | None,
        saved_seconds: float = 0.0,
    ) -> None:
        """Account for more tokens of one answer, what it saved that some were cached, and why it
        ended if it has.
        """
        series = self.tenants.did(tenant, prompt + output)
        series.tokens["prompt_tokens"] += prompt
        series.tokens["prompt_tokens_cached"] += cached
        series.tokens["generation_tokens"] += output
        series.saved_seconds += saved_seconds
        if reason is not None:
            series.finished[reason] += 1

    def count_prompt(self, name: str, tokens: int, cached: int) -> None:
        """Account for a request that began with a registered prompt."""
        series = self.prompts.did(name, tokens)
        series.requests += 1
        series.tokens += tokens
        series.cached += cached

    def count_adapter(
        self, tenant: str, adapter: str, requests: int, prompt: int, cached: int, output: int
    ) -> None:
        """Account for more of a tenant's requests with an adapter, and for their tokens."""
        is_other = tenant == adapter == OTHER
        series = self.adapters.did(OTHER if is_other else f"{tenant}/{adapter}", prompt + output)
        series.requests += requests
        series.prompt_tokens += prompt
        series.prompt_tokens_cached += cached
        series.generation_tokens += output

    def collect(self) -> Iterator[Metric]:
        """See `prometheus_client.registry.Collector`."""
        yield from self._histograms()
        yield from self._tokens()
        finished = _counter(
            "request_success", "Answers by why they ended.", ("tenant", "finished_reason")
        )
        for tenant, series in self.tenants:
            for reason, count in series.finished.items():
                finished.add_metric((tenant, reason), count)
        yield finished
        for name, what in (
            ("requests", "Requests that began with a registered prompt."),
            ("tokens", "Tokens of their prompts."),
            ("cached", "Tokens of their prompts that were found in the cache."),
        ):
            family = _counter(f"system_prompt_{name}", what, ("prompt",))
            for prompt, of_prompt in self.prompts:
                family.add_metric((prompt,), getattr(of_prompt, name))
            yield family
        yield from self._of_adapters()

    def _histograms(self) -> Iterator[Metric]:
        for name, what in (
            ("time_to_first_token", "From handing a request to the engine to its first token."),
            ("inter_token_latency", "Between two tokens of one line of an answer."),
            ("request_queue_time", "In which a request waited for its first step."),
            ("request_move_time", "In which an answer waited for another engine to go on with it."),
        ):
            shown = f"partywall_{name}_seconds"
            family = HistogramMetricFamily(shown, what, labels=("tenant",))
            for tenant, series in self.tenants:
                observed: Histogram = getattr(series, name.removeprefix("request_"))
                buckets = list(zip(_BOUNDS, accumulate(observed.counts), strict=True))
                family.add_metric((tenant,), buckets, observed.total)
            yield family

    def _tokens(self) -> Iterator[Metric]:
        for name, what in (
            ("prompt_tokens", "Tokens of prompts, cached ones included."),
            ("prompt_tokens_cached", "Of these, those that were found in the cache."),
            ("generation_tokens", "Tokens of answers."),
        ):
            family = _counter(name, what, ("tenant",))
            for tenant, series in self.tenants:
                family.add_metric((tenant,), series.tokens[name])
            yield family
        meaning = "Computing that was saved as tokens of prompts were found in the cache."
        saved = _counter("prompt_seconds_saved", meaning, ("tenant",))
        for tenant, series in self.tenants:
            saved.add_metric((tenant,), series.saved_seconds)
        yield saved

    def _of_adapters(self) -> Iterator[Metric]:
        for name, what in (
            ("requests", "Requests with an adapter."),
            ("prompt_tokens", "Tokens of their prompts."),
            ("prompt_tokens_cached", "Of these, those that were found in the cache."),
            ("generation_tokens", "Tokens of their answers."),
        ):
            family = _counter(f"adapter_{name}", what, ("tenant", "adapter"))
            for key, series in self.adapters:
                tenant, _, adapter = key.partition("/")
                family.add_metric((tenant, adapter or tenant), getattr(series, name))
            yield family


def _counter(name: str, documentation: str, labels: Sequence[str]) -> CounterMetricFamily:
    return CounterMetricFamily(f"partywall_{name}", documentation, labels=labels)
