"""Llama 3.2 and 4: an answer that is a list of calls as Python writes them, `[f(a=1), g()]`."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from functools import partial
from keyword import iskeyword
from typing import Any

from app.formats.tools.format import Block, Blocks, Format, Shape, Writer, joined
from app.formats.tools.json_calls import Call
from app.formats.tools.source import Reading, Source
from engine.grammar.lark import ANY_TEXT, literal

_START, _END = "<|python_start|>", "<|python_end|>"
_BEGUN = re.compile(rf"\s*(?:{re.escape(_START)})?\s*[\[,]\s*([\w.-]*)")
_PLAIN = re.compile(r"[^\"'()\[\]{}]*")
_QUOTED = {quote: re.compile(rf"[^{quote}\\]*") for quote in "\"'"}
_COMMA = '", "'
_RAW_FRAME = ")]\n"
"""What stands between a name's parenthesis and a text that is written as it is."""
_CONSTANTS = {"true": True, "false": False, "null": None}


def _read(source: Source) -> Reading[None]:
    source.mark()
    yield from source.skip_space()
    yield from source.take(_START)
    yield from _read_list(source)
    while (yield from source.text_until(_START)):
        yield from _read_list(source)


def _read_list(source: Source) -> Reading[None]:
    yield from source.skip_space()
    if (yield from source.take("[")):
        while (yield from _read_call(source)):
            source.mark()
            yield from source.skip_space()
            if not (yield from source.take(",")):
                yield from source.take("]")
                yield from source.take(_END)
                return
            yield from source.skip_space()
    source.as_text_unless(_BEGUN)


def _read_call(source: Source) -> Reading[bool]:
    name = yield from source.name()
    if name not in source.functions or not (yield from source.take("(")):
        return False
    if name in source.raws:
        return (yield from source.raw_call(name, _RAW_FRAME))
    text = yield from _inside(source)
    arguments = None if text is None else _arguments(text)
    if arguments is None and not source.is_cut:
        return False
    source.begin_call(name)
    source.emit("arguments", arguments or "")
    return True


def _inside(source: Source) -> Reading[str | None]:
    """What stands up to the parenthesis that matches the one before; `None` without that."""
    taken: list[str] = []
    depth = 0
    while character := (yield from source.peek()):
        if character in _QUOTED:
            taken.append((yield from _quoted(source, character)))
        elif character not in "()[]{}":
            taken.append(source.some(_PLAIN))
        else:
            yield from source.take(character)
            if character in ")]}" and depth == 0:
                return "".join(taken) if character == ")" else None
            depth += 1 if character in "([{" else -1
            taken.append(character)
    return None


def _quoted(source: Source, quote: str) -> Reading[str]:
    taken = [(yield from source.take(quote))]
    while character := (yield from source.peek()):
        if character == quote:
            taken.append((yield from source.take(quote)))
            break
        if character == "\\":
            taken.append((yield from source.take("\\")))
            taken.append((yield from source.take((yield from source.peek()))))
        else:
            taken.append(source.some(_QUOTED[quote]))
    return "".join(taken)


def _arguments(text: str) -> str | None:
    """What stands between the parentheses as a JSON object; `None` for what is no list of them."""
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            return None
        values = {one.arg: _value(one.value) for one in call.keywords if one.arg is not None}
        return json.dumps(values, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr) -> Any:
    """A literal's value, as Python or JSON spells it. Raises `ValueError` for anything else."""
    if isinstance(node, ast.Name) and node.id in _CONSTANTS:
        return _CONSTANTS[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(one) for one in node.elts]
    if isinstance(node, ast.Dict):
        keys = [ast.literal_eval(key) if key is not None else None for key in node.keys]
        return dict(zip(keys, map(_value, node.values), strict=True))
    return ast.literal_eval(node)


def _write(calls: Sequence[Call]) -> str:
    each = (
        f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
        for name, arguments in calls
    )
    return f"[{', '.join(each)}]"


def _blocks(writer: Writer) -> Blocks:
    """Values are JSON, which Python reads as its own, but for three names."""
    calls = partial(_calls, writer)
    end = f"{writer.marker(_END)}?" if _END in writer.tokens else ""
    ended = writer.or_raw(lambda: f"{calls()} {end}", _raw_frame)
    names = "|".join(re.escape(shape.name) for shape in writer.shapes)
    text = rf"{ANY_TEXT} & ~/\s*\[({names})\((?s:.*)/"
    return Blocks([Block("", writer.or_raw(calls, _raw_frame)), Block(_START, ended)], text)


def _raw_frame(name: str) -> str:
    return literal(f"[{name}({_RAW_FRAME}")


def _calls(writer: Writer) -> str:
    more = writer.more(f'", " {writer.some(partial(_call, writer))}')
    # One terminal up to the parenthesis: what is text tells itself from a call no sooner.
    return f'{writer.some(lambda shape: _call(writer, shape, "["))} {more} "]"'


def _call(writer: Writer, shape: Shape, before: str = "") -> str:
    arguments = []
    for one in shape.members(_is_argument):
        value = writer.json(one.schema, strict=shape.strict)
        arguments.append((f"{literal(one.key + '=')} {value}", one.required))
    return f'{literal(f"{before}{shape.name}(")} {joined(writer, arguments, _COMMA)} ")"'


def _is_argument(name: str) -> bool:
    return name.isidentifier() and not iskeyword(name)


PYTHONIC = Format(_read, _write, (_START, _END), _blocks)
