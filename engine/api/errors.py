"""What cannot be served, or computed."""

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


class EngineBroken(EngineError):
    """Step after step has failed, or can only fail: what computes them has to be started anew."""


class StepOutOfMemory(EngineError):
    """A step needs more memory for its computation than there is; a smaller one may do.

    Raised by what computes steps (`engine.run.steps.Runner`), which has freed what the step had
    allocated. Blocks that the step was to write hold nothing of use.
    """
