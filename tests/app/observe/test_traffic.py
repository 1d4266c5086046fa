"""Metrics of tenants: exact, few, and never going back."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from app.observe import traffic
from app.observe.engine_metrics import EngineMetrics
from app.observe.metrics import Metrics
from app.observe.traffic import OTHER
from engine.api import COUNTERS, EngineStats
from tests.engine.simulation import simulated_core


def read(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"partywall_{name}", labels)


def test_latencies_are_a_histogram_of_all_that_was_observed() -> None:
    metrics = Metrics()
    series = metrics.traffic.tenants.did("a", 0)
    for seconds, times in ((0.004, 1), (0.005, 2), (0.3, 3), (100.0, 1)):
        series.inter_token_latency.observe(seconds, times)
    name = "inter_token_latency_seconds"
    counts = [
        read(metrics, f"{name}_bucket", tenant="a", le=le)
        for le in ("0.005", "0.25", "0.5", "80.0", "+Inf")
    ]
    assert counts == [3, 3, 6, 6, 7]
    assert read(metrics, f"{name}_count", tenant="a") == 7
    assert read(metrics, f"{name}_sum", tenant="a") == pytest.approx(100.914)


def test_who_does_most_has_series_of_its_own_and_the_rest_is_other() -> None:
    metrics = Metrics(most_tenants=2)

    def answer(tenant: str, tokens: int) -> None:
        metrics.traffic.count_answer(tenant, tokens, 0, 0, "stop")

    def tokens() -> dict[str, float | None]:
        name = "prompt_tokens_total"
        return {one: read(metrics, name, tenant=one) for one in ("a", "b", "c", OTHER)}

    for tenant, count in (("a", 10), ("b", 100), ("c", 19)):
        answer(tenant, count)
    assert tokens() == {"a": 10, "b": 100, "c": None, OTHER: 19}
    metrics.traffic.tenants.rank()  # not twice as much as another one
    assert tokens() == {"a": 10, "b": 100, "c": None, OTHER: 19}
    answer("c", 20)
    metrics.traffic.tenants.rank()
    assert tokens() == {"a": None, "b": 100, "c": 0, OTHER: 39}
    answer("a", 5)
    answer("c", 7)
    assert tokens() == {"a": None, "b": 100, "c": 7, OTHER: 44}


def test_who_is_called_other_is_counted_with_the_others() -> None:
    metrics = Metrics(most_tenants=2)
    for tenant in (OTHER, "a", "b", "c"):
        metrics.traffic.count_answer(tenant, 10, 0, 0, "stop")
    metrics.traffic.count_answer(OTHER, 1000, 0, 0, "stop")
    metrics.traffic.tenants.rank()
    assert sorted(name for name, _ in metrics.traffic.tenants) == ["a", "b", OTHER]
    assert read(metrics, "prompt_tokens_total", tenant=OTHER) == 1020


def test_who_did_much_long_ago_gives_way() -> None:
    metrics = Metrics(most_tenants=1)
    metrics.traffic.count_answer("old", 10_000, 0, 0, "stop")
    for _ in range(12):
        metrics.traffic.count_answer("new", 100, 0, 0, "stop")
        metrics.traffic.tenants.rank()
    assert read(metrics, "prompt_tokens_total", tenant="new") is not None
    assert read(metrics, "prompt_tokens_total", tenant="old") is None


def test_without_any_of_their_own_all_are_other() -> None:
    metrics = Metrics(most_tenants=0)
    metrics.traffic.count_answer("a", 5, 2, 3, "length")
    assert read(metrics, "prompt_tokens_cached_total", tenant=OTHER) == 2
    labels = {"tenant": OTHER, "finished_reason": "length"}
    assert read(metrics, "request_success_total", **labels) == 1


def test_names_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "_MOST_NAMES", 10)
    metrics = Metrics(most_tenants=1)
    for number in range(100):
        metrics.traffic.count_answer(str(number), 1 + number, 0, 0, None)
    tenants: Any = metrics.traffic.tenants
    assert len(tenants._done) <= 11
    assert "99" in tenants._done
    assert "0" in tenants._done  # which has series


def test_adapters_are_told_apart_by_tenant_and_those_without_series_are_other() -> None:
    metrics = Metrics(most_tenants=2)
    for tenant, adapter in (("acme", "support"), ("umbra", "support"), ("acme", "judge")):
        metrics.traffic.count_adapter(tenant, adapter, 1, 10, 4, 0)
        metrics.traffic.count_adapter(tenant, adapter, 0, 0, 0, 5)
    metrics.traffic.count_adapter(OTHER, OTHER, 1, 100, 0, 0)
    names = ("requests", "prompt_tokens", "prompt_tokens_cached", "generation_tokens")

    def told(tenant: str, adapter: str) -> list[float | None]:
        series = (f"adapter_{name}_total" for name in names)
        return [read(metrics, name, tenant=tenant, adapter=adapter) for name in series]

    assert told("acme", "support") == told("umbra", "support") == [1, 10, 4, 5]
    assert told("acme", "judge") == [None] * 4
    assert told(OTHER, OTHER) == [2, 110, 4, 5]
    metrics.traffic.count_adapter("acme", "judge", 1, 30, 0, 0)
    metrics.traffic.rank()
    metrics.traffic.count_adapter("acme", "judge", 1, 1, 0, 0)
    assert told("acme", "judge") == [1, 1, 0, 0]
    assert told(OTHER, OTHER) == [3, 140, 4, 5]


def counters(metrics: EngineMetrics) -> dict[str, float]:
    return {
        f"{sample.name}{sample.labels}": sample.value
        for family in metrics.collect()
        if family.type == "counter"
        for sample in family.samples
    }


def stats(engine: str, factor: int) -> EngineStats:
    values = {name: factor * (1 + number) for number, name in enumerate(COUNTERS)}
    values["preemptions"] = 2 * values["recomputed"]
    return structs.replace(simulated_core().stats(), engine=engine, num_experts=8, **values)


def test_counters_go_on_growing_when_the_engine_starts_again() -> None:
    metrics = EngineMetrics()
    metrics.observe(stats("a", 10))
    first = counters(metrics)
    assert len(first) == len(COUNTERS)
    metrics.observe(None)
    assert counters(metrics) == first
    metrics.observe(stats("b", 1))
    assert counters(metrics) == pytest.approx({name: 1.1 * one for name, one in first.items()})
    metrics.observe(stats("b", 5))
    assert counters(metrics) == pytest.approx({name: 1.5 * one for name, one in first.items()})
    metrics.observe(stats("c", 6))  # that has done more meanwhile than the one before
    assert counters(metrics) == pytest.approx({name: 2.1 * one for name, one in first.items()})


def test_experts_have_no_metrics_where_there_are_none() -> None:
    metrics = EngineMetrics()
    metrics.observe(simulated_core().stats())
    assert not [family.name for family in metrics.collect() if "expert" in family.name]
    said = structs.replace(simulated_core().stats(), num_experts=8)
    metrics.observe(said)
    assert "partywall_expert_imbalance" not in {one.name for one in metrics.collect()}
    metrics.observe(structs.replace(said, expert_imbalance=2.5))
    shown = {one.name: one.samples[0].value for one in metrics.collect() if one.samples}
    assert (shown["partywall_experts"], shown["partywall_expert_imbalance"]) == (8, 2.5)


def test_every_counter_of_the_engine_s_is_shown() -> None:
    fields = EngineStats.__struct_fields__
    assert set(COUNTERS) < set(fields)
