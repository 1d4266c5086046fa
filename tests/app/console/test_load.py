"""What the load view makes of `/metrics`."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec import structs
from playwright.async_api import Page, expect
from prometheus_client.parser import text_string_to_metric_families

from engine.api import Evicted
from engine.client import FleetFigures, ReplicaFigures
from tenants.usage.prices import PriceList, Prices
from tests.app.conftest import MODEL, World, eventually
from tests.app.console.looks import check_looks, check_page
from tests.app.console.signing_in import sign_in
from tests.engine.simulation import simulated_core

SPAN = """async ([before, after, seconds]) => {
  const {Span, parsed} = await import(new URL("./load/metrics.js", document.scripts[0].src));
  const span = new Span(parsed(before), parsed(after), seconds);
  return {
    quantiles: [0.5, 0.95, 0.99].map((part) => span.quantile("wait_seconds", part)),
    rate: span.rate("told_total", {kind: "a"}),
    all: span.rate("told_total"),
    ratio: span.ratio("found_total", "told_total"),
  };
}"""
BOUNDS = (0.1, 0.5, 2.5)


def told(observed: list[float], counters: dict[str, float]) -> str:
    """A scrape with a histogram of what was observed, over two tenants, and some counters."""
    lines = []
    for tenant, part in (("a", observed[::2]), ("b", observed[1::2])):
        for bound in (*BOUNDS, float("inf")):
            le = "+Inf" if bound == float("inf") else bound
            count = sum(one <= bound for one in part)
            labels = f'{{tenant="{tenant}",le="{le}"}}'
            lines.append(f"partywall_wait_seconds_bucket{labels} {count}.0")
    for kind, value in counters.items():
        lines.append(f'partywall_told_total{{kind="{kind}"}} {value}')
    return "# HELP partywall_told_total so\n" + "\n".join(lines) + "\n"


def quantile(observed: list[float], part: float) -> float | None:
    """As Prometheus' `histogram_quantile` has it."""
    rank, below, count_below = part * len(observed), 0.0, 0
    for bound in BOUNDS:
        count = sum(one <= bound for one in observed)
        if count >= rank:
            return below + (bound - below) * (rank - count_below) / (count - count_below)
        below, count_below = bound, count
    return below


async def spanned(page: Page, before: str, after: str) -> dict[str, Any]:
    found: dict[str, Any] = await page.evaluate(SPAN, [before, after, 2])
    return found


async def test_percentiles_and_rates_are_those_of_the_time_between(
    page: Page, world: World
) -> None:
    await page.goto(f"{world.admin_url}/console/")
    first, second = [0.05, 3.0, 0.3], [0.2, 0.2, 0.05, 0.4, 1.0, 9.0, 2.0]
    before = told(first, {"a": 4, "c": 1})
    after = told(first + second, {"a": 10, "c": 2})
    span = await spanned(page, before, after)
    assert span["quantiles"] == pytest.approx([quantile(second, p) for p in (0.5, 0.95, 0.99)])
    assert (span["rate"], span["all"], span["ratio"]) == (3, 3.5, None)
    fallen = await spanned(page, after, before)
    assert fallen == {"quantiles": [None] * 3, "rate": None, "all": None, "ratio": None}
    nothing = await spanned(page, after, after)
    assert nothing["quantiles"] == [None] * 3
    assert nothing["all"] == 0


def counted(scrape: str, name: str) -> float:
    families = text_string_to_metric_families(scrape)
    return sum(one.value for family in families for one in family.samples if one.name == name)


@pytest.mark.exhaustive
async def test_it_shows_what_was_counted_while_it_is_looked_at(
    page: Page, world: World, admin: httpx.AsyncClient
) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await sign_in(page, world.admin_url, view="load")
    await eventually(lambda: any(one.endswith("/metrics") for one in asked))
    metrics = f"{world.admin_url}/metrics"
    before = (await admin.get(metrics)).text
    said = "You know the catalog: anvils, rope and glue, by size and by colour. "
    for question in ("What is an anvil?", "How long is the rope?", "Which glue?"):
        await world.client().responses.create(
            model=MODEL, input=said + question, max_output_tokens=8
        )
    after = (await admin.get(metrics)).text
    hits, queries = (
        counted(after, name) - counted(before, name)
        for name in ("partywall_prefix_cache_hits_total", "partywall_prefix_cache_queries_total")
    )
    view = page.locator("#view-load")
    await expect(view).to_contain_text(f"prompt tokens found {100 * hits / queries:.1f} %")
    await expect(view).to_contain_text(re.compile(r"p99 [\d.]+ ms"))
    await expect(view).to_contain_text(re.compile(r"found here [\d.]+ %"))
    await page.get_by_role("link", name="The wall").click()
    await expect(page.locator("#view-wall")).to_contain_text("160 blocks")
    asked.clear()
    await asyncio.sleep(3)
    assert not any(one.endswith("/metrics") for one in asked)


