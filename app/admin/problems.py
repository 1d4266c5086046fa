"""Errors of the operator's interface: RFC 9457 problem documents, which name the field at fault."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from app.admin.issuer import IssuerUnavailable
from app.admin.token import Operator
from app.wire.errors import ApiError, field_path, retry_after, shortened
from engine.adapters.config import BadAdapter
from engine.api import EngineError, EngineUnavailable, RequestRefused
from tenants.errors import (
    AdapterNotFound,
    AdaptersExceeded,
    GroupExists,
    GroupNotFound,
    InvalidField,
    KeyNotFound,
    PromptNotFound,
    PromptsExceeded,
    SealError,
    StoreConflict,
    StoreError,
    StoreReadOnly,
    StoreUnavailable,
    TenantExists,
    TenantNotFound,
    TokenNotFound,
)

MEDIA_TYPE = "application/problem+json"
_MAX_COMPLAINTS = 32
"""A body may have tens of thousands of unknown fields; the first ones say what is wrong."""

_STORE_ERRORS: Mapping[type[StoreError], tuple[HTTPStatus, str]] = {
    TenantNotFound: (HTTPStatus.NOT_FOUND, "tenant_not_found"),
    GroupNotFound: (HTTPStatus.NOT_FOUND, "group_not_found"),
    KeyNotFound: (HTTPStatus.NOT_FOUND, "key_not_found"),
    TokenNotFound: (HTTPStatus.NOT_FOUND, "token_not_found"),
    PromptNotFound: (HTTPStatus.NOT_FOUND, "prompt_not_found"),
    AdapterNotFound: (HTTPStatus.NOT_FOUND, "adapter_not_found"),
    TenantExists: (HTTPStatus.CONFLICT, "tenant_exists"),
    GroupExists: (HTTPStatus.CONFLICT, "group_exists"),
    StoreConflict: (HTTPStatus.CONFLICT, "conflict"),
    PromptsExceeded: (HTTPStatus.CONFLICT, "prompts_exceeded"),
    AdaptersExceeded: (HTTPStatus.CONFLICT, "adapters_exceeded"),
}
_OF_JSON = dict.fromkeys(("dict_type", "model_type"), "Input should be an object")
"""What pydantic says in Python's words, as it takes the body to come from there."""
_KIND = re.compile(r"(?:function-\w+|literal)\[.*\]|constrained-\w+")
_SHOULD_BE = "Input should be "
_NO_JSON = "Invalid JSON: EOF while parsing a value at line 1 column 0"
_ROUTING_CODES: Mapping[HTTPStatus, str] = {
    HTTPStatus.NOT_FOUND: "not_found",
    HTTPStatus.METHOD_NOT_ALLOWED: "method_not_allowed",
}


class Complaint(BaseModel):
    """What is wrong with one field of a request."""

    model_config = ConfigDict(extra="forbid")

    field: str
    detail: str


class ProblemDocument(BaseModel):
    """An error after RFC 9457; `code` is for programs, `errors` name the fields at fault."""

    model_config = ConfigDict(extra="forbid")

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str
    errors: list[Complaint] = Field(default_factory=list)


