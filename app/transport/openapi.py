"""OpenAPI documents: what routes of FastAPI's say of themselves, told as it is here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter
from starlette.routing import BaseRoute

JsonObject = dict[str, Any]

_REFERENCE = "#/components/schemas/{model}"


def reference(name: str) -> JsonObject:
    """Content whose type is in the document under this name."""
    return {"schema": {"$ref": _REFERENCE.format(model=name)}}


def openapi_document(
    routes: Sequence[BaseRoute],
    *,
    tags: Mapping[str, str],
    security: str,
    types: Mapping[str, Any],
    **about: Any,
) -> JsonObject:
    """The document of `routes`, most of which want a bearer token, called `security`.

    `tags` are theirs, each with a description, `types` those that they refer to, by name, and
    `about` is the rest of what `get_openapi` takes.
    """
    described = [{"name": name, "description": text} for name, text in tags.items()]
    document = get_openapi(routes=routes, tags=described, **about)
    components = document["components"]
    components["schemas"] = _schemas(types) | components["schemas"]
    components["securitySchemes"] = {security: {"type": "http", "scheme": "bearer"}}
    for name in ("HTTPValidationError", "ValidationError"):
        # FastAPI's own way to refuse a field, which is not the one here.
        components["schemas"].pop(name, None)
    for operations in document["paths"].values():
        for operation in operations.values():
            if "application/json" in operation["responses"].get("422", {}).get("content", {}):
                del operation["responses"]["422"]
            for parameter in operation.get("parameters", []):
                parameter["schema"] = _given(parameter["schema"])
    return document | {"security": [{security: []}]}


def _schemas(types: Mapping[str, Any]) -> JsonObject:
    named = [(name, "serialization", TypeAdapter(kind)) for name, kind in types.items()]
    found, more = TypeAdapter.json_schemas(named, ref_template=_REFERENCE)  # type: ignore[arg-type]
    # What is a model is among its own definitions already.
    definitions: JsonObject = more.get("$defs", {})
    return {str(name): schema for (name, _), schema in found.items()} | definitions


def _given(schema: JsonObject) -> JsonObject:
    """The schema of a parameter that is given: one that is absent has no null."""
    kinds = schema.pop("anyOf", [])
    schema.pop("description", None)
    given: JsonObject = next((one for one in kinds if one != {"type": "null"}), {})
    return schema | given
