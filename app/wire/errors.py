"""Every error a client can see, in the three shapes the protocol has for one.

HTTP carries `{"error": {...}}`, a WebSocket event nests it beside a status, an SSE event is flat.

docs/protocol.md lists the codes, by status.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pydantic import ValidationError

from engine.api import EngineUnavailable, RequestRefused
from tenants.store import StoreUnavailable

_SOON_SECONDS = 1
"""What keeps a request from being served has passed by then, mostly."""
_RESTART_SECONDS = 5
NOT_SUPPORTED = "not supported here"
"""What values that ask for something that is not served are told to be."""
_MAX_CHARACTERS = 1000
_LAST_CHARACTERS = 200


def retry_after(seconds: float = _SOON_SECONDS) -> dict[str, str]:
    """When to try again: in whole seconds, as HTTP has it (RFC 9110, section 10.2.3)."""
    return {"retry-after": str(math.ceil(seconds))}


def retry_headers(seconds: float | None) -> dict[str, str]:
    """The same with the milliseconds that OpenAI's clients read; `None`: waiting is in vain."""
    if seconds is None:
        return {"x-should-retry": "false"}
    milliseconds = max(1, math.ceil(seconds * 1000))
    return retry_after(milliseconds / 1000) | {"retry-after-ms": str(milliseconds)}


def duration(seconds: float) -> str:
    """A time as limits' headers carry it: `20ms`, `1.5s`, `6m0s`, `1h0m0s`."""
    milliseconds = math.ceil(max(0.0, seconds) * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:g}s"
    minutes, rest = divmod(math.ceil(milliseconds / 1000), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest}s" if hours else f"{minutes}m{rest}s"


def shortened(text: str) -> str:
    """A message, or a field's name, without the middle of what is too long.

    Both may repeat what the client has sent, megabytes of it; beginning and end say what is wrong.
    """
    if len(text) <= _MAX_CHARACTERS:
        return text
    return f"{text[: _MAX_CHARACTERS - _LAST_CHARACTERS]} [...] {text[-_LAST_CHARACTERS:]}"


class ApiError(Exception):
    """A request that cannot be served, as the client will read it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.message = shortened(message)
        super().__init__(self.message)
        self.status = status
        self.code = code
        self.param = None if param is None else shortened(param)
        self.headers = dict(headers or {})

    @property
    def type(self) -> str:
        """The error's class in OpenAI's vocabulary, which follows from the status."""
        if self.status == 401:
            return "authentication_error"
        if self.status == 429:
            return self.code if self.code == "insufficient_quota" else "rate_limit_error"
        return "server_error" if self.status >= 500 else "invalid_request_error"

    def detail(self) -> dict[str, str | None]:
        """The inner error object, the same in every shape."""
        return {"message": self.message, "type": self.type, "param": self.param, "code": self.code}

    def body(self) -> dict[str, Any]:
        """The body of an HTTP response, and the data of a chat completion's error chunk."""
        return {"error": self.detail()}


class ContextExceeded(ApiError):
    """A 400 for more than a context holds. Clients know it by its code, or by how it begins."""

    def __init__(self, context: int, explanation: str, param: str) -> None:
        message = f"This model's maximum context length is {context} tokens. {explanation}"
        super().__init__(400, message, code="context_length_exceeded", param=param)


def invalid_request(
    message: str, param: str | None = None, code: str = "invalid_value"
) -> ApiError:
    """A 400 that names the offending field."""
    return ApiError(400, message, code=code, param=param)


def shutting_down() -> ApiError:
    """What new work is told, here; another replica, or this one after its restart, will take it."""
    retry = retry_after(_RESTART_SECONDS)
    return ApiError(503, "The service is shutting down.", code="shutting_down", headers=retry)


def _not_found(what: str, name: str, *, code: str, param: str) -> ApiError:
    """A 404 for what the tenant does not have."""
    return ApiError(404, f"There is no {what} '{name}'.", code=code, param=param)