def replica(name: str, *, is_up: bool = True, **said: float) -> ReplicaFigures:
    stats = structs.replace(simulated_core(num_blocks=64).stats(), **said)
    return ReplicaFigures(
        name=name,
        stats=stats if is_up else None,
        is_up=is_up,
        engine_restarts=2,
        index_lag_seconds=0.5,
        events_lost=1,
    )


@pytest.mark.exhaustive
async def test_replicas_are_shown_where_there_are_any_the_worst_ones_first(
    page: Page, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sign_in(page, world.admin_url, view="load")
    view = page.locator("#view-load")
    await expect(view).to_contain_text("Cache")
    await expect(view.get_by_role("region", name="Replicas, live")).to_be_hidden()
    fleet = FleetFigures(
        replicas=[
            replica("calm", running=1),
            replica("lost", is_up=False),
            replica("slow", running=3, queue_seconds=61.0, blocks_in_use=16),
        ],
        num_wanted=3,
        routed={"residency": 7, "load": 5, "random": 1},
        index_blocks=9,
        streams_moved=4,
    )
    monkeypatch.setattr(type(world.engine), "fleet", fleet)
    rows = view.get_by_role("region", name="Replicas, live").locator("tbody tr")
    await expect(rows).to_have_count(3)
    lost, slow, calm = [
        await rows.nth(number).locator("td").all_inner_texts() for number in range(3)
    ]
    assert lost[:6] == ["lost", "down", "–", "–", "–", "–"]
    assert slow[:6] == ["slow", "up", "3", "0", "61 s", "25.0 %"]
    assert slow[8:] == ["2", "0.5 s", "1"]
    assert calm[0] == "calm"
    await expect(view).to_contain_text("2 of 3 are up")
    await expect(view).to_contain_text("9 blocks are known, 4 streams have moved.")
    for width in (360, 1440):
        await page.set_viewport_size({"width": width, "height": 800})
        await check_page(page, width)


CATALOG = "You know the catalog of a shop: anvils, rope and glue, by size, weight and colour. " * 4


@pytest.fixture
def prices() -> PriceList:
    return PriceList(model=Prices(currency="EUR", input=300_000, cached=100_000, output=900_000))


async def cells(page: Page, region: str) -> list[list[str]]:
    rows = page.get_by_role("region", name=region, exact=True).locator("tbody tr")
    return [await row.locator("td").all_inner_texts() for row in await rows.all()]


def money(nanos: int) -> str:
    value = nanos / 10**9
    return f"EUR {value:,.2f}" if value >= 1 else f"EUR {float(f'{value:.2g}'):g}"


async def keep_asking(world: World, body: dict[str, Any]) -> None:
    """So that a picture shows something that goes on."""
    while True:
        for tenant in ("umbra", "acme"):
            await world.client(tenant).responses.create(model=MODEL, max_output_tokens=40, **body)


@pytest.mark.exhaustive
async def test_what_sharing_is_worth_is_told_to_the_token(
    page: Page, world: World, admin: httpx.AsyncClient, tmp_path: Path
) -> None:
    await sign_in(page, world.admin_url, view="load")
    view = page.get_by_role("region", name="What sharing is worth")
    await expect(view).to_contain_text("Nothing was evicted yet.")
    await world.register("acme", "desk", CATALOG)
    found, prompt = dict.fromkeys(("acme", "umbra"), 0), dict.fromkeys(("acme", "umbra"), 0)
    asked = [("acme", {"prompt": {"id": "desk"}, "input": f"Number {n}?"}) for n in range(12)]
    asked += [("umbra", {"input": f"{CATALOG} Number {n}?"}) for n in range(9)]
    for tenant, body in asked:
        answer = await world.client(tenant).responses.create(
            model=MODEL, max_output_tokens=4, **body
        )
        assert answer.usage is not None
        found[tenant] += answer.usage.input_tokens_details.cached_tokens
        prompt[tenant] += answer.usage.input_tokens
    assert found["acme"] > found["umbra"] > 0
    all_found, all_prompt = sum(found.values()), sum(prompt.values())
    values = view.locator(".worth .value")
    await expect(values.nth(0)).to_have_text(f"{all_found:,}")
    await expect(values.nth(2)).to_have_text(money(all_found * 300_000))
    hit_rate = int(1000 * all_found / all_prompt) / 10
    await expect(values.nth(3)).to_have_text(f"{hit_rate:.1f} %")
    told = (await admin.get("/sharing")).json()
    await expect(view).to_contain_text(f"{money(all_found * 200_000)} of it tenants did not pay")
    rows = await cells(page, "Saved by tenant")
    assert [row[0] for row in rows] == ["acme", "umbra"]
    for row in rows:
        rate = f"{int(1000 * found[row[0]] / prompt[row[0]]) / 10:.1f} %"
        assert (row[1], row[4]) == (f"{found[row[0]]:,}", rate)
        assert row[3] == money(found[row[0]] * 300_000)
    [of_prompt] = await cells(page, "Saved by registered prompt")
    own = told["prompts"][0]["today"]
    assert of_prompt[0] == "acme/desk"
    assert of_prompt[1] == f"{own['found_tokens']:,}"
    assert 0 < own["found_tokens"] <= own["prompt_tokens"] < prompt["acme"]
    for seed in range(3):
        flood = " ".join(f"word{seed}-{number}" for number in range(160))
        await world.client("umbra").responses.create(model=MODEL, input=flood, max_output_tokens=4)
    again = {"input": f"{CATALOG} Number 0?"}
    await world.client("umbra").responses.create(model=MODEL, max_output_tokens=4, **again)
    lost = {}
    for one in (await admin.get("/sharing")).json()["evictions"]:
        lost[one["tenant"], one["taken_by"]] = one["blocks"]
    assert set(lost) == {("acme", "umbra"), ("umbra", "umbra")}
    evicted = view.get_by_role("region", name="Evictions")
    await expect(evicted).to_contain_text(
        f"acme lost {lost['acme', 'umbra']:,} blocks to umbra's requests"
    )
    own_lost = lost["umbra", "umbra"]
    await expect(evicted).to_contain_text(f"umbra lost {own_lost:,} blocks to requests of its own")
    await expect(view).to_contain_text(f"{sum(lost.values()):,} since the engine's start.")
    await expect(view).to_contain_text("a pool of twice the size would have found")
    await expect(page.locator("#view-load")).to_contain_text(re.compile(r"p99 [\d.]+ ms"))
    await page.goto(f"{world.admin_url}/console/#wall/acme")
    saved = f"acme's prompts found {found['acme']:,} of {prompt['acme']:,} tokens today"
    await expect(page.locator("#view-wall .saved")).to_contain_text(saved)
    await page.goto(f"{world.admin_url}/console/#load")
    going_on = asyncio.create_task(keep_asking(world, again))
    await check_looks(page, "load", tmp_path)
    going_on.cancel()
    await view.get_by_role("link", name="umbra").click()
    await expect(page).to_have_url(re.compile("#tenants/umbra$"))


@pytest.mark.exhaustive
async def test_who_lost_blocks_to_whom_is_said_in_a_sentence(
    page: Page, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    stats = structs.replace(
        simulated_core(num_blocks=64).stats(),
        evicted=[
            Evicted("acme", "bulk", "pressure", 15_000, 1200),
            Evicted("umbra", "acme", "own_quota", 7, 1),
            Evicted("gone", "", "deleted", 40, 0),
        ],
    )

    async def told() -> Any:
        return stats

    monkeypatch.setattr(world.engine, "stats", told)
    await sign_in(page, world.admin_url, view="load")
    await expect(page.locator(".evictions")).to_contain_text(
        "1,201 blocks in the last minute, 15,047"
    )
    assert await cells(page, "Evictions") == [
        [
            "acme lost 1,200 blocks to bulk's requests",
            "there was no other memory",
            "1,200",
            "15,000",
        ],
        ["umbra lost 1 block to acme's requests", "beyond its own quota of leases", "1", "7"],
        ["40 blocks of gone were deleted", "deleted", "0", "40"],
    ]
