"""Qwen3-Coder: a tag for the function and one for each parameter, whose value is not quoted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from app.generate.tool_formats.format import Format
from app.generate.tool_formats.json_calls import Call
from app.generate.tool_formats.source import Reading, Source

_CALL, _CALL_END = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"


def _read(source: Source) -> Reading[None]:
    while opened := (yield from source.text_until(_CALL, _FUNCTION)):
        if opened == _CALL:
            yield from source.skip_space()
            yield from source.take(_FUNCTION)
        name, _ = yield from source.until(">", "\n")
        if name not in source.functions:
            source.as_text()
            continue
        source.begin_call(name)
        yield from _read_parameters(source, source.functions[name])
        for marker in (_FUNCTION_END, _CALL_END):
            yield from source.skip_space()
            yield from source.take(marker)


def _read_parameters(source: Source, schema: Mapping[str, Any]) -> Reading[None]:
    separator = "{"
    while (yield from source.skip_space()) == "<":
        if not (yield from source.take(_PARAMETER)):
            break
        key, _ = yield from source.until(">")
        text, ended = yield from source.until(_PARAMETER_END)
        if not ended:
            return
        value = _value(text.removeprefix("\n").removesuffix("\n"), key, schema)
        source.emit("arguments", f"{separator}{json.dumps(key)}: {value}")
        separator = ", "
    source.emit("arguments", "{}" if separator == "{" else "}")


def _value(text: str, key: str, schema: Mapping[str, Any]) -> str:
    """A parameter's value as JSON: a string, unless the schema says something else of it."""
    properties = schema.get("properties")
    described = properties.get(key) if isinstance(properties, dict) else None
    kind = described.get("type") if isinstance(described, dict) else None
    if kind != "string":
        try:
            return json.dumps(json.loads(text), ensure_ascii=False, allow_nan=False)
        except (ValueError, RecursionError):
            pass
    return json.dumps(text, ensure_ascii=False)


def _write(calls: Sequence[Call]) -> str:
    return "\n".join(map(_written, calls))


def _written(call: Call) -> str:
    name, arguments = call
    parameters = (
        f"{_PARAMETER}{key}>\n{value if isinstance(value, str) else json.dumps(value)}\n"
        f"{_PARAMETER_END}\n"
        for key, value in arguments.items()
    )
    body = "".join(parameters)
    return f"{_CALL}\n{_FUNCTION}{name}>\n{body}{_FUNCTION_END}\n{_CALL_END}"


XML = Format(_read, _write, (_CALL, _CALL_END))
