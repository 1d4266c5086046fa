"""Qwen3-Coder: a tag for the function and one for each parameter, whose value is not quoted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from app.formats.tools.format import (
    Block,
    Blocks,
    Format,
    Member,
    Shape,
    Unwritable,
    Writer,
    allows_only,
    as_object,
    texts_of,
)
from app.formats.tools.json_calls import Call, read_value
from app.formats.tools.source import Reading, Source
from engine.grammar.lark import ANY_TEXT, lacking, literal, regex

_CALL, _CALL_END = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_OF_TEXTS = ("type", "enum", "const", "minLength", "maxLength", "pattern")
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"
_RAW_FRAME = f"\n{_PARAMETER}input>\n"
"""What stands between a name's tag and a text that is written as it is."""


def _read(source: Source) -> Reading[None]:
    while opened := (yield from source.text_until(_CALL, _FUNCTION)):
        if opened == _CALL:
            yield from source.skip_space()
            yield from source.take(_FUNCTION)
        name, _ = yield from source.until(">", "\n")
        if name in source.raws and (yield from source.raw_call(name, _RAW_FRAME)):
            return
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
        described = as_object(schema.get("properties")).get(key)
        is_text = as_object(described).get("type") == "string"
        taken: list[str] = []
        if described is not None and not is_text:
            yield from source.skip_space()
            yield from read_value(source, taken.append)  # it may have a marker in a string
        text, ended = yield from source.until(_PARAMETER_END)
        if not ended:
            return
        value = _value("".join(taken) + text.removesuffix("\n"), is_text)
        source.emit("arguments", f"{separator}{json.dumps(key)}: {value}")
        separator = ", "
    if source.is_cut:
        source.drop()  # another parameter may have begun
    else:
        source.emit("arguments", "{}" if separator == "{" else "}")


def _value(text: str, is_text: bool) -> str:
    """A parameter's value as JSON: a text, unless the schema says something else of it."""
    if not is_text:
        try:
            # As it is written: what floats cannot hold is a number all the same.
            json.loads(text, parse_float=str, parse_int=str, parse_constant=_refuse)
            return text.strip()
        except (ValueError, RecursionError):
            pass
    return json.dumps(text.removeprefix("\n"), ensure_ascii=False)


def _refuse(name: str) -> None:
    raise ValueError(name)


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


def _blocks(writer: Writer) -> Blocks:
    def calls() -> str:
        opening, closing = writer.marker(_CALL), writer.marker(_CALL_END)
        one = writer.some(lambda shape: _function(writer, shape, _FUNCTION))
        return writer.list(f'"\\n" {one} "\\n" {closing}', rf'"\n" {opening}')

    def bare() -> str:
        return writer.some(lambda shape: _function(writer, shape, ""))

    def frame(name: str) -> str:
        return literal(f"{name}>{_RAW_FRAME}")

    def marked_frame(name: str) -> str:
        return rf'"\n" {literal(f"{_FUNCTION}{name}>{_RAW_FRAME}")}'

    return Blocks(
        [
            Block(_CALL, writer.or_raw(calls, marked_frame)),
            Block(_FUNCTION, writer.or_raw(bare, frame), usual=False),
        ]
    )


def _function(writer: Writer, shape: Shape, before: str) -> str:
    parameters = (
        f"({_parameter(writer, member, shape.strict)}){'' if member.required else '?'}"
        for member in shape.members(lambda name: ">" not in name)
    )
    start = literal(f"{before}{shape.name}>\n")
    return " ".join([start, *parameters, literal(_FUNCTION_END)])


def _parameter(writer: Writer, member: Member, strict: bool) -> str:
    schema, end = member.schema, f"\n{_PARAMETER_END}"
    if schema.get("type") == "string":
        value = _text(writer, schema, strict, end)
    else:
        value = f"{writer.json(schema, strict=strict)} {literal(end)}"
    return rf'{literal(f"{_PARAMETER}{member.key}>{chr(10)}")} {value} "\n"'


def _text(writer: Writer, schema: Mapping[str, Any], strict: bool, end: str) -> str:
    """A text as it is, and its end. Raises `Unwritable`."""
    if strict and not allows_only(schema, _OF_TEXTS):
        raise Unwritable(f"this model's calls cannot hold a text to {sorted(schema)}")
    texts = [schema["const"]] if "const" in schema else schema.get("enum")
    if texts is not None:
        if _PARAMETER_END in str(texts) or texts_of(texts) != texts:
            raise Unwritable("this model's calls cannot have such an 'enum'")
        return f"({' | '.join(map(literal, texts))}) {literal(end)}"
    held = []
    if schema.keys() & {"minLength", "maxLength"}:
        least, most = schema.get("minLength", 0), schema.get("maxLength", "")
        held.append(regex(f"(?s:.{{{least},{most}}})"))
    if "pattern" in schema:
        held.append(regex(_found(str(schema["pattern"]))))
    if not held:
        return writer.lazy(f"{ANY_TEXT} {literal(_PARAMETER_END)}")
    return writer.lazy(f"({' & '.join([*held, lacking(_PARAMETER_END)])}) {literal(end)}")


def _found(pattern: str) -> str:
    """A text in which a pattern of a schema is found. Raises `Unwritable`."""
    from_start, to_end = pattern.startswith("^"), pattern.endswith("$")
    inner = pattern[from_start : len(pattern) - to_end]
    if (from_start or to_end) and ("|" in inner or inner.endswith("\\")):
        raise Unwritable(f"this model's calls cannot be held to the pattern '{pattern}'")
    anything = "(?s:.*)"
    return f"{'' if from_start else anything}(?:{inner}){'' if to_end else anything}"


XML = Format(_read, _write, (_CALL, _CALL_END), _blocks)
