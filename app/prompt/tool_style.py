"""How a model is told of functions, calls and results: by its own chat template, or in our words.

What a template does is found by trying it: a call is rendered through it, and each format of calls
is tried on what it has written.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import takewhile
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from app.formats.tools.format import Format
from app.formats.tools.formats import FORMATS, ToolFormat
from app.formats.tools.json_calls import Call
from app.formats.tools.parser import ToolParser
from app.prompt.plain_text import Mark, marked, marked_json
from app.wire.bounded_json import decode_json, is_too_deep
from app.wire.errors import ApiError, invalid_request
from app.wire.functions import Function, FunctionCall, Message, Tools, pictures_in, plain

REFUSALS = (TemplateError, TypeError, ValueError, KeyError)
"""What templates raise for messages that they were not written for."""
_TRIED: Call = ("tried_function", {"tried_parameter": "tried value"})
_TRIED_ID = "tried0000"
_FUNCTION = Function(_TRIED[0], "It is tried.", {"type": "object", "properties": {}})


@dataclass(frozen=True)
class ToolStyle:
    """How functions reach a model, and how it calls them.

    With `native` the chat template writes functions, calls and results; it wants arguments as
    objects, or as JSON where they are `texts`. One that does not write calls has them in an
    assistant's text. `form` is how the model's calls are read; `None` for a template whose calls
    are in no known format. Where the template knows no functions and `takes_system` messages
    neither, the first message tells of them.
    """

    native: bool
    form: Format | None
    texts: bool = False
    writes_calls: bool = True
    takes_system: bool = True

    def check(self) -> None:
        """Raise `ApiError` where the model's calls cannot be read."""
        if self.form is None:
            message = "This model writes calls in no format that is known: see --tool-format."
            raise invalid_request(message, "tools", "unsupported_value")

    def reader(self, tools: Tools) -> ToolParser | None:
        """What reads one answer; `None` for an answer that is all text."""
        if self.form is None or not tools.names:
            return None
        return ToolParser(
            self.form, tools.schemas, tools.parallel, tools.required, tools.texts, tools.raws
        )

    @property
    def markers(self) -> Sequence[str]:
        """Special tokens that answers are read by."""
        return () if self.form is None else self.form.markers

    def rendered(
        self, messages: Sequence[Message], functions: Sequence[Function], mark: Mark
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
        """Messages and functions as the template takes them, all that people wrote marked."""
        if not self.native:
            messages, functions = self._told(messages, functions), ()
        elif not self.writes_calls:
            messages = [self._with_calls_in_text(message) for message in messages]
        names = {call.id: call.name for one in messages for call in one.get("calls", ())}
        return (
            [self._message(one, names, mark) for one in messages],
            [marked_json(one.described, mark) for one in functions] or None,
        )

    def _message(self, message: Message, names: dict[str, str], mark: Mark) -> dict[str, Any]:
        out = marked(message, mark)
        if message.get("calls"):
            out["tool_calls"] = [self._call(one, mark) for one in message["calls"]]
        if "call_id" in message:
            out["tool_call_id"] = _short_id(message["call_id"])
            out["name"] = mark(names.get(message["call_id"], ""), "tool")
        return out

    def _call(self, call: FunctionCall, mark: Mark) -> dict[str, Any]:
        arguments = call.arguments if self.texts else _arguments(call)
        function = {"name": mark(call.name, "tool"), "arguments": marked_json(arguments, mark)}
        return {"id": _short_id(call.id), "type": "function", "function": function}

    def _told(self, messages: Sequence[Message], functions: Sequence[Function]) -> list[Message]:
        """Messages that are text alone, for a template that knows no functions."""
        told: list[Message] = []
        after_result = False
        for message in messages:
            message = self._with_calls_in_text(message)
            role, text = message["role"], message["content"]
            is_result = role == "tool"
            if is_result:
                role, text = "user", f"<tool_response>\n{text}\n</tool_response>"
            if is_result and after_result:
                told[-1]["content"] += f"\n{text}"
                if pictures := pictures_in([told[-1], message]):
                    told[-1]["pictures"] = pictures
            else:
                told.append({**message, "role": role, "content": text})
                told[-1].pop("call_id", None)
            after_result = is_result
        return self._instructed(told, functions) if functions else told

    def _instructed(self, messages: list[Message], functions: Sequence[Function]) -> list[Message]:
        assert self.form is not None
        signatures = "\n".join(
            json.dumps(function.described, ensure_ascii=False) for function in functions
        )
        example = self.form.write([("function-name", {"parameter-name": "value"})])
        text = (
            "You may call one or more functions to assist with the user query.\n\n"
            "You are provided with function signatures within <tools></tools> XML tags:\n"
            f"<tools>\n{signatures}\n</tools>\n\n"
            "To call a function, write its name and its arguments exactly like this:\n"
            f"{example}\n\n"
            "The result of a call follows within <tool_response></tool_response> XML tags."
        )
        first = messages[0] if messages else None
        if first is not None and first["role"] == "system":
            system = first["content"]
            return [{"role": "system", "content": f"{system}\n\n{text}"}, *messages[1:]]
        if first is not None and not self.takes_system:
            return [{**first, "content": f"{plain(text)}\n\n{first['content']}"}, *messages[1:]]
        return [{"role": "system", "content": text}, *messages]

    def _with_calls_in_text(self, message: Message) -> Message:
        if not message.get("calls"):
            return message
        assert self.form is not None
        written = self.form.write([(call.name, _object(call)) for call in message["calls"]])
        text = "\n".join(filter(None, [message["content"], written]))
        message = {**message, "content": text}
        del message["calls"]
        return message


def tool_style(tokenizer: PreTrainedTokenizerBase, name: ToolFormat) -> ToolStyle:
    """How a tokenizer's template takes functions; `name` says how calls are written, or `auto`."""
    given = None if name == "auto" else FORMATS[name]
    for texts in (False, True):
        tried = _tried(tokenizer, ToolStyle(native=True, form=None, texts=texts))
        if tried is not None and tried.knows_calls:
            return ToolStyle(native=True, form=given or _form_of(tried.answers), texts=texts)
        if tried is not None:
            form = given or _form_spoken_of(str(tokenizer.chat_template))
            if form is not None:
                return ToolStyle(native=True, form=form, writes_calls=False)
    takes_system = _takes_system(tokenizer)
    return ToolStyle(native=False, form=given or FORMATS["hermes"], takes_system=takes_system)


@dataclass(frozen=True)
class _Tried:
    """A call as a template writes it, if it does: the texts that may be the answer."""

    knows_calls: bool
    answers: Sequence[str]


def _tried(tokenizer: PreTrainedTokenizerBase, style: ToolStyle) -> _Tried | None:
    """What a template makes of a call; `None` for one that knows no functions, or no results."""
    call = FunctionCall(_TRIED_ID, _TRIED[0], json.dumps(_TRIED[1]))
    asked: list[Message] = [{"role": "user", "content": "tried question"}]
    called: list[Message] = [*asked, {"role": "assistant", "content": "", "calls": [call]}]
    result: Message = {"role": "tool", "content": "tried result", "call_id": _TRIED_ID}

    def render(messages: list[Message], prompting: bool) -> str:
        given, functions = style.rendered(messages, [_FUNCTION], lambda text, _: text)
        return str(
            tokenizer.apply_chat_template(
                given, tools=functions, tokenize=False, add_generation_prompt=prompting
            )
        )

    try:
        before, after = render(asked, prompting=True), render(called, prompting=False)
        answered = render([*called, result], prompting=True)
    except REFUSALS:
        return None
    if _TRIED[0] not in before or result["content"] not in answered:
        return None
    common = sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False))
    )
    answers = [after[common:], after.rpartition(asked[0]["content"])[2]]
    return _Tried("tried_parameter" in after, answers)


