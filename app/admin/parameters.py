"""What handlers ask for: who asks, the service, parts of the path, bodies, and what they expect."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, TypeVar

from fastapi import Body, Depends, Header, Path, Query, Request
from pydantic import (
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    StringConstraints,
    TypeAdapter,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from app.admin.documents import Id, PromptName, Versioned
from app.admin.door import Door
from app.admin.problems import Problem
from app.admin.token import Operator
from app.context import Service

Sent = TypeVar("Sent")
_KeyId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")]


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def _door(request: Request) -> Door:
    door: Door = request.app.state.door
    return door


async def _operator(request: Request) -> Operator:
    operator: Operator = request.state.operator
    return operator


async def _coming(request: Request) -> Request:
    return request


Served = Annotated[Service, Depends(_service)]
Entry = Annotated[Door, Depends(_door)]
Asking = Annotated[Operator, Depends(_operator)]
"""Who asks, and may: their route has made sure. The audit names them."""
Coming = Annotated[Request, Depends(_coming)]
"""The request, whose body is yet to be read: of a `StreamedRoute`."""


def _described_as(kind: Any) -> WithJsonSchema:
    """Nothing is refused for its form: what has another one is not there."""
    return WithJsonSchema(TypeAdapter(kind).json_schema())


TenantId = Annotated[str, Path(description="A tenant's id."), _described_as(Id)]
GroupId = Annotated[str, Path(description="A share group's id."), _described_as(Id)]
NameInPath = Annotated[str, Path(description="A system prompt's name."), _described_as(PromptName)]
AdapterInPath = Annotated[str, Path(description="An adapter's name."), _described_as(PromptName)]
KeyInPath = Annotated[
    str,
    Path(description="An API key's id: what stands between 'pw_' and the dot."),
    _described_as(_KeyId),
]
TokenInPath = Annotated[
    str,
    Path(description="An admin token's id: what stands between 'pwadmin_' and the dot."),
    _described_as(_KeyId),
]


class _FromJson:
    """Bytes in the place of what they say: they are read and checked in one go."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.json_schema(handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        described: JsonSchemaValue = handler(schema)["contentSchema"]
        return described


InBody = Annotated[Sent, Body(), _FromJson()]
InQuery = Annotated[Sent, Query()]


@dataclass(frozen=True)
class Expected:
    """The states that the sender of a patch expects, `*` for any; `None` is whatever is there."""

    etags: frozenset[str] | None

    def require(self, current: Versioned) -> None:
        """Raises `Problem` 412 where another state is there."""
        if self.etags is not None and not self.etags & {"*", current.etag()}:
            raise Problem(
                HTTPStatus.PRECONDITION_FAILED,
                f"It has changed: its ETag is {current.etag()} now.",
                code="changed_meanwhile",
                headers={"etag": current.etag()},
            )


async def _expected(
    if_match: Annotated[
        str | None,
        Header(
            alias="If-Match",
            description="The ETag of a read, or '*': 412 where something has changed since.",
        ),
        WithJsonSchema({"type": "string"}),
    ] = None,
) -> Expected:
    if if_match is None:
        return Expected(None)
    return Expected(frozenset(part.strip() for part in if_match.split(",")))


IfMatch = Annotated[Expected, Depends(_expected)]
