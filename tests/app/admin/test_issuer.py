"""Which issuers can be named, and which of their keys are used."""

from __future__ import annotations

import pytest

from app.admin.issuer import usable
from app.assembly.parts import service_people
from app.settings import SettingsError, load_settings
from tests.app.admin.provider import json_key, rsa_key


def test_only_keys_that_check_signatures_in_public_are_used() -> None:
    good = json_key(rsa_key(), "good")
    secret = {"kty": "oct", "k": "c2VjcmV0", "kid": "secret", "alg": "HS256"}
    others = [
        {**good, "kid": "for-encryption", "use": "enc"},
        {**good, "kid": "shared", "alg": "HS256"},
        {**good, "kid": "none", "alg": "none"},
        {**good, "kid": "broken", "n": "AQ"},
        {**good, "kid": ["a list"]},
        {"kty": "EC", "crv": "P-0", "kid": "unknown-curve"},
        secret,
        {},
    ]
    assert usable([*others, good]).keys() == {"good"}


def test_settings_name_an_issuer_and_an_audience_together() -> None:
    assert service_people(load_settings()) is None
    given = {"oidc_issuer": "https://id.example.com", "oidc_audience": "partywall"}
    assert service_people(load_settings(**given)) is not None
    assert service_people(load_settings(**given | {"oidc_issuer": "http://127.0.0.1:9"}))
    for wrong in (
        {"oidc_audience": None},
        {"oidc_issuer": None},
        {"oidc_issuer": "http://id.example.com"},
        {"oidc_issuer": "id.example.com"},
        {"oidc_claim": ""},
        {"oidc_client_id": ""},
        {"oidc_client_id": "console", "oidc_issuer": None, "oidc_audience": None},
        {"oidc_clients": "console", "oidc_issuer": None, "oidc_audience": None},
    ):
        with pytest.raises(SettingsError, match="oidc"):
            load_settings(**{**given, **wrong})