response_not_found = partial(_not_found, "response", code="response_not_found", param="response_id")
conversation_not_found = partial(
    _not_found, "conversation", code="conversation_not_found", param="conversation"
)
completion_not_found = partial(
    _not_found, "stored chat completion", code="completion_not_found", param="completion_id"
)

file_not_found = partial(_not_found, "file", code="file_not_found")


def response_lost(response_id: str) -> ApiError:
    """A 410 for the events of a response whose process is gone, and they with it."""
    message = (
        f"Response '{response_id}' has failed: the process that ran it is gone, and its events "
        "with it. Ask again."
    )
    return ApiError(410, message, code="response_lost", param="response_id")


def conversation_locked(conversation_id: str) -> ApiError:
    """A 409 for a response in a conversation in which another one runs."""
    message = (
        f"Another response is running in conversation '{conversation_id}': it has to end first."
    )
    retry = retry_after()
    return ApiError(409, message, code="conversation_locked", param="conversation", headers=retry)


def response_runs_elsewhere(response_id: str) -> ApiError:
    """A 409 for the events of a response that another process is writing."""
    message = (
        f"Response '{response_id}' is running in another replica, where its events are read: "
        "reach that one, or get the response without 'stream'."
    )
    retry = retry_after()
    return ApiError(
        409, message, code="response_runs_elsewhere", param="response_id", headers=retry
    )


def unauthorized(message: str) -> ApiError:
    """A 401 with the challenge that HTTP asks for."""
    return ApiError(
        401,
        message,
        code="invalid_api_key",
        headers={"www-authenticate": 'Bearer realm="partywall"'},
    )


def from_validation(error: ValidationError, own_words: Mapping[str, str]) -> ApiError:
    """The first complaint of a wire model, naming its field the way a client writes it.

    What other APIs call a field has the model's `own_words` for it.
    """
    complaints = error.errors(include_url=False, include_context=False)
    first = complaints[0]
    param = field_path(first["loc"]) or None
    kind = first["type"]
    if kind == "extra_forbidden":
        called = own_words.get(str(param))
        hint = f"; here it is '{called}'" if called else ""
        return invalid_request(f"Unknown parameter: '{param}'{hint}.", param, "unknown_parameter")
    if kind == "missing":
        sent = {field_path(one["loc"]) for one in complaints if one["type"] == "extra_forbidden"}
        meant = next((one for one in sorted(sent) if own_words.get(one) == param), None)
        hint = f", which '{meant}' is called here" if meant else ""
        message = f"Missing required parameter: '{param}'{hint}."
        return invalid_request(message, param, "missing_required_parameter")
    code = "invalid_value"
    if kind in ("unsupported_value", "unknown_message_type"):
        code = kind
        if first["msg"] == NOT_SUPPORTED:
            return invalid_request(f"'{param}' is {NOT_SUPPORTED}.", param, code)
        given = first["input"].get("type") if isinstance(first["input"], dict) else None
        if isinstance(given, str):
            first["msg"] += f", and not '{shortened(given)}'"
    elif kind.endswith("_type"):
        code = "invalid_type"
    where = f"'{param}': " if param else ""
    return invalid_request(f"Invalid value for {where}{first['msg']}", param, code)


def field_path(location: Sequence[int | str]) -> str:
    """`("input", "@items", 0, "content")` as `input[0].content`; union tags start with `@`."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not part.startswith("@"):
            path += f".{part}" if path else part
    return path


def as_api_error(error: Exception) -> ApiError | None:
    """What a client is told when `error` escapes a request; `None` for one that is our own bug."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestRefused):
        return invalid_request(str(error), error.param)
    if isinstance(error, EngineUnavailable):
        message = "The engine is not available right now."
        return ApiError(503, message, code="engine_unavailable", headers=retry_after())
    if isinstance(error, StoreUnavailable):
        message = "The tenant store is not available right now."
        return ApiError(503, message, code="store_unavailable", headers=retry_after())
    return None


def internal_error() -> ApiError:
    """What a client reads where the service itself is at fault; details go to the log only."""
    return ApiError(
        500, "The server had an error while processing the request.", code="server_error"
    )
