"""The engine's typed errors."""

from __future__ import annotations


class EngineError(Exception):
    """The engine could not serve this call."""


class RequestRefused(EngineError):
    """The request can never be served; `param` names the offending part of `EngineRequest`."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


class EngineUnavailable(EngineError):
    """The engine is not running (starting, crashed, or closed) or does not answer."""


class UnsupportedModel(EngineError):
    """The model cannot be served from paged KV memory; the message says why."""