class Problem(Exception):
    """A request of an operator's that cannot be served."""

    def __init__(
        self,
        status: HTTPStatus,
        detail: str,
        *,
        code: str,
        complaints: Sequence[Complaint] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.detail = shortened(detail)
        super().__init__(self.detail)
        self.status = status
        self.code = code
        self.complaints = [
            Complaint(field=shortened(one.field), detail=shortened(one.detail))
            for one in complaints[:_MAX_COMPLAINTS]
        ]
        self.headers = dict(headers or {})

    def response(self) -> Response:
        """The problem as a document."""
        document = ProblemDocument(
            title=self.status.phrase,
            status=int(self.status),
            detail=self.detail,
            code=self.code,
            errors=self.complaints,
        )
        return Response(document.model_dump_json(), self.status, self.headers, MEDIA_TYPE)


def unauthorized(detail: str = "Send the admin token as 'Authorization: Bearer TOKEN'.") -> Problem:
    """What a request without a good token is told."""
    return Problem(
        HTTPStatus.UNAUTHORIZED,
        detail,
        code="invalid_admin_token",
        headers={"www-authenticate": 'Bearer realm="partywall admin"'},
    )


def forbidden(operator: Operator) -> Problem:
    """What a holder of a token is told that it is not for."""
    bounds = ["reads"] if operator.reads_only else []
    if operator.tenant is not None:
        bounds.append(f"tenant {operator.tenant}, with its keys, prompts and adapters")
    what = f"{' of '.join(bounds)} alone, and for no tokens"
    detail = f"The admin token of {operator.name} is for {what}."
    return Problem(HTTPStatus.FORBIDDEN, detail, code="not_for_this_token")


def invalid(*complaints: Complaint) -> Problem:
    """A request whose fields cannot be what they are, whatever the state of the store."""
    return _about(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid_field", complaints)


def invalid_request(errors: Sequence[Mapping[str, Any]]) -> Problem:
    """A request of which this was found, as pydantic says it; each is in a body or a query."""
    first = errors[0]
    if first["type"] == "json_invalid":
        return Problem(HTTPStatus.BAD_REQUEST, first["msg"], code="invalid_json")
    if first["type"] == "missing" and first["loc"] == ("body",):
        return Problem(HTTPStatus.BAD_REQUEST, _NO_JSON, code="invalid_json")
    return invalid(*_complaints(errors))


def _complaints(errors: Sequence[Mapping[str, Any]]) -> list[Complaint]:
    """One a field: what may be one of several kinds is told of once, with all that it may be."""
    details: dict[str, list[str]] = {}
    for error in errors:
        is_named = error["type"] == "extra_forbidden"  # a client's name may look like a kind's
        location = [part for part in error["loc"][1:] if is_named or not _is_kind(part)]
        detail = _OF_JSON.get(error["type"], error["msg"])
        details.setdefault(field_path(location), []).append(detail)
    return [
        Complaint(
            field=field,
            detail=", or ".join([first, *(one.removeprefix(_SHOULD_BE) for one in rest)]),
        )
        for field, (first, *rest) in details.items()
    ]


def _is_kind(part: int | str) -> bool:
    """Whether it is no field, but one of the kinds that its value may be of, as pydantic has it."""
    return isinstance(part, str) and _KIND.fullmatch(part) is not None


def clash(*complaints: Complaint) -> Problem:
    """A request whose fields could be what they are, but not beside what is there now."""
    return _about(HTTPStatus.CONFLICT, "conflict", complaints)


def internal_problem() -> Problem:
    """What an operator reads where the service itself is at fault; details go to the log only."""
    detail = "The service had an error; its log says more."
    return Problem(HTTPStatus.INTERNAL_SERVER_ERROR, detail, code="internal_error")


def routing_problem(status: int, detail: str, headers: Mapping[str, str] | None) -> Problem:
    """A path that is not there, or not with this method."""
    known = HTTPStatus(status)
    code = _ROUTING_CODES.get(known, "invalid_request")
    return Problem(known, detail, code=code, headers=headers)


def as_problem(error: Exception) -> Problem | None:
    """What an operator is told when `error` escapes; `None` for one that is our own bug."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, ApiError):
        return Problem(
            HTTPStatus(error.status), error.message, code=error.code, headers=error.headers
        )
    if isinstance(error, InvalidField):
        return invalid(complaint(error))
    if isinstance(error, BadAdapter):
        return invalid(Complaint(field=error.field, detail=error.message))
    if isinstance(error, StoreReadOnly):
        detail = f"The tenant store takes no writes: {error.reason}."
        return _unavailable(detail, "store_unavailable")
    if isinstance(error, StoreUnavailable):
        return _unavailable("The tenant store is not available right now.", "store_unavailable")
    if isinstance(error, SealError):
        return Problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error), code="record_not_readable")
    if isinstance(error, StoreError) and type(error) in _STORE_ERRORS:
        status, code = _STORE_ERRORS[type(error)]
        return Problem(status, str(error), code=code)
    if isinstance(error, IssuerUnavailable):
        detail = f"Nobody can sign in right now, but by an admin token: {error}."
        return _unavailable(detail, "issuer_unavailable")
    if isinstance(error, EngineUnavailable):
        return _unavailable("The engine is not available right now.", "engine_unavailable")
    if isinstance(error, RequestRefused):
        return Problem(HTTPStatus.CONFLICT, str(error), code="does_not_fit")
    if isinstance(error, EngineError):
        return Problem(HTTPStatus.CONFLICT, str(error), code="engine_refused")
    return None


def complaint(error: InvalidField) -> Complaint:
    """The store's complaint about a field."""
    return Complaint(field=error.field, detail=str(error).removeprefix(f"{error.field}: "))


def _about(status: HTTPStatus, code: str, complaints: Sequence[Complaint]) -> Problem:
    first = complaints[:_MAX_COMPLAINTS]
    texts = (f"{one.field}: {one.detail}" if one.field else one.detail for one in first)
    return Problem(status, "; ".join(texts), code=code, complaints=complaints)


def _unavailable(detail: str, code: str) -> Problem:
    return Problem(HTTPStatus.SERVICE_UNAVAILABLE, detail, code=code, headers=retry_after())
