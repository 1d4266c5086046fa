"""One admin request: who asks, what for, once or again, and the answer or the problem.

A handler says with its annotations what it takes and gives; checks and documentation follow from
them. `Idempotency-Key` and `If-Match` are dealt with here, for all handlers alike.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from http import HTTPStatus
from typing import Any, Generic, TypeVar

import msgspec
from pydantic import BaseModel, TypeAdapter
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from app.admin.documents import Versioned
from app.admin.door import Door, bearer
from app.admin.headers import IF_MATCH, idempotency_key, if_match
from app.admin.oidc import People
from app.admin.openapi import Operation
from app.admin.problems import (
    Complaint,
    Problem,
    as_problem,
    clash,
    complaint,
    forbidden,
    internal_problem,
    invalid,
)
from app.admin.token import Operator
from app.admin.write_rate import WriteRate
from app.context import Service
from app.transport.bodies import read_body, require_json
from app.transport.http import json_response
from tenants.errors import InvalidField, StoreUnavailable

_log = logging.getLogger(__name__)

Body = TypeVar("Body")
Query = TypeVar("Query")

_ANYBODY = Operator("anybody", reads_only=True)
_KEPT_HEADERS = ("content-type", "etag")


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    """An answer that may be asked for again."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, kw_only=True)
class Call(Generic[Body, Query]):
    """A request that may be served: its sender is an operator, and what it holds is valid."""

    service: Service
    operator: Operator
    path: Mapping[str, str]
    headers: Headers
    body: Body
    query: Query
    people: People | None
    """Those who may sign in, if any."""
    is_welcome: Callable[[], Awaitable[bool]]
    """Whether its sender would still be let in: what lasts has to ask now and then."""
    if_match: frozenset[str] | None = None

    @property
    def actor(self) -> str:
        """Whom the audit names."""
        return self.operator.name

    def require_match(self, current: Versioned) -> None:
        """Raises `Problem` 412 where `If-Match` names another state than the current one."""
        if self.if_match is not None and not self.if_match & {"*", current.etag()}:
            raise Problem(
                HTTPStatus.PRECONDITION_FAILED,
                f"It has changed: its ETag is {current.etag()} now.",
                code="changed_meanwhile",
                headers={"etag": current.etag()},
            )


Handler = Callable[[Call[Any, Any]], Awaitable[BaseModel | Response | None]]


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A handler, and what its annotations say."""

    operation: Operation
    handler: Handler
    status: HTTPStatus
    body: TypeAdapter[Any] | None

    async def answer(
        self, service: Service, door: Door, rate: WriteRate, request: Request
    ) -> Response:
        """The answer to a request, errors included."""
        try:
            return await self._answer(service, door, rate, request)
        except Exception as error:  # noqa: BLE001 - the last resort turns bugs into a logged 500
            problem = as_problem(error)
            if problem is None:
                _log.exception("%s %s failed", request.method, request.url.path)
                problem = internal_problem()
            return problem.response()

    async def _answer(
        self, service: Service, door: Door, rate: WriteRate, request: Request
    ) -> Response:
        method = self.operation.method
        operator = await self._operator(door, request)
        is_write = method != "GET"
        if is_write and self.operation.needs_token:
            rate.count(operator.identity)
        body = await read_body(request, service.bounds.max_body_bytes) if is_write else b""
        if is_write and operator.tenant is not None:
            # Who writes slowly may be held to a tenant that is another's by now.
            operator = await self._operator(door, request)
        key = idempotency_key(request) if is_write else None
        call = Call(
            service=service,
            operator=operator,
            path=request.path_params,
            headers=request.headers,
            query=self._query(request),
            people=door.people,
            is_welcome=lambda: door.is_open(bearer(request)),
            body=self._body(request, body),
            if_match=if_match(request) if method == "PATCH" else None,
        )
        if key is None:
            return await self._perform(call)
        fingerprint = _fingerprint(request, body)
        return await self._perform_once(call, operator.identity, key, fingerprint)

    async def _operator(self, door: Door, request: Request) -> Operator:
        """Who asks, and may. Raises `Problem`, `IssuerUnavailable` and `StoreUnavailable`."""
        operation = self.operation
        if not operation.needs_token:
            return _ANYBODY
        operator = await door.operator(request)
        if not operator.may(operation.method, operation.path, request.path_params.get("tenant")):
            raise forbidden(operator)
        return operator

    async def _perform(self, call: Call[Any, Any]) -> Response:
        result = await self.handler(call)
        if result is None:
            return Response(status_code=self.status)
        if isinstance(result, Response):
            return result
        headers = {"etag": result.etag()} if isinstance(result, Versioned) else {}
        return json_response(result.model_dump_json().encode(), self.status, headers)

    async def _perform_once(
        self, call: Call[Any, Any], caller: str, key: str, fingerprint: bytes
    ) -> Response:
        """The answer that the caller's first request under `key` had, or this one, as the first."""
        store = call.service.stores.idempotency
        try:
            begun = await store.begin(caller, key, fingerprint)
        except InvalidField as error:
            # A key that names another request already: what is there does not allow this one.
            raise clash(complaint(error)) from error
        if isinstance(begun, bytes):
            return _replayed(begun)
        # Deleting twice is deleting once, and a deletion that was cut off must be able to go on.
        repeatable = self.operation.method == "DELETE"
        try:
            with contextlib.nullcontext() if repeatable else begun.guarding():
                response = await self._perform(call)
        except BaseException:
            # Nothing was done, or nobody heard of it: what was made stays made.
            with contextlib.suppress(StoreUnavailable):
                await store.abandon(begun)
            raise
        try:
            await store.finish(begun, _kept(response))
        except StoreUnavailable:
            # It is done all the same, and its answer may hold a secret that is shown but once.
            _log.warning("an answer could not be kept: a retry of it will not find it")
        return response

    def _body(self, request: Request, body: bytes) -> Any:
        if self.body is None:
            return None
        if not body and not self.operation.body_required:
            return self.body.validate_json(b"{}")
        require_json(request)
        return self.body.validate_json(body)

    def _query(self, request: Request) -> BaseModel | None:
        model = self.operation.query
        known = () if model is None else model.model_fields
        names = [name for name, _ in request.query_params.multi_items()]
        for name in names:
            if name not in known:
                raise invalid(Complaint(field=name, detail="there is no such parameter"))
            if names.count(name) > 1:
                raise invalid(Complaint(field=name, detail="may be given once"))
        return None if model is None else model.model_validate_strings(dict(request.query_params))


def _fingerprint(request: Request, body: bytes) -> bytes:
    """What must be the same for a request to be the same as an earlier one."""
    url, expected = request.url, request.headers.get(IF_MATCH.name)
    parts = [request.method, url.path, url.query, expected, body]
    return sha256(msgspec.msgpack.encode(parts)).digest()


def _kept(response: Response) -> bytes:
    kept = {name: response.headers[name] for name in _KEPT_HEADERS if name in response.headers}
    return msgspec.msgpack.encode(_Kept(response.status_code, kept, bytes(response.body)))


def _replayed(blob: bytes) -> Response:
    kept = msgspec.msgpack.decode(blob, type=_Kept)
    return Response(kept.body, kept.status, kept.headers | {"idempotency-replayed": "true"})
