"""Formats and patterns that are ours: each day exists, and expressions are ECMAScript's."""

from __future__ import annotations

import calendar
import json
import random
from datetime import UTC, datetime, timedelta, timezone

import pytest

from tests.engine.grammar.keywords.said import Said


def test_a_date_is_one_exactly_if_its_day_exists() -> None:
    said = Said({"type": "string", "format": "date"})
    for year in (1, 4, 100, 400, 1900, 2000, 2021, 2024, 2100, 9999):
        for month in range(14):
            days = calendar.monthrange(year, month)[1] if 1 <= month <= 12 else 0
            for day in (0, 1, 28, 29, 30, 31, 32):
                text = json.dumps(f"{year:04}-{month:02}-{day:02}")
                assert said.text(text) == (1 <= day <= days), text
    assert not said.text('"2021-2-03"')
    assert not said.text('"12021-02-03"')


def test_a_date_holds_beside_a_pattern_and_where_it_may_be_null() -> None:
    said = Said({"type": ["string", "null"], "format": "date", "pattern": "^2024"})
    assert said.text("null")
    assert said.text('"2024-02-29"')
    assert not said.text('"2024-02-30"')
    assert not said.text('"2023-02-28"')


def test_a_leap_second_is_the_last_of_a_day_in_utc() -> None:
    said = Said({"type": "string", "format": "time"})
    last = datetime(2016, 12, 31, 23, 59, tzinfo=UTC)
    for quarter in range(-95, 96):
        zone = timezone(quarter * timedelta(minutes=15))
        local, offset = last.astimezone(zone), last.astimezone(zone).strftime("%z")
        zone_text = f"{offset[:3]}:{offset[3:]}"
        assert said.text(f'"{local:%H:%M}:60{zone_text}"'), zone_text
        assert not said.text(f'"{local + timedelta(minutes=1):%H:%M}:60{zone_text}"'), zone_text
    for text, is_one in {
        '"23:59:60Z"': True,
        '"23:59:60.25Z"': True,
        '"22:59:60Z"': False,
        '"12:30:59.5-08:00"': True,
        '"24:00:00Z"': False,
        '"12:00:00"': False,
    }.items():
        assert said.text(text) == is_one, text


def test_a_moment_has_a_date_and_a_time_that_exist() -> None:
    said = Said({"type": "string", "format": "date-time"})
    assert said.text('"2024-02-29T12:00:00Z"')
    assert not said.text('"2023-02-29T12:00:00Z"')
    assert not said.text('"2024-02-29T23:58:60Z"')
    assert not said.text('"2024-02-29 12:00:00Z"')


@pytest.mark.parametrize(
    ("name", "valid", "invalid"),
    [
        ("ipv6", ["::", "1::", "::ffff:1.2.3.4", "1:2:3:4:5:6:7:8"], ["1:2", "::1::", "1.2.3.4"]),
        ("ipv4", ["0.0.0.0", "255.1.2.3"], ["256.1.1.1", "01.1.1.1", "1.1.1"]),
        (
            "email",
            ["a@b", "a.b+c@d-e.org", '"a b"@c', "a@[IPv6:::1]"],
            ["a", "@b", "a..b@c", "a@-"],
        ),
    ],
)
def test_addresses_are_those_of_their_standards(
    name: str, valid: list[str], invalid: list[str]
) -> None:
    said = Said({"type": "string", "format": name})
    assert all(said.value(text) for text in valid)
    assert not any(said.value(text) for text in invalid)


def test_three_hundred_moments_are_one_expression() -> None:
    moment = {"type": "string", "format": "date-time", "description": "when"}
    many = {f"at{index}": moment for index in range(300)}
    said = Said({"type": "object", "properties": many, "required": ["at0"]})
    assert said.problem is None
    assert said.value({"at0": "2024-02-29T12:00:00Z"})
    taken = {"type": "object", "properties": {"a": moment}, "$defs": {"format-date-time-type": {}}}
    assert not Said(taken).value({"a": "2023-02-29T12:00:00Z"})


def test_white_space_is_that_of_ecmascript() -> None:
    blank, other = (Said({"type": "string", "pattern": f"^{one}$"}) for one in (r"\s", r"[\S]"))
    for character in "\t\n\v\f\r \xa0\u1680\u2003\u2028\u2029\u202f\u205f\u3000\ufeff":
        assert blank.text(json.dumps(character, ensure_ascii=False))
        assert not other.text(json.dumps(character, ensure_ascii=False))
    rng = random.Random(1)
    for character in {"a", "\x85", "\u180e", *(chr(rng.randrange(33, 127)) for _ in range(9))}:
        assert not blank.value(character)
        assert other.value(character)
    assert Said({"patternProperties": {r"^\cJ$": {}}, "additionalProperties": False}).text(
        '{"\\n":1}'
    )
