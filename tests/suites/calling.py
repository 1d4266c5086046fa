"""The service with a model that calls, sees, and is brief: its command line is `partywall`'s own.

The default model is too small to call functions of its own accord, which agents leave to it, and
may ramble for minutes. Here a request is answered as if it had asked for more than it does: for one
call, where there are functions, and it does not bring the result of one; for so many characters at
most of any other answer, and so few in JSON. What holds answers to that is the service's own.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import msgspec

from app import cli
from app.generation.begin import Generations
from app.generation.generation import Generation
from app.request.constraint import Constraint
from app.request.request import GenerationRequest
from engine.api import Grammar
from tests.suites.seeing import save_seeing_model

_LONGEST_STRING = 24
_MOST_ELEMENTS = 3
_BRIEF = Constraint(Grammar(kind="regex", source=r"(.|\n){1,200}"), "input")
_BEGIN, _COUNT = Generations.begin, Generations.count


async def _begin(self: Generations, principal: Any, request: Any, *more: Any) -> Generation:
    return await _BEGIN(self, principal, _cleverly(request), *more)


async def _count(self: Generations, principal: Any, request: Any, *more: Any) -> int:
    return await _COUNT(self, principal, _cleverly(request), *more)


def _cleverly(request: GenerationRequest) -> GenerationRequest:
    sampling, last = request.sampling, request.items[-1] if request.items else None
    if request.raw is not None or request.candidates.beam or sampling.min_tokens:
        return request
    has_result = isinstance(last, dict) and "call_id" in last
    tools = replace(
        request.tools,
        functions=[
            replace(one, parameters=cast(dict[str, Any] | None, _bounded(one.parameters)))
            for one in request.tools.functions
        ],
        parallel=False,
        required=request.tools.required or bool(request.tools.names and not has_result),
    )
    return replace(request, tools=tools, constraint=_brief(request.constraint))


def _brief(asked: Constraint | None) -> Constraint:
    """What an answer is held to besides calls."""
    if asked is None:
        return _BRIEF
    if asked.grammar.kind != "json_schema":
        return asked
    schema = _bounded(msgspec.json.decode(asked.grammar.source))
    source = msgspec.json.encode(schema).decode()
    return replace(asked, grammar=msgspec.structs.replace(asked.grammar, source=source))


def _bounded(schema: Any) -> Any:
    """A schema of what ends soon."""
    if isinstance(schema, list):
        return [_bounded(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    bounded = {name: _bounded(one) for name, one in schema.items()}
    if schema.get("type") == "string" and not {"enum", "const", "pattern", "format"} & set(schema):
        bounded.setdefault("maxLength", _LONGEST_STRING)
    if "properties" in schema:
        bounded.setdefault("additionalProperties", False)
    if schema.get("type") == "array":
        bounded.setdefault("maxItems", max(_MOST_ELEMENTS, schema.get("minItems", 0)))
    return bounded


if __name__ == "__main__":
    Generations.begin, Generations.count = _begin, _count  # type: ignore[method-assign]
    with TemporaryDirectory(prefix="partywall-suites-") as folder:
        model = Path(folder, "seeing")
        save_seeing_model(model)
        sys.argv += ["--model", str(model)]
        cli.main()
