"""What can go wrong between the service and the tenant store."""

from __future__ import annotations


class StoreUnavailable(Exception):
    """Redis does not answer right now; nothing was changed, or it is not known whether it was."""


class StoreMisconfigured(Exception):
    """The store can never be used like this: a server too old, another pepper, a folder in use."""


class TenantError(Exception):
    """A call that cannot be done; `field` names what is at fault."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


class InvalidName(TenantError):
    """A name outside the allowed alphabet or length."""


class TenantExists(TenantError):
    """The tenant's id is taken."""


class TenantNotFound(TenantError):
    """There is no such tenant."""


class PromptNotFound(TenantError):
    """The tenant has no such system prompt."""


class VariableError(TenantError):
    """A prompt's variable without a value, or a value without a variable."""
