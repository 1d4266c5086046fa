"""A configuration takes what its fields declare, and names the one that does not fit."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta

from engine.declared import AutoCount, Declared, Share, declared


class Kettle(msgspec.Struct):
    litres: Annotated[Share, "Of water."] = 0.5
    cups: Annotated[AutoCount, "To fill."] = None
    heat: Literal["low", "high"] = "low"
    price: Annotated[float, Meta(gt=0)] = 1.0
    name: str | None = None


FIELDS = declared(Kettle)


def test_a_field_is_what_its_annotation_says() -> None:
    assert FIELDS["litres"] == Declared(0.5, "Of water.", (), {"ge": 0, "le": 1}, is_auto=False)
    assert FIELDS["cups"] == Declared(None, "To fill.", (), {"ge": 1}, is_auto=True)
    assert FIELDS["heat"] == Declared("low", "", ("low", "high"), {}, is_auto=False)
    assert FIELDS["name"] == Declared(None, "", (), {}, is_auto=False)


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("litres", -0.1, "litres: must be at least 0"),
        ("litres", 1.1, "litres: must be at most 1"),
        ("litres", math.nan, "litres: must be finite"),
        ("cups", 0, "cups: must be at least 1"),
        ("price", 0.0, "price: must be more than 0"),
        ("price", math.inf, "price: must be finite"),
        ("heat", "warm", "heat: 'warm' is none of low, high"),
    ],
)
def test_a_value_out_of_its_range_is_refused_by_its_name(
    name: str, value: object, complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        FIELDS[name].check(name, value)


@pytest.mark.parametrize(
    ("name", "value"), [("litres", 0.0), ("litres", 1.0), ("cups", None), ("cups", 1), ("name", "")]
)
def test_a_value_in_its_range_is_taken(name: str, value: object) -> None:
    FIELDS[name].check(name, value)
