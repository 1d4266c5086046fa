"""What tokens and leased blocks cost, in billionths of one currency: whole numbers all the way.

Tokens of requests with an adapter may have prices of their own, by the adapter's owner and name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal

import msgspec

from tenants.errors import InvalidField
from tenants.records import ID_PATTERN, PROMPT_NAME_PATTERN

NANOS = 10**9
"""Billionths in one unit of the currency."""
NANOS_PER_MICRO = 1000
TOKENS_PRICED = 10**6
"""Tokens that a price is given for."""
_HOUR_SECONDS = 3600
_ANY = "*"
_ADAPTER = re.compile(rf"@?{ID_PATTERN}/{PROMPT_NAME_PATTERN}")
_MOST_CURRENCY = 32
"""Bytes of its name, which is kept with each request."""


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


class PriceList(msgspec.Struct, frozen=True, kw_only=True):
    """What the served model costs, alone and with adapters."""

    model: Prices = FREE
    adapters: Mapping[str, Prices] = {}
    """By owner and name, `globex/support`; `*` is any other one. They have no leases."""

    def of(self, tenant_id: str, adapter: str) -> Prices:
        """What a tenant's requests cost with what its usage calls `adapter`: empty, with none."""
        if not (adapter and self.adapters):
            return self.model
        name = adapter if "/" in adapter else f"{tenant_id}/{adapter}"
        return self.adapters.get(name) or self.adapters.get(_ANY) or self.model


NO_PRICES = PriceList()


class _Tokens(msgspec.Struct, forbid_unknown_fields=True):
    """Prices as they are given: for a million tokens."""

    input: Decimal
    output: Decimal
    cached: Decimal | None = None
    written: Decimal | None = None


class _Given(_Tokens, forbid_unknown_fields=True):
    """A model's, for a million block-hours as well."""

    block_hours: Decimal = Decimal(0)
    adapters: dict[str, _Tokens] = {}


class _Table(msgspec.Struct, forbid_unknown_fields=True):
    currency: str
    models: dict[str, _Given]


def read_prices(table: object) -> Mapping[str, PriceList]:
    """The prices in a table, by model. Raises `InvalidField` that names what is wrong in it."""
    try:
        given = msgspec.convert(table, _Table)
    except msgspec.ValidationError as error:
        raise InvalidField("prices", str(error)) from None
    if not given.currency.strip() or len(given.currency.encode()) > _MOST_CURRENCY:
        raise InvalidField("currency", "the name of one, such as EUR")
    return {
        name: _price_list(given.currency, f"models.{name}", one)
        for name, one in given.models.items()
    }


def prices_of(table: Mapping[str, PriceList], model: str) -> PriceList:
    """Those of a model, or of `*`. Raises `InvalidField` where the table has neither."""
    found = table.get(model) or table.get(_ANY)
    if found is None:
        raise InvalidField("models", f"there are no prices for {model!r}, nor for {_ANY!r}")
    return found


def shown(nanos: int) -> str:
    """An amount of money in units of the currency, with all its nine decimals."""
    return f"{nanos // NANOS}.{nanos % NANOS:09d}"


def _price_list(currency: str, where: str, given: _Given) -> PriceList:
    adapters = {}
    for name, own in given.adapters.items():
        place = f"{where}.adapters.{name}"
        if name != _ANY and not _ADAPTER.fullmatch(name):
            raise InvalidField(place, f"an adapter's owner and name, OWNER/NAME, or {_ANY!r}")
        adapters[name] = _prices(currency, place, own, Decimal(0))
    return PriceList(model=_prices(currency, where, given, given.block_hours), adapters=adapters)


def _prices(currency: str, place: str, given: _Tokens, block_hours: Decimal) -> Prices:
    def nanos(name: str, price: Decimal | None) -> int:
        """For one, of a price for a million: what is not given is as dear as `input`."""
        if price is None:
            price = given.input
        where = f"{place}.{name}"
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
        block_hour=nanos("block_hours", block_hours),
    )
