"""What tokens and leased blocks cost, in billionths of one currency: whole numbers all the way."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

import msgspec

from tenants.errors import InvalidField

NANOS = 10**9
"""Billionths in one unit of the currency."""
NANOS_PER_MICRO = 1000
TOKENS_PRICED = 10**6
"""Tokens that a price is given for."""
_HOUR_SECONDS = 3600
_ANY_MODEL = "*"
_MOST_CURRENCY = 32
"""Characters of its name, which is kept with each request."""


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """Those of one model: billionths for a token, and for a block that is leased for an hour.

    Each token of a prompt has one price: it was `cached`, or computed and `written` to the cache,
    or else just `input`.
    """

    currency: str = ""
    input: int = 0
    cached: int = 0
    written: int = 0
    output: int = 0
    block_hour: int = 0

    @property
    def are_set(self) -> bool:
        """Whether there are any, and so a currency to name."""
        return bool(self.currency)

    def prompt(self, computed: int, cached: int, written: int) -> int:
        """What prompt tokens cost; those that were `written` are among the `computed` ones."""
        written = min(written, computed)
        return (computed - written) * self.input + written * self.written + cached * self.cached

    def most(self, prompt_tokens: int, output_tokens: int) -> int:
        """What so many tokens can cost, however much of the prompt is found."""
        dearest = max(self.input, self.cached, self.written)
        return prompt_tokens * dearest + output_tokens * self.output

    def lease(self, block_seconds: int) -> int:
        """What leased blocks cost, rounded down."""
        return block_seconds * self.block_hour // _HOUR_SECONDS


FREE = Prices()


class _Given(msgspec.Struct, forbid_unknown_fields=True):
    """A model's prices as they are given: for a million tokens, and for a million block-hours."""

    input: Decimal
    output: Decimal
    cached: Decimal | None = None
    written: Decimal | None = None
    block_hours: Decimal = Decimal(0)


class _Table(msgspec.Struct, forbid_unknown_fields=True):
    currency: str
    models: dict[str, _Given]


def read_prices(table: object) -> Mapping[str, Prices]:
    """The prices in a table, by model. Raises `InvalidField` that names what is wrong in it."""
    try:
        given = msgspec.convert(table, _Table)
    except msgspec.ValidationError as error:
        raise InvalidField("prices", str(error)) from None
    if not given.currency.strip() or len(given.currency) > _MOST_CURRENCY:
        raise InvalidField("currency", "the name of one, such as EUR")
    return {name: _prices(given.currency, name, one) for name, one in given.models.items()}


def prices_of(table: Mapping[str, Prices], model: str) -> Prices:
    """Those of a model, or of `*`. Raises `InvalidField` where the table has neither."""
    found = table.get(model) or table.get(_ANY_MODEL)
    if found is None:
        raise InvalidField("models", f"there are no prices for {model!r}, nor for {_ANY_MODEL!r}")
    return found


def shown(nanos: int) -> str:
    """An amount of money in units of the currency, with all its nine decimals."""
    return f"{nanos // NANOS}.{nanos % NANOS:09d}"


def _prices(currency: str, model: str, given: _Given) -> Prices:
    def nanos(name: str, price: Decimal | None) -> int:
        """For one, of a price for a million: what is not given is as dear as `input`."""
        if price is None:
            price = given.input
        where = f"models.{model}.{name}"
        if not (price.is_finite() and 0 <= price <= TOKENS_PRICED):
            raise InvalidField(where, f"0 to {TOKENS_PRICED}")
        exact = price * NANOS / TOKENS_PRICED
        if exact != int(exact):
            raise InvalidField(where, "three decimals at most")
        return int(exact)

    return Prices(
        currency=currency,
        input=nanos("input", given.input),
        cached=nanos("cached", given.cached),
        written=nanos("written", given.written),
        output=nanos("output", given.output),
        block_hour=nanos("block_hours", given.block_hours),
    )
