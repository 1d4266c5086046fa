"""Every key in Redis is of a known type: else a backup would leave it out."""

from __future__ import annotations

import inspect
from typing import get_args

from tenants import redis_keys
from tenants.stored.objects import Kind

_PATTERNS = ("everything_of", "EVERY_OWNERS")
_NEVER_THERE = ("CHANGES", "PROBE")
_WORDS = {"key": "pw:tenants", "kind": "response"}


def test_every_key_has_a_type() -> None:
    for name, function in inspect.getmembers(redis_keys, inspect.isfunction):
        kinds = function.__annotations__
        if kinds["return"] == "str" and name not in _PATTERNS:
            given = {
                one: b"\1" if kinds[one] == "bytes" else _WORDS.get(one, "acme")
                for one in inspect.signature(function).parameters
            }
            assert redis_keys.type_of(function(**given)) is not None, name
    for name, value in vars(redis_keys).items():
        if name.isupper() and not name.startswith("_") and name not in _PATTERNS:
            assert (redis_keys.type_of(value) is None) == (name in _NEVER_THERE), name


def test_every_kind_of_stored_object_has_a_type() -> None:
    for kind in get_args(Kind):
        assert redis_keys.type_of(redis_keys.stored_object("acme", kind, "x")) is not None, kind


def test_what_is_of_no_partywall_has_none() -> None:
    for key in ("", "other-app:session", "pw:other", "pw:{acme}", "pw:{acme}:other", "PW:tenants"):
        assert redis_keys.type_of(key) is None
