"""Prices: exact, of the model that is served, and refused by name where they cannot be."""

from __future__ import annotations

import tomllib
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.errors import InvalidField
from tenants.usage.prices import FREE, NO_PRICES, PriceList, Prices, prices_of, read_prices, shown

TABLE = """
currency = "EUR"
[models.small]
input = 0.1
cached = 0.01
written = 0.125
output = 0.4
block_hours = 7.2
[models."*"]
input = 2
output = 8
"""


def read(text: str) -> dict[str, PriceList]:
    return dict(read_prices(tomllib.loads(text, parse_float=Decimal)))


def test_a_price_is_for_a_million_tokens_and_what_is_not_given_costs_what_input_does() -> None:
    table = read(TABLE)
    small = Prices(currency="EUR", input=100, cached=10, written=125, output=400, block_hour=7200)
    assert prices_of(table, "small").model == small
    assert prices_of(table, "other").model == Prices(
        currency="EUR", input=2000, cached=2000, written=2000, output=8000
    )
    assert shown(small.prompt(1_000_000, 1_000_000, 400_000)) == "0.120000000"
    assert [small.lease(seconds) for seconds in (0, 1, 1800)] == [0, 2, 3600]
    assert (small.are_set, FREE.are_set) == (True, False)
    del table["*"]
    with pytest.raises(InvalidField, match="no prices for 'other'"):
        prices_of(table, "other")


OF_ADAPTERS = """
[models.small.adapters."acme/support"]
input = 0.2
cached = 0.02
output = 0.8
[models.small.adapters."@guild/support"]
input = 0.3
output = 0.9
"""
ANY_OTHER = """
[models.small.adapters."*"]
input = 5
output = 6
"""


def test_an_adapter_costs_what_is_given_for_its_owner_and_name() -> None:
    small = prices_of(read(TABLE + OF_ADAPTERS), "small")
    own = Prices(currency="EUR", input=200, cached=20, written=200, output=800)
    assert small.of("acme", "support") == own
    assert small.of("acme", "@guild/support").output == 900
    for tenant, adapter in (("umbra", "support"), ("acme", "judge"), ("acme", "")):
        assert small.of(tenant, adapter) == small.model
    small = prices_of(read(TABLE + OF_ADAPTERS + ANY_OTHER), "small")
    assert small.of("acme", "support") == own
    assert small.of("umbra", "support").output == 6000
    assert small.of("umbra", "") == small.model
    assert NO_PRICES.of("acme", "support") == FREE


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ('currency = "EUR"', "models"),
        ('currency = " "\nmodels = {}', "currency"),
        (f'currency = "{"E" * 33}"\nmodels = {{}}', "currency"),
        (f'currency = "{"€" * 11}"\nmodels = {{}}', "currency"),
        (TABLE.replace("0.4", "-0.4"), "models.small.output"),
        (TABLE.replace("0.125", "0.1255"), "models.small.written: three decimals"),
        (TABLE.replace("0.125", "1000001"), "models.small.written: 0 to"),
        (TABLE.replace("0.4", "nan"), "models.small.output"),
        (TABLE.replace("0.4", "inf"), "models.small.output"),
        (TABLE.replace("0.4", "true"), "decimal"),
        (TABLE.replace("output = 0.4", "outputs = 0.4"), "output"),
        (TABLE + OF_ADAPTERS.replace("0.3", "-1"), "models.small.adapters.@guild/support.input"),
        (TABLE + OF_ADAPTERS.replace("acme/support", "support"), "OWNER/NAME"),
        (TABLE + OF_ADAPTERS.replace("cached", "block_hours"), "block_hours"),
    ],
)
def test_a_price_that_cannot_be_is_named(wrong: str, told: str) -> None:
    with pytest.raises(InvalidField, match=told):
        read(wrong)


counts = st.integers(0, 10**7)
prices = st.builds(Prices, input=counts, cached=counts, written=counts, output=counts)


@given(prices, counts, counts, counts, counts)
def test_no_request_costs_more_than_it_may(
    prices: Prices, computed: int, cached: int, written: int, output: int
) -> None:
    cost = prices.prompt(computed, cached, written) + output * prices.output
    assert 0 <= cost <= prices.most(computed + cached, output)