def _takes_system(tokenizer: PreTrainedTokenizerBase) -> bool:
    messages = [{"role": "system", "content": "."}, {"role": "user", "content": "."}]
    try:
        tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except REFUSALS:
        return False
    return True


def _form_spoken_of(template: str) -> Format | None:
    """The format that a template tells the model to call in."""
    spoken = (form for form in FORMATS.values() if any(one in template for one in form.markers))
    return next(spoken, None)


def _form_of(rendered: Sequence[str]) -> Format | None:
    """The format in which one of these texts is a call of what was tried."""
    name, arguments = _TRIED
    for text in rendered:
        for form in FORMATS.values():
            reader = ToolParser(form, {name: {}})
            parts = [*reader.push(text), *reader.finish()]
            told = [part.text for part in parts if part.kind == "arguments"]
            if len(told) == 1 and json.loads(told[0]) == arguments:
                return form
    return None


def _arguments(call: FunctionCall) -> Any:
    """A call's arguments as an object; as they stand where they are none that a prompt may have."""
    try:
        value = decode_json(call.arguments.encode())
    except (ApiError, UnicodeError):
        return call.arguments
    return value if isinstance(value, dict) and not is_too_deep(value) else call.arguments


def _object(call: FunctionCall) -> dict[str, Any]:
    arguments = _arguments(call)
    return arguments if isinstance(arguments, dict) else {}


def _short_id(call_id: str) -> str:
    """An id of nine letters or digits, which some templates insist on."""
    if len(call_id) == 9 and call_id.isascii() and call_id.isalnum():
        return call_id
    return blake2b(call_id.encode(errors="replace"), digest_size=8).hexdigest()[:9]
