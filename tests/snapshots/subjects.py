"""The subjects of the snapshots, each as a document of JSON."""

from __future__ import annotations

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import httpx
import typer
from pydantic import TypeAdapter
from starlette.applications import Starlette
from starlette.routing import Route

from app.admin.door import Door
from app.assembly.service import create_admin_app
from app.cli.program import app as program
from app.routes.openapi import described
from app.routes.table import tenant_routes
from app.settings import Settings, env_name, option_name
from app.wire.common import Wire
from app.wire.events import Sent
from tests.deploy.test_monitoring import told_metrics
from tests.snapshots.greedy import greedy_tokens

FOLDER = Path(__file__).parent


def path_of(name: str) -> Path:
    """Where the snapshot of a subject is."""
    return FOLDER / f"{name}.json"


def text_of(name: str) -> str:
    """The document of a subject as its snapshot has it."""
    document = _without("title", SUBJECTS[name]())
    text = json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False, default=str)
    return text.replace(str(Path.home()), "~") + "\n"


def _without(word: str, document: Any) -> Any:
    """Without what schemas have under this word: titles only say a name again."""
    if isinstance(document, dict):
        return {
            key: _without(word, value)
            for key, value in document.items()
            if key != word or not isinstance(value, str)
        }
    return [_without(word, one) for one in document] if isinstance(document, list) else document


def admin() -> Any:
    """The OpenAPI document of `/admin`."""
    return _openapi(create_admin_app(Mock(), Door(None, Mock())), "/admin/openapi.json")


def public() -> Any:
    """That of the tenants' port, but for the schemas, which are the wire's."""
    document = _openapi(Starlette(routes=tenant_routes()), "/openapi.json")
    del document["components"]
    return document


def _openapi(app: Starlette, path: str) -> Any:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
            return await client.get(path)

    document = asyncio.run(ask()).json(parse_float=_number, object_hook=_told)
    for operations in document["paths"].values():
        for operation in operations.values():
            operation.get("parameters", []).sort(key=lambda one: (one["in"], one["name"]))
    for schema in document["components"]["schemas"].values():
        schema.get("required", []).sort()
    return document


def _number(text: str) -> float:
    """JSON knows one kind of number."""
    number = float(text)
    return int(number) if number.is_integer() else number


def _told(members: dict[str, Any]) -> dict[str, Any]:
    """Without a default that is null, as that of all that may be left out is."""
    return {name: one for name, one in members.items() if (name, one) != ("default", None)}


def public_routes() -> Any:
    """What the tenants' port serves: the methods of each path."""
    methods = defaultdict(set)
    for route in tenant_routes():
        path = cast(str, route.path)  # type: ignore[attr-defined]
        methods[path] |= (route.methods or set()) if isinstance(route, Route) else {"WEBSOCKET"}
    return {path: sorted(names) for path, names in methods.items()}


def wire() -> Any:
    """The schemas of all that is read and sent at `/v1`, by name."""
    models = [*_heirs(Wire), *map(described, _heirs(Sent))]
    asked = [(number, "validation", TypeAdapter(one)) for number, one in enumerate(models)]
    _, document = TypeAdapter.json_schemas(asked)  # type: ignore[arg-type]
    schemas = _without("description", document["$defs"])
    alike = defaultdict(list)
    for name in schemas:  # with its module, where two have one name
        alike[name.rpartition("__")[2]].append(name)
    text = json.dumps(schemas)
    for name, several in alike.items():
        several.sort(key=lambda one: json.dumps(schemas[one], sort_keys=True))
        for number, one in enumerate(several if len(several) > 1 else ()):
            text = text.replace(one, f"{name}.{number}")
    return json.loads(text)


def _heirs(kind: type) -> Iterator[type]:
    for heir in kind.__subclasses__():
        if not heir.__module__.startswith("tests.") and not heir.__name__.startswith("_"):
            yield heir
        yield from _heirs(heir)


def metrics() -> Any:
    """Names, types and labels of what a scrape is told, with what is said of them."""
    return {
        family.name: {
            "type": family.type,
            "help": family.documentation,
            "samples": {one.name: sorted(one.labels) for one in family.samples},
        }
        for family in told_metrics().registry.collect()
        if family.name.startswith("partywall_")
    }


def commands() -> Any:
    """Every command, with its arguments and options."""
    return dict(_commands("partywall", typer.main.get_command(program)))


def _commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    told = {"help": command.help, "hidden": command.hidden}
    yield name, told | {"parameters": [_parameter(one) for one in command.params]}
    for own, inner in getattr(command, "commands", {}).items():
        yield from _commands(f"{name} {own}", inner)


def _parameter(parameter: Any) -> Any:
    kind = parameter.type_descriptor.annotation
    names = ("opts", "secondary_opts", "required", "default", "help", "metavar", "hidden")
    names += ("envvar", "multiple", "nargs", "min", "max")
    told = {name: getattr(parameter, name) for name in names}
    told["type"] = kind.__name__ if isinstance(kind, type) else re.sub(r"\b\w+\.", "", str(kind))
    return {name: value for name, value in told.items() if value not in (None, False, [])}


def settings() -> Any:
    """Every setting: its names, type, default and range, and what is said of it."""
    fields = Settings.model_fields
    return {
        name: schema
        | {
            "environment": env_name(name),
            "option": option_name(name),
            "default": fields[name].get_default(call_default_factory=True),
        }
        for name, schema in Settings.model_json_schema()["properties"].items()
    }


SUBJECTS: Mapping[str, Callable[[], Any]] = {
    "admin": admin,
    "commands": commands,
    "greedy": greedy_tokens,
    "metrics": metrics,
    "public": public,
    "public_routes": public_routes,
    "settings": settings,
    "wire": wire,
}
