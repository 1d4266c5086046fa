"""Who may use `/admin`, what tokens cost, and who is told what happens."""

from __future__ import annotations

from pydantic import Field, model_validator

from app.settings.kinds import GivenFile, Seconds, Section, SecureUrl


class OperatorSettings(Section):
    """Of operators' sign-in, prices and webhook."""

    admin_token_file: GivenFile = Field(
        None, description="File that holds the admin token; by default the first start makes one."
    )
    oidc_issuer: SecureUrl | None = Field(
        None,
        description="OpenID provider whose JSON Web Tokens `/admin` takes, as it names itself, "
        "such as https://id.example.com/realms/staff; https, but on this machine.",
    )
    oidc_audience: str | None = Field(
        None,
        min_length=1,
        description="What those tokens must be for: this service, as the provider knows it.",
    )
    oidc_claim: str = Field(
        "partywall",
        min_length=1,
        description="Their claim that says what a person may: `admin`, `read`, `tenant:ID`, as in "
        "a line of admin_token_file; nobody without it gets in.",
    )
    oidc_client_id: str | None = Field(
        None,
        min_length=1,
        description="Public client as which pages have people sign in there; `/admin/sign-in` "
        "tells it.",
    )
    oidc_clients: str | None = Field(
        None,
        min_length=1,
        description="Further clients, with commas, to which those tokens may have been issued "
        "(`azp`); without these and oidc_client_id, to any of the provider's.",
    )
    oidc_max_token_seconds: Seconds = Field(
        86_400.0, description="Longest lifetime of those tokens, from `iat` to `exp`."
    )
    price_file: GivenFile = Field(
        None, description="What tokens cost, by model (TOML); budgets need it."
    )
    webhook_url: SecureUrl | None = Field(
        None, description="Told of budgets that are reached; https, but to this machine."
    )
    webhook_secret_file: GivenFile = Field(
        None, description="File with the secrets that sign it, a line each: whsec_ and base64."
    )

    @model_validator(mode="after")
    def _operators_fit(self) -> OperatorSettings:
        if (self.webhook_url is None) != (self.webhook_secret_file is None):
            raise ValueError("webhook_url and webhook_secret_file go together")
        if (self.oidc_issuer is None) != (self.oidc_audience is None):
            raise ValueError("oidc_issuer and oidc_audience go together")
        for name in ("oidc_client_id", "oidc_clients"):
            if getattr(self, name) is not None and self.oidc_issuer is None:
                raise ValueError(f"{name} goes with oidc_issuer")
        return self
