"""Errors of the operator's interface: RFC 9457 problem documents, which name the field at fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus

import msgspec
from pydantic import ValidationError
from starlette.responses import Response

from app.errors import ApiError, field_path
from tenants.errors import (
    InvalidField,
    PromptNotFound,
    StoreError,
    StoreUnavailable,
    TenantExists,
    TenantNotFound,
)

MEDIA_TYPE = "application/problem+json"
_STATUS_OF: Mapping[type[StoreError], HTTPStatus] = {
    TenantNotFound: HTTPStatus.NOT_FOUND,
    PromptNotFound: HTTPStatus.NOT_FOUND,
    TenantExists: HTTPStatus.CONFLICT,
    StoreUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
}


class Complaint(msgspec.Struct, frozen=True):
    """What is wrong with one field of a request."""

    field: str
    detail: str


class Problem(Exception):
    """A request of an operator's that cannot be served."""

    def __init__(
        self, status: HTTPStatus, detail: str, complaints: Sequence[Complaint] = ()
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.complaints = complaints

    def response(self) -> Response:
        """The problem as a document."""
        document: dict[str, object] = {
            "type": "about:blank",
            "title": self.status.phrase,
            "status": int(self.status),
            "detail": self.detail,
        }
        if self.complaints:
            document["errors"] = self.complaints
        response = Response(msgspec.json.encode(document), self.status, media_type=MEDIA_TYPE)
        if self.status == HTTPStatus.UNAUTHORIZED:
            response.headers["www-authenticate"] = 'Bearer realm="partywall admin"'
        return response


def as_problem(error: Exception) -> Problem | None:
    """What an operator is told when `error` escapes; `None` for one that is our own bug."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, ApiError):
        return Problem(HTTPStatus(error.status), error.message)
    if isinstance(error, ValidationError):
        return _invalid([Complaint(field_path(one["loc"]), one["msg"]) for one in error.errors()])
    if isinstance(error, InvalidField):
        return _invalid([Complaint(error.field, str(error).removeprefix(f"{error.field}: "))])
    if isinstance(error, StoreError):
        status = _STATUS_OF.get(type(error), HTTPStatus.INTERNAL_SERVER_ERROR)
        return Problem(status, str(error))
    return None


def _invalid(complaints: Sequence[Complaint]) -> Problem:
    detail = "; ".join(f"{one.field}: {one.detail}" for one in complaints)
    return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, detail, complaints)
