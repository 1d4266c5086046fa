"""OpenAPI 3.1 out of pydantic types: what each operation takes and gives, in one document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Literal

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode

JsonObject = dict[str, Any]

_REFERENCES = "#/components/schemas/{model}"


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A part of the path, or a header; `type` is any type that pydantic knows."""

    name: str
    place: Literal["path", "header"]
    type: Any
    description: str


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One answer: what it means, its media types with their types, and headers of its own."""

    description: str
    content: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    """Header names, each with its description."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One method of one path."""

    name: str
    method: str
    path: str
    tag: str
    summary: str
    description: str
    replies: Mapping[HTTPStatus, Reply]
    parameters: Sequence[Parameter] = ()
    query: type[BaseModel] | None = None
    body: Any = None
    body_required: bool = True
    needs_token: bool = True

    def types(self) -> Iterator[tuple[JsonSchemaMode, Any]]:
        """Every type that needs a schema, as it is read (validation) or written."""
        if self.body is not None:
            yield "validation", self.body
        if self.query is not None:
            yield "validation", self.query
        for parameter in self.parameters:
            yield "validation", parameter.type
        for reply in self.replies.values():
            for content in reply.content.values():
                yield "serialization", content


def openapi_document(
    info: Mapping[str, str], server: str, tags: Mapping[str, str], operations: Sequence[Operation]
) -> JsonObject:
    """The document of `operations`, most of which want a bearer token.

    `info` holds `title`, `version` and `description`; `tags` the names of the operations' tags,
    each with a description; `server` is the path under which the operations lie.
    """
    schemas = _Schemas(operations)
    paths: dict[str, JsonObject] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(
            operation, schemas
        )
    return {
        "openapi": "3.1.0",
        "info": dict(info),
        "servers": [{"url": server}],
        "tags": [{"name": name, "description": text} for name, text in tags.items()],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": schemas.definitions,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


class _Untitled(GenerateJsonSchema):
    """Schemas whose fields have no titles: those would only repeat the names."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        """See `GenerateJsonSchema`."""
        return False


class _Schemas:
    """The JSON schemas of all types in the operations; named ones are defined once."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        wanted = dict.fromkeys(pair for operation in operations for pair in operation.types())
        self._found, definitions = TypeAdapter.json_schemas(
            [(number, mode, TypeAdapter(kind)) for number, (mode, kind) in enumerate(wanted)],
            ref_template=_REFERENCES,
            schema_generator=_Untitled,
        )
        self._numbers = {pair: number for number, pair in enumerate(wanted)}
        self.definitions: JsonObject = definitions.get("$defs", {})

    def of(self, kind: Any, mode: JsonSchemaMode) -> JsonObject:
        """The schema of one type, perhaps a reference."""
        return dict(self._found[(self._numbers[(mode, kind)], mode)])

    def properties(self, model: type[BaseModel]) -> dict[str, JsonObject]:
        """The schemas of a model's fields; its own definition is not needed by then."""
        schema = self.of(model, "validation")
        if "$ref" in schema:
            schema = self.definitions.pop(schema["$ref"].rpartition("/")[2])
            self._found[(self._numbers[("validation", model)], "validation")] = schema
        properties: dict[str, JsonObject] = schema["properties"]
        return properties


def _operation(operation: Operation, schemas: _Schemas) -> JsonObject:
    document: JsonObject = {
        "operationId": operation.name,
        "tags": [operation.tag],
        "summary": operation.summary,
        "responses": {
            str(int(status)): _reply(reply, schemas) for status, reply in operation.replies.items()
        },
    }
    if not operation.needs_token:
        document["security"] = []
    if operation.description:
        document["description"] = operation.description
    parameters = [*_parameters(operation, schemas), *_query_parameters(operation, schemas)]
    if parameters:
        document["parameters"] = parameters
    if operation.body is not None:
        document["requestBody"] = {
            "required": operation.body_required,
            "content": {"application/json": {"schema": schemas.of(operation.body, "validation")}},
        }
    return document


def _parameters(operation: Operation, schemas: _Schemas) -> Iterator[JsonObject]:
    for parameter in operation.parameters:
        yield {
            "name": parameter.name,
            "in": parameter.place,
            "required": parameter.place == "path",
            "description": parameter.description,
            "schema": schemas.of(parameter.type, "validation"),
        }


def _query_parameters(operation: Operation, schemas: _Schemas) -> Iterator[JsonObject]:
    if operation.query is None:
        return
    for name, schema in schemas.properties(operation.query).items():
        yield {
            "name": name,
            "in": "query",
            "required": False,
            "description": schema.get("description", ""),
            "schema": _without_null(schema),
        }


def _without_null(schema: JsonObject) -> JsonObject:
    """The schema of a field that is `None` when absent, for a place that has no null."""
    rest = {name: value for name, value in schema.items() if name != "description"}
    if "anyOf" not in rest:
        return rest
    (given,) = (one for one in rest["anyOf"] if one != {"type": "null"})
    return dict(given)


def _reply(reply: Reply, schemas: _Schemas) -> JsonObject:
    document: JsonObject = {"description": reply.description}
    if reply.content:
        document["content"] = {
            media_type: {"schema": schemas.of(kind, "serialization")}
            for media_type, kind in reply.content.items()
        }
    if reply.headers:
        document["headers"] = {
            name: {"description": text, "schema": {"type": "string"}}
            for name, text in reply.headers.items()
        }
    return document
