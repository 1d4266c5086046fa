"""One admin operation: who asks, what for, once or again, and the answer or the problem.

A handler says with its annotations what it takes and gives; FastAPI checks and documents that. What
holds for all of them is done here: around it, as who may not ask is not read, nor is more than has
room; and within, where all that was asked is valid.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from http import HTTPStatus
from typing import Any, cast

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute, APIRouter
from pydantic import BaseModel
from starlette.responses import Response

from app.admin.documents import Versioned
from app.admin.door import Door, bearer
from app.admin.idempotency import IdempotencyKey, once
from app.admin.problems import (
    MEDIA_TYPE,
    Complaint,
    as_problem,
    forbidden,
    internal_problem,
    invalid,
    invalid_request,
)
from app.admin.token import Operator
from app.transport.bodies import read_body, require_json
from app.transport.http import json_response
from app.transport.openapi import reference

_log = logging.getLogger(__name__)

Handler = Callable[..., Awaitable[BaseModel | Response | None]]

NEEDS_NO_TOKEN: dict[str, Any] = {"security": []}
"""As `openapi_extra` of an operation that is open to all."""
_PROBLEM = {MEDIA_TYPE: reference("ProblemDocument")}
_ETAG = {"ETag": {"description": "Names this state of it.", "schema": {"type": "string"}}}
_ANYBODY = Operator("anybody", reads_only=True)


def operations(tag: str, prefix: str = "", **options: Any) -> APIRouter:
    """Where a module's operations are declared."""
    return APIRouter(prefix=prefix, tags=[tag], route_class=AdminRoute, **options)


def may_be(*problems: HTTPStatus) -> dict[int | str, dict[str, Any]]:
    """The documented problems that an operation may have, as `responses` of it."""
    return {int(one): {"description": one.phrase, "content": _PROBLEM} for one in problems}


class AdminRoute(APIRoute):
    """An operation of `/admin`."""

    methods: set[str]

    def __init__(self, path: str, endpoint: Handler, **options: Any) -> None:
        (self.method,) = options["methods"]
        status = HTTPStatus(options["status_code"] or HTTPStatus.OK)
        summary, _, description = inspect.cleandoc(endpoint.__doc__ or "").partition("\n\n")
        options |= {
            "summary": summary.removesuffix("."),
            "operation_id": options["name"] or endpoint.__name__,
            "status_code": status,
            "response_description": status.phrase,
        }
        super().__init__(path, self._answering(endpoint, status), **options)
        self.description = description
        self.needs_token = self.openapi_extra != NEEDS_NO_TOKEN
        queries = [one.field_info.annotation for one in self.dependant.query_params]
        self._query_names = {
            name for one in queries for name in cast(type[BaseModel], one).model_fields
        }
        self.responses |= may_be(*self._problems())
        if inspect.isclass(self.response_model) and issubclass(self.response_model, Versioned):
            self.responses[status] = {"headers": _ETAG}

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See `APIRoute`: the answer to a request, errors included."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handle(await self._admitted(request))
            except RequestValidationError as error:
                return invalid_request(error.errors()).response()
            except Exception as error:  # noqa: BLE001 - the last resort turns bugs into a logged 500
                problem = as_problem(error)
                if problem is None:
                    _log.exception("%s %s failed", request.method, request.url.path)
                    problem = internal_problem()
                return problem.response()

        return answer

    async def _admitted(self, request: Request) -> _Read:
        """The request with its body, of somebody who may ask. Raises what is no answer."""
        state = request.app.state
        request.state.operator = operator = await self._operator(request)
        read = _Read(request.scope, request.receive)
        if self.method != "GET":
            if self.needs_token:
                state.write_rate.count(operator.identity)
            read.content = await self._content(request, state.service.bounds.max_body_bytes)
            if operator.tenant is not None:
                # Who writes slowly may be held to a tenant that is another's by now.
                request.state.operator = await self._operator(request)
        self._check_query(request)
        if self.body_field is not None and (
            read.content or self.body_field.field_info.is_required()
        ):
            require_json(request)
        return read

    async def _content(self, request: Request, max_body_bytes: int) -> bytes:
        return await read_body(request, max_body_bytes)

    async def _operator(self, request: Request) -> Operator:
        """Who asks, and may. Raises `Problem`, `IssuerUnavailable` and `StoreUnavailable`."""
        if not self.needs_token:
            return _ANYBODY
        door: Door = request.app.state.door
        operator = await door.holder(bearer(request))
        if not operator.may(self.method, self.path, request.path_params.get("tenant")):
            raise forbidden(operator)
        return operator

    def _check_query(self, request: Request) -> None:
        names = [name for name, _ in request.query_params.multi_items()]
        for name in names:
            if name not in self._query_names:
                raise invalid(Complaint(field=name, detail="there is no such parameter"))
            if names.count(name) > 1:
                raise invalid(Complaint(field=name, detail="may be given once"))

    def _answering(self, handler: Handler, status: HTTPStatus) -> Callable[..., Any]:
        """The handler, whose result becomes a response; a write's is made once under its key."""
        signature = inspect.signature(handler, eval_str=True)
        parameters = list(signature.parameters.values())
        if self.method != "GET":
            for name, kind in (("asked", Request), ("idempotency_key", IdempotencyKey)):
                parameters.append(
                    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind)
                )

        async def answer(
            asked: Request | None = None, idempotency_key: str | None = None, **given: Any
        ) -> Response:
            async def perform() -> Response:
                return _response(await handler(**given), status)

            if asked is None or idempotency_key is None:
                return await perform()
            store = asked.app.state.service.stores.idempotency
            caller = asked.state.operator.identity
            return await once(store, caller, idempotency_key, asked, perform)

        functools.update_wrapper(answer, handler)
        answer.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return answer

    def _problems(self) -> Iterator[HTTPStatus]:
        """What may come instead of the answer."""
        yield HTTPStatus.SERVICE_UNAVAILABLE
        if self.needs_token:
            yield from (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
        if self.param_convertors:
            yield HTTPStatus.NOT_FOUND
        if self.method != "GET":
            yield from (HTTPStatus.CONFLICT, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            yield from (HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.TOO_MANY_REQUESTS)
        if self.method == "PATCH":
            yield HTTPStatus.PRECONDITION_FAILED
        if self._query_names:
            yield HTTPStatus.UNPROCESSABLE_ENTITY
        if self.body_field is not None:
            yield from (HTTPStatus.BAD_REQUEST, HTTPStatus.UNSUPPORTED_MEDIA_TYPE)


class StreamedRoute(AdminRoute):
    """An operation whose handler reads the body as it comes.

    Nobody has it when it is asked whether a write is the same as an earlier one under its key: then
    its length stands for it.
    """

    async def _content(self, request: Request, max_body_bytes: int) -> bytes:  # noqa: ARG002
        return request.headers.get("content-length", "").encode()

    def _problems(self) -> Iterator[HTTPStatus]:
        yield from super()._problems()
        yield from (HTTPStatus.BAD_REQUEST, HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
        yield HTTPStatus.REQUEST_TIMEOUT


class _Read(Request):
    """A request whose body has come; it is handed over as it came, to be parsed by its type."""

    content = b""

    async def body(self) -> bytes:
        """See `Request`."""
        return self.content

    async def json(self) -> bytes:
        """See `Request`."""
        return self.content


def _response(result: BaseModel | Response | None, status: HTTPStatus) -> Response:
    if result is None:
        return Response(status_code=status)
    if isinstance(result, Response):
        return result
    headers = {"etag": result.etag()} if isinstance(result, Versioned) else {}
    return json_response(result.model_dump_json().encode(), status, headers)
