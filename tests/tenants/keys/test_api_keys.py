"""The form of API keys and of what is kept of them."""

from __future__ import annotations

import pytest

from tenants.at_rest import pepper
from tenants.keys import api_keys


def test_a_key_carries_its_id_and_at_least_128_bits_of_secret() -> None:
    key = api_keys.generate()
    key_id = api_keys.parse(key)
    assert key_id is not None
    prefix, secret = key.split(".")
    assert prefix == f"pw_{key_id}"
    assert len(secret) * 6 >= 128


def test_no_two_keys_are_alike() -> None:
    keys = [api_keys.generate() for _ in range(100)]
    assert len({api_keys.parse(key) for key in keys}) == 100
    assert len({key.partition(".")[2] for key in keys}) == 100


@pytest.mark.parametrize(
    "mangle",
    [
        lambda key: "",
        lambda key: key[:-1],
        lambda key: key + "A",
        lambda key: key + "\n",
        lambda key: " " + key,
        lambda key: key.replace(".", ":"),
        lambda key: key.replace("pw_", "sk-"),
        lambda key: key[:-1] + "\u00e9",
        lambda key: key[:-1] + "\ud800",
        lambda key: key * 1000,
    ],
)
def test_what_cannot_be_a_key_is_not_taken_for_one(mangle: object) -> None:
    assert callable(mangle)
    assert api_keys.parse(mangle(api_keys.generate())) is None


def test_a_digest_depends_on_key_and_pepper() -> None:
    key, other = api_keys.generate(), api_keys.generate()
    digest = pepper.digest(key, b"p" * 32)
    assert len(digest) == 32
    assert pepper.digest(key, b"p" * 32) == digest
    assert pepper.digest(other, b"p" * 32) != digest
    assert pepper.digest(key, b"q" * 32) != digest


def test_a_fingerprint_tells_peppers_apart_and_does_not_hold_them() -> None:
    prints = {pepper.fingerprint(bytes([byte]) * 32) for byte in range(8)}
    assert len(prints) == 8
    assert not any(bytes([byte]) * 32 in one for byte in range(8) for one in prints)
