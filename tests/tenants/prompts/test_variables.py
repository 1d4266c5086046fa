"""Placeholders in system prompts."""

from __future__ import annotations

import pytest

from tenants.errors import MissingVariable, UnknownVariable
from tenants.prompts.variables import render, rendered_length, static_prefix, variables


def test_variables_are_named_once_in_order_of_appearance() -> None:
    assert variables("Hi {{who}}, from {{city}}; bye {{who}}.") == ["who", "city"]
    assert variables("{{}} {x} {{1a}} {{a-b}} { {a} } {{a}") == []


def test_a_rendering_puts_every_value_in_its_place() -> None:
    text = "Hi {{who}}, from {{city}}; bye {{who}}."
    assert render(text, {"who": "Ann", "city": r"K\1öln"}) == r"Hi Ann, from K\1öln; bye Ann."
    assert rendered_length(text, {"who": "Ann", "city": "x"}) == len("Hi Ann, from x; bye Ann.")
    assert render("no placeholder {x}", {}) == "no placeholder {x}"


def test_a_value_is_not_searched_for_placeholders() -> None:
    assert render("{{a}}{{b}}", {"a": "{{b}}", "b": "{{a}}"}) == "{{b}}{{a}}"


def test_a_missing_or_unknown_variable_is_an_error_that_names_it() -> None:
    with pytest.raises(MissingVariable, match="city") as missing:
        render("{{who}} {{city}}", {"who": "Ann"})
    assert missing.value.field == "variables.city"
    with pytest.raises(UnknownVariable, match="cities") as unknown:
        render("{{who}}", {"who": "Ann", "cities": "x"})
    assert unknown.value.field == "variables.cities"


def test_the_static_prefix_ends_where_the_first_placeholder_begins() -> None:
    assert static_prefix("You are {x} of {{firm}}, {{city}}.") == "You are {x} of "
    assert static_prefix("{{firm}} first") == ""
    assert static_prefix("all of it") == "all of it"
