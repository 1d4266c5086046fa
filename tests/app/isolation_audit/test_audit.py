"""Audits of a server that leaks where it is told to, in a time of its own."""

from __future__ import annotations

from itertools import pairwise

import pytest

from app.isolation_audit.audit import Plan, audit
from app.isolation_audit.findings import CONTROL_ALPHA
from app.isolation_audit.observing import CHANNELS
from app.isolation_audit.probes import NO_ADAPTERS, AdapterNames
from app.isolation_audit.report import Report
from app.isolation_audit.server import AuditError, Tenant
from tests.app.isolation_audit.leaky_server import ADAPTERS, NEIGHBOUR, OWNER, LeakyServer

SAMPLES = 20


async def audited(
    leaky: LeakyServer,
    *channels: str,
    owner: Tenant = OWNER,
    neighbour: Tenant = NEIGHBOUR,
    rate: float = 1e9,
    adapters: AdapterNames = ADAPTERS,
) -> Report:
    server = leaky.client(rate=rate)
    plan = Plan(
        samples=SAMPLES,
        words=16,
        channels=channels or tuple(CHANNELS),
        seed=3,
        adapters=adapters,
    )
    try:
        return await audit(server, owner, neighbour, plan)
    finally:
        await server.close()


def verdicts(report: Report) -> dict[str, str]:
    return {finding.channel: finding.verdict for finding in report.findings}


async def test_a_server_that_tells_each_tenant_its_own_alone_is_clean() -> None:
    report = await audited(LeakyServer())
    assert verdicts(report) == dict.fromkeys(CHANNELS, "clean")
    assert report.verdict == "clean"
    assert report.p_min_neighbour > 0.05
    assert report.p_max_control < CONTROL_ALPHA


@pytest.mark.parametrize("channel", CHANNELS)
async def test_a_leak_is_found_in_its_channel_and_in_no_other(channel: str) -> None:
    report = await audited(LeakyServer({channel}))
    assert verdicts(report) == dict.fromkeys(CHANNELS, "clean") | {channel: "leak"}
    assert report.verdict == "leak"
    assert report.p_min_neighbour < 0.002


async def test_a_server_without_a_cache_proves_nothing() -> None:
    report = await audited(LeakyServer(caches=False), adapters=NO_ADAPTERS)
    told = ("usage", "diagnostics", "errors", "ids", "constrained")
    silent = dict.fromkeys((*told, "adapters", "adapter_use", "adapter_names"), "silent")
    assert verdicts(report) == silent | dict.fromkeys(("ttft", "itl"), "cannot tell")
    assert report.verdict == "cannot tell"


async def test_one_tenant_on_both_sides_sees_its_own() -> None:
    report = await audited(LeakyServer(), "ttft", "usage", neighbour=OWNER)
    assert verdicts(report) == {"ttft": "leak", "usage": "leak"}
    assert report.parameters["same_tenant"]


async def test_salts_tell_tenants_apart_where_keys_do_not() -> None:
    one, other = Tenant(salt="a"), Tenant(salt="b")
    report = await audited(LeakyServer(by_salt=True), "ttft", owner=one, neighbour=other)
    assert report.verdict == "clean"


async def test_requests_that_fail_are_made_again_with_new_prompts_after_a_while() -> None:
    leaky = LeakyServer(fail_every=40)
    report = await audited(leaky, "ttft", "usage")
    assert report.verdict == "clean"
    assert max(leaky.slept) == 2.0


async def test_a_server_that_fails_too_often_is_not_judged() -> None:
    with pytest.raises(AuditError, match=r"too many requests fail.*503.*busy"):
        await audited(LeakyServer(fail_every=10), "ttft")


async def test_a_key_that_is_unknown_is_told_from_the_other() -> None:
    with pytest.raises(AuditError, match=r"second tenant is not answered.*401"):
        await audited(LeakyServer(), "ttft", neighbour=Tenant("key-c"))


async def test_requests_come_no_faster_than_they_may() -> None:
    leaky = LeakyServer()
    await audited(leaky, "ttft", rate=5)
    times = [at for at, _ in leaky.requests]
    assert min(after - before for before, after in pairwise(times)) > 0.199


async def test_an_adapter_that_a_tenant_has_not_is_told_before_anything_is_measured() -> None:
    wrong = AdapterNames(ADAPTERS.owner, ADAPTERS.owner)
    with pytest.raises(AuditError, match=r"adapters is served.*404.*there is no small:of-a"):
        await audited(LeakyServer(), "adapters", adapters=wrong)


async def test_both_kinds_of_probes_follow_a_request_of_the_owners() -> None:
    leaky = LeakyServer()
    await audited(leaky, "ttft")
    tenants = [tenant for _, tenant in leaky.requests][-8 * SAMPLES :]
    assert set(tenants[::2]) == {"Bearer key-a"}
    assert tenants[1::2].count("Bearer key-b") == 2 * SAMPLES
