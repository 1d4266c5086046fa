"""From a handler's annotations to an endpoint: what it takes and gives, checked and documented."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Any, get_args, get_type_hints

from pydantic import StringConstraints, TypeAdapter
from starlette.responses import Response

from app.admin.documents import Id, PromptName, Versioned
from app.admin.endpoint import Endpoint, Handler
from app.admin.headers import IDEMPOTENCY_KEY, IF_MATCH
from app.admin.openapi import Operation, Parameter, Reply
from app.admin.problems import MEDIA_TYPE, ProblemDocument

KeyId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")]
_PATH_PARAMETERS: Mapping[str, tuple[Any, str]] = {
    "tenant": (Id, "A tenant's id."),
    "group": (Id, "A share group's id."),
    "key": (KeyId, "An API key's id: what stands between 'pw_' and the dot."),
    "token": (KeyId, "An admin token's id: what stands between 'pwadmin_' and the dot."),
    "name": (PromptName, "A system prompt's name."),
}
_JSON = "application/json"
_OF_TOKENS = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


def endpoint(
    method: str,
    path: str,
    tag: str,
    *,
    name: str | None = None,
    status: HTTPStatus = HTTPStatus.OK,
    body_required: bool = True,
    needs_token: bool = True,
    other_content: Mapping[str, Any] | None = None,
    other_problems: Sequence[HTTPStatus] = (),
) -> Callable[[Handler], Endpoint]:
    """Declare a handler, `async def handler(call: Call[Body, Query]) -> Answer`, for a path.

    `Body` is any type that pydantic reads from JSON, `Query` a model of the query's parameters,
    either is `None` where there is nothing to take; `Answer` is a model, or `None` for no content.
    A handler that answers in media types besides JSON names them and their types in
    `other_content`, and makes these responses itself; where it has no JSON, its `Answer` is a
    `Response`. Problems that not every such handler may have are `other_problems`.
    """

    def declare(handler: Handler) -> Endpoint:
        hints = get_type_hints(handler, include_extras=True)
        body, query = get_args(hints["call"])
        answer = hints["return"]
        if other_content:
            answers = get_args(answer) or (answer,)
            models = [one for one in answers if not issubclass(one, Response)]
            answer = models[0] if models else type(None)
        summary, _, description = inspect.cleandoc(handler.__doc__ or "").partition("\n\n")
        operation = Operation(
            name=name or handler.__name__,
            method=method,
            path=path,
            tag=tag,
            summary=summary.removesuffix("."),
            description=description,
            parameters=_parameters(method, path),
            query=None if query is type(None) else query,
            body=None if body is type(None) else body,
            body_required=body_required,
            needs_token=needs_token,
            replies={
                **_replies(method, path, status, answer, other_content or {}, body, query),
                **_problems((*_OF_TOKENS, *other_problems) if needs_token else other_problems),
            },
        )
        adapter = None if operation.body is None else TypeAdapter(body)
        return Endpoint(operation=operation, handler=handler, status=status, body=adapter)

    return declare


def _parameters(method: str, path: str) -> list[Parameter]:
    parameters = []
    for name in re.findall(r"{(\w+)}", path):
        kind, description = _PATH_PARAMETERS[name]
        parameters.append(Parameter(name=name, place="path", type=kind, description=description))
    if method != "GET":
        parameters.append(IDEMPOTENCY_KEY)
    if method == "PATCH":
        parameters.append(IF_MATCH)
    return parameters


def _replies(
    method: str,
    path: str,
    status: HTTPStatus,
    answer: Any,
    other_content: Mapping[str, Any],
    body: Any,
    query: Any,
) -> dict[HTTPStatus, Reply]:
    """The documented answers: the one that is asked for, and whatever problem may come instead."""
    content = {} if answer is type(None) else {_JSON: answer}
    is_versioned = isinstance(answer, type) and issubclass(answer, Versioned)
    replies = {
        status: Reply(
            description=status.phrase,
            content={**content, **other_content},
            headers={"ETag": "Names this state of it."} if is_versioned else {},
        )
    }
    problems = [HTTPStatus.SERVICE_UNAVAILABLE]
    if "{" in path:
        problems.append(HTTPStatus.NOT_FOUND)
    if method != "GET":
        problems += [
            HTTPStatus.CONFLICT,
            HTTPStatus.UNPROCESSABLE_ENTITY,
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            HTTPStatus.TOO_MANY_REQUESTS,
        ]
    if method == "PATCH":
        problems.append(HTTPStatus.PRECONDITION_FAILED)
    if query is not type(None):
        problems.append(HTTPStatus.UNPROCESSABLE_ENTITY)
    if body is not type(None):
        problems += [HTTPStatus.BAD_REQUEST, HTTPStatus.UNSUPPORTED_MEDIA_TYPE]
    return replies | _problems(sorted(set(problems)))


def _problems(statuses: Iterable[HTTPStatus]) -> dict[HTTPStatus, Reply]:
    content = {MEDIA_TYPE: ProblemDocument}
    return {status: Reply(description=status.phrase, content=content) for status in statuses}
